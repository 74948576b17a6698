//! The middleware of all routes. It sees each request before its handler and each response after it: request id, framing
//! check, CORS, authentication and rate limit, panics, common headers, metrics and the request log.
//!
//! One `from_fn` instead of a stack of layers: nine tower layers made a list of 20 pets 14 % slower.

use std::{any::Any, panic::AssertUnwindSafe, sync::Arc, time::Instant};

use axum::{
    extract::{MatchedPath, Request, State},
    http::{
        HeaderValue, Method,
        header::{CACHE_CONTROL, CONNECTION, USER_AGENT, X_CONTENT_TYPE_OPTIONS},
    },
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use futures_util::FutureExt as _;
use tracing::{Instrument as _, Span};

use super::{
    client_address, cors, framing, rate_limit,
    request_id::{TRACEPARENT, X_REQUEST_ID, request_id, trace_id},
    request_log::shortened,
};
use crate::http::{
    METHODS,
    api::log_position::{LOG_POSITION, log_position},
    app_state::AppState,
    authentication::authenticate,
    error::ApiError,
    request_context::{Authenticated, RequestContext, RouteGroup},
    server::InFlightRequest,
    settings::Origin,
};

/// Handles a request from its arrival to its response. `origins` are the web pages that may call this listener.
pub(crate) async fn observe(
    State((state, origins, group)): State<(Arc<AppState>, Arc<[Origin]>, RouteGroup)>,
    mut request: Request,
    next: Next,
) -> Response {
    let begun = Instant::now();
    let id = request_id(request.headers());
    let mut context = RequestContext::new(&state, &origins, group, &mut request);
    // A request with invalid framing or a CORS preflight reaches no handler.
    let early = match framing::check(&request) {
        Ok(()) => cors::preflight(&request, context.origin.as_ref()),
        Err(error) => Some(error.into_response()),
    };
    if early.is_none() && group == RouteGroup::Protected {
        context.authenticated = authenticate(&state, request.headers(), &context);
    }
    let context = Arc::new(context);
    request.extensions_mut().insert(context.clone());
    let mut response = if let Some(response) = early {
        response
    } else {
        let handled = AssertUnwindSafe(next.run(request)).catch_unwind().instrument(context.span(&id));
        handled.await.unwrap_or_else(|panic| {
            let id = id.to_str().unwrap_or_default();
            tracing::error!(target: "petstore::http", request = id, panic = panic_message(&*panic), "request handler panicked");
            ApiError::Internal.into_response()
        })
    };
    context.add_headers(&state, &origins, &mut response);
    response.headers_mut().insert(X_REQUEST_ID, id);
    let took = begun.elapsed();
    let known_method = METHODS.iter().find(|known| **known == context.method).map_or("other", Method::as_str);
    state.metrics.record(known_method, context.route.clone(), response.status(), took);
    state.request_log.record(&context, &response, took);
    response
}

impl RequestContext {
    fn new(state: &AppState, origins: &[Origin], group: RouteGroup, request: &mut Request) -> Self {
        let in_flight = request.extensions_mut().remove::<Arc<InFlightRequest>>();
        let in_flight = in_flight.expect("every connection adds its request in flight");
        let headers = request.headers();
        let matched = || request.extensions().get::<MatchedPath>().map_or("other", MatchedPath::as_str);
        let route = if group == RouteGroup::Pages { "pages" } else { matched() };
        Self {
            route: route.to_owned(),
            client_address: client_address::of(in_flight.peer(), &state.settings.trusted_proxies, headers),
            in_flight,
            authenticated: Err(ApiError::MissingKey),
            method: request.method().clone(),
            uri: request.uri().clone(),
            user_agent: headers.get(USER_AGENT).cloned(),
            traceparent: headers.get(TRACEPARENT).cloned(),
            origin: cors::allowed_origin(origins, headers),
            body_may_remain: framing::body_may_remain(request),
        }
    }

    fn span(&self, id: &HeaderValue) -> Span {
        tracing::debug_span!(
            "request",
            id = id.to_str().unwrap_or_default(),
            trace_id = self.traceparent.as_ref().and_then(trace_id),
            method = %self.method,
            path = &*shortened(self.uri.path().as_bytes()),
            key = self.principal().map(|principal| tracing::field::display(&principal.id)),
        )
    }

    fn add_headers(&self, state: &AppState, origins: &[Origin], response: &mut Response) {
        let rejected = response.status().is_client_error() || response.status().is_server_error();
        let headers = response.headers_mut();
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
        cors::add_headers(origins, self.origin.as_ref(), headers);
        if let Ok(Authenticated { balance, .. }) = &self.authenticated {
            if let Some(balance) = balance {
                rate_limit::add_headers(*balance, headers);
            }
            if let Some(store) = state.opened() {
                headers.entry(LOG_POSITION).or_insert_with(|| log_position(store.log_position()));
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
