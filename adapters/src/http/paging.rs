//! Pages: what the query string of a list may contain, and the link to the next page.

use std::fmt::Write as _;

use application::{Limit, LimitOutOfRange, ListPets};
use axum::http::HeaderValue;
use domain::{PetId, PetStatus, UnknownPetStatus};

use super::{
    field::{self, Field},
    number,
};

/// What a query string may name.
pub(super) const PARAMETERS: &[&str] = &["limit", "status", "after"];

/// Reads the query string. The error names every fault and is fit for the client.
pub(super) fn parse(query: Option<&str>) -> Result<ListPets, String> {
    let (mut limits, mut statuses, mut afters) = (Field::Absent, Field::Absent, Field::Absent);
    for (name, value) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
        match &*name {
            "limit" => limits.give(value),
            "status" => statuses.give(value),
            "after" => afters.give(value),
            _ => {}
        }
    }
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
    let mut link = format!("</v1/pets?limit={}", list.limit.get());
    if let Some(status) = list.status {
        link.extend(["&status=", status.as_str()]);
    }
    write!(link, "&after={}>; rel=\"next\"", after.get()).expect("a string takes everything");
    HeaderValue::try_from(link).expect("digits and plain words are fit for a header")
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
