//! `GET /metrics`: everything that operators watch, as text.

mod process;
mod text;

use std::{
    cmp::Reverse,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use application::{
    PetStore, Principal,
    ports::{Durability, DurabilityLevel, Fault, StorageStats},
};
use axum::{
    http::{HeaderMap, header::CONTENT_TYPE},
    response::{IntoResponse as _, Response},
};

use self::text::{Format, Kind, Text};
use super::{
    limits::UNSENT_MAX,
    metrics::{BUCKETS, Counts, STATUS_MIN},
    service::Service,
};

/// How many keys are shown one by one; the rest are counted together.
const KEYS_MAX: usize = 1_000;
/// The name for the rest.
const OTHER_KEYS: &str = "(others)";

/// An operation with its counters.
type Counted = (&'static str, Arc<Counts>);

/// `GET /metrics`.
pub(super) fn show(service: &Service, headers: &HeaderMap) -> Response {
    let format = Format::of(headers);
    let mut text = Text::new(format);
    let version = [("version", env!("CARGO_PKG_VERSION"))];
    text.family("petstore_build", Kind::Info, "The program.").sample(&version, 1);
    let called = service.metrics.called();
    requests(&mut text, &called);
    durations(&mut text, &called);
    deprecated_calls(&mut text, &called);
    keys(&mut text, service);
    readiness(&mut text, service);
    connections(&mut text, service);
    let help = "Readers of /log that are being sent records.";
    text.gauge("petstore_log_readers", help, service.log_readers());
    let help = "Lines of the log that were lost because nobody read them in time.";
    text.counter("petstore_log_lines_dropped", help, service.dropped_log_lines.load(Relaxed));
    if let Some(tls) = &service.tls {
        let help = "When the TLS certificate expires, in seconds since 1970.";
        text.gauge("petstore_tls_certificate_expiry_timestamp_seconds", help, tls.expires().timestamp());
    }
    if let Some(store) = service.opened() {
        state(&mut text, store);
        writing(&mut text, store);
        storage(&mut text, &store.storage());
    }
    process::show(&mut text);
    ([(CONTENT_TYPE, format.content_type()), Format::VARY], text.finish()).into_response()
}

fn requests(text: &mut Text, called: &[Counted]) {
    let mut family = text.family("petstore_http_requests", Kind::Counter, "Answers by operation and status.");
    for (operation, counts) in called {
        for (status, count) in (STATUS_MIN..).zip(counts.statuses.iter()) {
            let count = count.load(Relaxed);
            if count > 0 {
                family.sample(&[("operation", *operation), ("status", &status.to_string())], count);
            }
        }
    }
}

fn durations(text: &mut Text, called: &[Counted]) {
    let help = "From the head of a request to its answer, by operation.";
    let mut family = text.family("petstore_http_request_duration_seconds", Kind::Histogram, help);
    for (operation, counts) in called {
        let mut total = 0;
        let bounds = BUCKETS.into_iter().map(Some).chain([None]);
        let buckets = bounds.zip(&counts.buckets).map(|(bound, count)| {
            total += count.load(Relaxed);
            (bound, total)
        });
        family.buckets(&[("operation", operation)], buckets, counts.micros.load(Relaxed), seconds);
    }
}

fn deprecated_calls(text: &mut Text, called: &[Counted]) {
    let help = "Calls of operations that will be removed, by the name of the API key.";
    let mut family = text.family("petstore_deprecated_calls", Kind::Counter, help);
    for (operation, counts) in called {
        for (caller, count) in &*counts.callers.read() {
            family.sample(&[("operation", *operation), ("key", caller.as_str())], count.load(Relaxed));
        }
    }
}

/// The busiest keys one by one, and the rest together.
fn keys(text: &mut Text, service: &Service) {
    let mut used = service.keys.principals();
    used.retain(|principal| principal.usage.requests.load(Relaxed) > 0);
    used.sort_by_key(|principal| (Reverse(principal.usage.requests.load(Relaxed)), principal.id.clone()));
    let requests = |principal: &Principal| principal.usage.requests.load(Relaxed);
    let limited = |principal: &Principal| principal.usage.limited.load(Relaxed);
    let help = "Requests with a valid API key, by its name and id.";
    by_key(text, "petstore_key_requests", help, &used, requests);
    let help = "Requests that were too many for the rate limit of their API key.";
    by_key(text, "petstore_key_rate_limited", help, &used, limited);
    let reloads = service.keys.reloads();
    let mut family = text.family(
        "petstore_key_reloads",
        Kind::Counter,
        "How often the key file was read again after a change.",
    );
    family.sample(&[("outcome", "loaded")], reloads.loaded);
    family.sample(&[("outcome", "failed")], reloads.failed);
    let help = "Requests without a valid API key, by what was wrong with it.";
    let mut family = text.family("petstore_authentication_failures", Kind::Counter, help);
    for (reason, count) in service.auth_failures.counts() {
        family.sample(&[("reason", reason)], count);
    }
}

fn by_key(
    text: &mut Text,
    name: &str,
    help: &str,
    used: &[Arc<Principal>],
    count: impl Fn(&Principal) -> u64,
) {
    let mut family = text.family(name, Kind::Counter, help);
    let (shown, rest) = used.split_at(used.len().min(KEYS_MAX));
    for principal in shown {
        family.sample(&[("key", &principal.name), ("key_id", &principal.id.0)], count(principal));
    }
    if !rest.is_empty() {
        let all: u64 = rest.iter().map(|principal| count(principal)).sum();
        family.sample(&[("key", OTHER_KEYS), ("key_id", "")], all);
    }
}

fn readiness(text: &mut Text, service: &Service) {
    let ready = u8::from(service.is_ready());
    text.gauge("petstore_ready", "1 when this node reads and writes as it should.", ready);
    let health = service.opened().map(PetStore::health);
    let fault = health.as_ref().and_then(|health| health.not_ready()).map(|error| error.fault.name());
    let now = match (service.is_draining(), &health) {
        (true, _) => Some("draining"),
        (false, None) => Some("starting"),
        (false, Some(_)) => fault,
    };
    let help = "1 for the reason why this node is not ready, if it is not.";
    let mut family = text.family("petstore_not_ready", Kind::Gauge, help);
    for reason in ["starting", "draining"].into_iter().chain(Fault::ALL.map(Fault::name)) {
        family.sample(&[("reason", reason)], u8::from(now == Some(reason)));
    }
}

fn connections(text: &mut Text, service: &Service) {
    let listeners = service.listeners.lock();
    let mut family = text.family("petstore_http_connections", Kind::Gauge, "Open connections by listener.");
    for listener in &*listeners {
        family.sample(&[("listener", listener.name)], listener.open());
    }
    let help = "How many connections may be open.";
    let mut family = text.family("petstore_http_connections_limit", Kind::Gauge, help);
    for listener in &*listeners {
        family.sample(&[("listener", listener.name)], listener.most);
    }
    let help = "Connections that were refused because there were too many, in all or from one address.";
    let mut family = text.family("petstore_http_connections_refused", Kind::Counter, help);
    for listener in &*listeners {
        for (reason, count) in [("full", &listener.refused_full), ("address", &listener.refused_address)] {
            family.sample(&[("listener", listener.name), ("reason", reason)], count.load(Relaxed));
        }
    }
    drop(listeners);
    let unsent = service.unsent.load(Relaxed);
    text.gauge("petstore_http_unsent_bytes", "Bytes of responses that clients have not taken yet.", unsent);
    let help = "How many there may be before requests get 503.";
    text.gauge("petstore_http_unsent_bytes_limit", help, UNSENT_MAX);
}

fn state(text: &mut Text, store: &PetStore) {
    let Durability { engine, level, promise, facts: _ } = store.durability();
    let level = match level {
        DurabilityLevel::Volatile => "volatile",
        DurabilityLevel::Buffered => "buffered",
        DurabilityLevel::Synced => "synced",
        DurabilityLevel::Replicated => "replicated",
    };
    let facts = [("engine", engine), ("durability", level), ("promise", &promise)];
    text.family("petstore_store", Kind::Info, "The engine, and what it promises.").sample(&facts, 1);
    text.gauge("petstore_pets", "Pets in the inventory.", store.count());
    if let Some(limit) = store.pets_max() {
        let help = "How many pets there may be before no more are added.";
        text.gauge("petstore_pets_limit", help, limit);
    }
    text.gauge("petstore_log_position", "The last commit that readers see.", store.version().position);
    let help = "Commits in the log that this node has not applied yet.";
    text.gauge("petstore_replica_lag_commits", help, store.lag());
    let help = "How long ago the log was last seen.";
    text.gauge("petstore_replica_unseen_seconds", help, store.log_unseen_for().as_secs_f64());
    let help = "The last commit up to which this process has read the log and found it sound.";
    text.gauge("petstore_log_checked_position", help, store.checked());
    if let Some((snapshot, age)) = store.snapshot() {
        let help = "The last commit in the snapshot that the next start finds.";
        text.gauge("petstore_snapshot_position", help, snapshot.position);
        text.gauge("petstore_snapshot_age_seconds", "How long ago that was taken.", age.num_seconds());
    }
    let help = "How far the clock of this node is behind the latest time in the log.";
    text.gauge("petstore_clock_behind_log_seconds", help, store.clock_behind_log().num_seconds());
}

fn writing(text: &mut Text, store: &PetStore) {
    text.gauge("petstore_writer_queue", "Creates that wait for the writer.", store.waiting());
    let help = "How many may wait; one more is told to come back.";
    text.gauge("petstore_writer_queue_limit", help, PetStore::QUEUE_MAX);
    let written = store.statistics();
    let help = "Events in each commit of this node.";
    text.histogram("petstore_commit_events", help, &written.commit_events, |events| events.to_string());
    let help = "Bytes of each commit of this node.";
    text.histogram("petstore_commit_bytes", help, &written.commit_bytes, |bytes| bytes.to_string());
    let help = "How long the log took to store or refuse a commit.";
    text.histogram("petstore_log_append_duration_seconds", help, &written.append_micros, seconds);
    let help = "Commits that another node overtook, and that were decided again.";
    text.counter("petstore_log_conflicts", help, written.conflicts.load(Relaxed));
    let help = "Appends that were sent again because their outcome was in doubt.";
    text.counter("petstore_log_retries", help, written.retries.load(Relaxed));
}

/// Only engines on this machine know any of it.
fn storage(text: &mut Text, storage: &StorageStats) {
    if let Some(sync) = &storage.sync_micros {
        let help = "How long writing and syncing a commit to the local disk took.";
        text.histogram("petstore_log_sync_duration_seconds", help, sync, seconds);
    }
    for (name, help, value) in [
        ("petstore_log_bytes", "Size of the files of the log.", storage.log_bytes),
        ("petstore_disk_free_bytes", "Free space on the disk of the log.", storage.disk_free),
        ("petstore_disk_reserved_bytes", "Free space that is never written into.", storage.disk_reserved),
    ] {
        if let Some(value) = value {
            text.gauge(name, help, value);
        }
    }
}

/// Microseconds, written as seconds without rounding.
fn seconds(micros: u64) -> String {
    format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000)
}
