//! The one middleware. It sees each request before its route's handler and each response after it: request id, framing
//! check, CORS, panics, common headers, metrics and the request log.
//!
//! One `from_fn` instead of a stack of layers: nine tower layers made a list of 20 pets 14 % slower.

use std::{
    any::Any,
    net::{IpAddr, Ipv4Addr},
    panic::AssertUnwindSafe,
    sync::{Arc, OnceLock},
    time::Instant,
};

use axum::{
    extract::{MatchedPath, Request, State},
    http::{
        HeaderValue, Method, Uri,
        header::{CACHE_CONTROL, CONNECTION, USER_AGENT, X_CONTENT_TYPE_OPTIONS},
        request::Parts,
    },
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use futures_util::FutureExt as _;
use tracing::{Instrument as _, Span};

use super::{
    client::Authenticated,
    client_address,
    cors::{self, Origins},
    framing, rate_limit,
    request_id::{TRACEPARENT, X_REQUEST_ID, trace_id},
    request_log::shortened,
};
use crate::http::{
    api::{
        deprecation,
        log_position::{LOG_POSITION, log_position},
        prefer::{Handling, STRICT_APPLIED},
    },
    error::ApiError,
    operations::{self, Operation},
    server::{InFlightRequest, Peer},
    service::Service,
};

const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");
const NOSNIFF: HeaderValue = HeaderValue::from_static("nosniff");

/// What `observe` and the extractors of a request share. Extractors find it in the request's extensions.
pub(crate) struct RequestContext {
    pub(crate) operation: &'static Operation,
    /// The address of the client, as far as trusted proxies report it.
    pub(crate) client: IpAddr,
    /// `None` in tests that call a router without a connection.
    pub(crate) in_flight: Option<Arc<InFlightRequest>>,
    /// Set by the extractor that authenticates the client. Only authenticated clients see the position of the log.
    pub(crate) authenticated: OnceLock<Authenticated>,
}

/// The parts of a request that its response, the metrics and the request log need.
pub(crate) struct Exchange {
    pub(crate) context: Arc<RequestContext>,
    pub(crate) id: HeaderValue,
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) user_agent: Option<HeaderValue>,
    pub(crate) traceparent: Option<HeaderValue>,
    handling: Handling,
    /// The web pages that may call this listener.
    origins: Origins,
    /// The origin of the web page behind the request, if it is an allowed one.
    origin: Option<HeaderValue>,
    body_may_remain: bool,
    begun: Instant,
}

pub(crate) async fn observe(
    State((service, origins)): State<(Arc<Service>, Origins)>,
    mut request: Request,
    next: Next,
) -> Response {
    let peer = request.extensions_mut().remove();
    let exchange = Exchange::begin(&service, origins, peer, &request);
    request.extensions_mut().insert(exchange.context.clone());
    let response = if let Err(error) = framing::check(&request) {
        error.into_response()
    } else if exchange.context.is_out_of_memory() && !exchange.context.operation.is_probe() {
        ApiError::Busy("too much memory is in use by requests in flight").into_response()
    } else if let Some(preflight) = cors::preflight(&request, exchange.origin.as_ref()) {
        preflight
    } else {
        let span = exchange.span();
        let handled = AssertUnwindSafe(next.run(request)).catch_unwind().instrument(span).await;
        handled.unwrap_or_else(|panic| {
            let id = exchange.id.to_str().unwrap_or_default();
            tracing::error!(target: "petstore::http", request = id, panic = panic_message(&*panic), "request handler panicked");
            ApiError::Internal.into_response()
        })
    };
    exchange.finish(&service, response)
}

impl RequestContext {
    /// The context of a request that has passed `observe`.
    pub(crate) fn of(parts: &Parts) -> &Self {
        parts.extensions.get::<Arc<Self>>().expect("every router has this middleware")
    }

    fn is_out_of_memory(&self) -> bool {
        self.in_flight.as_ref().is_some_and(|request| !request.has_memory())
    }
}

impl Exchange {
    fn begin(service: &Service, origins: Origins, peer: Option<Peer>, request: &Request) -> Self {
        let (headers, extensions) = (request.headers(), request.extensions());
        let path = extensions.get::<MatchedPath>().map(MatchedPath::as_str);
        debug_assert!(path.is_none_or(operations::is_known), "{path:?} has no row in the operations table");
        let address = peer.as_ref().map_or(Ipv4Addr::UNSPECIFIED.into(), |peer| peer.address);
        let context = RequestContext {
            operation: Operation::of(request.method(), path),
            client: client_address::of(address, &service.trusted_proxies, headers),
            in_flight: peer.map(|peer| peer.request),
            authenticated: OnceLock::new(),
        };
        Self {
            context: Arc::new(context),
            id: service.ids.of(headers),
            method: request.method().clone(),
            uri: request.uri().clone(),
            user_agent: headers.get(USER_AGENT).cloned(),
            traceparent: headers.get(TRACEPARENT).cloned(),
            handling: Handling::of(headers),
            origin: cors::allowed_origin(&origins, headers),
            origins,
            body_may_remain: framing::body_may_remain(request),
            begun: Instant::now(),
        }
    }

    fn span(&self) -> Span {
        tracing::debug_span!(
            "request",
            id = self.id.to_str().unwrap_or_default(),
            trace_id = self.traceparent.as_ref().and_then(trace_id),
            method = %self.method,
            path = &*shortened(self.uri.path().as_bytes()),
            key = tracing::field::Empty,
        )
    }

    /// Completes a response, counts it and logs it.
    fn finish(self, service: &Service, mut response: Response) -> Response {
        self.add_headers(service, &mut response);
        let took = self.begun.elapsed();
        service.metrics.record(self.context.operation.name, response.status(), took);
        service.request_log.record(&self, &response, took);
        response.headers_mut().insert(X_REQUEST_ID, self.id);
        response
    }

    fn add_headers(&self, service: &Service, response: &mut Response) {
        let rejected = response.status().is_client_error() || response.status().is_server_error();
        let RequestContext { operation, authenticated, .. } = &*self.context;
        let headers = response.headers_mut();
        headers.insert(X_CONTENT_TYPE_OPTIONS, NOSNIFF);
        headers.entry(CACHE_CONTROL).or_insert(NO_STORE);
        if operation.deprecated {
            deprecation::announce(headers);
        }
        cors::announce(&self.origins, self.origin.as_ref(), headers);
        if let Some(Authenticated { balance, .. }) = authenticated.get() {
            if let Some(balance) = balance {
                rate_limit::announce(*balance, headers);
            }
            if let Some(store) = service.opened() {
                headers.entry(LOG_POSITION).or_insert_with(|| log_position(store.log_position()));
                if operation.is_in_api() && self.handling == Handling::Strict {
                    headers.extend([STRICT_APPLIED]);
                }
            }
        }
        if self.body_may_remain && rejected {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

#[cfg(test)]
mod tests;
