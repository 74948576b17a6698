//! The metrics of requests, counted when their responses are ready.

use std::time::Duration;

use axum::http::StatusCode;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};

use crate::http::error::ApiError;

/// The upper bounds of the buckets of the request durations, in seconds.
const DURATION_BUCKETS: [f64; 14] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0];

const AUTH_FAILURES: [&str; 5] = ["missing", "malformed", "unknown", "expired", "revoked"];

/// Labels have few values, which never come from a request: clients cannot create series.
pub(crate) struct RequestMetrics {
    requests: Family<ResponseLabels, Counter>,
    durations: Family<RouteLabels, Histogram, fn() -> Histogram>,
    /// By their `reason`.
    auth_failures: Family<[(&'static str, &'static str); 1], Counter>,
    pub(crate) registry: Registry,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RouteLabels {
    method: &'static str,
    route: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResponseLabels {
    #[prometheus(flatten)]
    route: RouteLabels,
    status: u16,
}

impl Default for RequestMetrics {
    fn default() -> Self {
        let requests = Family::default();
        let durations = Family::new_with_constructor((|| Histogram::new(DURATION_BUCKETS)) as fn() -> _);
        let auth_failures = Family::<_, Counter>::default();
        for reason in AUTH_FAILURES {
            // A series that starts at 0 makes its first increase visible.
            drop(auth_failures.get_or_create(&[("reason", reason)]));
        }
        let mut registry = Registry::default();
        let help = "Responses by method, route and status code";
        registry.register("petstore_http_requests", help, Family::clone(&requests));
        let help = "Time from receiving the head of a request to its response, by method and route";
        registry.register("petstore_http_request_duration_seconds", help, Family::clone(&durations));
        let help = "Requests without a valid API key, by the reason why it is not valid";
        registry.register("petstore_authentication_failures", help, auth_failures.clone());
        Self { requests, durations, auth_failures, registry }
    }
}

impl RequestMetrics {
    /// Counts a response. `method` and `route` have few values: the routers know them all, and others share one.
    pub(crate) fn record(&self, method: &'static str, route: String, status: StatusCode, took: Duration) {
        let route = RouteLabels { method, route };
        self.durations.get_or_create(&route).observe(took.as_secs_f64());
        self.requests.get_or_create(&ResponseLabels { route, status: status.as_u16() }).inc();
    }

    pub(crate) fn record_auth_failure(&self, error: &ApiError) {
        if let Some(reason) = error.auth_failure() {
            self.auth_failures.get_or_create(&[("reason", reason)]).inc();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::{KeyId, RejectedKey};

    #[test]
    fn every_auth_failure_has_a_series_from_the_start() {
        let id = KeyId("1".into());
        let name = || "shop".to_owned();
        let rejected = [
            RejectedKey::Unknown,
            RejectedKey::Expired(id.clone(), name()),
            RejectedKey::Revoked(id, name()),
        ];
        let errors = [ApiError::MissingKey, ApiError::MalformedKey].into_iter();
        let reasons: Vec<_> = errors
            .chain(rejected.map(ApiError::RejectedKey))
            .filter_map(|error| error.auth_failure())
            .collect();
        assert_eq!(reasons, AUTH_FAILURES);
    }
}
