//! The probes: `/livez` reports whether the process should keep running, `/readyz` whether it should get traffic, and if
//! not, why; `/readyz/reads` and `/readyz/writes` report it for one kind of request. On the public listener they reveal no
//! paths, hosts or system errors, and show the position of the log only to clients with a key.

use std::{
    future::{self, Ready},
    sync::Arc,
};

use application::{
    Health, PetStore,
    ports::{Durability, DurabilityLevel, Fault, LogError},
};
use axum::{
    extract::State,
    http::{HeaderMap, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use serde::Serialize;

use crate::http::{
    error::{JSON, not_ready},
    middleware::client::has_valid_key,
    service::Service,
};

/// The status of a node that is ready.
const READY: &str = "ready";

/// The body of a readiness probe.
#[derive(Serialize)]
struct Report {
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(flatten)]
    engine: Option<EngineReport>,
    #[serde(flatten)]
    progress: Option<Progress>,
}

#[derive(Serialize)]
struct EngineReport {
    engine: &'static str,
    durability: Promise,
}

#[derive(Serialize)]
struct Promise {
    level: DurabilityLevel,
    promise: String,
}

/// The last applied position, and the head of the log during a replay or if the log lacks that position. Shown to operators
/// and to clients with a key.
#[derive(Serialize)]
struct Progress {
    position: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    head: Option<u64>,
}

/// `GET /livez`: 503 when a part of the service has ended that only a restart brings back.
pub(crate) async fn live(State(service): State<Arc<Service>>) -> Response {
    if service.opened().is_some_and(|store| store.health().needs_restart()) {
        let reason = Some(Fault::Stopped.to_string());
        return Report { status: "stopped", reason, engine: None, progress: None }.into_response();
    }
    ([(CONTENT_TYPE, JSON)], r#"{"status":"alive"}"#).into_response()
}

/// Finds the reason why a node is not ready.
type Obstacle = fn(&Health) -> Option<&LogError>;

/// Who may see the position of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Audience {
    Everyone,
    ClientsWithKey,
}

/// `GET /readyz` and its two parts.
pub(crate) fn ready(
    obstacle: Obstacle,
    position: Audience,
) -> impl Fn(State<Arc<Service>>, HeaderMap) -> Ready<Response> + Clone {
    move |State(service), headers| {
        let mut report = Report::of(&service, obstacle);
        if position == Audience::ClientsWithKey && !has_valid_key(&service, &headers) {
            report.progress = None;
        }
        future::ready(report.into_response())
    }
}

impl Report {
    fn of(service: &Service, obstacle: Obstacle) -> Self {
        let store = service.opened();
        let reason = store.and_then(|store| obstacle(&store.health()).map(|error| error.fault.to_string()));
        let status = match (service.is_draining(), store, &reason) {
            (true, _, _) => "draining",
            (false, None, _) => "starting",
            (false, Some(_), Some(_)) => "unavailable",
            (false, Some(_), None) => READY,
        };
        let progress = match store {
            Some(store) => Progress {
                position: store.version().position.0,
                head: store.rejected_head().map(|head| head.0),
            },
            None => Progress { position: service.replay.position().0, head: Some(service.replay.head().0) },
        };
        Self { status, reason, engine: store.map(EngineReport::of), progress: Some(progress) }
    }
}

impl EngineReport {
    fn of(store: &PetStore) -> Self {
        let Durability { engine, level, promise, .. } = store.durability();
        Self { engine, durability: Promise { level, promise } }
    }
}

impl IntoResponse for Report {
    fn into_response(self) -> Response {
        let json = serde_json::to_vec(&self).expect("texts and a number are always JSON");
        if self.status == READY { ([(CONTENT_TYPE, JSON)], json).into_response() } else { not_ready(json) }
    }
}
