//! The HTTP adapter, an axum service: the API under `/v1`, its documentation, two pages for people, and the probes.
//!
//! A request passes `observe` (the one middleware), its route, the extractors of its handler, and the handler. Reading
//! order: the routers below, `api/pets` (the operations), `middleware/client` (authentication), `middleware/observe`,
//! `error` (every error response), then `server` (connections, timeouts, and the limits for slow or silent peers).

mod admin;
mod api;
mod app_state;
mod error;
mod fallback;
mod middleware;
mod operations;
mod pages;
mod server;
mod settings;

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
};

use application::Health;
use axum::{
    Router,
    handler::Handler,
    http::{HeaderMap, HeaderValue},
    middleware::from_fn_with_state,
    routing::{MethodRouter, any},
};
use futures_util::future::BoxFuture;
use tokio::net::TcpListener;

pub use api::openapi::{API_VERSION, document};
pub use app_state::AppState;
pub use middleware::{
    client_address::TrustedProxy,
    cors::{Origin, Origins},
};
pub use server::{ListenerSettings, Tls, TlsError, listen};
pub use settings::{ContactUrl, HttpSettings, InvalidSetting, ServerUrl};

use admin::{log, metrics, probes};
use api::{orders, pets};
use middleware::{client::has_valid_key, framing::require_local_host, observe::observe};

/// The public listener. Every path under `/v1` needs a key, those that do not exist included.
fn public(state: &Arc<AppState>) -> Router {
    let operation = || any(fallback::api_method_not_allowed);
    Router::new()
        .route("/v1/pets", operation().get(pets::list).post(pets::create))
        .route("/v1/pets/{petId}", operation().get(pets::get))
        .route("/v1/store/orders", operation().get(orders::list))
        .merge(rest_of_api(any(fallback::api_not_found)))
        .merge(probes(has_valid_key))
        .merge(pages::docs(document(&state.settings), &state.settings))
        .merge(pages::inventory(&state.settings))
        .fallback(fallback::unknown)
        .layer(from_fn_with_state((state.clone(), state.settings.origins.clone()), observe))
        .with_state(state.clone())
}

/// The admin listener. `/log` shows everything, so it needs a key everywhere; metrics only when other machines can
/// connect.
fn admin(state: &Arc<AppState>, address: IpAddr) -> Router {
    let without_key = pages::admin().merge(probes(|_, _| true));
    let without_key = if address.is_loopback() {
        without_key
            .route("/metrics", get_only(metrics::show))
            .layer(from_fn_with_state(state.clone(), require_local_host))
    } else {
        without_key.route("/metrics", get_only(metrics::show_with_key))
    };
    without_key
        .route("/log", get_only(log::show))
        .merge(rest_of_api(any(fallback::admin_api_not_found)))
        .fallback(fallback::admin_not_found)
        .layer(from_fn_with_state((state.clone(), Origins::default()), observe))
        .with_state(state.clone())
}

fn probes(may_see_position: fn(&AppState, &HeaderMap) -> bool) -> Router<Arc<AppState>> {
    let ready = |obstacle| get_only(probes::ready(obstacle, may_see_position));
    Router::new()
        .route("/livez", get_only(probes::live))
        .route("/readyz", ready(Health::not_ready))
        .route("/readyz/reads", ready(Health::not_ready_for_reads))
        .route("/readyz/writes", ready(Health::not_ready_for_writes))
}

/// Everything else under `/v1`. `{*rest}` does not match an empty rest.
fn rest_of_api(not_found: MethodRouter<Arc<AppState>>) -> Router<Arc<AppState>> {
    Router::new()
        .route("/v1", not_found.clone())
        .route("/v1/", not_found.clone())
        .route("/v1/{*rest}", not_found)
}

/// A path outside `/v1`: `GET`, `HEAD` and `OPTIONS`, for clients with and without a key.
fn get_only<T: 'static>(handler: impl Handler<T, Arc<AppState>>) -> MethodRouter<Arc<AppState>> {
    any(fallback::method_not_allowed).get(handler)
}

/// A header value of digits and plain words.
fn header_value(text: String) -> HeaderValue {
    HeaderValue::try_from(text).expect("plain ASCII is valid in a header")
}

/// Serves the public listener until `shutdown` completes, then finishes requests in flight within [`ListenerSettings::drain`].
pub fn serve(
    listener: TcpListener,
    state: Arc<AppState>,
    settings: ListenerSettings,
    shutdown: BoxFuture<'static, ()>,
) -> BoxFuture<'static, ()> {
    let router = public(&state);
    Box::pin(server::run("public", listener, router, state, settings, shutdown))
}

/// Serves probes, metrics and the log on the admin listener, like [`serve`].
pub fn serve_admin(
    listener: TcpListener,
    state: Arc<AppState>,
    settings: ListenerSettings,
    shutdown: BoxFuture<'static, ()>,
) -> BoxFuture<'static, ()> {
    let address = listener.local_addr().map_or(Ipv4Addr::UNSPECIFIED.into(), |address| address.ip());
    let router = admin(&state, address);
    let ending = state.clone();
    let shutdown = Box::pin(async move {
        shutdown.await;
        ending.ending.send_replace(true);
    });
    Box::pin(server::run("admin", listener, router, state, settings, shutdown))
}
