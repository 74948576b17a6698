//! The probes: `/livez` reports whether the process should keep running, `/readyz` whether it should get traffic, and if
//! not, why; `/readyz/reads` and `/readyz/writes` report it for one kind of request. On the public listener they reveal no
//! paths, hosts or system errors, and show the position of the log only to clients with a key.

use std::sync::Arc;

use application::{
    Health,
    ports::{Fault, LogError},
};
use axum::{
    Extension,
    extract::State,
    http::{HeaderMap, header::CONTENT_TYPE},
    response::{IntoResponse as _, Response},
};
use serde::Serialize;
use serde_json::{Value, json};

use crate::http::{
    app_state::AppState,
    error::{JSON, not_ready},
    request_context::RequestContext,
};

const READY: &str = "ready";

#[derive(Default, Serialize)]
struct Report {
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    engine: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    durability: Option<Value>,
    /// The last applied position.
    #[serde(skip_serializing_if = "Option::is_none")]
    position: Option<u64>,
    /// The head of the log, during a replay or if the log lacks that position.
    #[serde(skip_serializing_if = "Option::is_none")]
    head: Option<u64>,
}

/// `GET /livez`: 503 when a part of the service has ended that only a restart brings back.
pub(crate) async fn live(State(state): State<Arc<AppState>>) -> Response {
    if state.opened().is_some_and(|store| store.health().needs_restart()) {
        let reason = Some(Fault::Stopped.to_string());
        let report = Report { status: "stopped", reason, ..Report::default() };
        return respond(&report, Some(Fault::Stopped));
    }
    ([(CONTENT_TYPE, JSON)], r#"{"status":"alive"}"#).into_response()
}

/// `GET /readyz` and its two parts. `obstacle` finds the reason why a node is not ready; `may_see_position` decides
/// whether a client may see the position of the log.
pub(crate) fn ready(
    obstacle: fn(&Health) -> Option<&LogError>,
    may_see_position: fn(&AppState, &HeaderMap, &RequestContext) -> bool,
    State(state): State<Arc<AppState>>,
    Extension(context): Extension<Arc<RequestContext>>,
    headers: &HeaderMap,
) -> Response {
    let store = state.opened();
    let fault = store.and_then(|store| obstacle(&store.health()).map(|error| error.fault));
    let status = match (state.is_draining(), store, fault) {
        (true, _, _) => "draining",
        (false, None, _) => "starting",
        (false, Some(_), Some(_)) => "unavailable",
        (false, Some(_), None) => READY,
    };
    let durability = store.map(|store| store.log().durability());
    let (replayed, head) = *state.replay.borrow();
    let (position, head) = match store {
        Some(store) => (store.log_position().position, store.rejected_head()),
        None => (replayed, Some(head)),
    };
    let is_shown = may_see_position(&state, headers, &context);
    let report = Report {
        status,
        reason: fault.map(|fault| fault.to_string()),
        engine: durability.as_ref().map(|durability| durability.engine),
        durability: durability.map(|it| json!({ "level": it.level.name(), "promise": it.promise })),
        position: is_shown.then_some(position.0),
        head: head.filter(|_| is_shown).map(|head| head.0),
    };
    respond(&report, fault)
}

fn respond(report: &Report, fault: Option<Fault>) -> Response {
    let json = serde_json::to_vec(report).expect("texts and numbers are always JSON");
    if report.status == READY {
        ([(CONTENT_TYPE, JSON)], json).into_response()
    } else {
        not_ready(json, fault)
    }
}
