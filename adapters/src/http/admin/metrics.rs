//! `GET /metrics`: the metrics of the service, in the OpenMetrics text format.
//!
//! Requests are counted here, everything else where it happens. A scrape reads counters and `/proc`, never a disk:
//! metrics are needed most when a disk hangs.

mod process;

use std::{
    borrow::Cow,
    cmp::Reverse,
    fmt,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use application::{
    PetStore,
    ports::{Durability, Fault, StorageStats},
};
use axum::{
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse as _, Response},
};
use prometheus_client::{
    collector::Collector,
    encoding::{
        DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeLabelSet, EncodeMetric, NoLabelSet,
        text,
    },
    metrics::{
        MetricType, TypedMetric,
        counter::{ConstCounter, Counter},
        family::Family,
        gauge::ConstGauge,
        histogram::Histogram,
        info::Info,
    },
    registry::Registry,
};

use crate::access::{Principal, Scope};
use crate::http::{
    admin::log::LOG_READERS_MAX,
    app_state::AppState,
    authentication::Authenticated,
    error::ApiError,
    server::{MEMORY_MAX, OpenConnections},
};

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The upper bounds of the buckets of the request durations, in seconds.
const DURATION_BUCKETS: [f64; 14] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0];

const AUTH_FAILURES: [&str; 5] = ["missing", "malformed", "unknown", "expired", "revoked"];

/// The maximum number of API keys with their own series. All other keys share one.
const KEYS_MAX: usize = 1_000;
const OTHER_KEYS: &str = "(others)";

/// The metrics of the HTTP adapter. Labels have fixed values or come from the key file, never from a request: clients
/// cannot create series.
pub(in crate::http) struct Metrics {
    requests: Family<(RouteLabels, StatusLabel), Counter>,
    durations: Family<RouteLabels, Histogram, fn() -> Histogram>,
    auth_failures: Family<[(&'static str, &'static str); 1], Counter>,
}

/// Method and route.
type RouteLabels = [(&'static str, Cow<'static, str>); 2];
type StatusLabel = [(&'static str, u16); 1];

impl Default for Metrics {
    fn default() -> Self {
        let auth_failures = Family::<_, Counter>::default();
        for reason in AUTH_FAILURES {
            // A series that starts at 0 makes its first increase visible.
            drop(auth_failures.get_or_create(&[("reason", reason)]));
        }
        Self {
            requests: Family::default(),
            durations: Family::new_with_constructor(|| Histogram::new(DURATION_BUCKETS)),
            auth_failures,
        }
    }
}

impl Metrics {
    /// Counts a response. `method` and `route` have few values: the routers know them all, and others share one.
    pub(in crate::http) fn record(
        &self,
        method: &'static str,
        route: &str,
        status: StatusCode,
        took: Duration,
    ) {
        let labels = [("method", method.into()), ("route", route.to_owned().into())];
        self.durations.get_or_create(&labels).observe(took.as_secs_f64());
        self.requests.get_or_create(&(labels, [("status", status.as_u16())])).inc();
    }

    pub(in crate::http) fn record_auth_failure(&self, error: &ApiError) {
        if let Some(reason) = error.auth_failure() {
            self.auth_failures.get_or_create(&[("reason", reason)]).inc();
        }
    }
}

pub(in crate::http) async fn show(State(state): State<Arc<AppState>>) -> Response {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(StateCollector(state)));
    let mut body = String::new();
    text::encode(&mut body, &registry).expect("a String accepts every write");
    ([(CONTENT_TYPE, OPEN_METRICS)], body).into_response()
}

/// `GET /metrics` on an address that other machines can reach.
pub(in crate::http) async fn show_with_key(
    reader: Authenticated,
    state: State<Arc<AppState>>,
) -> Result<Response, ApiError> {
    reader.require(Scope::Metrics)?;
    Ok(show(state).await)
}

/// Reads the counters of the service at scrape time.
struct StateCollector(Arc<AppState>);

impl fmt::Debug for StateCollector {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("StateCollector")
    }
}

impl Collector for StateCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (state, mut encoder) = (&*self.0, Encoder(encoder));
        requests(&mut encoder, &state.metrics)?;
        keys(&mut encoder, state)?;
        readiness(&mut encoder, state)?;
        connections(&mut encoder, state)?;
        if let Some(store) = state.opened() {
            contents(&mut encoder, store)?;
            writer(&mut encoder, store)?;
            storage(&mut encoder, &store.log().storage_stats())?;
        }
        process::encode(&mut encoder)
    }
}

fn requests(encoder: &mut Encoder<'_>, metrics: &Metrics) -> fmt::Result {
    let Metrics { requests, durations, auth_failures } = metrics;
    let version = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
    encoder.metric("petstore_build", "The running version.", &version)?;
    encoder.metric("petstore_http_requests", "Responses by method, route and status code.", requests)?;
    let help = "Time from receiving the head of a request to its response, by method and route.";
    encoder.metric("petstore_http_request_duration_seconds", help, durations)?;
    let help = "Requests without a valid API key, by the reason why it is not valid.";
    encoder.metric("petstore_authentication_failures", help, auth_failures)
}

/// The busiest keys have their own series; all others share one.
fn keys(encoder: &mut Encoder<'_>, state: &AppState) -> fmt::Result {
    let requests = |principal: &Principal| principal.usage.requests.load(Relaxed);
    let limited = |principal: &Principal| principal.usage.limited.load(Relaxed);
    let deprecated = |principal: &Principal| principal.usage.deprecated.load(Relaxed);
    let mut used = state.keys.principals();
    used.retain(|principal| requests(principal) > 0);
    // A plain sort would read counters that change while it compares them.
    used.sort_by_cached_key(|principal| (Reverse(requests(principal)), principal.id.clone()));
    let (shown, others) = used.split_at(used.len().min(KEYS_MAX));
    let mut counters = |name, help, count: fn(&Principal) -> u64| {
        let shown = shown.iter().map(|principal| ([&*principal.name, &*principal.id.0], count(principal)));
        let all = others.iter().map(|principal| count(principal)).sum();
        let others = (!others.is_empty()).then_some(([OTHER_KEYS, ""], all));
        let labels = |[key, id]: [_; 2]| [("key", key), ("key_id", id)];
        let counts = shown.chain(others).map(|(key, count)| (labels(key), ConstCounter::new(count)));
        encoder.family(name, help, counts)
    };
    counters("petstore_key_requests", "Requests with a valid API key, by its name and id.", requests)?;
    let help = "Requests rejected by the rate limit of their API key, by its name and id.";
    counters("petstore_key_rate_limited", help, limited)?;
    let help = "Calls of deprecated operations, by the name and id of the API key.";
    counters("petstore_deprecated_calls", help, deprecated)?;
    let help = "Next expiry of an API key with this name, in seconds since 1970.";
    let mut expiries = state.keys.expiries();
    expiries.sort_by_key(|(_, expiry)| *expiry);
    let expiries = expiries.iter().take(KEYS_MAX);
    let expiries = expiries.map(|(name, expiry)| ([("key", &**name)], ConstGauge::new(expiry.timestamp())));
    encoder.family("petstore_key_expiry_timestamp_seconds", help, expiries)?;
    let help = "Whether the key file can be loaded, so that changes take effect.";
    encoder.gauge("petstore_key_file_usable", help, u32::from(state.keys.is_usable()))
}

fn readiness(encoder: &mut Encoder<'_>, state: &AppState) -> fmt::Result {
    let health = state.opened().map(PetStore::health);
    let fault = health.as_ref().and_then(|health| health.not_ready()).map(|error| error.fault.name());
    let current = match (state.is_draining(), &health) {
        (true, _) => Some("draining"),
        (false, None) => Some("starting"),
        (false, Some(_)) => fault,
    };
    let help = "1 if this node accepts reads and writes, otherwise 0.";
    encoder.gauge("petstore_ready", help, u32::from(current.is_none()))?;
    let reasons = ["starting", "draining"].into_iter().chain(Fault::ALL.map(Fault::name));
    let is_current = |reason| ConstGauge::new(u32::from(current == Some(reason)));
    let samples = reasons.map(|reason| ([("reason", reason)], is_current(reason)));
    let help = "1 with the reason as a label, while this node is not ready.";
    encoder.family("petstore_not_ready", help, samples)
}

fn connections(encoder: &mut Encoder<'_>, state: &AppState) -> fmt::Result {
    let listeners = state.listeners.lock().clone();
    let gauges = |value: fn(&OpenConnections) -> usize| {
        let value = move |listener| ConstGauge::new(value(listener) as u64);
        listeners.iter().map(move |listener| ([("listener", listener.name)], value(listener)))
    };
    encoder.family(
        "petstore_http_connections",
        "Open connections by listener.",
        gauges(OpenConnections::open),
    )?;
    let limits = gauges(|listener| listener.limit);
    encoder.family("petstore_http_connections_limit", "Maximum number of open connections.", limits)?;
    let evicted = listeners
        .iter()
        .map(|listener| ([("listener", listener.name)], ConstCounter::new(listener.evicted.load(Relaxed))));
    let help = "Connections closed because the slots or the memory of the listener, or the slots of an address, ran out.";
    encoder.family("petstore_http_connections_evicted", help, evicted)?;
    let help =
        "Memory of requests in flight: heads, bodies received so far, and responses not yet read by clients.";
    let in_flight = gauges(|listener| listener.held.load(Relaxed));
    encoder.family("petstore_http_in_flight_bytes", help, in_flight)?;
    let help = "Maximum memory of requests in flight; above it, connections are evicted.";
    encoder.family("petstore_http_in_flight_bytes_limit", help, gauges(|_| MEMORY_MAX))?;
    let readers = LOG_READERS_MAX - state.log_readers.available_permits();
    encoder.gauge("petstore_log_readers", "Responses of /log in progress.", readers)?;
    let help = "Log lines dropped because standard error was not read in time.";
    encoder.counter("petstore_log_lines_dropped", help, (state.dropped_log_lines)())?;
    let help = "Expiry of the TLS certificate, in seconds since 1970.";
    let expiry = state.tls.as_ref().map(|tls| tls.expires().timestamp());
    encoder.gauge_if_known("petstore_tls_certificate_expiry_timestamp_seconds", help, expiry)
}

fn contents(encoder: &mut Encoder<'_>, store: &PetStore) -> fmt::Result {
    let Durability { engine, level, promise, settings: _ } = store.log().durability();
    let labels = Info::new([("engine", engine), ("durability", level.name()), ("promise", &*promise)]);
    encoder.metric("petstore_store", "The storage engine and its durability.", &labels)?;
    encoder.gauge("petstore_pets", "Pets in the inventory.", store.count())?;
    let help = "Maximum number of pets; at the limit, creates are rejected.";
    // A `usize` would have to fit into an `i64`.
    encoder.gauge_if_known("petstore_pets_limit", help, store.pets_max().map(|limit| limit as u64))?;
    let position = store.log_position().position.0;
    encoder.gauge("petstore_log_position", "Last commit applied by this node.", position)?;
    encoder.gauge("petstore_replica_lag_commits", "Commits not yet applied by this node.", store.lag())?;
    let help = "Time since the log last responded to this node.";
    encoder.gauge("petstore_replica_unseen_seconds", help, store.statistics().unseen_for().as_secs_f64())
}

fn writer(encoder: &mut Encoder<'_>, store: &PetStore) -> fmt::Result {
    encoder.gauge("petstore_writer_queue", "Creates waiting for the writer.", store.waiting())?;
    let help = "Maximum number of queued creates; above it, requests get 503.";
    encoder.gauge("petstore_writer_queue_limit", help, PetStore::QUEUE_MAX)?;
    let statistics = store.statistics();
    encoder.histogram("petstore_commit_events", "Events per commit.", &statistics.commit_events, 1.0)?;
    encoder.histogram("petstore_commit_bytes", "Bytes per commit.", &statistics.commit_bytes, 1.0)?;
    let help = "Time that the log took to store or reject a commit.";
    encoder.histogram("petstore_log_append_duration_seconds", help, &statistics.append_micros, MICROS)?;
    let help = "Commits that were rebuilt because another node had appended first.";
    encoder.counter("petstore_log_conflicts", help, statistics.conflicts.load(Relaxed))?;
    let help = "Appends that were repeated because their outcome was unknown.";
    encoder.counter("petstore_log_retries", help, statistics.retries.load(Relaxed))?;
    let help = "Times the log was found to lack commits that this node had applied.";
    encoder.counter("petstore_log_rejected", help, statistics.rejected_logs.load(Relaxed))
}

/// Metrics of embedded engines; others do not know their disks.
fn storage(encoder: &mut Encoder<'_>, storage: &StorageStats) -> fmt::Result {
    if let Some(sync) = &storage.sync_micros {
        let help = "Time to write and sync a commit to the local disk.";
        encoder.histogram("petstore_log_sync_duration_seconds", help, sync, MICROS)?;
    }
    encoder.gauge_if_known("petstore_log_bytes", "Size of the files of the log.", storage.log_bytes)?;
    let help = "Free space on the disk of the log.";
    encoder.gauge_if_known("petstore_disk_free_bytes", help, storage.disk_free)?;
    let help = "Free space that the log never uses.";
    encoder.gauge_if_known("petstore_disk_reserved_bytes", help, storage.disk_reserved)
}

struct Encoder<'a>(DescriptorEncoder<'a>);

/// Microseconds per second.
const MICROS: f64 = 1_000_000.0;

impl Encoder<'_> {
    fn metric(&mut self, name: &str, help: &str, metric: &impl EncodeMetric) -> fmt::Result {
        metric.encode(self.0.encode_descriptor(name, help, None, metric.metric_type())?)
    }

    fn family<Labels: EncodeLabelSet, Metric: EncodeMetric + TypedMetric>(
        &mut self,
        name: &str,
        help: &str,
        metrics: impl IntoIterator<Item = (Labels, Metric)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, Metric::TYPE)?;
        metrics.into_iter().try_for_each(|(labels, metric)| metric.encode(family.encode_family(&labels)?))
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl EncodeGaugeValue) -> fmt::Result {
        self.metric(name, help, &ConstGauge::new(value))
    }

    fn gauge_if_known(
        &mut self,
        name: &str,
        help: &str,
        value: Option<impl EncodeGaugeValue>,
    ) -> fmt::Result {
        value.map_or(Ok(()), |value| self.gauge(name, help, value))
    }

    fn counter(&mut self, name: &str, help: &str, value: impl EncodeCounterValue) -> fmt::Result {
        self.metric(name, help, &ConstCounter::new(value))
    }

    /// Writes a histogram of the application. `scale` is the number of its units per unit of the metric.
    fn histogram(
        &mut self,
        name: &str,
        help: &str,
        histogram: &application::Histogram,
        scale: f64,
    ) -> fmt::Result {
        #[expect(clippy::cast_precision_loss, reason = "a rounded sum is precise enough")]
        let scaled = |value: u64| value as f64 / scale;
        let buckets: Vec<_> =
            histogram.buckets().map(|(bound, count)| (bound.map_or(f64::INFINITY, scaled), count)).collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let mut encoder = self.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
        encoder.encode_histogram::<NoLabelSet>(scaled(histogram.sum()), count, &buckets, None)
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use crate::access::{Authenticator, KeyId, KeyUsage, RejectedKey, Scopes};

    use super::*;
    use crate::http::{error::ApiError, settings::HttpSettings};

    /// As many keys as there may be series, and seven more. Each was used once.
    struct ManyKeys;

    impl Authenticator for ManyKeys {
        fn authenticate(&self, _: &str) -> Result<Arc<Principal>, RejectedKey> {
            Err(RejectedKey::Unknown)
        }

        fn check(&self, _: &KeyId) -> Result<Scopes, RejectedKey> {
            Err(RejectedKey::Unknown)
        }

        fn principals(&self) -> Vec<Arc<Principal>> {
            let principal = |number: usize| {
                let id = KeyId(format!("{number:012x}").into());
                let usage = Arc::new(KeyUsage { requests: 1.into(), ..KeyUsage::default() });
                let (owner, name) = (id.as_owner(), format!("key {number}"));
                Arc::new(Principal { id, owner, name, scopes: Scopes::READ_WRITE, allowance: None, usage })
            };
            (0..KEYS_MAX + 7).map(principal).collect()
        }
    }

    #[tokio::test]
    async fn keys_over_the_limit_share_one_series() {
        let state = Arc::new(AppState::new(Arc::new(ManyKeys), HttpSettings::default()));
        let shown = show(State(state)).await.into_body().collect().await.unwrap().to_bytes();
        let lines = str::from_utf8(&shown).unwrap().lines();
        let lines: Vec<_> = lines.filter(|line| line.starts_with("petstore_key_requests_total{")).collect();
        assert_eq!(lines.len(), KEYS_MAX + 1);
        assert!(lines.contains(&r#"petstore_key_requests_total{key="(others)",key_id=""} 7"#));
    }

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
