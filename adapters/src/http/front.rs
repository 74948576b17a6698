//! What happens to every request before and after the router: one lean pass instead of a stack of layers.
//!
//! Before: framing, and under `/v1` the key, the scope, the store and the position to wait for, in this order,
//! so that nobody without a key learns which addresses exist. After: the headers that every answer carries.

use std::{
    any::Any,
    panic::{self, AssertUnwindSafe},
    pin::pin,
    sync::Arc,
    task::Poll,
    time::{Duration, Instant},
};

use application::ports::Position;
use axum::{
    Router,
    body::{Body, HttpBody as _},
    extract::Request,
    http::{
        HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version,
        header::{
            ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, EXPECT, HOST, TRANSFER_ENCODING,
            X_CONTENT_TYPE_OPTIONS,
        },
        uri::Authority,
    },
    response::{IntoResponse, Response},
};
use tower::ServiceExt as _;
use tracing::Instrument as _;

use super::{
    auth, cors, deprecation,
    error::Problem,
    number,
    operation::Operation,
    operators_router,
    pets::LOG_POSITION,
    request_body::DRAIN_MAX,
    request_id::{X_REQUEST_ID, trace_id},
    router,
    service::Service,
};

/// How many header fields a request may have. HTTP/1 requests with more do not get past the parser.
pub(super) const HEADERS_MAX: usize = 64;

/// How long a request waits for the position it asks for.
const POSITION_PATIENCE: Duration = Duration::from_secs(1);

const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");
const NOSNIFF: (HeaderName, HeaderValue) = (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));

/// The router and everything around it.
pub(super) struct Front {
    service: Arc<Service>,
    router: Router,
}

/// What the end of a request needs to know about its beginning.
struct Outline {
    id: HeaderValue,
    method: Method,
    operation: Operation,
    in_interface: bool,
    /// The web page that asks, if it may.
    page: Option<HeaderValue>,
    /// Whether an HTTP/1 body may be left on the wire: then nothing more can be read from the connection.
    body_may_stay: bool,
}

impl Front {
    pub(super) fn new(service: Arc<Service>) -> Self {
        Self { router: router(service.clone()), service }
    }

    /// What those see who run the service.
    pub(super) fn for_operators(service: Arc<Service>) -> Self {
        Self { router: operators_router(service.clone()), service }
    }

    /// Answers a request, whatever happens.
    pub(super) async fn answer(&self, request: Request) -> Response {
        let begun = Instant::now();
        let outline = self.outline(&request);
        let span = tracing::debug_span!(
            "request",
            id = outline.id.to_str().unwrap_or_default(),
            trace_id = trace_id(request.headers()),
            method = %request.method(),
            path = request.uri().path(),
            key = tracing::field::Empty,
        );
        let mut response = self.process(request, &outline).instrument(span.clone()).await;
        self.finish(&outline, &mut response);
        let took = begun.elapsed();
        self.service.metrics.answered(outline.operation, response.status(), took);
        span.in_scope(|| {
            tracing::debug!(status = response.status().as_u16(), micros = took.as_micros(), "answered");
        });
        response
    }

    fn outline(&self, request: &Request) -> Outline {
        let path = request.uri().path();
        let size = request.body().size_hint();
        Outline {
            id: self.service.ids.of(request.headers()),
            method: request.method().clone(),
            in_interface: path
                .strip_prefix("/v1")
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/')),
            operation: Operation::of(request.method(), path),
            page: self.service.site.origins.allow(request.headers()),
            body_may_stay: request.version() < Version::HTTP_2
                && (size.lower() > DRAIN_MAX
                    || request.headers().contains_key(EXPECT)
                    || !is_coding_clear(request.headers())),
        }
    }

    /// Turns a panic into an answer: a broken request must not take others with it.
    async fn process(&self, request: Request, outline: &Outline) -> Response {
        let answered = survive(self.route(request, outline)).await;
        let answered = answered.unwrap_or_else(|panic| {
            let id = outline.id.to_str().unwrap_or_default();
            tracing::error!(request = id, "a request handler panicked: {}", words(&*panic));
            Err(Problem::Internal)
        });
        answered.into_response()
    }

    async fn route(&self, mut request: Request, outline: &Outline) -> Result<Response, Problem> {
        check_framing(&request)?;
        if let Some(answer) = cors::preflight(&request, outline.page.as_ref()) {
            return Ok(answer);
        }
        self.admit(&mut request, outline).await?;
        match self.router.clone().oneshot(request).await {
            Ok(response) => Ok(response),
            Err(never) => match never {},
        }
    }

    async fn admit(&self, request: &mut Request, outline: &Outline) -> Result<(), Problem> {
        if !outline.in_interface {
            return Ok(());
        }
        let principal = auth::authenticate(&*self.service.keys, request.headers())?;
        tracing::Span::current().record("key", tracing::field::display(&principal.id));
        auth::authorize(&principal, request.method())?;
        if outline.operation.is_deprecated() {
            self.service.metrics.deprecated_call(&principal.name);
        }
        let store = self.service.store()?;
        if let Some(position) = requested_position(request.headers())? {
            let caught_up = store.caught_up(position, POSITION_PATIENCE).await;
            caught_up.map_err(|_| Problem::NotCaughtUp)?;
        }
        request.extensions_mut().insert(principal);
        Ok(())
    }

    fn finish(&self, outline: &Outline, response: &mut Response) {
        let refused = response.status().is_client_error() || response.status().is_server_error();
        let unmodified = response.status() == StatusCode::NOT_MODIFIED;
        if outline.method == Method::HEAD {
            remove_body(response);
        }
        let headers = response.headers_mut();
        if unmodified {
            // The length would be that of the page itself, which nobody has written; axum says 0.
            headers.remove(CONTENT_LENGTH);
        }
        headers.insert(X_REQUEST_ID, outline.id.clone());
        headers.extend([NOSNIFF]);
        headers.entry(CACHE_CONTROL).or_insert(NO_STORE);
        if outline.operation.is_deprecated() {
            deprecation::announce(headers);
        }
        self.service.site.origins.announce(outline.page.as_ref(), headers);
        if outline.in_interface
            && let Some(store) = self.service.opened()
        {
            headers.entry(LOG_POSITION).or_insert_with(|| store.version().position.0.into());
        }
        if let Some(allow) = headers.get_mut(ALLOW) {
            *allow = with_options(allow);
        }
        if outline.body_may_stay && refused {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
    }
}

/// Answers methods an address does not have. `OPTIONS` is told which ones it has; the router adds them.
pub(super) async fn other_method(method: Method) -> Response {
    if method == Method::OPTIONS {
        StatusCode::NO_CONTENT.into_response()
    } else {
        Problem::MethodNotAllowed.into_response()
    }
}

/// Answers addresses that do not exist.
pub(super) async fn no_such_path() -> Problem {
    Problem::NotFound("there is nothing at this address")
}

/// Refuses what leaves in doubt whom a request is for, or where it ends. HTTP/1.0 did not have to say it.
fn check_framing(request: &Request) -> Result<(), Problem> {
    if request.headers().len() > HEADERS_MAX {
        return Err(Problem::invalid(format!("a request must have at most {HEADERS_MAX} header fields")));
    }
    if !is_coding_clear(request.headers()) {
        return Err(Problem::invalid("Transfer-Encoding must be exactly chunked"));
    }
    let mut hosts = request.headers().get_all(HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(host), None) if is_host(host.as_bytes()) => Ok(()),
        (Some(_), _) => {
            Err(Problem::invalid("there must be exactly one Host header, and it must name a valid host"))
        }
        (None, _) if request.version() == Version::HTTP_11 => {
            Err(Problem::invalid("a Host header is required"))
        }
        (None, _) => Ok(()),
    }
}

/// Whether everybody on the way reads the same body: others may undo codings that we do not know. A length beside
/// the coding does not get here; the parser drops it and closes the connection.
fn is_coding_clear(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => true,
        (Some(coding), None) => coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked"),
        (Some(_), Some(_)) => false,
    }
}

fn is_host(host: &[u8]) -> bool {
    host.is_empty() || Authority::try_from(host).is_ok_and(|authority| !authority.as_str().contains('@'))
}

/// The position a request wants to see, if it says one.
fn requested_position(headers: &HeaderMap) -> Result<Option<Position>, Problem> {
    let mut given = headers.get_all(LOG_POSITION).iter();
    let Some(value) = given.next() else { return Ok(None) };
    let position = value.to_str().ok().and_then(number::plain).filter(|_| given.next().is_none());
    match position {
        Some(position) => Ok(Some(Position(position))),
        None => Err(Problem::invalid("Log-Position must be a single integer of at least 0")),
    }
}

/// Runs a future to its end, or to its panic.
async fn survive<T>(future: impl Future<Output = T>) -> Result<T, Box<dyn Any + Send>> {
    let mut future = pin!(future);
    std::future::poll_fn(move |context| {
        // After a panic the future is dropped and never looked at again.
        match panic::catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    })
    .await
}

fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

/// An answer to HEAD has the headers of the answer to GET, its length too.
fn remove_body(response: &mut Response) {
    if let Some(length) = response.body().size_hint().exact().filter(|length| *length > 0) {
        response.headers_mut().entry(CONTENT_LENGTH).or_insert_with(|| length.into());
    }
    *response.body_mut() = Body::empty();
}

fn with_options(allow: &HeaderValue) -> HeaderValue {
    let methods = allow.to_str().unwrap_or_default().replace(',', ", ");
    HeaderValue::try_from(format!("{methods}, OPTIONS")).expect("method names are fit for a header")
}

#[cfg(test)]
mod tests;
