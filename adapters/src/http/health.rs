//! The probes: `/livez` says whether the process should go on, `/readyz` whether it should get traffic, and why not.
//! Both are public, so they tell no paths, hosts or system errors, and the position of the log only to callers with a
//! key and to operators.

use application::{
    PetStore,
    ports::{Durability, DurabilityLevel, Fault},
};
use axum::{
    http::{HeaderMap, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use serde::Serialize;

use super::{
    auth,
    error::{JSON, not_ready},
    service::Service,
};

/// What a probe learns. The fields after `reason` are there once the store is open, `position` only for some.
#[derive(Serialize)]
struct Report {
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    engine: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    durability: Option<Promise>,
    #[serde(skip_serializing_if = "Option::is_none")]
    position: Option<u64>,
}

#[derive(Serialize)]
struct Promise {
    level: &'static str,
    promise: String,
}

/// `GET /livez`: 503 when a part of the service has ended that only a restart brings back.
pub(super) fn live(service: &Service) -> Response {
    if service.opened().is_some_and(|store| store.health().needs_restart()) {
        return not_ready(Report::new("stopped", Some(Fault::Stopped.to_string())).json());
    }
    Report::new("alive", None).into_ok()
}

/// Who asks for a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Audience {
    Everybody,
    /// Somebody with a key, or an operator. The position tells how much the store has taken in.
    Trusted,
}

/// `GET /readyz`: 200 when this node reads and writes as it should.
pub(super) fn ready(service: &Service, headers: &HeaderMap) -> Response {
    let audience = match auth::authenticate(service, headers) {
        Ok(_) => Audience::Trusted,
        Err(_) => Audience::Everybody,
    };
    report(service, audience)
}

/// `GET /readyz` on the operators' listener.
pub(super) fn ready_for_operators(service: &Service) -> Response {
    report(service, Audience::Trusted)
}

fn report(service: &Service, audience: Audience) -> Response {
    let store = service.opened();
    let fault = store.and_then(|store| store.health().not_ready().map(|error| error.fault.to_string()));
    let report = |status, reason| Report::new(status, reason).of(store, audience);
    match (service.is_draining(), store, fault) {
        (true, _, fault) => not_ready(report("draining", fault).json()),
        (false, None, _) => not_ready(report("starting", None).json()),
        (false, Some(_), Some(fault)) => not_ready(report("unavailable", Some(fault)).json()),
        (false, Some(_), None) => report("ready", None).into_ok(),
    }
}

impl Report {
    fn new(status: &'static str, reason: Option<String>) -> Self {
        Self { status, reason, engine: None, durability: None, position: None }
    }

    fn of(self, store: Option<&PetStore>, audience: Audience) -> Self {
        let Some(store) = store else { return self };
        let Durability { engine, level, promise, facts: _ } = store.durability();
        Self {
            engine: Some(engine),
            durability: Some(Promise { level: word(level), promise }),
            position: match audience {
                Audience::Everybody => None,
                Audience::Trusted => Some(store.version().position.0),
            },
            ..self
        }
    }

    fn json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("texts and a number are always JSON")
    }

    fn into_ok(self) -> Response {
        ([(CONTENT_TYPE, JSON)], self.json()).into_response()
    }
}

fn word(level: DurabilityLevel) -> &'static str {
    match level {
        DurabilityLevel::Volatile => "volatile",
        DurabilityLevel::Buffered => "buffered",
        DurabilityLevel::Synced => "synced",
        DurabilityLevel::Replicated => "replicated",
    }
}
