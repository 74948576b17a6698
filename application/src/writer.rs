//! The only writer of a node: takes all waiting requests, decides them on the current state, appends one
//! commit, applies it, and only then replies. This gives every engine group commit.

mod recovery;

use std::{collections::VecDeque, pin::pin, sync::Arc, time::Duration};

use tokio::{
    sync::{mpsc, oneshot},
    task, time,
};
use uuid::Uuid;

use crate::{
    codec,
    commands::{Created, WriteCommand, WriteError},
    commit::NodeId,
    decision::{self, CommitContext, EVENTS_MAX, PendingCommit},
    digest::Digest,
    health::Health,
    node_state::DecisionState,
    pet_store::LogAccess,
    ports::{
        AppendError, Clock, CommitId, DurabilityLevel, Fault, LogError, Position, ReadBound, ReadModel,
        Record, Version,
    },
    replica::Replica,
    write_fairness::WriteFairness,
};

/// How long a client waits for its pet to be durable.
pub(crate) const APPEND_TIMEOUT: Duration = Duration::from_secs(5);
/// The delay before a log that failed is tried again.
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// How often an idle writer checks a log that has no follower.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How often the writer yields at most before it makes a commit of the requests that have arrived (docs/decisions/0058).
const MAX_YIELDS: usize = 6;
/// How many yields in a row may bring no request. One is not enough: the runtime runs a task that has yielded before the
/// tasks whose sockets it has just found ready.
const MAX_EMPTY_YIELDS: usize = 2;

/// A command, and the channel to the client that waits for the reply.
pub(crate) struct QueuedCommand {
    pub(crate) command: WriteCommand,
    pub(crate) reply: oneshot::Sender<Result<Created, WriteError>>,
}

impl QueuedCommand {
    /// Sends the reply. If the client no longer waits, the outcome is the same.
    fn reply(self, reply: Result<Created, WriteError>) {
        let _ = self.reply.send(reply);
    }
}

pub(crate) struct Writer {
    replica: Replica,
    clock: Arc<dyn Clock>,
    queue: mpsc::Receiver<QueuedCommand>,
    waiting: VecDeque<QueuedCommand>,
    /// `None` if only this node writes to the log.
    fairness: Option<WriteFairness>,
    node: NodeId,
    required: DurabilityLevel,
    /// How often the engine has rejected a commit or a probe since it last stored one.
    rejections: u32,
    last_batch_was_shared: bool,
    pets_max: Option<usize>,
}

/// How an append ended, once an unclear outcome was resolved.
enum Outcome {
    Stored,
    /// Another commit is stored at that position, so this one never will be.
    Overtaken,
    NotStored(LogError),
    Closed(LogError),
}

impl Writer {
    pub(crate) fn new(
        replica: Replica,
        clock: Arc<dyn Clock>,
        queue: mpsc::Receiver<QueuedCommand>,
        access: LogAccess,
        required: DurabilityLevel,
        pets_max: Option<usize>,
    ) -> Self {
        let fairness = match access {
            LogAccess::Exclusive => None,
            LogAccess::Shared => Some(WriteFairness::new()),
        };
        Self {
            replica,
            clock,
            queue,
            waiting: VecDeque::new(),
            fairness,
            node: NodeId::random(),
            required,
            rejections: 0,
            last_batch_was_shared: false,
            pets_max,
        }
    }

    /// Runs until the queue is closed and drained.
    pub(crate) async fn run(mut self) {
        let mut arrived = Vec::with_capacity(EVENTS_MAX);
        loop {
            if self.waiting.is_empty() {
                match time::timeout(IDLE_CHECK_INTERVAL, self.queue.recv_many(&mut arrived, EVENTS_MAX)).await
                {
                    Ok(0) => return,
                    Ok(_) => {}
                    Err(_elapsed) => {
                        self.check_idle_log().await;
                        continue;
                    }
                }
            }
            self.waiting.extend(arrived.drain(..));
            self.collect_batch().await;
            self.write().await;
        }
    }

    /// Takes the requests that have arrived, and yields while more arrive: clients that got their replies together send the
    /// next requests together, and would otherwise just miss the commit. A single client does not wait. Requests whose commit
    /// was overtaken or full share the next one with newer requests.
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

    /// Takes the requests that have arrived, and returns whether there were any.
    fn take_arrived(&mut self) -> bool {
        let before = self.waiting.len();
        while self.waiting.len() < EVENTS_MAX
            && let Ok(request) = self.queue.try_recv()
        {
            self.waiting.push_back(request);
        }
        self.waiting.len() > before
    }

    /// Notices that the log has closed before a request does; the follower of a shared log does the same. If commits were
    /// rejected and then a probe was not, writes resume here: a node that is not ready gets no request that could resume them.
    async fn check_idle_log(&mut self) {
        if self.fairness.is_none()
            && let Err(error) = self.replica.head().await
        {
            return self.recover(error).await;
        }
        let unusable = self.replica.health().unusable().cloned();
        match unusable.map_or_else(|| self.check_durability(), Err) {
            Ok(()) => self.resume_writes(),
            Err(error) => self.recover(error).await,
        }
    }

    fn stop_writes(&self, error: &LogError) {
        self.replica.change_health(|health| health.stop_writes(error));
    }

    fn resume_writes(&self) {
        self.replica.change_health(Health::resume_writes);
    }

    /// Checks that the log promises the required durability.
    fn check_durability(&self) -> Result<(), LogError> {
        if self.required == DurabilityLevel::Volatile {
            return Ok(());
        }
        self.replica.log.durability().reaches(self.required)
    }

    /// Turns as many waiting requests as fit into one commit, and replies to them.
    async fn write(&mut self) {
        // A client that has disconnected before any work was done is not served.
        self.waiting.retain(|request| !request.reply.is_closed());
        if let Err(error) = self.replica.check_usable().await.and_then(|()| self.check_durability()) {
            return self.recover(error).await;
        }
        let (base, pending) = self.decide();
        if pending.commit.entries.is_empty() {
            return self.reply(pending);
        }
        let record = codec::encode(&pending.commit);
        match self.store(base, &pending, &record).await {
            Outcome::Stored => match self.replica.state.apply(&pending.commit, Digest::of(&record.bytes)) {
                Ok(()) => {
                    self.replica.statistics.stored(pending.commit.entries.len(), record.bytes.len());
                    self.rejections = 0;
                    self.reply(pending);
                    if let Some(fairness) = &mut self.fairness {
                        fairness.stored(base, &self.replica).await;
                    }
                }
                Err(error) => {
                    self.reject(pending.replies.len(), error.fault);
                    self.recover(error).await;
                }
            },
            Outcome::Overtaken => {
                if let Err(error) = self.replica.overtaken(base).await {
                    self.recover(error).await;
                }
            }
            Outcome::NotStored(error) if error.fault == Fault::Unreachable => self.recover(error).await,
            Outcome::NotStored(error) if error.fault == Fault::TooLarge => {
                tracing::warn!("a commit of {} events was rejected: {error}", pending.commit.entries.len());
                self.reject(pending.replies.len(), error.fault);
                self.resume_writes();
            }
            Outcome::NotStored(error) => self.probe(pending.replies.len(), error).await,
            Outcome::Closed(error) => {
                self.reject(pending.replies.len(), error.fault);
                self.recover(error).await;
            }
        }
    }

    /// The next commit, and the version that it follows.
    fn decide(&self) -> (Version, PendingCommit) {
        let requests = self.waiting.iter().map(|request| &request.command);
        let context = CommitContext {
            now: self.clock.now(),
            id: CommitId(Uuid::now_v7()),
            node: self.node,
            record_limit: self.replica.log.record_limit(),
            remaining_capacity: usize::MAX,
        };
        let decide = |state: &DecisionState| {
            let pets = || self.replica.state.show(ReadModel::count).0;
            let remaining_capacity = self.pets_max.map_or(usize::MAX, |most| most.saturating_sub(pets()));
            let context = CommitContext { remaining_capacity, ..context };
            (state.history.version, decision::decide(state, requests, context))
        };
        self.replica.state.with(decide)
    }

    /// Stores the commit right after `base`, and resolves an unclear outcome.
    async fn store(&self, base: Version, pending: &PendingCommit, record: &Record) -> Outcome {
        let mut is_unclear = false;
        let outcome = loop {
            let error = match self.append(base, record).await {
                Ok(_) => break Outcome::Stored,
                Err(AppendError::Closed(error)) => break Outcome::Closed(error),
                Err(AppendError::Conflict) if !is_unclear => break Outcome::Overtaken,
                Err(AppendError::NotStored(error)) if !is_unclear => break Outcome::NotStored(error),
                Err(AppendError::Unclear(error) | AppendError::NotStored(error)) => error,
                // The first copy may have been stored after it was looked for.
                Err(AppendError::Conflict) => {
                    LogError::new(Fault::Unreachable, "an earlier try may have been stored")
                }
            };
            is_unclear = true;
            self.stop_writes(&error);
            if let Some(outcome) = self.resolve_unclear_append(base, pending, error).await {
                break outcome;
            }
            self.replica.statistics.retried();
        };
        match outcome {
            Outcome::Stored => self.resume_writes(),
            // An engine may report a conflict although it rejects every commit.
            Outcome::Overtaken if self.rejections == 0 => self.resume_writes(),
            // Probing or recovery resumes writes.
            Outcome::Overtaken | Outcome::NotStored(_) | Outcome::Closed(_) => {}
        }
        outcome
    }

    /// Appends, and reports an append that takes longer than its clients wait. It is never abandoned, because the commit may
    /// still be stored.
    async fn append(&self, expected: Version, record: &Record) -> Result<Position, AppendError> {
        let mut appending = pin!(self.replica.statistics.append(self.replica.log.append(expected, record)));
        if let Ok(outcome) = time::timeout(APPEND_TIMEOUT, &mut appending).await {
            return outcome;
        }
        let slow = LogError::new(Fault::Unreachable, "the log has been storing a commit for seconds");
        self.stop_writes(&slow);
        appending.await
    }

    /// Looks for a commit whose append had an unclear outcome. `None`: it is not stored, and may be sent again.
    ///
    /// Without a waiting client, the commit is not sent again: its clients got an error, and nothing is stored for them long
    /// afterwards.
    async fn resolve_unclear_append(
        &self,
        base: Version,
        pending: &PendingCommit,
        mut error: LogError,
    ) -> Option<Outcome> {
        loop {
            match self.replica.log.read(base.position, ReadBound::ONE).await {
                Ok(records) => match records.first().map(codec::decode_stored) {
                    Some(Ok(commit)) if commit.id == pending.commit.id => return Some(Outcome::Stored),
                    Some(Ok(_)) => return Some(Outcome::Overtaken),
                    Some(Err(unreadable)) => return Some(Outcome::Closed(unreadable)),
                    None => match self.replica.check_holds(base).await {
                        Ok(()) if self.has_waiting_clients(pending) => {
                            time::sleep(RETRY_DELAY).await;
                            return self.replica.health().unusable().cloned().map(Outcome::Closed);
                        }
                        Ok(()) => return Some(Outcome::Closed(error)),
                        Err(rejected) if rejected.fault == Fault::AnotherLog => {
                            return Some(Outcome::Closed(rejected));
                        }
                        Err(again) => error = again,
                    },
                },
                Err(again) => error = again,
            }
            if !self.has_waiting_clients(pending) {
                return Some(Outcome::Closed(error));
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
            request.reply(reply);
        }
    }

    /// Replies to the first `count` requests that nothing was written.
    fn reject(&mut self, count: usize, fault: Fault) {
        for request in self.waiting.drain(..count) {
            request.reply(Err(WriteError::Unavailable(fault)));
        }
    }
}
