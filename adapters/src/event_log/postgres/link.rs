//! Keeps one session with the primary, and reconnects when the session is lost.

use std::{sync::Arc, time::Duration};

use application::{
    Backoff,
    ports::{Durability, Fault, LogError, StoredRecord, Version},
};
use parking_lot::{Mutex as SyncMutex, RwLock};
use tokio::{sync::Mutex, time::Instant};

use super::{error_mapping, session::Session, settings::Target};
use crate::event_log::IfMissing;

/// The delay between attempts to connect. Until the next one, calls fail with the error of the last one.
const RETRY: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
/// The delay before other servers are tried again, while the connected one lacks the newest commit.
const BEHIND_DELAY: Duration = Duration::from_secs(1);
const DURABILITY_AGE_MAX: Duration = Duration::from_secs(1);

/// The connection to the primary. Every use reconnects if necessary.
pub(super) struct Link {
    targets: Vec<Target>,
    state: Mutex<LinkState>,
    /// The newest commit that this node has read or appended: servers that hold it are preferred.
    newest: SyncMutex<Version>,
    /// The durability that the server reported, and when.
    durability: RwLock<(Durability, Instant)>,
}

enum LinkState {
    Connected {
        session: Arc<Session>,
        /// When to look for another server, if this one lacks the newest commit.
        until: Option<Instant>,
    },
    Lost {
        error: LogError,
        try_again: Instant,
        failures: u32,
    },
}

impl Link {
    /// Connects for the first time.
    pub(super) async fn open(
        targets: Vec<Target>,
        if_missing: IfMissing,
        newest: Version,
    ) -> Result<Self, LogError> {
        let (session, errors) = Session::open(&targets, if_missing, newest).await;
        let another_may_hold_it = errors.iter().any(|error| error.fault == Fault::Unreachable);
        // If no better server can be expected, use one that lacks the newest commit. The caller checks what is missing.
        let session = session.filter(|session| session.holds_newest || !another_may_hold_it);
        let session = session.ok_or_else(|| error_mapping::combined(errors))?;
        let durability = RwLock::new((session.durability().await?, Instant::now()));
        let state = Mutex::new(LinkState::Connected { session: Arc::new(session), until: None });
        Ok(Self { targets, state, newest: SyncMutex::new(newest), durability })
    }

    /// The open session, or a new one.
    pub(super) async fn session(&self) -> Result<Arc<Session>, LogError> {
        let mut state = self.state.lock().await;
        let now = Instant::now();
        let failures = match &*state {
            LinkState::Connected { session, until }
                if session.is_open() && until.is_none_or(|until| now < until) =>
            {
                return Ok(session.clone());
            }
            LinkState::Lost { error, try_again, .. } if now < *try_again => return Err(error.clone()),
            LinkState::Connected { .. } => 1,
            LinkState::Lost { failures, .. } => failures.saturating_add(1),
        };
        match self.reconnect().await {
            Ok(session) => {
                let session = Arc::new(session);
                let until = (!session.holds_newest).then(|| Instant::now() + BEHIND_DELAY);
                *state = LinkState::Connected { session: session.clone(), until };
                Ok(session)
            }
            Err(error) => {
                let try_again = Instant::now() + RETRY.delay(failures);
                *state = LinkState::Lost { error: error.clone(), try_again, failures };
                Err(error)
            }
        }
    }

    async fn reconnect(&self) -> Result<Session, LogError> {
        // Missing tables are not recreated: a log that has vanished is not an empty log.
        let newest = *self.newest.lock();
        let (session, errors) = Session::open(&self.targets, IfMissing::Fail, newest).await;
        let session = session.ok_or_else(|| error_mapping::combined(errors))?;
        self.set_durability(session.durability().await?);
        session.wait_for_standbys().await?;
        Ok(session)
    }

    /// Remembers this commit if it is newer than the newest one known.
    pub(super) fn raise_newest(&self, version: Version) {
        let mut newest = self.newest.lock();
        if version.position > newest.position {
            *newest = version;
        }
    }

    /// Remembers the last of these records if they continue the known history: they include the newest known commit, or no
    /// commit is known yet.
    pub(super) fn note_read(&self, records: &[StoredRecord]) {
        let newest = *self.newest.lock();
        if (newest == Version::START || records.iter().any(|record| record.version() == newest))
            && let Some(last) = records.last()
        {
            self.raise_newest(last.version());
        }
    }

    /// Refreshes the durability, because the settings of the server can change while it runs.
    pub(super) async fn refresh_durability(&self, session: &Session) {
        if self.durability.read().1.elapsed() >= DURABILITY_AGE_MAX
            && let Ok(durability) = session.durability().await
        {
            self.set_durability(durability);
        }
    }

    fn set_durability(&self, durability: Durability) {
        *self.durability.write() = (durability, Instant::now());
    }

    pub(super) fn durability(&self) -> Durability {
        self.durability.read().0.clone()
    }
}
