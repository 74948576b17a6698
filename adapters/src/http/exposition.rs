//! `GET /metrics`: the counters as text, in the `OpenMetrics` format.

use std::{
    fmt::{Display, Write as _},
    sync::{Arc, atomic::Ordering::Relaxed},
};

use application::PetStore;
use axum::{
    http::{HeaderMap, HeaderValue, header::CONTENT_TYPE},
    response::{IntoResponse as _, Response},
};

use super::{
    metrics::{BUCKETS, Counts, STATUS_MIN},
    service::Service,
};

const OPENMETRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

/// An operation with its counters.
type Counted = (&'static str, Arc<Counts>);

/// `GET /metrics`.
pub(super) fn show(service: &Service, _: &HeaderMap) -> Response {
    let mut text = Text::default();
    text.family("petstore_build", "info", "The program.");
    text.sample("petstore_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1);
    let called = service.metrics.called();
    requests(&mut text, &called);
    durations(&mut text, &called);
    deprecated_calls(&mut text, &called);
    let ready = u8::from(service.is_ready());
    text.gauge("petstore_ready", "1 when this node reads and writes as it should.", ready);
    let unsent = service.unsent.load(Relaxed);
    text.gauge("petstore_http_unsent_bytes", "Bytes of responses that clients have not taken yet.", unsent);
    let help = "Readers of /log that are being sent records.";
    text.gauge("petstore_log_readers", help, service.log_readers());
    let help = "Lines of the log that were lost because nobody read them in time.";
    text.family("petstore_log_lines_dropped", "counter", help);
    text.sample("petstore_log_lines_dropped_total", &[], service.dropped_log_lines.load(Relaxed));
    if let Some(tls) = &service.tls {
        let help = "When the TLS certificate expires, in seconds since 1970.";
        text.family("petstore_tls_certificate_expiry_timestamp_seconds", "gauge", help);
        text.sample("petstore_tls_certificate_expiry_timestamp_seconds", &[], tls.expires().timestamp());
    }
    if let Some(store) = service.opened() {
        state(&mut text, store);
    }
    text.line("# EOF");
    ([(CONTENT_TYPE, OPENMETRICS)], text.0).into_response()
}

fn requests(text: &mut Text, called: &[Counted]) {
    text.family("petstore_http_requests", "counter", "Answers by operation and status.");
    for (operation, counts) in called {
        for (status, count) in (STATUS_MIN..).zip(counts.statuses.iter()) {
            let count = count.load(Relaxed);
            if count > 0 {
                let labels = [("operation", *operation), ("status", &status.to_string())];
                text.sample("petstore_http_requests_total", &labels, count);
            }
        }
    }
}

fn durations(text: &mut Text, called: &[Counted]) {
    let name = "petstore_http_request_duration_seconds";
    text.family(name, "histogram", "From the head of a request to its answer, by operation.");
    for (operation, counts) in called {
        let mut total = 0;
        for (index, count) in counts.buckets.iter().enumerate() {
            total += count.load(Relaxed);
            let bound = BUCKETS.get(index).map_or("+Inf".to_owned(), |micros| seconds(*micros));
            text.sample(&format!("{name}_bucket"), &[("operation", operation), ("le", &bound)], total);
        }
        let operation = [("operation", *operation)];
        text.sample(&format!("{name}_count"), &operation, total);
        text.sample(&format!("{name}_sum"), &operation, seconds(counts.micros.load(Relaxed)));
    }
}

fn deprecated_calls(text: &mut Text, called: &[Counted]) {
    let help = "Calls of operations that will be removed, by the name of the API key.";
    text.family("petstore_deprecated_calls", "counter", help);
    for (operation, counts) in called {
        for (caller, count) in &*counts.callers.read() {
            let labels = [("operation", *operation), ("key", caller.as_str())];
            text.sample("petstore_deprecated_calls_total", &labels, count.load(Relaxed));
        }
    }
}

fn state(text: &mut Text, store: &PetStore) {
    text.gauge("petstore_pets", "Pets in the inventory.", store.count());
    if let Some(limit) = store.pets_max() {
        let help = "How many pets there may be before no more are added.";
        text.gauge("petstore_pets_limit", help, limit);
    }
    text.gauge("petstore_log_position", "The last commit that readers see.", store.version().position);
    let help = "The last commit up to which this process has read the log and found it sound.";
    text.gauge("petstore_log_checked_position", help, store.checked());
    if let Some((snapshot, age)) = store.snapshot() {
        let help = "The last commit in the snapshot that the next start finds.";
        text.gauge("petstore_snapshot_position", help, snapshot.position);
        text.gauge("petstore_snapshot_age_seconds", "How long ago that was taken.", age.num_seconds());
    }
    let help = "How far the clock of this node is behind the latest time in the log.";
    text.gauge("petstore_clock_behind_log_seconds", help, store.clock_behind_log().num_seconds());
    text.gauge("petstore_writer_queue", "Creates that wait for the writer.", store.waiting());
    let help = "How many may wait; one more is told to come back.";
    text.gauge("petstore_writer_queue_limit", help, PetStore::QUEUE_MAX);
}

/// Microseconds, written as seconds without rounding.
fn seconds(micros: u64) -> String {
    format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000)
}

#[derive(Default)]
struct Text(String);

impl Text {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# TYPE {name} {kind}"));
        self.line(format_args!("# HELP {name} {help}"));
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.family(name, "gauge", help);
        self.sample(name, &[], value);
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let escaped = |value: &str| value.replace('\\', r"\\").replace('"', r#"\""#).replace('\n', r"\n");
        let labels = labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escaped(value)));
        let labels: Vec<_> = labels.collect();
        if labels.is_empty() {
            self.line(format_args!("{name} {value}"));
        } else {
            self.line(format_args!("{name}{{{}}} {value}", labels.join(",")));
        }
    }

    fn line(&mut self, line: impl Display) {
        writeln!(self.0, "{line}").expect("a string takes everything");
    }
}
