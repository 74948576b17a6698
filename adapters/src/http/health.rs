//! The probes: `/livez` says whether the process should go on, `/readyz` whether it should get traffic, and if not,
//! why; `/readyz/reads` and `/readyz/writes` say it for one kind of request. All are public, so they reveal no paths, hosts or system errors, and show the position of the log
//! only to callers with a key and to operators.

use application::{
    Health, PetStore, ReplayProgress,
    ports::{Durability, DurabilityLevel, Fault, LogError},
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

/// The one report that is not a refusal.
const READY: &str = "ready";

/// What a probe learns.
#[derive(Serialize)]
struct Report {
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(flatten)]
    store: Option<Opened>,
    #[serde(flatten)]
    replay: Option<Replay>,
}

/// How far the replay has come while the service starts, for operators and clients with a key.
#[derive(Serialize)]
struct Replay {
    position: u64,
    head: u64,
}

/// What there is to tell once the store is open.
#[derive(Serialize)]
struct Opened {
    engine: &'static str,
    durability: Promise,
    /// It tells how much the store has taken in, so it is for operators and callers with a key.
    #[serde(skip_serializing_if = "Option::is_none")]
    position: Option<u64>,
}

#[derive(Serialize)]
struct Promise {
    level: DurabilityLevel,
    promise: String,
}

/// `GET /livez`: 503 when a part of the service has ended that only a restart brings back.
pub(super) fn live(service: &Service, _: &HeaderMap) -> Response {
    if service.opened().is_some_and(|store| store.health().needs_restart()) {
        let reason = Some(Fault::Stopped.to_string());
        return Report { status: "stopped", reason, store: None, replay: None }.into_response();
    }
    ([(CONTENT_TYPE, JSON)], r#"{"status":"alive"}"#).into_response()
}

/// What keeps a node from doing what a probe asks about.
type Obstacle = fn(&Health) -> Option<&LogError>;

/// `GET /readyz`: 200 when this node reads and writes as it should.
pub(super) fn ready(service: &Service, headers: &HeaderMap) -> Response {
    answer(service, headers, Health::not_ready)
}

/// `GET /readyz/reads`: 200 when this node reads as it should.
pub(super) fn ready_for_reads(service: &Service, headers: &HeaderMap) -> Response {
    answer(service, headers, Health::not_ready_for_reads)
}

/// `GET /readyz/writes`: 200 when this node writes as it should.
pub(super) fn ready_for_writes(service: &Service, headers: &HeaderMap) -> Response {
    answer(service, headers, Health::not_ready_for_writes)
}

/// Tells everybody whether this node is ready, and callers with a key how far it has come.
fn answer(service: &Service, headers: &HeaderMap, obstacle: Obstacle) -> Response {
    let mut report = Report::of(service, obstacle);
    if !auth::is_known(service, headers) {
        report.store.iter_mut().for_each(|store| store.position = None);
        report.replay = None;
    }
    report.into_response()
}

/// The same three on the operators' listener.
pub(super) mod for_operators {
    use super::{HeaderMap, Health, IntoResponse as _, Report, Response, Service};

    pub(in super::super) fn ready(service: &Service, _: &HeaderMap) -> Response {
        Report::of(service, Health::not_ready).into_response()
    }

    pub(in super::super) fn ready_for_reads(service: &Service, _: &HeaderMap) -> Response {
        Report::of(service, Health::not_ready_for_reads).into_response()
    }

    pub(in super::super) fn ready_for_writes(service: &Service, _: &HeaderMap) -> Response {
        Report::of(service, Health::not_ready_for_writes).into_response()
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
        let replay = store.is_none().then(|| Replay::of(&service.replay));
        Self { status, reason, store: store.map(Opened::of), replay }
    }
}

impl Replay {
    fn of(progress: &ReplayProgress) -> Self {
        Self { position: progress.position().0, head: progress.head().0 }
    }
}

impl Opened {
    fn of(store: &PetStore) -> Self {
        let Durability { engine, level, promise, facts: _ } = store.durability();
        let durability = Promise { level, promise };
        Self { engine, durability, position: Some(store.version().position.0) }
    }
}

impl IntoResponse for Report {
    fn into_response(self) -> Response {
        let json = serde_json::to_vec(&self).expect("texts and a number are always JSON");
        if self.status == READY { ([(CONTENT_TYPE, JSON)], json).into_response() } else { not_ready(json) }
    }
}
