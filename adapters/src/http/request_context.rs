//! The context of a request: collected before its handler runs, for the extractors and for everything that is done with the
//! response.

use std::{net::IpAddr, sync::Arc};

use axum::http::{Extensions, HeaderValue, Method, Uri};

use super::{error::ApiError, server::InFlightRequest};
use crate::access::{Balance, Principal};

/// A group of routes that are observed alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RouteGroup {
    /// Every handler needs a valid API key.
    Protected,
    /// No request needs a key.
    Open,
    /// The files of the pages. They share one series in the metrics.
    Pages,
}

/// The context of a request. Extractors find it in the extensions.
pub(super) struct RequestContext {
    /// The route as the metrics and the request log name it: its template, or one value for all unknown paths.
    pub(super) route: String,
    /// The address of the client, as far as trusted proxies report it.
    pub(super) client_address: IpAddr,
    pub(super) in_flight: Arc<InFlightRequest>,
    /// The owner of the key, on routes that need one. Only authenticated clients see the position of the log.
    pub(super) authenticated: Result<Authenticated, ApiError>,
    pub(super) method: Method,
    pub(super) uri: Uri,
    pub(super) user_agent: Option<HeaderValue>,
    pub(super) traceparent: Option<HeaderValue>,
    /// The origin of the web page behind the request, if it is an allowed one.
    pub(super) origin: Option<HeaderValue>,
    pub(super) body_may_remain: bool,
}

/// The owner of a valid key.
#[derive(Clone)]
pub(super) struct Authenticated {
    pub(super) principal: Arc<Principal>,
    /// The remainder of the rate limit after this request.
    pub(super) balance: Option<Balance>,
    pub(super) address: IpAddr,
    pub(super) in_flight: Arc<InFlightRequest>,
}

impl RequestContext {
    /// The context of a request that has passed `observe`.
    pub(super) fn of(extensions: &Extensions) -> &Self {
        extensions.get::<Arc<Self>>().expect("every router has this middleware")
    }

    pub(super) fn principal(&self) -> Option<&Arc<Principal>> {
        self.authenticated.as_ref().ok().map(|authenticated| &authenticated.principal)
    }
}
