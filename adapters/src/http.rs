//! The HTTP adapter, an axum service: the API under `/v1`, its documentation, two pages for people, and the probes.
//!
//! A request is routed, then passes the middleware `observe`, the extractors of its handler, and the handler. Reading
//! order: the routers below, `api/pets` (the operations), `authentication`, `middleware/observe`, `error` (every error
//! response), then `server` (connections, timeouts, and the limits for slow or silent peers).

mod admin;
mod api;
mod app_state;
mod authentication;
mod error;
mod middleware;
mod pages;
mod request_context;
mod server;
mod settings;

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
};

use application::Health;
use axum::{
    Router,
    http::{HeaderMap, HeaderValue, Method, Uri},
    middleware::from_fn_with_state,
    routing::{any, get},
};
use futures_util::{FutureExt as _, future::BoxFuture};
use tokio::net::TcpListener;

pub use api::openapi::{API_VERSION, document};
pub use app_state::AppState;
pub use server::{Tls, TlsError, listen};
pub use settings::{ContactUrl, HttpSettings, ListenerSettings, Origin, ServerUrl, TrustedProxy};

use admin::{log, metrics, probes};
use api::pets;
use authentication::{Client, has_valid_key};
use error::ApiError;
use middleware::{framing::require_local_host, observe::observe};
use request_context::{RequestContext, RouteGroup};

/// The methods that the routes have. Web pages may use them, and every other method is one value in the metrics.
static METHODS: [Method; 3] = [Method::GET, Method::HEAD, Method::POST];

/// The public listener. Every path under `/v1` needs a key, even one that does not exist.
fn public(state: &Arc<AppState>) -> Router {
    let api = Router::new()
        .route("/v1/pets", get(pets::list).post(pets::create))
        .route("/v1/pets/{petId}", get(pets::get))
        .route("/v1/store/orders", get(async |_: Client| ApiError::NotImplemented))
        .method_not_allowed_fallback(async |_: Client| ApiError::MethodNotAllowed)
        .nest("/v1", Router::new().fallback(api_not_found))
        // The fallback of a nested router does not match this path.
        .route("/v1/", any(api_not_found));
    let rule = "no such endpoint; the paths of the API begin with /v1; see /docs";
    let open = probes(has_valid_key).fallback(async || ApiError::NotFound(rule));
    let pages =
        pages::docs(document(&state.settings), &state.settings).merge(pages::inventory(&state.settings));
    routes(state, &state.settings.origins, api, open, pages)
}

/// The admin listener. `/log` shows everything, so it needs a key everywhere; metrics only when other machines can
/// connect.
fn admin(state: &Arc<AppState>, address: IpAddr) -> Router {
    let local = from_fn_with_state(state.clone(), require_local_host);
    let mut protected = Router::new().route("/log", get(log::show));
    let mut open = probes(|_, _, _| true).fallback(async || ApiError::NotFound("no such endpoint; see /"));
    let mut pages = pages::admin();
    if address.is_loopback() {
        open = open.route("/metrics", get(metrics::show)).layer(local.clone());
        pages = pages.layer(local);
    } else {
        protected = protected.route("/metrics", get(metrics::show_with_key));
    }
    routes(state, &Arc::default(), protected, open, pages)
}

/// Everything that a listener serves: routes that need a key, others, and pages with their files.
fn routes(
    state: &Arc<AppState>,
    origins: &Arc<[Origin]>,
    protected: Router<Arc<AppState>>,
    open: Router<Arc<AppState>>,
    pages: Router<Arc<AppState>>,
) -> Router {
    let groups = [(protected, RouteGroup::Protected), (open, RouteGroup::Open), (pages, RouteGroup::Pages)];
    let observed = groups.map(|(routes, group)| {
        let routes = routes.method_not_allowed_fallback(async || ApiError::MethodNotAllowed);
        routes.layer(from_fn_with_state((state.clone(), origins.clone(), group), observe))
    });
    observed.into_iter().fold(Router::new(), Router::merge).with_state(state.clone())
}

fn probes(may_see_position: fn(&AppState, &HeaderMap, &RequestContext) -> bool) -> Router<Arc<AppState>> {
    let ready = |obstacle| {
        get(async move |state, context, headers: HeaderMap| {
            probes::ready(obstacle, may_see_position, state, context, &headers)
        })
    };
    Router::new()
        .route("/livez", get(probes::live))
        .route("/readyz", ready(Health::not_ready))
        .route("/readyz/reads", ready(Health::not_ready_for_reads))
        .route("/readyz/writes", ready(Health::not_ready))
}

async fn api_not_found(_: Client, uri: Uri) -> ApiError {
    // axum removes /v1 from the path.
    let is_slash_too_many = uri.path().len() > 1 && uri.path().ends_with('/');
    ApiError::NotFound(if is_slash_too_many {
        "no such endpoint; no path ends with a slash; see /docs"
    } else {
        "no such endpoint; see /docs"
    })
}

/// The value of a header, from text that is known to be printable ASCII.
fn header_value(text: String) -> HeaderValue {
    HeaderValue::try_from(text).expect("printable ASCII is valid in a header")
}

/// Serves the public listener until `shutdown` completes, then finishes requests in flight within [`ListenerSettings::drain`].
pub async fn serve(listener: TcpListener, state: Arc<AppState>, shutdown: BoxFuture<'static, ()>) {
    let stopped = shutdown.inspect(|()| state.drain());
    server::run(listener, &state.public, public(&state), stopped).await;
}

/// Serves probes, metrics and the log on the admin listener, like [`serve`].
pub async fn serve_admin(listener: TcpListener, state: Arc<AppState>, shutdown: BoxFuture<'static, ()>) {
    let address = listener.local_addr().map_or(Ipv4Addr::UNSPECIFIED.into(), |address| address.ip());
    let stopped = shutdown.inspect(|()| _ = state.ending.send_replace(true));
    server::run(listener, &state.admin, admin(&state, address), stopped).await;
}
