//! The steps that a request under `/v1` goes through before its operation: key, scope, store, position. In this
//! order, so that nobody without a key learns which addresses exist.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use application::{PetStore, Principal, ports::Position};
use axum::{
    extract::Request,
    http::{HeaderMap, HeaderName},
};

use super::{
    auth,
    error::Problem,
    limits::POSITION_PATIENCE,
    number,
    route::{Endpoint, Lifecycle},
};

/// In a response, the last commit it shows; in a request, the commit that the response must show at least.
pub(super) const LOG_POSITION: HeaderName = HeaderName::from_static("log-position");

/// A request of a known caller to an open store.
pub(super) struct Call {
    pub(super) store: Arc<PetStore>,
    pub(super) principal: Arc<Principal>,
    pub(super) request: Request,
}

/// Whether a path belongs to the interface, existing or not.
pub(super) fn is_in_interface(path: &str) -> bool {
    path.strip_prefix("/v1").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Lets a request through to its operation. Even if it does not come that far, `authenticated` tells whether its key
/// is valid.
pub(super) async fn admit(
    endpoint: &Endpoint,
    request: Request,
    authenticated: &AtomicBool,
) -> Result<Call, Problem> {
    let service = &endpoint.service;
    let principal = auth::authenticate(service, request.headers())?;
    authenticated.store(true, Relaxed);
    tracing::Span::current().record("key", tracing::field::display(&principal.id));
    auth::authorize(&principal, request.method())?;
    match endpoint.lifecycle {
        Lifecycle::Supported => {}
        Lifecycle::Deprecated => endpoint.counts.called_by(&principal.name),
    }
    let store = service.store()?;
    if let Some(position) = requested_position(request.headers())? {
        let caught_up = store.caught_up(position, POSITION_PATIENCE).await;
        caught_up.map_err(|_| Problem::NotCaughtUp)?;
    }
    Ok(Call { store, principal, request })
}

pub(super) fn requested_position(headers: &HeaderMap) -> Result<Option<Position>, Problem> {
    let mut given = headers.get_all(LOG_POSITION).iter();
    let Some(value) = given.next() else { return Ok(None) };
    let position = value.to_str().ok().and_then(number::plain).filter(|_| given.next().is_none());
    match position {
        Some(position) => Ok(Some(Position(position))),
        None => Err(Problem::invalid("Log-Position must be a single integer of at least 0")),
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn a_position_is_one_plain_number() {
        let read = |values: &[&'static str]| {
            let headers =
                values.iter().map(|value| (LOG_POSITION, HeaderValue::from_static(value))).collect();
            requested_position(&headers)
        };
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&["0"]), Ok(Some(Position(0))));
        assert_eq!(read(&["18446744073709551615"]), Ok(Some(Position(u64::MAX))));
        for values in [&[""][..], &["x"], &["-1"], &["01"], &["1.0"], &["18446744073709551616"], &["1", "1"]]
        {
            assert!(read(values).is_err(), "{values:?}");
        }
    }
}
