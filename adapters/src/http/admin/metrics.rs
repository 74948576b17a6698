//! `GET /metrics`: the metrics of the service, in the OpenMetrics text format.
//!
//! Requests are counted in a separate registry. A scrape reads everything else from counters and `/proc`, never from a
//! disk: metrics are needed most when a disk hangs.

mod process;

use std::{
    cmp::Reverse,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use application::{
    Histogram, PetStore,
    ports::{Durability, Fault},
};
use axum::{
    extract::State,
    http::header::CONTENT_TYPE,
    response::{IntoResponse as _, Response},
};
use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder, NoLabelSet, text},
    metrics::{MetricType, TypedMetric, counter::ConstCounter, gauge::ConstGauge, info::Info},
    registry::{Metric, Registry},
};

use crate::access::{Principal, Scope};
use crate::http::{
    app_state::AppState,
    error::ApiError,
    request_context::Authenticated,
    server::Listener,
    settings::{LOG_READERS_MAX, MEMORY_MAX},
};

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The maximum number of API keys with their own series. All other keys share one.
const KEYS_MAX: usize = 1_000;

pub(in crate::http) async fn show(State(state): State<Arc<AppState>>) -> Response {
    let mut body = String::new();
    text::encode_registry(&mut body, &state.metrics.registry)
        .and_then(|()| text::encode(&mut body, &current(&state)))
        .expect("a String accepts every write");
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

/// The metrics whose values are read at each scrape.
fn current(state: &AppState) -> Registry {
    let mut registry = Registry::default();
    let version = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
    registry.register("petstore_build", "The running version", version);
    keys(&mut registry, state);
    readiness(&mut registry, state);
    connections(&mut registry, state);
    if let Some(store) = state.opened() {
        pet_store(&mut registry, store);
    }
    process::register(&mut registry);
    registry
}

/// The busiest keys have their own series; all others share one.
fn keys(registry: &mut Registry, state: &AppState) {
    let requests = |principal: &Principal| principal.usage.requests.load(Relaxed);
    let limited = |principal: &Principal| principal.usage.limited.load(Relaxed);
    let deprecated = |principal: &Principal| principal.usage.deprecated.load(Relaxed);
    let mut used = state.keys.principals();
    used.retain(|principal| requests(principal) > 0);
    // A plain sort would read counters that change while it compares them.
    used.sort_by_cached_key(|principal| (Reverse(requests(principal)), principal.id.clone()));
    let (shown, others) = used.split_at(used.len().min(KEYS_MAX));
    let mut counters = |name, help, count: fn(&Principal) -> u64| {
        let shown = shown.iter().map(|shown| (&*shown.name, &*shown.id.0, count(shown)));
        let all = others.iter().map(|principal| count(principal)).sum();
        let others = (!others.is_empty()).then_some(("(others)", "", all));
        let series = shown.chain(others).map(|(key, id, count)| {
            ([("key", key.to_owned()), ("key_id", id.to_owned())], ConstCounter::new(count))
        });
        registry.register(name, help, Series(series.collect()));
    };
    counters("petstore_key_requests", "Requests with a valid API key, by its name and id", requests);
    let help = "Requests rejected by the rate limit of their API key, by its name and id";
    counters("petstore_key_rate_limited", help, limited);
    let help = "Calls of deprecated operations, by the name and id of the API key";
    counters("petstore_deprecated_calls", help, deprecated);
    let help = "Next expiry of an API key with this name, in seconds since 1970";
    let mut expiries = state.keys.expiries();
    expiries.sort_by_key(|(_, expiry)| *expiry);
    let expiries = expiries.into_iter().take(KEYS_MAX);
    let expiries = expiries.map(|(name, expiry)| ([("key", name)], ConstGauge::new(expiry.timestamp())));
    registry.register("petstore_key_expiry_timestamp_seconds", help, Series(expiries.collect()));
    let help = "Whether the key file can be loaded, so that changes take effect";
    registry.register("petstore_key_file_usable", help, ConstGauge::new(u32::from(state.keys.is_usable())));
}

fn readiness(registry: &mut Registry, state: &AppState) {
    let health = state.opened().map(PetStore::health);
    let fault = health.as_ref().and_then(|health| health.not_ready()).map(|error| error.fault.name());
    let current = match (state.is_draining(), &health) {
        (true, _) => Some("draining"),
        (false, None) => Some("starting"),
        (false, Some(_)) => fault,
    };
    let is = |condition: bool| ConstGauge::new(u32::from(condition));
    let help = "1 if this node accepts reads and writes, otherwise 0";
    registry.register("petstore_ready", help, is(current.is_none()));
    let reasons = ["starting", "draining"].into_iter().chain(Fault::ALL.map(Fault::name));
    let reasons = reasons.map(|reason| ([("reason", reason)], is(current == Some(reason))));
    let help = "1 with the reason as a label, while this node is not ready";
    registry.register("petstore_not_ready", help, Series(reasons.collect()));
}

fn connections(registry: &mut Registry, state: &AppState) {
    let listeners = [&state.public, &state.admin];
    let mut gauges = |name, help, value: fn(&Listener) -> usize| {
        let value = |listener: &Arc<Listener>| ConstGauge::new(value(listener) as u64);
        let gauges = listeners.iter().map(|listener| ([("listener", listener.name)], value(listener)));
        registry.register(name, help, Series(gauges.collect()));
    };
    gauges("petstore_http_connections", "Open connections by listener", Listener::open);
    gauges("petstore_http_connections_limit", "Maximum number of open connections", |listener| {
        listener.limits.connections_max
    });
    let help =
        "Memory of requests in flight: heads, bodies received so far, and responses not yet read by clients";
    gauges("petstore_http_in_flight_bytes", help, |listener| listener.held.load(Relaxed));
    let help = "Maximum memory of requests in flight; above it, connections are evicted";
    gauges("petstore_http_in_flight_bytes_limit", help, |_| MEMORY_MAX);
    let evicted = |listener: &Arc<Listener>| ConstCounter::new(listener.evicted.load(Relaxed));
    let evicted = listeners.iter().map(|listener| ([("listener", listener.name)], evicted(listener)));
    let help = "Connections closed because the slots or the memory of the listener, or the slots of an address, ran out";
    registry.register("petstore_http_connections_evicted", help, Series(evicted.collect()));
    let readers = ConstGauge::new(LOG_READERS_MAX - state.log_readers.available_permits());
    registry.register("petstore_log_readers", "Responses of /log in progress", readers);
    let help = "Log lines dropped because standard error was not read in time";
    registry.register("petstore_log_lines_dropped", help, ConstCounter::new((state.dropped_log_lines)()));
    let help = "Expiry of the TLS certificate, in seconds since 1970";
    let expiry = state.public.tls.as_ref().map(|tls| tls.expires().timestamp());
    register_known(registry, [("petstore_tls_certificate_expiry_timestamp_seconds", help, expiry)]);
}

/// What the application counts, and what embedded engines measure; others do not know their disks.
fn pet_store(registry: &mut Registry, store: &PetStore) {
    let Durability { engine, level, promise, settings: _ } = store.log().durability();
    let labels = [("engine", engine.into()), ("durability", level.name().into()), ("promise", promise)];
    registry.register("petstore_store", "The storage engine and its durability", Info::new(labels));
    let storage = store.log().storage_stats();
    let known = |number: usize| Some(number as u64);
    let (limit, position) = (store.pets_max().and_then(known), Some(store.log_position().position.0));
    let (waiting, most) = (known(store.waiting()), known(PetStore::QUEUE_MAX));
    let gauges = [
        ("petstore_pets", "Pets in the inventory", known(store.count())),
        ("petstore_pets_limit", "Maximum number of pets; at the limit, creates are rejected", limit),
        ("petstore_log_position", "Last commit applied by this node", position),
        ("petstore_replica_lag_commits", "Commits not yet applied by this node", Some(store.lag())),
        ("petstore_writer_queue", "Creates waiting for the writer", waiting),
        ("petstore_writer_queue_limit", "Maximum number of queued creates; above it, requests get 503", most),
        ("petstore_log_bytes", "Size of the files of the log", storage.log_bytes),
        ("petstore_disk_free_bytes", "Free space on the disk of the log", storage.disk_free),
        ("petstore_disk_reserved_bytes", "Free space that the log never uses", storage.disk_reserved),
    ];
    register_known(registry, gauges);
    let statistics = store.statistics();
    let help = "Time since the log last responded to this node";
    let unseen = ConstGauge::new(statistics.unseen_for().as_secs_f64());
    registry.register("petstore_replica_unseen_seconds", help, unseen);
    let mut histogram = |name, help, histogram: &Histogram, scale| {
        registry.register(name, help, Buckets(histogram.read(scale)));
    };
    histogram("petstore_commit_events", "Events per commit", &statistics.commit_events, 1.0);
    histogram("petstore_commit_bytes", "Bytes per commit", &statistics.commit_bytes, 1.0);
    let help = "Time that the log took to store or reject a commit";
    histogram("petstore_log_append_duration_seconds", help, &statistics.append_micros, MICROS);
    let help = "Time to write and sync a commit to the local disk";
    if let Some(sync) = &storage.sync_micros {
        histogram("petstore_log_sync_duration_seconds", help, sync, MICROS);
    }
    let mut counter = |name, help, count: &AtomicU64| {
        registry.register(name, help, ConstCounter::new(count.load(Relaxed)));
    };
    let help = "Commits that were rebuilt because another node had appended first";
    counter("petstore_log_conflicts", help, &statistics.conflicts);
    let help = "Appends that were repeated because their outcome was unknown";
    counter("petstore_log_retries", help, &statistics.retries);
    let help = "Times the log was found to lack commits that this node had applied";
    counter("petstore_log_rejected", help, &statistics.rejected_logs);
}

/// Microseconds per second.
const MICROS: f64 = 1_000_000.0;

/// Registers the gauges that have a value: their names, help texts and values.
fn register_known<V, const N: usize>(registry: &mut Registry, gauges: [(&str, &str, Option<V>); N])
where
    ConstGauge<V>: Metric,
{
    for (name, help, value) in gauges {
        if let Some(value) = value {
            registry.register(name, help, ConstGauge::new(value));
        }
    }
}

/// A value for each label set.
#[derive(Debug)]
struct Series<L, M>(Vec<(L, M)>);

impl<L: EncodeLabelSet, M: EncodeMetric + TypedMetric> EncodeMetric for Series<L, M> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(labels, value)| value.encode(encoder.encode_family(labels)?))
    }

    fn metric_type(&self) -> MetricType {
        M::TYPE
    }
}

/// A histogram of the application: the sum, and the count of each bucket.
#[derive(Debug)]
struct Buckets((f64, Vec<(f64, u64)>));

impl EncodeMetric for Buckets {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let Self((sum, buckets)) = self;
        let count = buckets.iter().map(|(_, count)| count).sum();
        encoder.encode_histogram::<NoLabelSet>(*sum, count, buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;
    use crate::{
        access::{Scopes, api_keys::ApiKeys},
        http::settings::HttpSettings,
    };

    #[tokio::test]
    async fn keys_over_the_limit_share_one_series() {
        let names: Vec<_> = (0..KEYS_MAX + 7).map(|number| format!("key {number}")).collect();
        let keys = ApiKeys::of(names.iter().map(|name| (&**name, Scopes::READ_WRITE)));
        for principal in keys.principals() {
            principal.usage.requests.fetch_add(1, Relaxed);
        }
        let state = Arc::new(AppState::new(keys, HttpSettings::default(), None, || 0));
        let shown = show(State(state)).await.into_body().collect().await.unwrap().to_bytes();
        let lines = str::from_utf8(&shown).unwrap().lines();
        let lines: Vec<_> = lines.filter(|line| line.starts_with("petstore_key_requests_total{")).collect();
        assert_eq!(lines.len(), KEYS_MAX + 1);
        assert!(lines.contains(&r#"petstore_key_requests_total{key="(others)",key_id=""} 7"#));
    }
}
