//! The query string of a list, and the link to the next page.

use application::{Limit, ListPets};
use axum::http::HeaderValue;
use domain::{PetId, PetStatus};

use super::{number, read_once};
use crate::http::header_value;

/// The page that a query asks for, or every error of the query: axum's `Query` would stop at the first one.
pub(super) fn parse(query: &str) -> Result<ListPets, String> {
    let given = |name| {
        let parameters = form_urlencoded::parse(query.as_bytes()).filter(move |(given, _)| given == name);
        parameters.map(|(_, value)| value)
    };
    let mut errors = Vec::new();
    let limit = read_once("limit", given("limit"), &mut errors, |text| limit(&text));
    let status = read_once("status", given("status"), &mut errors, |text| status(&text));
    let after = read_once("after", given("after"), &mut errors, |text| after(&text));
    if !errors.is_empty() {
        return Err(errors.join("; "));
    }
    Ok(ListPets { limit: limit.unwrap_or_default(), status, after: after.flatten() })
}

/// The link to the page after `after`, with the same filter and size.
pub(crate) fn next_page(list: &ListPets, after: PetId) -> HeaderValue {
    let (mut limit, mut id) = (itoa::Buffer::new(), itoa::Buffer::new());
    let (limit, id) = (limit.format(list.limit.get()), id.format(after.get()));
    let (parameter, status) = list.status.map_or(("", ""), |status| ("&status=", status.as_str()));
    let link = ["</v1/pets?limit=", limit, parameter, status, "&after=", id, ">; rel=\"next\""];
    header_value(link.concat())
}

fn limit(text: &str) -> Result<Limit, String> {
    let limit = number::plain(text).and_then(|limit| usize::try_from(limit).ok());
    let rule = || format!("must be an integer between {} and {}", Limit::MIN, Limit::MAX);
    limit.and_then(Limit::new).ok_or_else(rule)
}

fn status(text: &str) -> Result<PetStatus, String> {
    text.parse().map_err(str::to_owned)
}

/// 0 is before the first pet.
fn after(text: &str) -> Result<Option<PetId>, String> {
    let id = number::plain(text).and_then(|id| i64::try_from(id).ok());
    let id = id.ok_or_else(|| format!("must be an integer between 0 and {}", i64::MAX))?;
    Ok(PetId::new(id).ok())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn list(limit: usize, status: Option<PetStatus>, after: Option<i64>) -> ListPets {
        let after = after.map(|id| PetId::new(id).unwrap());
        ListPets { limit: Limit::new(limit).unwrap(), status, after }
    }

    #[test]
    fn valid_queries_are_parsed() {
        let cases = [
            ("", list(20, None, None)),
            ("limit=1", list(1, None, None)),
            ("limit=100&status=sold&after=41", list(100, Some(PetStatus::Sold), Some(41))),
            ("after=0", list(20, None, None)),
            ("after=9223372036854775807", list(20, None, Some(i64::MAX))),
            ("%6cimit=%35", list(5, None, None)),
            ("page=2&page=3&&Limit=7&=&x", list(20, None, None)),
        ];
        for (query, expected) in cases {
            assert_eq!(parse(query), Ok(expected), "{query:?}");
        }
    }

    #[test]
    fn one_message_names_every_error() {
        const STATUS: &str = "status must be one of available, pending, sold";
        const LIMIT: &str = "limit must be an integer between 1 and 100";
        const AFTER: &str = "after must be an integer between 0 and 9223372036854775807";
        assert_eq!(
            parse("limit=0&status=x&after=y&page=2").unwrap_err(),
            "limit must be an integer between 1 and 100; status must be one of available, pending, sold; \
             after must be an integer between 0 and 9223372036854775807"
        );
        for (query, rule) in [
            ("limit=0", LIMIT),
            ("limit=101", LIMIT),
            ("limit=", LIMIT),
            ("limit", LIMIT),
            ("limit=+5", LIMIT),
            ("limit=%205", LIMIT),
            ("limit=05", LIMIT),
            ("limit=1e1", LIMIT),
            ("limit=99999999999999999999", LIMIT),
            ("limit=5&limit=5", "limit must be given only once"),
            ("status=SOLD", STATUS),
            ("status=sold,pending", STATUS),
            ("status=%ff", STATUS),
            ("status=sold&status=sold", "status must be given only once"),
            ("after=-1", AFTER),
            ("after=00", AFTER),
            ("after=9223372036854775808", AFTER),
            ("after=1&x&after=1", "after must be given only once"),
        ] {
            assert_eq!(parse(query), Err(rule.to_owned()), "{query}");
        }
    }

    proptest! {
        #[test]
        fn the_link_leads_to_the_page_after_it(
            limit in 1_usize..=100,
            filter in prop::sample::select(ListPets::every_filter()),
            last in 1_i64..,
        ) {
            let (list, last) = (ListPets { limit: Limit::new(limit).unwrap(), ..filter }, PetId::new(last).unwrap());
            let link = next_page(&list, last);
            let target = link.to_str().unwrap().split_once("</v1/pets?").unwrap().1;
            let query = target.split_once('>').unwrap().0;
            prop_assert_eq!(parse(query), Ok(ListPets { after: Some(last), ..list }));
        }

        #[test]
        fn no_query_makes_it_panic(query in "\\PC{0,60}|(limit|after|status|=|&|%|[0-9]){0,12}") {
            let _ = parse(&query);
        }
    }
}
