//! Authentication: the API key in the `Authorization` header, and what it permits.
//!
//! Handlers under `/v1` get the store only from the extractor [`Client`], so none can forget to authenticate.

use std::{
    net::IpAddr,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use application::{LogPosition, PetStore};
use axum::{
    extract::FromRequestParts,
    http::{HeaderMap, Method, header::AUTHORIZATION, request::Parts},
};

use super::{
    api::log_position,
    app_state::AppState,
    error::ApiError,
    middleware::rate_limit,
    request_context::{Authenticated, RequestContext},
};
use crate::access::{Principal, Scope, Scopes, api_keys::ApiKeys};

/// The beginning of the `Authorization` header, in any case.
const SCHEME: &[u8] = b"bearer ";

impl Authenticated {
    /// Rejects a client whose key lacks a scope. The connection counts as proven only after this check.
    pub(crate) fn require(&self, scope: Scope) -> Result<(), ApiError> {
        allow(self.principal.scopes, scope)?;
        self.in_flight.prove(&self.principal.owner);
        Ok(())
    }
}

/// The authenticated client of the API: its key has the scope that the method needs, and the store is open.
pub(crate) struct Client {
    store: Arc<PetStore>,
    pub(crate) principal: Arc<Principal>,
    keys: Arc<ApiKeys>,
    /// The commit that the response must show at least.
    position: Option<LogPosition>,
}

impl Client {
    /// Returns the store when it has applied the commit that the request asks for. The body of the request must have been
    /// read before: while a request waits, its body would be held by hyper, which no limit counts.
    pub(crate) async fn store(&self) -> Result<&PetStore, ApiError> {
        if let Some(position) = self.position {
            // Boxed: few requests wait, and without the box every request would be larger.
            let caught_up = self.store.caught_up(position, &self.principal.owner, log_position::TIMEOUT);
            Box::pin(caught_up).await.map_err(|_| ApiError::NotCaughtUp)?;
        }
        Ok(&self.store)
    }

    /// Checks the key of a write again: it may have been revoked or changed, or have expired, while the body arrived.
    pub(crate) fn check_key(&self) -> Result<(), ApiError> {
        let scopes = self.keys.check(&self.principal.id).map_err(ApiError::RejectedKey)?;
        allow(scopes, Scope::Write)
    }
}

impl FromRequestParts<Arc<AppState>> for Client {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &Arc<AppState>) -> Result<Self, ApiError> {
        let authenticated = Authenticated::from_request_parts(parts, state).await?;
        if let Some(scope) = scope_of(&parts.method) {
            authenticated.require(scope)?;
        }
        let principal = authenticated.principal;
        let (store, position) = (state.store()?, log_position::requested(&parts.headers)?);
        Ok(Self { store, principal, keys: state.keys.clone(), position })
    }
}

/// Also rejects a key over its rate limit.
impl FromRequestParts<Arc<AppState>> for Authenticated {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<AppState>) -> Result<Self, ApiError> {
        let authenticated = RequestContext::of(&parts.extensions).authenticated.clone()?;
        match authenticated.balance.and_then(|balance| balance.wait) {
            Some(wait) => Err(ApiError::RateLimited(rate_limit::seconds(wait))),
            None => Ok(authenticated),
        }
    }
}

/// Authenticates a request, once, before its handler runs.
pub(crate) fn authenticate(
    state: &AppState,
    headers: &HeaderMap,
    context: &RequestContext,
) -> Result<Authenticated, ApiError> {
    let address = context.client_address;
    let principal = principal(state, headers, address)?;
    let balance = principal.allowance.as_ref().map(|allowance| allowance.take());
    principal.usage.requests.fetch_add(1, Relaxed);
    if balance.is_some_and(|balance| balance.wait.is_some()) {
        principal.usage.limited.fetch_add(1, Relaxed);
    }
    Ok(Authenticated { principal, balance, address, in_flight: context.in_flight.clone() })
}

/// Whether a request carries a valid key, for responses that show more details then. Rejects nothing, but counts invalid
/// keys.
pub(crate) fn has_valid_key(state: &AppState, headers: &HeaderMap, context: &RequestContext) -> bool {
    bearer_token(headers).is_ok() && principal(state, headers, context.client_address).is_ok()
}

/// The owner of a key. An invalid one counts against the limit of the client's address.
fn principal(state: &AppState, headers: &HeaderMap, address: IpAddr) -> Result<Arc<Principal>, ApiError> {
    let found = bearer_token(headers).and_then(|key| {
        state.keys.authenticate(key).map_err(|rejected| {
            match state.failed_auth.as_ref().map(|limit| limit.count(address)) {
                Some(Err(wait)) => ApiError::TooManyFailedKeys(rate_limit::seconds(wait), rejected),
                Some(Ok(())) | None => ApiError::RejectedKey(rejected),
            }
        })
    });
    found.inspect_err(|error| state.metrics.record_auth_failure(error))
}

/// The scope that a method needs. Methods that no route has need none: they get 405.
pub(crate) fn scope_of(method: &Method) -> Option<Scope> {
    match *method {
        Method::GET | Method::HEAD => Some(Scope::Read),
        Method::POST => Some(Scope::Write),
        _ => None,
    }
}

fn allow(scopes: Scopes, scope: Scope) -> Result<(), ApiError> {
    scopes.allow(scope).then_some(()).ok_or(ApiError::Forbidden(scope))
}

/// The one bearer token of a request. Two headers are ambiguous, so they are rejected.
fn bearer_token(headers: &HeaderMap) -> Result<&str, ApiError> {
    let mut given = headers.get_all(AUTHORIZATION).iter();
    let value = given.next().ok_or(ApiError::MissingKey)?;
    if given.next().is_some() {
        return Err(ApiError::MalformedKey);
    }
    let (scheme, token) = value.as_bytes().split_at_checked(SCHEME.len()).ok_or(ApiError::MissingKey)?;
    let token = token.trim_ascii();
    if !scheme.eq_ignore_ascii_case(SCHEME) || token.is_empty() {
        return Err(ApiError::MissingKey);
    }
    let is_valid = token.iter().all(|byte| byte.is_ascii_graphic() && *byte != b',');
    str::from_utf8(token).ok().filter(|_| is_valid).ok_or(ApiError::MalformedKey)
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
            assert_eq!(bearer_token(&headers(&[value])), Err(ApiError::MissingKey), "{value:?}");
        }
        assert_eq!(bearer_token(&headers(&[])), Err(ApiError::MissingKey));
    }

    #[test]
    fn two_tokens_are_rejected() {
        for values in [
            &["Bearer a", "Bearer a"][..],
            &["Bearer a", "Basic YTpi"],
            &["Bearer a b"],
            &["Bearer a, Bearer b"],
        ] {
            assert_eq!(bearer_token(&headers(values)), Err(ApiError::MalformedKey), "{values:?}");
        }
    }
}
