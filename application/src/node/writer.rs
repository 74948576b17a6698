//! The only writer of a node: takes all queued requests, decides them on the current state, appends one commit, applies
//! it, and then replies. This gives every engine group commit. While the log accepts no commits, the writer rejects
//! requests, and retries until writes can resume.

use std::{
    collections::VecDeque,
    ops::ControlFlow,
    pin::pin,
    slice,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use tokio::{
    sync::{mpsc, oneshot},
    task,
    time::{self, Instant},
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{
    backoff::Backoff,
    commands::{CreatePet, Created, WriteError},
    log::{codec, digest::Digest},
    node::{
        decision::{self, CommitContext, EVENTS_MAX, PendingCommit},
        follower::Follower,
        health::Health,
        turns::Turns,
    },
    pet_store::LogAccess,
    ports::{
        AppendError, Clock, CommitId, Durability, DurabilityLevel, Fault, LogError, ReadBound, Record,
        Version,
    },
};

/// After this time, a commit counts as hanging. Clients wait equally long.
pub(crate) const APPEND_TIMEOUT: Duration = Duration::from_secs(5);
/// The delay before a failed log is tried again.
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// The delays between probes of an engine that rejects commits. They grow, because a probe may trigger the election of
/// a new leader.
const PROBE: Backoff = Backoff { first: RETRY_DELAY, max: Duration::from_secs(4) };
/// The interval at which an idle writer checks whether it may write.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum number of yields before a commit is made of the requests that have arrived (docs/decisions/0012).
const MAX_YIELDS: usize = 6;
/// The maximum number of consecutive yields without a new request. After one yield, the runtime may not have polled the
/// sockets yet, so requests that have arrived are not in the queue.
const MAX_EMPTY_YIELDS: usize = 2;

/// A request, and the channel for its reply.
pub(crate) struct QueuedCreate {
    pub(crate) request: CreatePet,
    pub(crate) reply: oneshot::Sender<Result<Created, WriteError>>,
}

pub(crate) struct Writer {
    follower: Arc<Follower>,
    clock: Arc<dyn Clock>,
    queue: mpsc::Receiver<QueuedCreate>,
    /// Cancelled when the store is closed.
    stop: CancellationToken,
    waiting: VecDeque<QueuedCreate>,
    /// How many commits and probes the engine has rejected since it last stored one.
    rejections: u32,
    last_batch_was_shared: bool,
}

impl Writer {
    pub(crate) fn new(
        follower: Arc<Follower>,
        clock: Arc<dyn Clock>,
        queue: mpsc::Receiver<QueuedCreate>,
        stop: CancellationToken,
    ) -> Self {
        let waiting = VecDeque::new();
        Self { follower, clock, queue, stop, waiting, rejections: 0, last_batch_was_shared: false }
    }

    /// Runs until the store is closed and the queue is drained. `unwritable` is the reason why the engine would reject a
    /// commit now, if it would.
    pub(crate) async fn run(mut self, unwritable: Option<LogError>) {
        if let Some(error) = unwritable {
            self.wait_until_writable(error).await;
        }
        loop {
            if self.waiting.is_empty() {
                self.follower.change_turns(Turns::stop_waiting);
                match time::timeout(IDLE_CHECK_INTERVAL, self.next_request()).await {
                    Ok(None) => return,
                    Ok(Some(request)) => self.waiting.push_back(request),
                    Err(_elapsed) => {
                        self.check_writes().await;
                        continue;
                    }
                }
            }
            let follower = self.follower.clone();
            let mut serving = pin!(self.serve_batch());
            if time::timeout(APPEND_TIMEOUT, &mut serving).await.is_err() {
                follower.change_health(Health::stop_slow_writes);
                // Never abandoned, because the commit may still be stored.
                serving.await;
            }
        }
    }

    /// Stores the waiting requests, or rejects them.
    async fn serve_batch(&mut self) {
        if self.follower.options.access == LogAccess::Shared {
            self.wait_for_turn().await;
        }
        self.collect_batch().await;
        self.write().await;
    }

    /// Waits for the next request. Returns `None` once the store is closed and the queue is drained.
    async fn next_request(&mut self) -> Option<QueuedCreate> {
        tokio::select! {
            request = self.queue.recv() => request,
            () = self.stop.cancelled() => {
                self.queue.close();
                self.queue.recv().await
            }
        }
    }

    /// Waits for the turn of this node, but not longer than [`Turns::timeout`] or until the store is closed. Requests that
    /// arrive in the meantime share the next commit.
    async fn wait_for_turn(&self) {
        let latest = Instant::now() + self.follower.turns.borrow().timeout();
        let mut turns = self.follower.turns.subscribe();
        let begins_to_wait =
            self.follower.turns.send_if_modified(|turns| turns.begin_waiting(Instant::now()));
        if begins_to_wait && !turns.borrow().wrote_newest() {
            // Other nodes may have written since the last read.
            if let Err(error) = self.follower.catch_up().await {
                self.follower.change_health(|health| health.stop_following(&error));
            }
        }
        loop {
            let due = turns.borrow_and_update().due();
            let Some(due) = due.map(|due| due.min(latest)).filter(|due| *due > Instant::now()) else {
                break;
            };
            self.follower.writer_waits.send_replace(true);
            tokio::select! {
                biased;
                () = self.stop.cancelled() => break,
                () = time::sleep_until(due) => {}
                _ = turns.changed() => {}
            }
        }
        self.follower.writer_waits.send_replace(false);
    }

    /// Takes the queued requests, and yields while more arrive: clients that got their replies together send their next
    /// requests together, and would otherwise just miss the commit. A single client does not wait. Requests whose
    /// commit was overtaken or full share the next one with newer requests.
    async fn collect_batch(&mut self) {
        self.take_arrived();
        let mut empty_yields = 0;
        for _ in 0..MAX_YIELDS {
            let is_alone = self.waiting.len() < 2 && !self.last_batch_was_shared;
            if is_alone || empty_yields == MAX_EMPTY_YIELDS {
                break;
            }
            task::yield_now().await;
            empty_yields = if self.take_arrived() { 0 } else { empty_yields + 1 };
        }
        self.last_batch_was_shared = self.waiting.len() > 1;
    }

    /// Takes the queued requests, and returns whether there were any.
    fn take_arrived(&mut self) -> bool {
        let before = self.waiting.len();
        while self.waiting.len() < EVENTS_MAX
            && let Ok(request) = self.queue.try_recv()
        {
            self.waiting.push_back(request);
        }
        self.waiting.len() > before
    }

    /// Resumes writes after a probe succeeded or the follower has stopped them: a node that is not ready gets no request
    /// that could resume them.
    async fn check_writes(&mut self) {
        let are_stopped = self.follower.health.borrow().not_ready().is_some();
        let usable = if are_stopped { self.follower.resume().await } else { Ok(()) };
        match usable.and_then(|()| self.check_durability()) {
            Ok(()) => self.resume_writes(),
            Err(error) => self.recover(error).await,
        }
    }

    fn stop_writes(&self, error: &LogError) {
        self.follower.change_health(|health| health.stop_writes(error));
    }

    fn resume_writes(&self) {
        self.follower.change_health(|health| health.writes = None);
    }

    /// Checks that the log promises the required durability.
    fn check_durability(&self) -> Result<(), LogError> {
        let required = self.follower.options.required;
        if required == DurabilityLevel::Volatile {
            return Ok(());
        }
        let Durability { level, promise, .. } = self.follower.log.durability();
        if level >= required {
            return Ok(());
        }
        Err(Fault::NotDurable.error(format!("the log promises less than required: {promise}")))
    }

    /// Makes one commit of as many waiting requests as fit, and replies to them.
    async fn write(&mut self) {
        // A client that has already disconnected is not served.
        self.waiting.retain(|request| !request.reply.is_closed());
        if let Err(error) = self.follower.check_usable().await.and_then(|()| self.check_durability()) {
            return self.recover(error).await;
        }
        let (base, pending) = self.decide();
        if pending.commit.entries.is_empty() {
            // Before, this batch may have been slow. Without a commit, nothing shows that a rejecting engine recovered.
            if self.rejections == 0 {
                self.resume_writes();
            }
            return self.reply(pending);
        }
        let record = codec::encode(&pending.commit);
        let begun = Instant::now();
        let stored = self.store(base, &pending, &record).await;
        let apply = |()| self.follower.state.apply(&pending.commit, Digest::of(&record.bytes));
        match stored.and_then(|stored| apply(stored).map_err(AppendError::Closed)) {
            Ok(()) => {
                let statistics = &self.follower.statistics;
                statistics.stored(base.position.next());
                statistics.commit_events.observe(pending.commit.entries.len() as u64);
                statistics.commit_bytes.observe(record.bytes.len() as u64);
                self.rejections = 0;
                self.follower.change_turns(|turns| {
                    turns.stored(base.position.next(), begun.elapsed(), Instant::now());
                });
                self.reply(pending);
            }
            Err(AppendError::Conflict) => {
                self.follower.change_turns(|turns| turns.overtaken(begun.elapsed()));
                if let Err(error) = self.follower.overtaken(base).await {
                    self.recover(error).await;
                }
            }
            Err(AppendError::NotStored(error)) if error.fault == Fault::Unreachable => {
                self.recover(error).await;
            }
            Err(AppendError::NotStored(error)) => self.probe(pending.replies.len(), error).await,
            Err(AppendError::Unclear(error) | AppendError::Closed(error)) => {
                self.reject(pending.replies.len(), error.fault);
                self.recover(error).await;
            }
        }
    }

    /// Decides the next commit, and returns it with the version that it follows.
    fn decide(&self) -> (Version, PendingCommit) {
        let requests = self.waiting.iter().map(|queued| &queued.request);
        let most = self.follower.options.pets_max.unwrap_or(usize::MAX);
        self.follower.state.with(|state| {
            let pets = self.follower.state.show(|pets| pets.count(None)).0;
            let context = CommitContext {
                now: self.clock.now(),
                id: CommitId(Uuid::now_v7()),
                node: self.follower.options.node,
                remaining_capacity: most.saturating_sub(pets),
            };
            (state.history.version, decision::decide(state, requests, context))
        })
    }

    /// Stores the commit right after `base`. An unclear outcome is resolved for as long as a client waits.
    async fn store(
        &self,
        base: Version,
        pending: &PendingCommit,
        record: &Record,
    ) -> Result<(), AppendError> {
        let mut is_unclear = false;
        let outcome = loop {
            let begun = Instant::now();
            let appended = self.follower.log.append(base, slice::from_ref(record)).await;
            self.follower.statistics.append_micros.observe_micros(begun.elapsed());
            let error = match appended {
                Ok(_) => break Ok(()),
                Err(AppendError::Closed(error)) => break Err(AppendError::Closed(error)),
                Err(AppendError::Conflict) if !is_unclear => {
                    self.follower.statistics.conflicts.fetch_add(1, Relaxed);
                    break Err(AppendError::Conflict);
                }
                Err(AppendError::NotStored(error)) if !is_unclear => {
                    break Err(AppendError::NotStored(error));
                }
                Err(AppendError::Unclear(error) | AppendError::NotStored(error)) => error,
                // The first copy may have been stored after the last read.
                Err(AppendError::Conflict) => {
                    Fault::Unreachable.error("an earlier attempt may have been stored")
                }
            };
            is_unclear = true;
            self.stop_writes(&error);
            if let Some(outcome) = self.resolve_unclear_append(base, pending, error).await {
                break outcome;
            }
            self.follower.statistics.retries.fetch_add(1, Relaxed);
        };
        // Otherwise, probing or recovery resumes writes. An engine may report a conflict although it rejects every commit.
        if outcome.is_ok() || (outcome == Err(AppendError::Conflict) && self.rejections == 0) {
            self.resume_writes();
        }
        outcome
    }

    /// Looks for a commit whose append had an unclear outcome. `None` means that it is not stored and may be sent again.
    /// `Conflict` means that another commit is stored at its position, so this one never will be.
    ///
    /// Without a waiting client, the commit is not sent again: its clients got an error, and must not find it stored
    /// much later.
    async fn resolve_unclear_append(
        &self,
        base: Version,
        pending: &PendingCommit,
        mut error: LogError,
    ) -> Option<Result<(), AppendError>> {
        loop {
            match self.follower.log.read(base.position, ReadBound::ONE).await {
                Ok(records) => match records.first().map(codec::decode_stored) {
                    Some(Ok(commit)) if commit.id == pending.commit.id => return Some(Ok(())),
                    Some(Ok(_)) => return Some(Err(AppendError::Conflict)),
                    Some(Err(unreadable)) => return Some(Err(AppendError::Closed(unreadable))),
                    None => match self.follower.check_holds(base).await {
                        Ok(()) if self.has_waiting_clients(pending) => {
                            time::sleep(RETRY_DELAY).await;
                            let health = self.follower.health.borrow();
                            return health.unusable().map(|error| Err(AppendError::Closed(error.clone())));
                        }
                        Ok(()) => return Some(Err(AppendError::Unclear(error))),
                        Err(rejected) if rejected.fault == Fault::AnotherLog => {
                            return Some(Err(AppendError::Closed(rejected)));
                        }
                        Err(again) => error = again,
                    },
                },
                Err(again) => error = again,
            }
            if !self.has_waiting_clients(pending) {
                return Some(Err(AppendError::Unclear(error)));
            }
            self.stop_writes(&error);
            time::sleep(RETRY_DELAY).await;
        }
    }

    fn has_waiting_clients(&self, pending: &PendingCommit) -> bool {
        self.waiting.iter().take(pending.replies.len()).any(|request| !request.reply.is_closed())
    }

    fn reply(&mut self, PendingCommit { replies, .. }: PendingCommit) {
        for (request, reply) in self.waiting.drain(..replies.len()).zip(replies) {
            // The client may have stopped waiting.
            let _ = request.reply.send(reply);
        }
    }

    /// Rejects the first `count` requests.
    fn reject(&mut self, count: usize, fault: Fault) {
        for request in self.waiting.drain(..count) {
            let _ = request.reply.send(Err(WriteError::Unavailable(fault)));
        }
    }

    /// Finds out whether the engine rejected one commit or rejects all of them, because of missing permissions, a quota
    /// or a full disk. In that case every request is rejected until a probe succeeds. Some engines accept probes and
    /// still reject commits, so writes resume only with the next commit, or after a second without requests. A commit that
    /// is too large says nothing about the others.
    async fn probe(&mut self, covered: usize, error: LogError) {
        let may_accept_others = self.rejections == 0 || error.fault == Fault::TooLarge;
        if may_accept_others && self.follower.log.check_writable().await.is_ok() {
            self.rejections = 1;
            tracing::warn!(target: "petstore::log", %error, "commit rejected");
            self.resume_writes();
            return self.reject(covered, error.fault);
        }
        self.wait_until_writable(error).await;
    }

    /// Rejects every request until a probe succeeds.
    async fn wait_until_writable(&mut self, mut error: LogError) {
        while error.fault != Fault::Unreachable {
            self.stop_writes(&error);
            self.rejections = self.rejections.saturating_add(1);
            if self.reject_all(error.fault, PROBE.delay(self.rejections)).await.is_break() {
                return;
            }
            match self.follower.log.check_writable().await {
                Ok(()) => return,
                Err(again) => error = again,
            }
        }
        self.recover(error).await;
    }

    /// Waits until the log can be read and this node has caught up. Requests wait during a short outage; during a
    /// longer one, they are rejected at once.
    async fn recover(&mut self, mut error: LogError) {
        let begun = Instant::now();
        loop {
            self.stop_writes(&error);
            let is_short = error.fault == Fault::Unreachable && begun.elapsed() < APPEND_TIMEOUT;
            if is_short && !self.stop.is_cancelled() {
                time::sleep(RETRY_DELAY).await;
            } else if self.reject_all(error.fault, RETRY_DELAY).await.is_break() {
                return;
            }
            match self.follower.resume().await.and_then(|()| self.check_durability()) {
                Ok(()) => return self.resume_writes(),
                Err(again) => error = again,
            }
        }
    }

    /// Rejects queued requests, and new ones until the next retry. Breaks when the store is closed.
    async fn reject_all(&mut self, fault: Fault, delay: Duration) -> ControlFlow<()> {
        self.reject(self.waiting.len(), fault);
        let next_try = Instant::now() + delay;
        while let Ok(request) = time::timeout_at(next_try, self.next_request()).await {
            let Some(request) = request else { return ControlFlow::Break(()) };
            self.waiting.push_back(request);
            self.reject(1, fault);
        }
        ControlFlow::Continue(())
    }
}
