//! Keeps one session with the primary, and finds the primary again when it is lost.

use std::{sync::Arc, time::Duration};

use application::ports::{Durability, Fault, LogError};
use parking_lot::RwLock;
use tokio::{
    sync::Mutex,
    time::{self, Instant},
};

use super::{schema::Tables, seen::Seen, session::Session, settings::Settings, trouble};

/// The pause after a vain try to connect; it doubles with each failure. Who asks meanwhile hears why at once.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(1);

/// How long a new server may take to tell whether it has the commit that was seen last.
const COMPARE_PATIENCE: Duration = Duration::from_secs(2);

/// The way to the server. Connects when it is used, so whoever polls it finds the server again.
pub(super) struct Link {
    settings: Settings,
    state: Mutex<State>,
    /// What the server of the last session promised.
    durability: RwLock<Durability>,
    seen: parking_lot::Mutex<Seen>,
}

enum State {
    Connected(Arc<Session>),
    Lost { error: LogError, try_again: Instant, pause: Duration },
}

impl Link {
    /// Connects for the first time.
    pub(super) async fn open(settings: Settings, tables: Tables) -> Result<Self, LogError> {
        let session = Session::open(&settings, tables).await?;
        let durability = RwLock::new(session.durability().clone());
        Ok(Self {
            settings,
            state: Mutex::new(State::Connected(Arc::new(session))),
            durability,
            seen: parking_lot::Mutex::default(),
        })
    }

    /// The session that is open, or a new one.
    pub(super) async fn session(&self) -> Result<Arc<Session>, LogError> {
        let mut state = self.state.lock().await;
        let pause = match &*state {
            State::Connected(session) if session.is_open() => return Ok(session.clone()),
            State::Lost { error, try_again, .. } if Instant::now() < *try_again => return Err(error.clone()),
            State::Connected(_) => RETRY_PAUSE,
            State::Lost { pause, .. } => (*pause * 2).min(RETRY_PAUSE_MAX),
        };
        match self.reconnect().await {
            Ok(session) => {
                let session = Arc::new(session);
                *self.durability.write() = session.durability().clone();
                *state = State::Connected(session.clone());
                Ok(session)
            }
            Err(error) => {
                *state = State::Lost { error: error.clone(), try_again: Instant::now() + pause, pause };
                Err(error)
            }
        }
    }

    async fn reconnect(&self) -> Result<Session, LogError> {
        // Tables that were there are not made anew: a log that has vanished is no empty log.
        let session = Session::open(&self.settings, Tables::Existing).await?;
        let last = self.seen.lock().last();
        if let Some((position, _)) = last {
            let Ok(found) = time::timeout(COMPARE_PATIENCE, session.commit_at(position)).await else {
                let detail = format!("PostgreSQL at {} does not answer", session.server());
                return Err(LogError::new(Fault::Unreachable, detail));
            };
            let found = found.map_err(|error| trouble::of_query(session.server(), &error))?;
            self.seen.lock().compare(found);
        }
        Ok(session)
    }

    /// What callers were given so far.
    pub(super) fn seen(&self) -> parking_lot::MutexGuard<'_, Seen> {
        self.seen.lock()
    }

    pub(super) fn durability(&self) -> Durability {
        self.durability.read().clone()
    }

    /// All servers of the URL, for sentences.
    pub(super) fn servers(&self) -> String {
        self.settings.servers()
    }
}
