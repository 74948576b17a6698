//! Keeps one session with the primary, and finds the primary again when it is lost.

use std::{sync::Arc, time::Duration};

use application::ports::{Durability, LogError};
use parking_lot::RwLock;
use tokio::{sync::Mutex, time::Instant};

use super::{session::Session, settings::Settings};

/// The pause after a vain try to connect; it doubles with each failure. Who asks meanwhile hears why at once.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(1);

/// The way to the server. Connects when it is used, so whoever polls it finds the server again.
pub(super) struct Link {
    settings: Settings,
    state: Mutex<State>,
    /// What the server of the last session promised.
    durability: RwLock<Durability>,
}

enum State {
    Connected(Arc<Session>),
    Lost { error: LogError, try_again: Instant, pause: Duration },
}

impl Link {
    /// Connects for the first time.
    pub(super) async fn open(settings: Settings) -> Result<Self, LogError> {
        let session = Session::open(&settings).await?;
        let durability = RwLock::new(session.durability().clone());
        Ok(Self { settings, state: Mutex::new(State::Connected(Arc::new(session))), durability })
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
        match Session::open(&self.settings).await {
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

    pub(super) fn durability(&self) -> Durability {
        self.durability.read().clone()
    }

    /// All servers of the URL, for sentences.
    pub(super) fn servers(&self) -> String {
        self.settings.servers()
    }
}
