//! The `Prefer` header (RFC 7240): with `handling=strict`, an unknown query parameter or field is an error; otherwise it is
//! ignored.

use std::collections::BTreeSet;

use axum::{
    extract::FromRequestParts,
    http::{HeaderMap, HeaderName, HeaderValue, request::Parts},
};

use crate::http::{error::ApiError, middleware::observe::RequestContext};

const PREFER: HeaderName = HeaderName::from_static("prefer");

/// Marks the response to a strict request.
pub(crate) const STRICT_APPLIED: (HeaderName, HeaderValue) =
    (HeaderName::from_static("preference-applied"), HeaderValue::from_static("handling=strict"));

/// The most unknown names in a message, and the most characters of each.
const NAMES_MAX: usize = 5;
const NAME_CHARS_MAX: usize = 40;

/// How similar two names must be, from 0 to 1, for one to be taken for a misspelling of the other.
const SIMILAR: f64 = 0.8;

/// The treatment of unknown names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Handling {
    Lenient,
    Strict,
}

/// Rejects the query parameters of an operation that has none, if the client is strict.
pub(crate) struct NoQuery;

impl<S: Sync> FromRequestParts<S> for NoQuery {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let query = parts.uri.query().unwrap_or_default();
        let handling = RequestContext::of(&parts.extensions).handling;
        handling.check_query(query, &[]).map_err(ApiError::invalid)?;
        Ok(Self)
    }
}

impl Handling {
    /// The preference of a client. If it is given twice, the first one counts.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let lists = headers.get_all(PREFER).iter().filter_map(|value| value.to_str().ok());
        let handling = lists.flat_map(|list| list.split(',')).find_map(|preference| {
            let (name, value) = preference.split(';').next()?.split_once('=')?;
            name.trim().eq_ignore_ascii_case("handling").then(|| value.trim().trim_matches('"'))
        });
        if handling.is_some_and(|handling| handling.eq_ignore_ascii_case("strict")) {
            Self::Strict
        } else {
            Self::Lenient
        }
    }

    /// Checks the names in a query string.
    pub(crate) fn check_query(self, query: &str, known: &[&str]) -> Result<(), String> {
        let names = form_urlencoded::parse(query.as_bytes()).map(|(name, _)| name);
        self.check("query parameter", names, known)
    }

    /// Checks names of a `kind`. The error lists the unknown ones, each with the known name that was probably meant.
    pub(crate) fn check(
        self,
        kind: &str,
        names: impl IntoIterator<Item = impl AsRef<str>>,
        known: &[&str],
    ) -> Result<(), String> {
        if self == Self::Lenient {
            return Ok(());
        }
        let names = names.into_iter().filter(|name| !known.contains(&name.as_ref()));
        let unknown: BTreeSet<_> = names.map(|name| name.as_ref().to_owned()).collect();
        let mut faults: Vec<_> =
            unknown.iter().take(NAMES_MAX).map(|name| fault(kind, name, known)).collect();
        if faults.is_empty() {
            return Ok(());
        }
        if unknown.len() > NAMES_MAX {
            faults.push(format!("and {} more", unknown.len() - NAMES_MAX));
        }
        Err(faults.join("; "))
    }
}

fn fault(kind: &str, name: &str, known: &[&str]) -> String {
    let shown: String = name.chars().take(NAME_CHARS_MAX).collect();
    let rule = match nearest(&shown, known.iter().copied(), SIMILAR) {
        Some(nearest) => format!("did you mean {nearest}?"),
        None if known.is_empty() => "this operation has none".into(),
        None => format!("it must be one of {}", known.join(", ")),
    };
    format!("{kind} {shown} is unknown: {rule}")
}

/// The known name that is most similar to `name`, if it is more similar than this, from 0 to 1.
pub(crate) fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>, similar: f64) -> Option<&'a str> {
    let name = name.to_lowercase();
    let rated = known.map(|known| (strsim::jaro_winkler(&name, &known.to_lowercase()), known));
    let nearest = rated.max_by(|one, other| one.0.total_cmp(&other.0));
    nearest.filter(|(similarity, _)| *similarity > similar).map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handling_is_strict_for_clients_that_say_so() {
        let of = |values: &[&'static str]| {
            Handling::of(&values.iter().map(|value| (PREFER, HeaderValue::from_static(value))).collect())
        };
        for values in [
            &["handling=strict"][..],
            &["Handling=\"strict\""],
            &["return=minimal, handling = STRICT; foo=bar"],
            &["wait=1", "handling=strict"],
            &["handling=strict, handling=lenient"],
        ] {
            assert_eq!(of(values), Handling::Strict, "{values:?}");
        }
        for values in [
            &[][..],
            &[""],
            &["handling"],
            &["strict"],
            &["handling=lenient"],
            &["handling=lenient", "handling=strict"],
            &["handling=stricter"],
            &["return=minimal; handling=strict"],
        ] {
            assert_eq!(of(values), Handling::Lenient, "{values:?}");
        }
    }

    #[test]
    fn unknown_names_are_rejected_with_a_suggestion() {
        let known = ["name", "categoryId", "status"];
        let check = |names: &[&str], known: &[&str]| Handling::Strict.check("field", names, known);
        assert_eq!(check(&["status", "name"], &known), Ok(()));
        for (name, meant) in [
            ("stauts", "did you mean status?"),
            ("Name", "did you mean name?"),
            ("category_id", "did you mean categoryId?"),
            ("categoryid", "did you mean categoryId?"),
            ("colour", "it must be one of name, categoryId, status"),
            ("", "it must be one of name, categoryId, status"),
        ] {
            assert_eq!(check(&["name", name], &known), Err(format!("field {name} is unknown: {meant}")));
        }
        assert_eq!(check(&["x"], &[]), Err("field x is unknown: this operation has none".into()));
        let twice = check(&["x", "y", "x"], &[]).unwrap_err();
        assert_eq!(twice.matches("field x").count(), 1, "{twice}");
        assert_eq!(Handling::Lenient.check("field", ["x"], &known), Ok(()));
    }

    #[test]
    fn a_message_does_not_grow_with_the_request() {
        let (long, many) = ("ä".repeat(1_000), (0..1_000).map(|n| n.to_string()).collect::<Vec<_>>());
        assert!(Handling::Strict.check("field", [&*long], &["name"]).unwrap_err().chars().count() < 100);
        let message = Handling::Strict.check("field", &many, &["name"]).unwrap_err();
        assert_eq!(message.matches("is unknown").count(), NAMES_MAX);
        assert!(message.ends_with("; and 995 more"), "{message}");
        let exactly = Handling::Strict.check("field", &many[..NAMES_MAX], &["name"]).unwrap_err();
        assert!(!exactly.contains("more"), "{exactly}");
    }
}
