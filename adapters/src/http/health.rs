//! The probes: `/livez` says that the process answers, `/readyz` whether it should get traffic, and why not.
//! Both are public, so they tell no paths, hosts or system errors.

use application::{
    PetStore,
    ports::{Durability, DurabilityLevel},
};
use axum::{
    http::header::CONTENT_TYPE,
    response::{IntoResponse, Response},
};
use serde::Serialize;

use super::{
    error::{JSON, not_ready},
    service::Service,
};

/// What a probe learns. The fields after `reason` are there once the store is open.
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

/// `GET /livez`: 200 as long as anything works at all.
pub(super) fn live(_: &Service) -> Response {
    Report::new("alive", None).into_ok()
}

/// `GET /readyz`: 200 when this node reads and writes as it should.
pub(super) fn ready(service: &Service) -> Response {
    let store = service.opened();
    let fault = store.and_then(|store| store.health().not_ready().map(|error| error.fault.to_string()));
    match (service.is_draining(), store, fault) {
        (true, _, fault) => not_ready(Report::new("draining", fault).of(store).json()),
        (false, None, _) => not_ready(Report::new("starting", None).json()),
        (false, Some(_), Some(fault)) => not_ready(Report::new("unavailable", Some(fault)).of(store).json()),
        (false, Some(_), None) => Report::new("ready", None).of(store).into_ok(),
    }
}

impl Report {
    fn new(status: &'static str, reason: Option<String>) -> Self {
        Self { status, reason, engine: None, durability: None, position: None }
    }

    fn of(self, store: Option<&PetStore>) -> Self {
        let Some(store) = store else { return self };
        let Durability { engine, level, promise, facts: _ } = store.durability();
        Self {
            engine: Some(engine),
            durability: Some(Promise { level: word(level), promise }),
            position: Some(store.version().position.0),
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
