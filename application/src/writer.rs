//! The only writer of a node: takes all waiting requests, decides them on the current state, appends one
//! commit, applies it, and only then replies. This gives every engine group commit.

mod recovery;

use std::{collections::VecDeque, pin::pin, sync::Arc, time::Duration};

use tokio::{sync::mpsc, task, time};
use uuid::Uuid;

use crate::{
    codec,
    commit::NodeId,
    decision::{self, Circumstances, Draft, EVENTS_MAX, Request},
    node_state::State,
    options::{LogAccess, Options},
    ports::{
        AppendError, Clock, CommitId, DurabilityLevel, Fault, LogError, Position, ReadBound, ReadModel,
        Record, Version,
    },
    replica::Replica,
    write_fairness::WriteFairness,
};

/// How long a caller waits for its pet to be durable.
pub(crate) const APPEND_TIMEOUT: Duration = Duration::from_secs(5);
/// How long to wait before asking a log that failed whether it works again.
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// How often an idle writer asks a log that nobody else follows whether it is still open.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How often the writer lets others run, at most, before it makes a commit of what they have sent (docs/decisions/0058).
const YIELDS_MAX: usize = 6;
/// How often in a row it does so in vain. Once is no sign that nobody comes: the runtime lets a task that has yielded run
/// before those whose sockets it has just found ready.
const VAIN_YIELDS_MAX: usize = 2;

pub(crate) struct Writer {
    replica: Replica,
    clock: Arc<dyn Clock>,
    queue: mpsc::Receiver<Request>,
    waiting: VecDeque<Request>,
    /// `None` if nobody else writes to the log.
    turns: Option<WriteFairness>,
    node: NodeId,
    required: DurabilityLevel,
    /// How often the engine has refused a commit or a probe since it last stored one.
    refusals: u32,
    /// Whether the last commit was for more than one caller.
    was_crowded: bool,
    pets_max: Option<usize>,
}

/// How an append ended, once every doubt was resolved.
enum Outcome {
    Stored,
    /// Another commit stands there; ours can never land.
    Overtaken,
    NotStored(LogError),
    Closed(LogError),
}

impl Writer {
    pub(crate) fn new(
        replica: Replica,
        clock: Arc<dyn Clock>,
        queue: mpsc::Receiver<Request>,
        options: Options,
    ) -> Self {
        let turns = match options.access {
            LogAccess::Exclusive => None,
            LogAccess::Shared => Some(WriteFairness::new()),
        };
        Self {
            replica,
            clock,
            queue,
            waiting: VecDeque::new(),
            turns,
            node: NodeId::random(),
            required: options.required,
            refusals: 0,
            was_crowded: false,
            pets_max: options.pets_max,
        }
    }

    /// Writes until nobody can ask any more and everybody was answered.
    pub(crate) async fn run(mut self) {
        let mut arrived = Vec::with_capacity(EVENTS_MAX);
        loop {
            if self.waiting.is_empty() {
                match time::timeout(IDLE_CHECK_INTERVAL, self.queue.recv_many(&mut arrived, EVENTS_MAX)).await
                {
                    Ok(0) => return,
                    Ok(_) => {}
                    Err(_elapsed) => {
                        self.look().await;
                        continue;
                    }
                }
            }
            self.waiting.extend(arrived.drain(..));
            self.gather().await;
            self.write().await;
        }
    }

    /// Takes what has arrived, and lets other tasks run while they still bring more: callers that were answered together come
    /// back together, and would otherwise miss the commit by a moment. A caller that is alone does not wait. Those whose
    /// commit was overtaken, or was too small for them, share the next one with who came since.
    async fn gather(&mut self) {
        self.take_arrived();
        let mut in_vain = 0;
        for _ in 0..YIELDS_MAX {
            let alone = self.waiting.len() < 2 && !self.was_crowded;
            if alone || in_vain == VAIN_YIELDS_MAX {
                break;
            }
            task::yield_now().await;
            in_vain = if self.take_arrived() { 0 } else { in_vain + 1 };
        }
        self.was_crowded = self.waiting.len() > 1;
    }

    /// Takes what has arrived, and says whether there was anything.
    fn take_arrived(&mut self) -> bool {
        let before = self.waiting.len();
        while self.waiting.len() < EVENTS_MAX
            && let Ok(request) = self.queue.try_recv()
        {
            self.waiting.push_back(request);
        }
        self.waiting.len() > before
    }

    /// Notices that the log has closed before a request does. On a shared log the follower notices that. If commits were
    /// refused and a probe was not, nobody has tried since: a node that called itself unfit would get no request to try.
    async fn look(&mut self) {
        if self.turns.is_none()
            && let Err(error) = self.replica.head().await
        {
            return self.recover(error).await;
        }
        match self.replica.unusable().map_or_else(|| self.durable_enough(), Err) {
            Ok(()) => self.replica.monitor.resume_writes(),
            Err(error) => self.recover(error).await,
        }
    }

    /// Makes sure that the log promises what is required of it.
    fn durable_enough(&self) -> Result<(), LogError> {
        if self.required == DurabilityLevel::Volatile {
            return Ok(());
        }
        self.replica.log.durability().reaches(self.required)
    }

    /// Turns as many waiting requests as fit into one commit, and answers them.
    async fn write(&mut self) {
        // A caller that has gone away before any work was done need not be served.
        self.waiting.retain(|request| !request.is_abandoned());
        if let Err(error) = self.durable_enough() {
            return self.recover(error).await;
        }
        if let Err(error) = self.replica.check_usable().await {
            return self.recover(error).await;
        }
        let (base, draft) = self.decide();
        if draft.commit.entries.is_empty() {
            return self.answer(draft);
        }
        let record = codec::encode(&draft.commit);
        match self.store(base, &draft, &record).await {
            Outcome::Stored => match self.replica.state.apply(&draft.commit, &record.bytes) {
                Ok(()) => {
                    self.replica.statistics.stored(draft.commit.entries.len(), record.bytes.len());
                    self.refusals = 0;
                    self.answer(draft);
                    if let Some(turns) = &mut self.turns {
                        turns.stored(base, &self.replica).await;
                    }
                }
                Err(error) => {
                    self.refuse(draft.covered(), error.fault);
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
                tracing::warn!("a commit of {} events was rejected: {error}", draft.commit.entries.len());
                self.refuse(draft.covered(), error.fault);
                self.replica.monitor.resume_writes();
            }
            Outcome::NotStored(error) => self.probe(draft.covered(), error).await,
            Outcome::Closed(error) => {
                self.refuse(draft.covered(), error.fault);
                self.recover(error).await;
            }
        }
    }

    /// The next commit, and the version that it follows.
    fn decide(&self) -> (Version, Draft) {
        let requests = self.waiting.iter().map(|request| &request.command);
        let circumstances = Circumstances {
            now: self.clock.now(),
            id: CommitId(Uuid::now_v7()),
            node: self.node,
            record_limit: self.replica.log.record_limit(),
            room: usize::MAX,
        };
        let decide = |state: &State| {
            let pets = || self.replica.state.show(ReadModel::count).0;
            let room = self.pets_max.map_or(usize::MAX, |most| most.saturating_sub(pets()));
            let circumstances = Circumstances { room, ..circumstances };
            (state.history.version, decision::decide(state, requests, circumstances))
        };
        self.replica.state.look(decide)
    }

    /// Stores the commit right after `base`, and finds out what became of it when the log cannot tell.
    async fn store(&self, base: Version, draft: &Draft, record: &Record) -> Outcome {
        let monitor = &self.replica.monitor;
        let mut in_doubt = false;
        let outcome = loop {
            let error = match self.append(base, record).await {
                Ok(_) => break Outcome::Stored,
                Err(AppendError::Closed(error)) => break Outcome::Closed(error),
                Err(AppendError::Conflict) if !in_doubt => break Outcome::Overtaken,
                Err(AppendError::NotStored(error)) if !in_doubt => break Outcome::NotStored(error),
                Err(AppendError::Unclear(error) | AppendError::NotStored(error)) => error,
                // The first copy may have landed after it was looked for.
                Err(AppendError::Conflict) => {
                    LogError::new(Fault::Unreachable, "an earlier try may have been stored")
                }
            };
            in_doubt = true;
            monitor.stop_writes(&error);
            if let Some(outcome) = self.find_out(base, draft, error).await {
                break outcome;
            }
            self.replica.statistics.retried();
        };
        match outcome {
            Outcome::Stored => monitor.resume_writes(),
            // An engine may compare before it refuses.
            Outcome::Overtaken if self.refusals == 0 => monitor.resume_writes(),
            // Probing or recovery says when writes go on.
            Outcome::Overtaken | Outcome::NotStored(_) | Outcome::Closed(_) => {}
        }
        outcome
    }

    /// Appends, and reports an append that takes longer than its callers wait. It is never given up: what was
    /// begun may still be stored.
    async fn append(&self, expected: Version, record: &Record) -> Result<Position, AppendError> {
        let mut appending = pin!(self.replica.statistics.append(self.replica.log.append(expected, record)));
        if let Ok(outcome) = time::timeout(APPEND_TIMEOUT, &mut appending).await {
            return outcome;
        }
        let slow = LogError::new(Fault::Unreachable, "the log has been storing a commit for seconds");
        self.replica.monitor.stop_writes(&slow);
        appending.await
    }

    /// Looks for a commit whose append ended in doubt. `None`: it is not there, and may be sent again.
    ///
    /// Once nobody waits for the commit any more it is let be, stored or not: all its callers were told that it
    /// may still appear, and nothing is stored for them long after.
    async fn find_out(&self, base: Version, draft: &Draft, doubt: LogError) -> Option<Outcome> {
        let mut error = doubt;
        loop {
            match self.replica.log.read(base.position, ReadBound::ONE).await {
                Ok(records) => match records.first().map(codec::decode_stored) {
                    Some(Ok(commit)) if commit.id == draft.commit.id => return Some(Outcome::Stored),
                    Some(Ok(_)) => return Some(Outcome::Overtaken),
                    Some(Err(unreadable)) => return Some(Outcome::Closed(unreadable)),
                    None => match self.replica.check_holds(base).await {
                        Ok(()) if self.somebody_waits(draft) => {
                            time::sleep(RETRY_DELAY).await;
                            return self.replica.unusable().map(Outcome::Closed);
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
            if !self.somebody_waits(draft) {
                return Some(Outcome::Closed(error));
            }
            self.replica.monitor.stop_writes(&error);
            time::sleep(RETRY_DELAY).await;
        }
    }

    fn somebody_waits(&self, draft: &Draft) -> bool {
        self.waiting.iter().take(draft.covered()).any(|request| !request.is_abandoned())
    }

    fn answer(&mut self, draft: Draft) {
        for (request, answer) in self.waiting.drain(..draft.covered()).zip(draft.into_answers()) {
            request.answer(answer);
        }
    }

    fn refuse(&mut self, count: usize, fault: Fault) {
        for request in self.waiting.drain(..count) {
            request.reject(fault);
        }
    }
}
