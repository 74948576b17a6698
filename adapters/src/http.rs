//! The HTTP port: the pet store as a JSON interface under `/v1`, its OpenAPI document, and the probes beside it.
//!
//! Reading order: [`interface`] (the operations), `pipeline` (the steps of every request), `call` (the steps of a
//! request under `/v1`), `pets` (the operations), `new_pet` and `paging` (input), `error` (every error response),
//! `openapi` (the interface described for programs), then [`serve`] and `server` (how requests arrive, and the
//! limits for slow or silent clients).

mod admin;
mod asset;
mod auth;
#[cfg(test)]
#[path = "../../tests/bad_requests.rs"]
mod bad_requests;
mod call;
mod client_address;
mod cors;
mod deprecation;
mod docs;
mod error;
mod etag;
mod field;
mod glance;
mod header_value;
mod health;
mod idempotency;
mod inventory;
mod limits;
mod log;
mod new_pet;
mod number;
mod openapi;
mod paging;
mod pet_json;
mod pets;
mod pipeline;
mod plain_pet;
mod prefer;
mod rate_limit;
mod request_body;
mod request_id;
mod request_log;
mod route;
mod server;
mod service;
mod site;
mod wrong_keys;

use std::sync::Arc;

use crate::access::Scope;

pub use client_address::{InvalidTrustedProxy, TrustedProxy};
pub use cors::{InvalidOrigin, Origin};
pub use limits::ClientLimits;
pub use request_log::AccessLog;
pub use server::{Listener, Settings, Tls, TlsError};
pub use service::Service;
pub use site::{ContactUrl, InvalidContactUrl, InvalidServerUrl, ServerUrl, Site};

use health::for_operators;
use route::{
    Handler::{Metrics, Public, Streamed},
    MISSING,
    Operation::{Read, Write},
    Route, Router, Routers, SHEDDING,
};

/// The operations of the interface. `docs/openapi.json` describes each of them.
fn interface() -> [Route; 4] {
    [
        Route::get("/v1/pets", "listPets", Read(pets::list)).with_parameters(paging::PARAMETERS),
        Route::post("/v1/pets", "createPet", Write(pets::create)),
        Route::get("/v1/pets/{petId}", "getPet", Read(pets::get)).deprecated(),
        Route::get("/v1/store/orders", "listOrders", Read(pets::orders)),
    ]
}

/// The probes on the public listener.
fn probes() -> [Route; 4] {
    [
        Route::get("/livez", "observe", Public(health::live)),
        Route::get("/readyz", "observe", Public(health::ready)),
        Route::get("/readyz/reads", "observe", Public(health::ready_for_reads)),
        Route::get("/readyz/writes", "observe", Public(health::ready_for_writes)),
    ]
}

/// Who can connect to the operators' listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    ThisMachine,
    /// Metrics tell how much is sold, and by whom: they need a key there.
    OtherMachines,
}

/// The log on the operators' listener. It shows everything, so it needs a key everywhere.
fn log_route() -> Route {
    Route::get("/log", "log", Streamed(Scope::Log, log::show))
}

/// The probes and metrics on the operators' listener.
fn operators_routes(reach: Reach) -> [Route; 5] {
    let metrics = match reach {
        Reach::ThisMachine => Metrics(None),
        Reach::OtherMachines => Metrics(Some(Scope::Metrics)),
    };
    [
        Route::get("/livez", "observe", Public(health::live)),
        Route::get("/readyz", "observe", Public(for_operators::ready)),
        Route::get("/readyz/reads", "observe", Public(for_operators::ready_for_reads)),
        Route::get("/readyz/writes", "observe", Public(for_operators::ready_for_writes)),
        Route::get("/metrics", "observe", metrics),
    ]
}

/// The interface as an OpenAPI document.
pub fn document(site: &Site) -> String {
    openapi::document(&interface(), site)
}

/// Serves until `shutdown` is done, then finishes what is in flight within [`Settings::drain`].
pub async fn serve(
    listener: Listener,
    service: Arc<Service>,
    settings: Settings,
    shutdown: impl Future<Output = ()>,
) {
    server::run(listener, public_routers(&service), service, settings, shutdown).await;
}

/// Serves probes, metrics and the log to operators, on a listener of their own.
pub async fn serve_operators(
    listener: Listener,
    service: Arc<Service>,
    settings: Settings,
    shutdown: impl Future<Output = ()>,
) {
    let local = listener.tcp.local_addr().is_ok_and(|address| address.ip().is_loopback());
    let reach = if local { Reach::ThisMachine } else { Reach::OtherMachines };
    let told = service.clone();
    let shutdown = async move {
        shutdown.await;
        told.end_streams();
    };
    server::run(listener, operators_routers(reach, &service), service, settings, shutdown).await;
}

fn public_routers(service: &Arc<Service>) -> Routers {
    let docs = docs::routes(document(&service.site), &service.site);
    let pages = docs.into_iter().chain(inventory::routes(&service.site));
    Routers {
        listener: "public",
        serving: Router::new(interface().into_iter().chain(probes()).chain(pages), MISSING, service),
        shedding: Router::new(probes(), SHEDDING, service),
    }
}

fn operators_routers(reach: Reach, service: &Arc<Service>) -> Routers {
    let rows = operators_routes(reach).into_iter();
    Routers {
        listener: "operators",
        serving: Router::new(rows.chain([log_route()]).chain(glance::routes()), MISSING, service),
        shedding: Router::new(operators_routes(reach), SHEDDING, service),
    }
}
