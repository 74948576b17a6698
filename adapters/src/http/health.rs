//! The probes: `/livez` says that the process answers, `/readyz` whether it should get traffic, and why not.
//! Both are public, so they tell no paths, hosts or system errors.

use std::sync::Arc;

use application::{
    PetStore,
    ports::{Durability, DurabilityLevel},
};
use axum::{
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use serde::Serialize;

use super::{error::JSON, service::Service};

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
pub(super) async fn live() -> Response {
    answer(StatusCode::OK, &Report::new("alive", None))
}

/// `GET /readyz`: 200 when this node reads and writes as it should.
pub(super) async fn ready(State(service): State<Arc<Service>>) -> Response {
    let store = service.opened();
    let fault = store.and_then(|store| store.health().trouble().map(|error| error.fault.to_string()));
    let (status, report) = match (service.is_draining(), store, fault) {
        (true, _, fault) => (StatusCode::SERVICE_UNAVAILABLE, Report::new("draining", fault)),
        (false, None, _) => (StatusCode::SERVICE_UNAVAILABLE, Report::new("starting", None)),
        (false, Some(_), Some(fault)) => {
            (StatusCode::SERVICE_UNAVAILABLE, Report::new("unavailable", Some(fault)))
        }
        (false, Some(_), None) => (StatusCode::OK, Report::new("ready", None)),
    };
    answer(status, &report.of(store))
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
}

fn word(level: DurabilityLevel) -> &'static str {
    match level {
        DurabilityLevel::Volatile => "volatile",
        DurabilityLevel::Buffered => "buffered",
        DurabilityLevel::Synced => "synced",
        DurabilityLevel::Replicated => "replicated",
    }
}

fn answer(status: StatusCode, report: &Report) -> Response {
    let body = serde_json::to_vec(report).expect("texts and a number are always JSON");
    (status, [(CONTENT_TYPE, JSON)], body).into_response()
}
