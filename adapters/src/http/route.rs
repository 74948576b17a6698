//! The route table: what a row contains, and how a request finds its row.

use std::{pin::Pin, sync::Arc};

use axum::{
    body::Body,
    http::{HeaderMap, Method, StatusCode, request::Parts},
    response::{IntoResponse as _, Response},
};

use super::{
    asset::Asset,
    call::{Call, Reader, is_in_interface},
    error::Problem,
    service::Service,
};
use crate::access::Scope;

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
    /// The metrics, for callers whose key has this scope, or for everybody.
    Metrics(Option<Scope>),
    /// For callers whose key has this scope, for as long as they read.
    Streamed(Scope, Streaming),
    /// A file, for everybody.
    File(Box<Asset>),
    /// For callers with a key.
    Operation(Operation),
    /// For requests that match no row.
    Missing(fn(&Endpoint, &Parts) -> Result<Response, Problem>),
}

/// Begins a response that lasts.
type Streaming = fn(Arc<Service>, Reader, &Parts) -> Result<Pending, Problem>;

/// How a request of a known caller to an open store is answered.
#[derive(Clone, Copy)]
pub(super) enum Operation {
    /// From memory.
    Read(fn(&Call, &Parts) -> Result<Response, Problem>),
    /// After waiting for the body and the log.
    Write(fn(Call, &Parts, Body) -> Result<Pending, Problem>),
    /// There is no such operation.
    Missing(fn(&Endpoint, &Parts) -> Result<Response, Problem>),
}

impl From<Operation> for Handler {
    fn from(operation: Operation) -> Self {
        Self::Operation(operation)
    }
}

/// A response that is waited for.
pub(super) type Pending = Pin<Box<dyn Future<Output = Result<Response, Problem>> + Send>>;

/// A row while it serves.
pub(super) struct Endpoint {
    pub(super) service: Arc<Service>,
    pub(super) route: Route,
    /// The paths of all rows.
    paths: Arc<[&'static str]>,
}

impl Endpoint {
    /// Whether this is an operation of the interface.
    pub(super) fn is_operation(&self) -> bool {
        matches!(self.route.handler, Handler::Operation(_))
    }
}

impl Route {
    pub(super) fn get(path: &'static str, name: &'static str, handler: impl Into<Handler>) -> Self {
        let handler = handler.into();
        Self { path, method: Method::GET, name, lifecycle: Lifecycle::Supported, parameters: &[], handler }
    }

    pub(super) fn post(path: &'static str, name: &'static str, handler: impl Into<Handler>) -> Self {
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

/// The rows of a table while they serve.
pub(super) struct Router {
    /// The rows of one path stand together.
    endpoints: Vec<Arc<Endpoint>>,
    /// From here on, paths have a parameter.
    parameters: usize,
    no_path: Arc<Endpoint>,
    no_method: Arc<Endpoint>,
}

/// The row of a request.
pub(super) struct Found<'a> {
    pub(super) endpoint: &'a Arc<Endpoint>,
    /// The rows of the path, if none of them has the method.
    pub(super) others: &'a [Arc<Endpoint>],
}

impl Router {
    /// A router with these rows, and what answers everything else.
    pub(super) fn new(
        rows: impl IntoIterator<Item = Route>,
        [no_path, no_method]: [Handler; 2],
        service: &Arc<Service>,
    ) -> Self {
        let mut rows: Vec<_> = rows.into_iter().collect();
        let paths: Arc<[_]> = rows.iter().map(|route| route.path).collect();
        let has_parameter = |route: &Route| route.path.contains('{');
        // The interface comes first, because it is called most. The sort is stable: the rows of a path stay in the order of
        // the table.
        rows.sort_by_key(|route| (has_parameter(route), !is_in_interface(route.path), route.path));
        let parameters = rows.partition_point(|route| !has_parameter(route));
        let endpoint =
            |route: Route| Arc::new(Endpoint { service: service.clone(), route, paths: paths.clone() });
        let other = |handler| endpoint(Route::get("", OTHER, handler));
        let (no_path, no_method) = (other(no_path), other(no_method));
        Self { endpoints: rows.into_iter().map(endpoint).collect(), parameters, no_path, no_method }
    }

    /// One look-up for path and method. `HEAD` is answered like `GET`.
    pub(super) fn find(&self, method: &Method, path: &str) -> Found<'_> {
        let (plain, with_parameters) = self.endpoints.split_at(self.parameters);
        let first = plain.iter().position(|endpoint| endpoint.route.path == path).or_else(|| {
            let like = with_parameters.iter().position(|endpoint| is_like(path, endpoint.route.path));
            like.map(|index| plain.len() + index)
        });
        let Some(first) = first else { return Found { endpoint: &self.no_path, others: &[] } };
        let rows = &self.endpoints[first..];
        let path = rows[0].route.path;
        let rows = &rows[..rows.iter().take_while(|endpoint| endpoint.route.path == path).count()];
        let method = if method == Method::HEAD { &Method::GET } else { method };
        match rows.iter().find(|endpoint| endpoint.route.method == method) {
            Some(endpoint) => Found { endpoint, others: &[] },
            None => Found { endpoint: &self.no_method, others: rows },
        }
    }
}

fn busy(_: &Service, _: &HeaderMap) -> Response {
    Problem::Busy("too many responses are waiting to be read").into_response()
}

fn no_such_path(endpoint: &Endpoint, request: &Parts) -> Result<Response, Problem> {
    let path = request.uri.path().trim_end_matches('/');
    let meant = [path.to_owned(), format!("/v1{path}"), path.replace("/v1/v1", "/v1")];
    let fits = |meant: &&String| endpoint.paths.iter().any(|known| is_like(meant, known));
    let meant = meant.iter().filter(|meant| meant.len() <= HINT_MAX).find(fits);
    let hint = meant.map(|meant| format!("did you mean {meant}? ")).unwrap_or_default();
    let parts_of_pages = |path: &&&str| !path.starts_with("/glance/");
    let all = || endpoint.paths.iter().filter(parts_of_pages).copied().collect::<Vec<_>>().join(", ");
    let listed = if endpoint.paths.contains(&"/docs") { "/docs" } else { &all() };
    Err(Problem::NotFound(format!("there is nothing at this address: {hint}see {listed}").into()))
}

/// Whether a path fits a row of the table, which has at most one parameter.
fn is_like(path: &str, row: &str) -> bool {
    let Some((before, parameter)) = row.split_once('{') else { return path == row };
    let after = parameter.split_once('}').map_or("", |(_, after)| after);
    let value = path.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
    value.is_some_and(|value| !value.is_empty() && !value.contains('/'))
}

/// `OPTIONS` works everywhere; the `Allow` header comes later.
fn no_such_method(_: &Endpoint, request: &Parts) -> Result<Response, Problem> {
    if request.method == Method::OPTIONS {
        Ok(StatusCode::NO_CONTENT.into_response())
    } else {
        Err(Problem::MethodNotAllowed("".into()))
    }
}
