//! Standard output and standard error of the service. On a terminal, standard output has one greeting for people;
//! elsewhere, a line with the address of each listener. Each stream has its own thread, so a stalled reader blocks nothing else:
//! lines that do not fit into the queue of that thread are dropped. Those of standard error are counted. With
//! `--log-format json`, every line of both streams is a JSON object.

use std::{
    fmt::Display,
    io::{self, IsTerminal as _, Write as _},
    sync::mpsc,
    thread,
    time::Duration,
};

use chrono::{SecondsFormat, Utc};
use serde_json::{Value, json};
use tokio::time;
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};

use crate::config::LogFormat;

/// The maximum number of queued lines per stream. With `--log-level debug` that is a burst of a few thousand requests.
const LINES_MAX: usize = 4_096;
/// How long writing the queued lines may delay the exit.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

pub(crate) struct ServiceOutput {
    format: LogFormat,
    /// Whether standard output is for people.
    is_terminal: bool,
    stdout: NonBlocking,
    /// Also the destination of the service log.
    pub(crate) stderr: NonBlocking,
    threads: [WorkerGuard; 2],
}

impl ServiceOutput {
    pub(crate) fn start(format: LogFormat) -> Self {
        let queue = || NonBlockingBuilder::default().lossy(true).buffered_lines_limit(LINES_MAX);
        let (stderr, log_thread) = queue().thread_name("stderr").finish(io::stderr());
        let (stdout, output_thread) = queue().thread_name("stdout").finish(io::stdout());
        let is_terminal = matches!(format, LogFormat::Text) && io::stdout().is_terminal();
        Self { format, is_terminal, stdout, stderr, threads: [log_thread, output_thread] }
    }

    /// Prints a line for programs.
    pub(crate) fn print_line(&self, line: impl Display) {
        match self.format {
            LogFormat::Text if self.is_terminal => {}
            LogFormat::Text => print(&self.stdout, line),
            LogFormat::Json => print(&self.stdout, as_json("INFO", line)),
        }
    }

    /// Prints the lines for people.
    pub(crate) fn print_greeting(&self, lines: impl Display) {
        if self.is_terminal {
            print(&self.stdout, lines);
        }
    }

    pub(crate) fn print_error(&self, error: impl Display) {
        match self.format {
            LogFormat::Text => print(&self.stderr, format_args!("petstore: {error}")),
            LogFormat::Json => print(&self.stderr, as_json("ERROR", error)),
        }
    }

    /// Waits until the queued lines have been written, but not for a stalled reader.
    pub(crate) fn flush(self) {
        let (running, ended) = mpsc::channel::<()>();
        // On a separate thread, because a guard whose queue is full prints to standard output, which may block.
        thread::spawn(move || {
            drop(self.threads);
            drop(running);
        });
        let _ = ended.recv_timeout(FLUSH_TIMEOUT);
    }
}

fn print(stream: &NonBlocking, line: impl Display) {
    // One call for the whole line. It cannot fail: a line that does not fit is dropped.
    let _ = stream.clone().write_all(format!("{line}\n").as_bytes());
}

/// A line with the fields that every line of the service log has.
fn as_json(level: &str, text: impl Display) -> Value {
    let timestamp = Utc::now().to_rfc3339_opts(SecondsFormat::Micros, true);
    json!({ "timestamp": timestamp, "level": level, "message": text.to_string(), "target": "petstore::service" })
}

/// Logs the number of dropped lines when it has grown. The report is queued like any other line, so it is repeated until
/// it is not dropped itself.
pub(crate) async fn report_dropped_lines(counter: ErrorCounter) {
    let mut reported = 0;
    loop {
        time::sleep(REPORT_INTERVAL).await;
        let dropped = counter.dropped_lines();
        if dropped > reported {
            reported = dropped;
            tracing::warn!(
                target: "petstore::service",
                dropped,
                "lines of the service log dropped: standard error is read too slowly"
            );
        }
    }
}
