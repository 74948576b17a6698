//! What the writer does while the log takes no commits: it refuses requests, and looks when it can go on.

use std::{ops::ControlFlow, time::Duration};

use tokio::time::{self, Instant};

use super::{APPEND_TIMEOUT, RETRY_DELAY, Writer};
use crate::{
    backoff::Backoff,
    ports::{Fault, LogError},
};

/// How long to wait before an engine that rejects commits is asked again. The leader of a JetStream cluster that is over its
/// limit resigns whenever it is asked.
const PROBE: Backoff = Backoff::new(RETRY_DELAY, Duration::from_secs(4));

impl Writer {
    /// Finds out whether the engine has refused one commit or refuses them all, for reasons of its own: missing rights, a
    /// quota, a full disk. In that case every request is refused until a probe is not. Some engines take probes and still
    /// refuse commits, so only the next commit, or a second without any, ends it.
    pub(super) async fn probe(&mut self, covered: usize, mut error: LogError) {
        if self.refusals == 0 && self.replica.log.check_writable().await.is_ok() {
            self.refusals = 1;
            tracing::warn!("a commit was rejected: {error}");
            self.replica.monitor.resume_writes();
            return self.refuse(covered, error.fault);
        }
        loop {
            self.replica.monitor.stop_writes(&error);
            self.refusals = self.refusals.saturating_add(1);
            if self.refuse_all(error.fault, PROBE.delay(self.refusals)).await.is_break() {
                return;
            }
            match self.replica.log.check_writable().await {
                Ok(()) => return,
                Err(again) if again.fault == Fault::Unreachable => return self.recover(again).await,
                Err(again) => error = again,
            }
        }
    }

    /// Waits until the log is sound again and this node has caught up with it. A log that is merely away for a
    /// moment is waited for, and the requests with it; otherwise every request is refused at once.
    pub(super) async fn recover(&mut self, mut error: LogError) {
        let begun = Instant::now();
        loop {
            if error.fault == Fault::AnotherLog {
                self.replica.record_failure(&error);
            }
            self.replica.monitor.stop_writes(&error);
            let for_a_moment = error.fault == Fault::Unreachable && begun.elapsed() < APPEND_TIMEOUT;
            if for_a_moment && !self.queue.is_closed() {
                time::sleep(RETRY_DELAY).await;
            } else if self.refuse_all(error.fault, RETRY_DELAY).await.is_break() {
                return;
            }
            match self.replica.resume().await.and_then(|()| self.durable_enough()) {
                Ok(()) => return self.replica.monitor.resume_writes(),
                Err(again) => error = again,
            }
        }
    }

    /// Rejects queued requests, and new ones until the next retry. Breaks when no more requests can arrive.
    async fn refuse_all(&mut self, fault: Fault, delay: Duration) -> ControlFlow<()> {
        self.refuse(self.waiting.len(), fault);
        let next_try = Instant::now() + delay;
        while let Ok(request) = time::timeout_at(next_try, self.queue.recv()).await {
            let Some(request) = request else { return ControlFlow::Break(()) };
            self.waiting.push_back(request);
            self.refuse(1, fault);
        }
        ControlFlow::Continue(())
    }
}
