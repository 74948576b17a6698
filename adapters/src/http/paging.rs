//! Pages: what the query string of a list may contain, and the link to the next page.

use std::borrow::Cow;

use application::{Limit, LimitOutOfRange, ListPets};
use axum::http::HeaderValue;
use domain::{PetId, PetStatus, UnknownPetStatus};

use super::{
    field::{self, Field},
    header_value::ValueWriter,
    number,
};

/// What a query string may name.
pub(super) const PARAMETERS: &[&str] = &["limit", "status", "after"];

/// Reads the query string. The error names every fault and is fit for the client.
pub(super) fn parse(query: Option<&str>) -> Result<ListPets, String> {
    let (mut limits, mut statuses, mut afters) = (Field::Absent, Field::Absent, Field::Absent);
    for_each_pair(query.unwrap_or_default(), |name, value| match name {
        "limit" => limits.give(value),
        "status" => statuses.give(value),
        "after" => afters.give(value),
        _ => {}
    });
    let limit = limits.read("limit", |text| limit(text));
    let status = statuses.read("status", |text| status(text));
    let after = afters.read("after", |text| after(text));
    match (limit, status, after) {
        (Ok(limit), Ok(status), Ok(after)) => {
            Ok(ListPets { limit: limit.unwrap_or(Limit::DEFAULT), status, after: after.flatten() })
        }
        (limit, status, after) => Err(field::faults([limit.err(), status.err(), after.err()])),
    }
}

/// The link to the page after `after`, with the same filter and size.
pub(super) fn next(list: &ListPets, after: PetId) -> HeaderValue {
    let mut link = ValueWriter::new();
    link.text("</v1/pets?limit=").decimal(list.limit.get());
    if let Some(status) = list.status {
        link.text("&status=").text(status.as_str());
    }
    link.text("&after=").decimal(after.get()).text(">; rel=\"next\"").value()
}

/// Takes a query string apart as forms are encoded. Without anything encoded in it, which is the rule, that is two
/// splits.
fn for_each_pair<'a>(query: &'a str, mut take: impl FnMut(&str, Cow<'a, str>)) {
    if query.bytes().any(|byte| matches!(byte, b'%' | b'+')) {
        return form_urlencoded::parse(query.as_bytes()).for_each(|(name, value)| take(&name, value));
    }
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        take(name, value.into());
    }
}

fn limit(text: &str) -> Result<Limit, String> {
    let limit = number::plain(text).and_then(|limit| usize::try_from(limit).ok());
    limit.ok_or(LimitOutOfRange).and_then(Limit::new).map_err(|rule| rule.to_string())
}

fn status(text: &str) -> Result<PetStatus, String> {
    text.parse().map_err(|rule: UnknownPetStatus| rule.to_string())
}

/// 0 stands before the first pet.
fn after(text: &str) -> Result<Option<PetId>, String> {
    let id = number::plain(text).and_then(|id| i64::try_from(id).ok());
    let id = id.ok_or_else(|| format!("must be an integer between 0 and {}", i64::MAX))?;
    Ok(PetId::new(id).ok())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::http::bad_requests::QUERIES;

    fn list(limit: usize, status: Option<PetStatus>, after: Option<i64>) -> ListPets {
        let after = after.map(|id| PetId::new(id).unwrap());
        ListPets { limit: Limit::new(limit).unwrap(), status, after }
    }

    #[test]
    fn valid_queries_are_parsed() {
        let cases = [
            (None, list(20, None, None)),
            (Some(""), list(20, None, None)),
            (Some("limit=1"), list(1, None, None)),
            (Some("limit=100&status=sold&after=41"), list(100, Some(PetStatus::Sold), Some(41))),
            (Some("after=0"), list(20, None, None)),
            (Some("after=9223372036854775807"), list(20, None, Some(i64::MAX))),
            (Some("%6cimit=%35"), list(5, None, None)),
            (Some("page=2&page=3&&Limit=7&=&x"), list(20, None, None)),
        ];
        for (query, expected) in cases {
            assert_eq!(parse(query), Ok(expected), "{query:?}");
        }
    }

    #[test]
    fn errors_name_the_parameter_and_the_rule() {
        for (query, message) in QUERIES {
            assert_eq!(parse(Some(query)), Err((*message).into()), "{query}");
        }
    }

    #[test]
    fn one_message_names_every_error() {
        assert_eq!(
            parse(Some("limit=0&status=x&after=y")).unwrap_err(),
            "limit must be an integer between 1 and 100; status must be one of available, pending, sold; \
             after must be an integer between 0 and 9223372036854775807"
        );
    }

    #[test]
    fn the_link_keeps_filter_and_size() {
        let after = PetId::new(41).unwrap();
        let link = next(&list(20, Some(PetStatus::Sold), None), after);
        assert_eq!(link, r#"</v1/pets?limit=20&status=sold&after=41>; rel="next""#);
        let link = next(&list(5, None, Some(7)), after);
        assert_eq!(link, r#"</v1/pets?limit=5&after=41>; rel="next""#);
    }

    proptest! {
        #[test]
        fn a_query_is_taken_apart_as_forms_are_encoded(query in "[a-c=&;+%20.\u{e4}]{0,16}") {
            let mut pairs = Vec::new();
            for_each_pair(&query, |name, value| pairs.push((name.to_owned(), value.into_owned())));
            let expected: Vec<_> = form_urlencoded::parse(query.as_bytes()).into_owned().collect();
            prop_assert_eq!(pairs, expected);
        }

        #[test]
        fn the_link_leads_to_the_page_after_it(
            limit in 1_usize..=100,
            status in prop::option::of(prop::sample::select(PetStatus::ALL.to_vec())),
            last in 1_i64..,
        ) {
            let link = next(&list(limit, status, None), PetId::new(last).unwrap());
            let target = link.to_str().unwrap().split_once("</v1/pets?").unwrap().1;
            let query = target.split_once('>').unwrap().0;
            prop_assert_eq!(parse(Some(query)), Ok(list(limit, status, Some(last))));
        }

        #[test]
        fn no_query_makes_it_panic(query in "\\PC{0,60}|(limit|after|status|=|&|%|[0-9]){0,12}") {
            let _ = parse(Some(&query));
        }
    }
}
