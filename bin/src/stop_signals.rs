//! The signals that end a command.

use std::{
    future, io,
    task::Poll,
    time::{Duration, Instant},
};

use tokio::signal::unix::{Signal, SignalKind, signal};

/// A program that signals a process and its group, such as `timeout`, sends a signal twice within this time.
const REPETITION: Duration = Duration::from_millis(100);

/// SIGTERM and SIGINT, and for commands other than `serve` SIGHUP.
pub(crate) struct StopSignals(Vec<Signal>);

impl StopSignals {
    pub(crate) fn of_service() -> io::Result<Self> {
        Ok(Self(vec![signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?]))
    }

    /// Includes the end of the terminal.
    pub(crate) fn of_command() -> io::Result<Self> {
        let mut signals = Self::of_service()?;
        signals.0.push(signal(SignalKind::hangup())?);
        Ok(signals)
    }

    /// Waits for another one after the first.
    pub(crate) async fn received_again(&mut self) {
        let first = Instant::now();
        self.received().await;
        while first.elapsed() < REPETITION {
            self.received().await;
        }
    }

    /// Waits for one of them.
    pub(crate) async fn received(&mut self) {
        future::poll_fn(|context| {
            let is_received = self.0.iter_mut().any(|signal| signal.poll_recv(context).is_ready());
            if is_received { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}
