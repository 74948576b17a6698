//! Keeps one session with the primary, and reconnects when the session is lost.

use std::{sync::Arc, time::Duration};

use application::{
    Backoff,
    ports::{Durability, Fault, LogError, StoredRecord, Version},
};
use parking_lot::{Mutex as SyncMutex, RwLock};
use tokio::{
    sync::Mutex,
    time::{self, Instant},
};

use super::{
    error_mapping,
    session::{Attempt, HeldCommits, Session},
    settings::Target,
};
use crate::event_log::IfMissing;

/// The delay between attempts to connect. Until the next one, calls fail with the error of the last one.
const RETRY: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
/// The delay before other servers are tried again, while the connected one lacks the newest commit.
const BEHIND_DELAY: Duration = Duration::from_secs(1);
/// How long a server may take to report its settings.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the synchronous standbys may take to catch up.
const STANDBY_TIMEOUT: Duration = Duration::from_secs(4);
/// The maximum age of the known durability settings.
const DURABILITY_AGE_MAX: Duration = Duration::from_secs(1);

/// The connection to the primary. Every use reconnects if necessary.
pub(super) struct Link {
    /// The servers of the URL.
    targets: Vec<Target>,
    state: Mutex<LinkState>,
    /// The newest commit that this node has read or appended: servers that hold it are preferred.
    newest: SyncMutex<Version>,
    /// The durability that the server reported, and when.
    durability: RwLock<(Durability, Instant)>,
}

enum LinkState {
    Connected(Arc<Session>),
    /// Connected to a server that lacks the newest commit, until a better one is found.
    Behind {
        session: Arc<Session>,
        try_again: Instant,
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
        let Attempt { session, errors } = Session::open(&targets, if_missing, newest).await;
        let another_may_hold_it = errors.iter().any(|error| error.fault == Fault::Unreachable);
        let session = match session {
            // If no better server can be expected, use one that lacks the newest commit. The caller checks what is missing.
            Some((session, holds)) if holds == HeldCommits::Newest || !another_may_hold_it => session,
            Some(_) | None => return Err(error_mapping::combined(errors)),
        };
        let durability = RwLock::new((durability_of(&session).await?, Instant::now()));
        let state = Mutex::new(LinkState::Connected(Arc::new(session)));
        Ok(Self { targets, state, newest: SyncMutex::new(newest), durability })
    }

    /// Waits until the synchronous standbys have everything that the server has.
    pub(super) async fn wait_for_standbys(&self) -> Result<(), LogError> {
        wait_for_standbys(&*self.session().await?).await
    }

    /// The open session, or a new one.
    pub(super) async fn session(&self) -> Result<Arc<Session>, LogError> {
        let mut state = self.state.lock().await;
        let failures = match &*state {
            LinkState::Connected(session) if session.is_open() => return Ok(session.clone()),
            LinkState::Behind { session, try_again } if session.is_open() && Instant::now() < *try_again => {
                return Ok(session.clone());
            }
            LinkState::Lost { error, try_again, .. } if Instant::now() < *try_again => {
                return Err(error.clone());
            }
            LinkState::Connected(_) | LinkState::Behind { .. } => 1,
            LinkState::Lost { failures, .. } => failures.saturating_add(1),
        };
        match self.reconnect().await {
            Ok((session, holds)) => {
                let session = Arc::new(session);
                *state = match holds {
                    HeldCommits::Newest => LinkState::Connected(session.clone()),
                    HeldCommits::Older => LinkState::Behind {
                        session: session.clone(),
                        try_again: Instant::now() + BEHIND_DELAY,
                    },
                };
                Ok(session)
            }
            Err(error) => {
                let try_again = Instant::now() + RETRY.delay(failures);
                *state = LinkState::Lost { error: error.clone(), try_again, failures };
                Err(error)
            }
        }
    }

    async fn reconnect(&self) -> Result<(Session, HeldCommits), LogError> {
        // Missing tables are not recreated: a log that has vanished is not an empty log.
        let newest = *self.newest.lock();
        let Attempt { session, errors } = Session::open(&self.targets, IfMissing::Fail, newest).await;
        let (session, holds) = session.ok_or_else(|| error_mapping::combined(errors))?;
        self.set_durability(durability_of(&session).await?);
        wait_for_standbys(&session).await?;
        Ok((session, holds))
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
            && let Ok(durability) = durability_of(session).await
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

    /// All servers of the URL, for messages.
    pub(super) fn servers(&self) -> String {
        let servers: Vec<_> = self.targets.iter().map(|target| target.server.as_str()).collect();
        servers.join(", ")
    }
}

async fn durability_of(session: &Session) -> Result<Durability, LogError> {
    session.in_time(RESPONSE_TIMEOUT, session.durability()).await
}

async fn wait_for_standbys(session: &Session) -> Result<(), LogError> {
    let Ok(waited) = time::timeout(STANDBY_TIMEOUT, session.wait_for_standbys()).await else {
        session.disconnect();
        return Err(error_mapping::unreachable_error(
            session.server(),
            "is still waiting for its synchronous standbys; see pg_stat_replication",
        ));
    };
    waited.map_err(|error| error_mapping::query_error(session.server(), &error))?;
    if session.has_warned() {
        let what = "has stopped waiting for its synchronous standbys";
        return Err(error_mapping::unreachable_error(session.server(), what));
    }
    Ok(())
}
