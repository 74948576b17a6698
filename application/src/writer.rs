//! The one writer of a node: takes everything that waits, decides it on the current state, appends one commit,
//! applies it, and only then answers. Group commit for every engine.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use tokio::{
    sync::{mpsc, oneshot},
    time::{self, Instant},
};
use uuid::Uuid;

use crate::{
    codec,
    decision::{self, Draft, EVENTS_MAX},
    follower::{self, Follower},
    pet_store::{CreateError, CreatePet, Created},
    ports::{AppendError, Clock, CommitId, Fault, LogError, Position, ReadBound, Record},
};

/// How long to wait before asking a log that failed whether it works again.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// A caller that waits for its pet.
pub(crate) struct Request {
    pub(crate) create: CreatePet,
    pub(crate) reply: oneshot::Sender<Result<Created, CreateError>>,
}

pub(crate) struct Writer {
    follower: Follower,
    clock: Arc<dyn Clock>,
    queue: mpsc::Receiver<Request>,
    waiting: VecDeque<Request>,
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
    pub(crate) fn new(follower: Follower, clock: Arc<dyn Clock>, queue: mpsc::Receiver<Request>) -> Self {
        Self { follower, clock, queue, waiting: VecDeque::new() }
    }

    /// Writes until nobody can ask any more and everybody was answered.
    pub(crate) async fn run(mut self) {
        let mut arrived = Vec::with_capacity(EVENTS_MAX);
        loop {
            if self.waiting.is_empty() && self.queue.recv_many(&mut arrived, EVENTS_MAX).await == 0 {
                return;
            }
            self.waiting.extend(arrived.drain(..));
            self.write().await;
        }
    }

    /// Turns as many waiting requests as fit into one commit, and answers them.
    async fn write(&mut self) {
        // Who has gone away before any work was done need not be served.
        self.waiting.retain(|request| !request.reply.is_closed());
        let draft = self.decide();
        if draft.commit.entries.is_empty() {
            return self.answer(draft);
        }
        let record = codec::encode(&draft.commit);
        let expected = Position(draft.commit.position.0 - 1);
        match self.store(expected, &record).await {
            Outcome::Stored => match self.follower.projection.apply(&draft.commit) {
                Ok(()) => self.answer(draft),
                Err(error) => self.recover(error).await,
            },
            Outcome::Overtaken => {
                if let Err(error) = self.follower.catch_up().await {
                    self.recover(error).await;
                }
            }
            Outcome::NotStored(error) => {
                tracing::warn!("a commit of {} events was refused: {error}", draft.commit.entries.len());
                self.refuse(draft.covered(), error.fault);
            }
            Outcome::Closed(error) => self.recover(error).await,
        }
    }

    fn decide(&self) -> Draft {
        let requests = self.waiting.iter().map(|request| &request.create);
        let (now, id) = (self.clock.now(), CommitId(Uuid::now_v7()));
        self.follower.projection.look(|state| decision::decide(state, requests, now, id))
    }

    /// Appends the record, and finds out what became of it when the log cannot tell.
    async fn store(&self, expected: Position, record: &Record) -> Outcome {
        let mut in_doubt = false;
        loop {
            let error = match self.follower.log.append(expected, record).await {
                Ok(_) => return self.stored(in_doubt),
                Err(AppendError::Closed(error)) => return Outcome::Closed(error),
                Err(AppendError::Conflict) if !in_doubt => return Outcome::Overtaken,
                Err(AppendError::NotStored(error)) if !in_doubt => return Outcome::NotStored(error),
                Err(AppendError::Unclear(error) | AppendError::NotStored(error)) => error,
                // The first copy may have landed after it was looked for.
                Err(AppendError::Conflict) => {
                    LogError::new(Fault::Unreachable, "an earlier try may have been stored")
                }
            };
            in_doubt = true;
            self.follower.monitor.writes_stopped(&error);
            match self.commit_at(expected.next()).await {
                Some(id) if id == record.id => return self.stored(in_doubt),
                Some(_) => {
                    self.follower.monitor.writes_go_on();
                    return Outcome::Overtaken;
                }
                None => time::sleep(RETRY_PAUSE).await,
            }
        }
    }

    fn stored(&self, was_in_doubt: bool) -> Outcome {
        if was_in_doubt {
            self.follower.monitor.writes_go_on();
        }
        Outcome::Stored
    }

    /// Which commit stands at `position`, asked until the log answers.
    async fn commit_at(&self, position: Position) -> Option<CommitId> {
        let before = Position(position.0 - 1);
        loop {
            let found = self.follower.log.read(before, ReadBound::ONE).await;
            match found.and_then(|records| records.first().map(follower::decode).transpose()) {
                Ok(commit) => return commit.map(|commit| commit.id),
                Err(error) => self.follower.monitor.writes_stopped(&error),
            }
            time::sleep(RETRY_PAUSE).await;
        }
    }

    /// Refuses every request until the log is sound again and this node has caught up with it.
    async fn recover(&mut self, mut error: LogError) {
        loop {
            self.follower.monitor.writes_stopped(&error);
            self.refuse(self.waiting.len(), error.fault);
            let next_try = Instant::now() + RETRY_PAUSE;
            while let Ok(request) = time::timeout_at(next_try, self.queue.recv()).await {
                let Some(request) = request else { return };
                self.waiting.push_back(request);
                self.refuse(1, error.fault);
            }
            match self.follower.rejoin().await {
                Ok(()) => return self.follower.monitor.writes_go_on(),
                Err(again) => error = again,
            }
        }
    }

    fn answer(&mut self, draft: Draft) {
        let covered = draft.covered();
        for (request, answer) in self.waiting.drain(..covered).zip(draft.into_answers()) {
            // The client may have gone away; the pet exists all the same.
            let _ = request.reply.send(answer);
        }
    }

    fn refuse(&mut self, count: usize, fault: Fault) {
        for request in self.waiting.drain(..count) {
            // The client may have gone away; there is nothing to tell anybody else.
            let _ = request.reply.send(Err(CreateError::Unavailable(fault)));
        }
    }
}
