//! `GET /metrics`: the counters as text, in the `OpenMetrics` format.

use std::{
    fmt::{Display, Write as _},
    sync::{Arc, atomic::Ordering::Relaxed},
};

use application::PetStore;
use axum::{
    http::{HeaderValue, header::CONTENT_TYPE},
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
pub(super) fn show(service: &Service) -> Response {
    let mut text = Text::default();
    text.family("petstore_build", "info", "The program.");
    text.sample("petstore_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1);
    let called = service.metrics.called();
    requests(&mut text, &called);
    durations(&mut text, &called);
    deprecated_calls(&mut text, &called);
    text.family("petstore_ready", "gauge", "1 when this node reads and writes as it should.");
    text.sample("petstore_ready", &[], u8::from(service.is_ready()));
    let help = "Bytes of responses that clients have not taken yet.";
    text.family("petstore_http_unsent_bytes", "gauge", help);
    text.sample("petstore_http_unsent_bytes", &[], service.unsent.load(Relaxed));
    let help = "Lines of the log that were lost because nobody read them in time.";
    text.family("petstore_log_lines_dropped", "counter", help);
    text.sample("petstore_log_lines_dropped_total", &[], service.dropped_log_lines.load(Relaxed));
    if let Some(store) = service.opened() {
        state(&mut text, store);
    }
    ([(CONTENT_TYPE, OPENMETRICS)], text.finish()).into_response()
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
    text.family("petstore_pets", "gauge", "Pets in the inventory.");
    text.sample("petstore_pets", &[], store.count());
    if let Some(limit) = store.pets_max() {
        text.family("petstore_pets_limit", "gauge", "How many pets there may be before no more are added.");
        text.sample("petstore_pets_limit", &[], limit);
    }
    text.family("petstore_log_position", "gauge", "The last commit that readers see.");
    text.sample("petstore_log_position", &[], store.version().position);
    let help = "How far the clock of this node is behind the latest time in the log.";
    text.family("petstore_clock_behind_log_seconds", "gauge", help);
    text.sample("petstore_clock_behind_log_seconds", &[], store.clock_behind_log().num_seconds());
    text.family("petstore_writer_queue", "gauge", "Creates that wait for the writer.");
    text.sample("petstore_writer_queue", &[], store.waiting());
    text.family("petstore_writer_queue_limit", "gauge", "How many may wait; one more is told to come back.");
    text.sample("petstore_writer_queue_limit", &[], PetStore::QUEUE_MAX);
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

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let labels: Vec<_> =
            labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escaped(value))).collect();
        if labels.is_empty() {
            self.line(format_args!("{name} {value}"));
        } else {
            self.line(format_args!("{name}{{{}}} {value}", labels.join(",")));
        }
    }

    fn line(&mut self, line: impl Display) {
        writeln!(self.0, "{line}").expect("a string takes everything");
    }

    fn finish(mut self) -> String {
        self.line("# EOF");
        self.0
    }
}

fn escaped(value: &str) -> String {
    value.replace('\\', r"\\").replace('"', r#"\""#).replace('\n', r"\n")
}
