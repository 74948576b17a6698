//! Authentication: the API key in the `Authorization` header, and what it may do.

use std::sync::Arc;

use application::{Principal, Scope};
use axum::http::{HeaderMap, Method, header::AUTHORIZATION};

use super::{error::Problem, service::Service};

/// The caller behind the key in the headers.
pub(super) fn authenticate(service: &Service, headers: &HeaderMap) -> Result<Arc<Principal>, Problem> {
    service.keys.authenticate(bearer_token(headers)?).map_err(|refused| {
        service.refused_keys.log(&refused);
        Problem::InvalidKey
    })
}

/// Refuses a caller whose key is not for this kind of request.
pub(super) fn authorize(principal: &Principal, method: &Method) -> Result<(), Problem> {
    scope_of(method).map_or(Ok(()), |scope| require(principal, scope))
}

/// Refuses a caller whose key lacks this scope.
pub(super) fn require(principal: &Principal, scope: Scope) -> Result<(), Problem> {
    if principal.scopes.allow(scope) { Ok(()) } else { Err(Problem::Forbidden(scope)) }
}

/// What a method needs. Methods that do nothing here need nothing: they are told so by the router.
pub(super) fn scope_of(method: &Method) -> Option<Scope> {
    match *method {
        Method::GET | Method::HEAD => Some(Scope::Read),
        Method::POST => Some(Scope::Write),
        _ => None,
    }
}

/// The one bearer token of a request. With two headers there is no telling which one counts.
fn bearer_token(headers: &HeaderMap) -> Result<&str, Problem> {
    let mut given = headers.get_all(AUTHORIZATION).iter();
    let value = given.next().ok_or(Problem::MissingKey)?;
    if given.next().is_some() {
        return Err(Problem::InvalidKey);
    }
    let value = value.to_str().map_err(|_| Problem::InvalidKey)?;
    let (scheme, token) = value.split_once(' ').unwrap_or((value, ""));
    let token = token.trim_matches(' ');
    if !scheme.eq_ignore_ascii_case("bearer") || token.is_empty() {
        return Err(Problem::MissingKey);
    }
    let separates = |byte| matches!(byte, b' ' | b'\t' | b',');
    if token.bytes().any(separates) { Err(Problem::InvalidKey) } else { Ok(token) }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn headers(values: &[&'static str]) -> HeaderMap {
        values.iter().map(|value| (AUTHORIZATION, HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn the_scheme_is_case_insensitive_and_the_token_is_not_touched() {
        for value in ["Bearer aB.c_1", "bearer aB.c_1", "BEARER aB.c_1", "Bearer   aB.c_1"] {
            assert_eq!(bearer_token(&headers(&[value])), Ok("aB.c_1"), "{value}");
        }
    }

    #[test]
    fn without_a_bearer_token_the_key_is_missing() {
        for value in ["", "Bearer", "Bearer ", "Basic YTpi", "aB.c_1", "Bearer\taB.c_1", "BearerX a"] {
            assert_eq!(bearer_token(&headers(&[value])), Err(Problem::MissingKey), "{value:?}");
        }
        assert_eq!(bearer_token(&headers(&[])), Err(Problem::MissingKey));
    }

    #[test]
    fn two_tokens_are_rejected() {
        for values in [
            &["Bearer a", "Bearer a"][..],
            &["Bearer a", "Basic YTpi"],
            &["Bearer a b"],
            &["Bearer a, Bearer b"],
        ] {
            assert_eq!(bearer_token(&headers(values)), Err(Problem::InvalidKey), "{values:?}");
        }
    }

    #[test]
    fn reading_and_writing_need_their_scopes() {
        let methods = [
            (Method::GET, Some(Scope::Read)),
            (Method::HEAD, Some(Scope::Read)),
            (Method::POST, Some(Scope::Write)),
            (Method::OPTIONS, None),
            (Method::DELETE, None),
        ];
        for (method, scope) in methods {
            assert_eq!(scope_of(&method), scope, "{method}");
        }
    }
}
