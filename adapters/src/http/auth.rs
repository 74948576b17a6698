//! Authentication: the API key in the `Authorization` header, and what it may do.

use std::{
    net::IpAddr,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use axum::http::{HeaderMap, Method, header::AUTHORIZATION};

use super::{client_address::Network, error::Problem, rate_limit, service::Service};
use crate::access::{Balance, Principal, Scope};

/// How a key is presented.
const SCHEME: &[u8] = b"bearer";

/// Who sent a request, and what is left of the rate limit of the key after it.
pub(super) struct Caller {
    pub(super) principal: Arc<Principal>,
    pub(super) balance: Option<Balance>,
}

/// The caller behind the key in the headers. Counts the request, but leaves it to the caller of this function to refuse one
/// that is too many.
pub(super) fn authenticate(
    service: &Service,
    headers: &HeaderMap,
    client: IpAddr,
) -> Result<Caller, Problem> {
    let caller = identify(service, headers, client).inspect_err(|problem| {
        problem.refusal().into_iter().for_each(|reason| service.metrics.record_auth_failure(reason));
    })?;
    caller.principal.usage.requests.fetch_add(1, Relaxed);
    Ok(caller)
}

fn identify(service: &Service, headers: &HeaderMap, client: IpAddr) -> Result<Caller, Problem> {
    let principal = service.keys.authenticate(bearer_token(headers)?).map_err(|refused| {
        let counted = service.wrong_keys.as_ref().map_or(Ok(()), |keys| keys.count(Network::of(client)));
        match counted {
            Ok(()) => Problem::RefusedKey(refused),
            Err(wait) => Problem::TooManyWrongKeys(rate_limit::seconds(wait), refused),
        }
    })?;
    let balance = principal.allowance.as_ref().map(|allowance| allowance.take());
    Ok(Caller { principal, balance })
}

/// Whether the key in the headers is valid. For responses that are the same otherwise: nothing is refused, but wrong keys
/// are counted here, too.
pub(super) fn is_known(service: &Service, headers: &HeaderMap) -> bool {
    let Ok(key) = bearer_token(headers) else { return false };
    let known = service.keys.authenticate(key).map_err(Problem::RefusedKey);
    let refusal = known.as_ref().err().and_then(Problem::refusal);
    if let Some(reason) = refusal {
        service.metrics.record_auth_failure(reason);
    }
    known.is_ok()
}

impl Caller {
    /// Refuses a request that is one too many for its key.
    pub(super) fn check_rate(&self) -> Result<(), Problem> {
        self.balance.map_or(Ok(()), rate_limit::check).inspect_err(|_| {
            self.principal.usage.limited.fetch_add(1, Relaxed);
        })
    }
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
    let (scheme, token) = match value.as_bytes().split_at_checked(SCHEME.len()) {
        Some((scheme, token)) if token.first() == Some(&b' ') => (scheme, token.trim_ascii()),
        Some(_) | None => return Err(Problem::MissingKey),
    };
    if !scheme.eq_ignore_ascii_case(SCHEME) || token.is_empty() {
        return Err(Problem::MissingKey);
    }
    // Looks at every byte instead of stopping at the first hit: that way, many are looked at together.
    let is_strange = |byte: u8| byte <= b' ' || byte >= 0x7f || byte == b',';
    if token.iter().fold(false, |found, byte| found | is_strange(*byte)) {
        return Err(Problem::InvalidKey);
    }
    str::from_utf8(token).map_err(|_| Problem::InvalidKey)
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
