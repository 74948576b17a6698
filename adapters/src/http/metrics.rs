//! What is counted, in plain atomics: a request costs three additions, and memory is bounded whatever is asked.

mod exposition;

use std::{
    array,
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::{
    extract::State,
    http::{HeaderValue, StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse as _, Response},
};
use parking_lot::RwLock;

use super::{operation::Operation, service::Service};

const OPENMETRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

/// The first status code there is.
const STATUS_MIN: u16 = 100;
/// How many there are.
const STATUSES: usize = 500;

/// The upper bounds of the duration buckets, in microseconds: from a list out of memory to a write that waited for
/// as long as any caller does.
const BUCKETS: [u64; 14] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    5_000_000,
];

/// How many callers of deprecated operations are counted by name; the rest are counted together.
const CALLERS_MAX: usize = 1_000;
/// What the rest are called.
const OTHER_CALLERS: &str = "(others)";

/// The counters of one service.
pub(super) struct Metrics {
    operations: [Counts; Operation::ALL.len()],
    /// Calls of deprecated operations by the name of the API key, never by the key.
    deprecated: RwLock<BTreeMap<String, Arc<AtomicU64>>>,
}

struct Counts {
    statuses: Box<[AtomicU64; STATUSES]>,
    /// How many answers took so long, the last one for those beyond every bound.
    buckets: [AtomicU64; BUCKETS.len() + 1],
    micros: AtomicU64,
}

impl Metrics {
    pub(super) fn new() -> Self {
        Self { operations: array::from_fn(|_| Counts::new()), deprecated: RwLock::default() }
    }

    /// Counts an answer.
    pub(super) fn answered(&self, operation: Operation, status: StatusCode, took: Duration) {
        let counts = &self.operations[operation as usize];
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        if let Some(count) = counts.statuses.get(usize::from(status.as_u16() - STATUS_MIN)) {
            count.fetch_add(1, Relaxed);
        }
        counts.buckets[BUCKETS.partition_point(|bound| *bound < micros)].fetch_add(1, Relaxed);
        counts.micros.fetch_add(micros, Relaxed);
    }

    /// Counts a call of a deprecated operation, so that an operator sees who still has to change.
    pub(super) fn deprecated_call(&self, caller: &str) {
        if let Some(count) = self.deprecated.read().get(caller) {
            count.fetch_add(1, Relaxed);
            return;
        }
        let mut callers = self.deprecated.write();
        let name = if callers.len() < CALLERS_MAX { caller } else { OTHER_CALLERS };
        callers.entry(name.to_owned()).or_default().fetch_add(1, Relaxed);
    }
}

impl Counts {
    fn new() -> Self {
        Self {
            statuses: Box::new(array::from_fn(|_| AtomicU64::new(0))),
            buckets: array::from_fn(|_| AtomicU64::new(0)),
            micros: AtomicU64::new(0),
        }
    }
}

/// `GET /metrics`.
pub(super) async fn show(State(service): State<Arc<Service>>) -> Response {
    ([(CONTENT_TYPE, OPENMETRICS)], exposition::render(&service)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_beyond_the_limit_are_counted_together() {
        let metrics = Metrics::new();
        for number in 0..CALLERS_MAX + 7 {
            metrics.deprecated_call(&format!("key {number}"));
        }
        metrics.deprecated_call("key 0");
        let callers = metrics.deprecated.read();
        assert_eq!(callers.len(), CALLERS_MAX + 1);
        assert_eq!(callers[OTHER_CALLERS].load(Relaxed), 7);
        assert_eq!(callers["key 0"].load(Relaxed), 2);
    }

    #[test]
    fn an_answer_is_counted_in_the_bucket_whose_bound_it_reaches() {
        let metrics = Metrics::new();
        let counts = &metrics.operations[Operation::ListPets as usize];
        for (micros, bucket) in [(0, 0), (100, 0), (101, 1), (5_000_000, 13), (5_000_001, 14)] {
            let before = counts.buckets[bucket].load(Relaxed);
            metrics.answered(Operation::ListPets, StatusCode::OK, Duration::from_micros(micros));
            assert_eq!(counts.buckets[bucket].load(Relaxed), before + 1, "{micros}");
        }
        assert_eq!(counts.statuses[100].load(Relaxed), 5);
        assert_eq!(counts.micros.load(Relaxed), 10_000_202);
    }
}
