//! Keeps one session with the primary, and finds the primary again when it is lost.

use std::{sync::Arc, time::Duration};

use application::ports::{Durability, Fault, LogError};
use parking_lot::RwLock;
use tokio::{
    sync::Mutex,
    time::{self, Instant},
};

use super::{error_mapping, schema::Tables, seen::Seen, session::Session, settings::Settings};

/// The pause after a vain try to connect; it doubles with each failure. Who asks meanwhile hears why at once.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(1);

/// How long a new server may take to tell whether it has the commit that was seen last.
const COMPARE_PATIENCE: Duration = Duration::from_secs(2);
/// How long its standbys may take to have what it has.
const STANDBY_PATIENCE: Duration = Duration::from_secs(4);
/// How old the news about its settings may be.
const DURABILITY_AGE_MAX: Duration = Duration::from_secs(5);

/// The way to the server. Connects when it is used, so whoever polls it finds the server again.
pub(super) struct Link {
    settings: Settings,
    state: Mutex<State>,
    /// What the server of the last session promised, and when.
    durability: RwLock<(Durability, Instant)>,
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
        let durability = RwLock::new((durability_of(&session).await?, Instant::now()));
        if tables == Tables::OrCreate {
            wait_for_standbys(&session).await?;
        }
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
            let found =
                in_time(&session, COMPARE_PATIENCE, "does not answer", session.commit_at(position)).await?;
            self.seen.lock().compare(found);
        }
        self.note(durability_of(&session).await?);
        wait_for_standbys(&session).await?;
        Ok(session)
    }

    /// Asks the server from time to time what it does: its settings can be changed while it runs.
    pub(super) async fn refresh_durability(&self, session: &Session) {
        if self.durability.read().1.elapsed() >= DURABILITY_AGE_MAX
            && let Ok(durability) = durability_of(session).await
        {
            self.note(durability);
        }
    }

    fn note(&self, durability: Durability) {
        let mut noted = self.durability.write();
        if durability.level != noted.0.level {
            tracing::warn!(
                "the durability has changed from {:?} to {:?}: {}",
                noted.0.level,
                durability.level,
                durability.promise
            );
        }
        *noted = (durability, Instant::now());
    }

    /// What callers were given so far.
    pub(super) fn seen(&self) -> parking_lot::MutexGuard<'_, Seen> {
        self.seen.lock()
    }

    pub(super) fn durability(&self) -> Durability {
        self.durability.read().0.clone()
    }

    /// All servers of the URL, for sentences.
    pub(super) fn servers(&self) -> String {
        self.settings.servers()
    }
}

async fn durability_of(session: &Session) -> Result<Durability, LogError> {
    in_time(session, COMPARE_PATIENCE, "does not answer", session.durability()).await
}

async fn wait_for_standbys(session: &Session) -> Result<(), LogError> {
    in_time(session, STANDBY_PATIENCE, "waits for its synchronous standbys", session.wait_for_standbys())
        .await?;
    if session.has_warned() {
        let detail =
            format!("PostgreSQL at {} has stopped waiting for its synchronous standbys", session.server());
        return Err(LogError::new(Fault::Unreachable, detail));
    }
    Ok(())
}

async fn in_time<T>(
    session: &Session,
    patience: Duration,
    otherwise: &str,
    answer: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, LogError> {
    let Ok(answer) = time::timeout(patience, answer).await else {
        let detail = format!("PostgreSQL at {} {otherwise}", session.server());
        return Err(LogError::new(Fault::Unreachable, detail));
    };
    answer.map_err(|error| error_mapping::query_error(session.server(), &error))
}
