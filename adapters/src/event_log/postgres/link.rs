//! Keeps one session with the primary, and reconnects when the session is lost.

use std::{sync::Arc, time::Duration};

use application::ports::{Durability, LogError};
use parking_lot::RwLock;
use tokio::{sync::Mutex, time::Instant};

use super::{error_mapping, session::Session, settings::Settings};
use crate::event_log::IfMissing;

/// The pause after a failed attempt to connect. It doubles with each failure; callers get the last error meanwhile.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(1);

/// How long a server may take to answer a question about its state.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// How long its synchronous standbys may take to catch up with it.
const STANDBY_TIMEOUT: Duration = Duration::from_secs(4);
/// How old the known durability may be before the server is asked again.
const DURABILITY_AGE_MAX: Duration = Duration::from_secs(1);

/// The connection to the primary. Every use reconnects if need be, so polling is enough to get it back.
pub(super) struct Link {
    settings: Settings,
    state: Mutex<State>,
    /// What the server promised, and when it was asked.
    durability: RwLock<(Durability, Instant)>,
}

enum State {
    Connected(Arc<Session>),
    Lost { error: LogError, try_again: Instant, pause: Duration },
}

impl Link {
    /// Connects for the first time.
    pub(super) async fn open(settings: Settings, if_missing: IfMissing) -> Result<Self, LogError> {
        let session = Session::open(&settings, if_missing).await?;
        let durability = RwLock::new((durability_of(&session).await?, Instant::now()));
        if if_missing == IfMissing::Create {
            wait_for_standbys(&session).await?;
        }
        Ok(Self { settings, state: Mutex::new(State::Connected(Arc::new(session))), durability })
    }

    /// The open session, or a new one.
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
        // Tables that existed are not created again: a log that has vanished is not an empty log.
        let session = Session::open(&self.settings, IfMissing::Refuse).await?;
        self.note(durability_of(&session).await?);
        wait_for_standbys(&session).await?;
        Ok(session)
    }

    /// Asks the server from time to time, because its settings can change while it runs.
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

    pub(super) fn durability(&self) -> Durability {
        self.durability.read().0.clone()
    }

    /// All servers of the URL, for messages.
    pub(super) fn servers(&self) -> String {
        self.settings.servers()
    }
}

async fn durability_of(session: &Session) -> Result<Durability, LogError> {
    session.in_time(ANSWER_TIMEOUT, "does not respond", session.durability()).await
}

async fn wait_for_standbys(session: &Session) -> Result<(), LogError> {
    let waiting = "waits for its synchronous standbys";
    session.in_time(STANDBY_TIMEOUT, waiting, session.wait_for_standbys()).await?;
    if session.has_warned() {
        let what = "has stopped waiting for its synchronous standbys";
        return Err(error_mapping::unreachable(session.server(), what));
    }
    Ok(())
}
