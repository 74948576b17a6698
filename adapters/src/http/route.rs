//! The route table: what a row contains, and the axum router that is built from the rows.

use std::{pin::Pin, sync::Arc};

use application::{Principal, Scope};
use axum::{
    Router,
    extract::Request,
    http::{HeaderMap, Method, StatusCode},
    response::{IntoResponse as _, Response},
    routing::{MethodFilter, on},
};

use super::{asset::Asset, call::Call, error::Problem, metrics::Counts, pipeline, service::Service};

/// What a route without a row is called in the metrics.
const OTHER: &str = "other";

/// How long an address may be to be named in a message.
const HINT_MAX: usize = 60;

/// One row: an address, a method, and everything that is known about them.
pub(super) struct Route {
    pub(super) path: &'static str,
    /// `GET` answers `HEAD` too.
    pub(super) method: Method,
    /// Its name in the metrics, and in the OpenAPI document if it belongs to the interface.
    pub(super) name: &'static str,
    pub(super) lifecycle: Lifecycle,
    /// The query parameters that it knows.
    pub(super) parameters: &'static [&'static str],
    pub(super) handler: Handler,
}

/// Whether clients may rely on an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lifecycle {
    Supported,
    /// It will be removed; every response says so.
    Deprecated,
}

/// How a request is answered.
pub(super) enum Handler {
    /// For everybody, key or not.
    Public(fn(&Service, &HeaderMap) -> Response),
    /// For callers whose key has this scope.
    Scoped(Scope, fn(&Service, &HeaderMap) -> Response),
    /// For callers whose key has this scope, for as long as they read.
    Streamed(Scope, fn(Arc<Service>, Arc<Principal>, &Request) -> Pending),
    /// A file, for everybody.
    File(Box<Asset>),
    /// For callers with a key, from memory.
    Read(fn(&Call) -> Result<Response, Problem>),
    /// For callers with a key, after waiting for the body and the log.
    Write(fn(Call) -> Pending),
    /// For requests that match no row.
    Missing(fn(&Endpoint, &Request) -> Result<Response, Problem>),
}

/// A response that is waited for.
pub(super) type Pending = Pin<Box<dyn Future<Output = Result<Response, Problem>> + Send>>;

/// A row while it serves.
pub(super) struct Endpoint {
    pub(super) service: Arc<Service>,
    pub(super) counts: Arc<Counts>,
    pub(super) route: Route,
    /// The paths of all rows.
    paths: Arc<[&'static str]>,
}

impl Endpoint {
    /// Whether this is an operation of the interface.
    pub(super) fn is_operation(&self) -> bool {
        matches!(self.route.handler, Handler::Read(_) | Handler::Write(_))
    }
}

impl Route {
    pub(super) fn get(path: &'static str, name: &'static str, handler: Handler) -> Self {
        Self { path, method: Method::GET, name, lifecycle: Lifecycle::Supported, parameters: &[], handler }
    }

    pub(super) fn post(path: &'static str, name: &'static str, handler: Handler) -> Self {
        Self { method: Method::POST, ..Self::get(path, name, handler) }
    }

    pub(super) fn with_parameters(self, parameters: &'static [&'static str]) -> Self {
        Self { parameters, ..self }
    }

    pub(super) fn deprecated(self) -> Self {
        Self { lifecycle: Lifecycle::Deprecated, ..self }
    }
}

/// The routers of one listener.
pub(super) struct Routers {
    /// The listener's name in the metrics.
    pub(super) listener: &'static str,
    pub(super) serving: Router,
    /// For requests that come when there is no memory for their responses: probes, and 503 for the rest.
    pub(super) shedding: Router,
}

/// What answers requests for unknown paths, and those with unknown methods: 404 and 405.
pub(super) const MISSING: [Handler; 2] = [Handler::Missing(no_such_path), Handler::Missing(no_such_method)];
/// The same while there is no memory: 503.
pub(super) const SHEDDING: [Handler; 2] = [Handler::Public(busy), Handler::Public(busy)];

/// A router with these rows, and what answers everything else.
pub(super) fn router(
    rows: impl IntoIterator<Item = Route>,
    [no_path, no_method]: [Handler; 2],
    service: &Arc<Service>,
) -> Router {
    let rows: Vec<_> = rows.into_iter().collect();
    let paths: Arc<[_]> = rows.iter().map(|route| route.path).collect();
    let endpoint = |route: Route| {
        let (service, counts) = (service.clone(), service.metrics.counts(route.name));
        let endpoint = Arc::new(Endpoint { service, counts, route, paths: paths.clone() });
        move |request: Request| pipeline::answer(endpoint, request)
    };
    let other = |handler| endpoint(Route::get("", OTHER, handler));
    let router = rows.into_iter().fold(Router::new(), |router, route| {
        let filter =
            MethodFilter::try_from(route.method.clone()).expect("axum knows the methods of the table");
        router.route(route.path, on(filter, endpoint(route)))
    });
    router.fallback(other(no_path)).method_not_allowed_fallback(other(no_method))
}

fn busy(_: &Service, _: &HeaderMap) -> Response {
    Problem::Busy("too many responses are waiting to be read").into_response()
}

fn no_such_path(endpoint: &Endpoint, request: &Request) -> Result<Response, Problem> {
    let path = request.uri().path().trim_end_matches('/');
    let meant = [path.to_owned(), format!("/v1{path}"), path.replace("/v1/v1", "/v1")];
    let fits = |meant: &&String| endpoint.paths.iter().any(|known| is_like(meant, known));
    let meant = meant.iter().filter(|meant| meant.len() <= HINT_MAX).find(fits);
    let hint = meant.map(|meant| format!("did you mean {meant}? ")).unwrap_or_default();
    let parts_of_pages = |path: &&&str| !path.starts_with("/glance/");
    let all = || endpoint.paths.iter().filter(parts_of_pages).copied().collect::<Vec<_>>().join(", ");
    let listed = if endpoint.paths.contains(&"/docs") { "/docs" } else { &all() };
    Err(Problem::NotFound(format!("there is nothing at this address: {hint}see {listed}").into()))
}

/// Whether a path fits a row of the table.
fn is_like(path: &str, row: &str) -> bool {
    let (path, row) = (path.split('/'), row.split('/'));
    path.clone().count() == row.clone().count()
        && path.zip(row).all(|(part, known)| part == known || known.starts_with('{') && !part.is_empty())
}

/// `OPTIONS` works everywhere; axum adds the `Allow` header.
fn no_such_method(_: &Endpoint, request: &Request) -> Result<Response, Problem> {
    if request.method() == Method::OPTIONS {
        Ok(StatusCode::NO_CONTENT.into_response())
    } else {
        Err(Problem::MethodNotAllowed("".into()))
    }
}
