//! The writer while the log accepts no commits: it rejects requests, and retries until writes can resume.

use std::{ops::ControlFlow, time::Duration};

use tokio::time::{self, Instant};

use super::{APPEND_TIMEOUT, RETRY_DELAY, Writer};
use crate::{
    backoff::Backoff,
    ports::{Fault, LogError},
};

/// The delays between probes of an engine that rejects commits. They grow, because a probe may trigger the election of
/// a new leader.
const PROBE: Backoff = Backoff::new(RETRY_DELAY, Duration::from_secs(4));

impl Writer {
    /// Finds out whether the engine rejected one commit or rejects all of them, because of missing permissions, a quota
    /// or a full disk. In that case every request is rejected until a probe succeeds. Some engines accept probes and
    /// still reject commits, so writes resume only with the next commit, or after a second without requests.
    pub(super) async fn probe(&mut self, covered: usize, mut error: LogError) {
        if self.rejections == 0 && self.replica.log.check_writable().await.is_ok() {
            self.rejections = 1;
            tracing::warn!(target: "petstore::log", %error, "commit rejected");
            self.resume_writes();
            return self.reject(covered, error.fault);
        }
        loop {
            self.stop_writes(&error);
            self.rejections = self.rejections.saturating_add(1);
            if self.reject_all(error.fault, PROBE.delay(self.rejections)).await.is_break() {
                return;
            }
            match self.replica.log.check_writable().await {
                Ok(()) => return,
                Err(again) if again.fault == Fault::Unreachable => return self.recover(again).await,
                Err(again) => error = again,
            }
        }
    }

    /// Waits until the log can be read and this node has caught up. Requests wait during a short outage; during a
    /// longer one, they are rejected at once.
    pub(super) async fn recover(&mut self, mut error: LogError) {
        let begun = Instant::now();
        loop {
            self.stop_writes(&error);
            let is_short = error.fault == Fault::Unreachable && begun.elapsed() < APPEND_TIMEOUT;
            if is_short && !self.queue.is_closed() {
                time::sleep(RETRY_DELAY).await;
            } else if self.reject_all(error.fault, RETRY_DELAY).await.is_break() {
                return;
            }
            match self.replica.resume().await.and_then(|()| self.check_durability()) {
                Ok(()) => return self.resume_writes(),
                Err(again) => error = again,
            }
        }
    }

    /// Rejects queued requests, and new ones until the next retry. Breaks when the queue is closed.
    async fn reject_all(&mut self, fault: Fault, delay: Duration) -> ControlFlow<()> {
        self.reject(self.waiting.len(), fault);
        let next_try = Instant::now() + delay;
        while let Ok(request) = time::timeout_at(next_try, self.queue.recv()).await {
            let Some(request) = request else { return ControlFlow::Break(()) };
            self.waiting.push_back(request);
            self.reject(1, fault);
        }
        ControlFlow::Continue(())
    }
}
