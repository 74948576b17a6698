//! The connection to the servers: made once, kept up by itself, and honest about what became of a request.

use std::{
    future::{self, Ready},
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use application::ports::{Fault, LogError};
use async_nats::{
    Client, ConnectErrorKind, ConnectOptions, Event, HeaderMap, Message, ReconnectToServer, Request,
    RequestErrorKind, Server, ServerInfo,
    connection::State,
    jetstream::{self, response::Response},
};
use bytes::Bytes;
use parking_lot::Mutex;
use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    fs,
    sync::watch,
    time::{self, Instant},
};

use super::address::{Address, Identity, TlsDemand};

/// How long one server may take to greet us.
const GREETING_PATIENCE: Duration = Duration::from_secs(2);
/// How long opening may take, whatever the number of servers.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);
/// How long an answer may take.
pub(super) const ANSWER_PATIENCE: Duration = Duration::from_secs(3);
/// Questions are asked again after each of these. While a new leader is elected nobody answers, and then it
/// should be asked soon. Together they are the patience for an answer.
const QUESTION_PATIENCES: [Duration; 3] =
    [Duration::from_millis(500), Duration::from_secs(1), Duration::from_millis(1_500)];
/// A silent server is asked for a sign of life so often, and left when three stay out.
const PING_INTERVAL: Duration = Duration::from_secs(1);
/// Without word of a leader for so long, another server is tried. About as long as an election.
const LEADERLESS_MAX: Duration = Duration::from_secs(5);
/// The pause before trying a server again doubles from the first to the last of these.
const RECONNECT_PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

/// A connection that comes back by itself.
pub(super) struct Connection {
    pub(super) client: Client,
    /// Counts how often the connection was lost.
    losses: watch::Receiver<u64>,
    /// When a leader was heard of, or another server was tried.
    hopeful: Mutex<Instant>,
}

/// Why a request has no answer, by what can be said about it.
pub(super) enum Failure {
    /// It never left this process.
    NotSent(LogError),
    /// It was sent, and the servers know nobody to give it to: it is gone.
    NobodyListens(LogError),
    /// It may have been heard, or may yet be.
    NoAnswer(LogError),
}

/// Why the JetStream API did not do what it was asked.
pub(super) enum ApiFailure {
    /// It said no.
    Refused(jetstream::Error),
    /// It said nothing.
    Silent(LogError),
}

impl Connection {
    /// Connects to one of the servers. Fails within seconds if none of them answers.
    pub(super) async fn open(address: &Address) -> Result<Self, LogError> {
        let (lost, losses) = watch::channel(0);
        let options = options(address)
            .await?
            .name("petstore")
            .connection_timeout(GREETING_PATIENCE)
            .request_timeout(None)
            .ping_interval(PING_INTERVAL)
            .reconnect_delay_callback(reconnect_pause)
            .reconnect_to_server_callback(one_after_the_other())
            .event_callback(move |event| {
                report(&event);
                if event == Event::Disconnected {
                    lost.send_modify(|count| *count += 1);
                }
                async {}
            });
        let connecting = time::timeout(CONNECT_PATIENCE, options.connect(&address.servers));
        match connecting.await {
            Ok(Ok(client)) => Ok(Self { client, losses, hopeful: Mutex::new(Instant::now()) }),
            Ok(Err(error)) => {
                let fault = match error.kind() {
                    ConnectErrorKind::Dns
                    | ConnectErrorKind::TimedOut
                    | ConnectErrorKind::Io
                    | ConnectErrorKind::MaxReconnects => Fault::Unreachable,
                    ConnectErrorKind::ServerParse
                    | ConnectErrorKind::Authentication
                    | ConnectErrorKind::AuthorizationViolation
                    | ConnectErrorKind::Tls => Fault::CannotOpen,
                };
                Err(LogError::new(fault, format!("no connection to {address}: {error}")))
            }
            Err(_) => Err(unreachable(format!(
                "no connection to {address} within {CONNECT_PATIENCE:?}: is it running?"
            ))),
        }
    }

    /// Sends a request and waits for its answer.
    ///
    /// The client keeps what it could not send in a queue and sends it after a reconnect, even if nobody waits
    /// for the answer any more: only while there is no connection is it certain that nothing leaves this
    /// process, and then nothing is handed over. Everything later is `NoAnswer`.
    pub(super) async fn request(
        &self,
        subject: String,
        headers: HeaderMap,
        payload: Bytes,
        patience: Duration,
    ) -> Result<Message, Failure> {
        let mut losses = self.watch().map_err(Failure::NotSent)?;
        let request = Request::new().headers(headers).payload(payload);
        let answer = time::timeout(patience, self.client.send_request(subject, request));
        let answer = tokio::select! {
            biased;
            answer = answer => answer,
            _ = losses.changed() => {
                return Err(Failure::NoAnswer(unreachable("the connection was lost before the answer came")));
            }
        };
        match answer {
            Ok(Ok(message)) => Ok(message),
            Ok(Err(error)) => Err(match error.kind() {
                RequestErrorKind::NoResponders => {
                    Failure::NobodyListens(unreachable("no NATS server is in charge of the stream for now"))
                }
                RequestErrorKind::MaxPayloadExceeded => Failure::NotSent(LogError::new(
                    Fault::TooLarge,
                    format!("the NATS server takes at most {} bytes", self.client.max_payload()),
                )),
                RequestErrorKind::InvalidSubject | RequestErrorKind::TimedOut | RequestErrorKind::Other => {
                    Failure::NoAnswer(unreachable(error.to_string()))
                }
            }),
            Err(_) => Err(Failure::NoAnswer(unreachable(format!(
                "the NATS servers did not answer within {patience:?}"
            )))),
        }
    }

    /// Asks the JetStream API something that may be asked twice.
    pub(super) async fn ask<T: DeserializeOwned>(
        &self,
        what: &str,
        stream: &str,
        body: &impl Serialize,
    ) -> Result<T, ApiFailure> {
        let body = Bytes::from(serde_json::to_vec(body).expect("questions of ours always serialise"));
        let subject = format!("$JS.API.{what}.{stream}");
        let mut silence = unreachable("nobody was asked");
        for patience in QUESTION_PATIENCES {
            match self.request(subject.clone(), HeaderMap::new(), body.clone(), patience).await {
                Ok(answer) => return understand(what, &answer.payload),
                Err(Failure::NotSent(error) | Failure::NobodyListens(error)) => {
                    return Err(ApiFailure::Silent(error));
                }
                Err(Failure::NoAnswer(error)) => silence = error,
            }
        }
        Err(ApiFailure::Silent(silence))
    }

    /// Takes note that the servers have a leader, and that it can be reached.
    pub(super) fn leader_heard(&self) {
        *self.hopeful.lock() = Instant::now();
    }

    /// Takes note that no leader can be reached. A server that is cut off from the others still answers its
    /// clients, so the client has no reason of its own to leave it.
    pub(super) async fn leader_missed(&self) {
        let hopeless = {
            let mut hopeful = self.hopeful.lock();
            let hopeless = hopeful.elapsed() > LEADERLESS_MAX;
            if hopeless {
                *hopeful = Instant::now();
            }
            hopeless
        };
        if hopeless && self.client.connection_state() == State::Connected {
            tracing::warn!("this NATS server knows no leader of the stream: trying another one");
            // It fails only when the client has ended, and then every request says so.
            let _ = self.client.force_reconnect().await;
        }
    }

    /// Tells when the connection, which must be there now, is lost.
    pub(super) fn watch(&self) -> Result<watch::Receiver<u64>, LogError> {
        let mut losses = self.losses.clone();
        losses.mark_unchanged();
        match self.client.connection_state() {
            State::Connected => Ok(losses),
            State::Disconnected | State::Pending => {
                Err(unreachable("there is no connection to the NATS servers"))
            }
        }
    }
}

/// What to say when the servers do not answer as they should for now.
pub(super) fn unreachable(detail: impl Into<String>) -> LogError {
    LogError::new(Fault::Unreachable, detail)
}

fn understand<T: DeserializeOwned>(what: &str, answer: &[u8]) -> Result<T, ApiFailure> {
    match serde_json::from_slice(answer) {
        Ok(Response::Ok(answer)) => Ok(answer),
        Ok(Response::Err { error }) => Err(ApiFailure::Refused(error)),
        Err(error) => {
            let detail = format!("the NATS server answered {what} in a way that is not understood: {error}");
            Err(ApiFailure::Silent(unreachable(detail)))
        }
    }
}

async fn options(address: &Address) -> Result<ConnectOptions, LogError> {
    let cannot_read = |file: &std::path::Path, error: std::io::Error| {
        LogError::new(Fault::CannotOpen, format!("cannot use {}: {error}", file.display()))
    };
    let mut options = match &address.identity {
        Identity::Nobody => ConnectOptions::new(),
        Identity::Token(token) => ConnectOptions::with_token(token.clone()),
        Identity::Password { user, password } => {
            ConnectOptions::with_user_and_password(user.clone(), password.clone())
        }
        Identity::PasswordFile { user, file } => {
            let password = fs::read_to_string(file).await.map_err(|error| cannot_read(file, error))?;
            ConnectOptions::with_user_and_password(user.clone(), password.trim_end().into())
        }
        Identity::Credentials(file) => {
            ConnectOptions::with_credentials_file(file).await.map_err(|error| cannot_read(file, error))?
        }
    };
    options = match address.tls.demand {
        TlsDemand::ServerDecides => options,
        TlsDemand::Required => options.require_tls(true),
        TlsDemand::First => options.require_tls(true).tls_first(),
    };
    if let Some(ca) = &address.tls.ca {
        options = options.add_root_certificates(ca.clone());
    }
    if let Some((cert, key)) = &address.tls.client {
        options = options.add_client_certificate(cert.clone(), key.clone());
    }
    Ok(options)
}

fn reconnect_pause(attempt: usize) -> Duration {
    let (first, last) = RECONNECT_PAUSE;
    let doublings = u32::try_from(attempt.saturating_sub(1)).unwrap_or(u32::MAX);
    first.saturating_mul(2_u32.saturating_pow(doublings)).min(last)
}

/// The first server is anyone. Later ones take turns: the client itself prefers servers that never failed, and would go
/// back for ever to one that answers and is of no use.
fn one_after_the_other() -> impl Fn(Vec<Server>, ServerInfo) -> Ready<Option<ReconnectToServer>> {
    let calls = AtomicUsize::new(0);
    move |servers, _| {
        let next = calls.fetch_add(1, Ordering::Relaxed).checked_sub(1);
        let server = next.and_then(|next| servers.get(next % servers.len()));
        future::ready(server.map(|server| ReconnectToServer { addr: server.addr.clone(), delay: None }))
    }
}

fn report(event: &Event) {
    match event {
        Event::Connected => tracing::info!("connected to NATS"),
        Event::Disconnected => tracing::warn!("the connection to NATS was lost: reconnecting"),
        // Permissions that are missing are told in this way only: the request itself stays without an answer.
        Event::ServerError(error) => tracing::warn!("NATS server: {error}"),
        Event::LameDuckMode
        | Event::Draining
        | Event::Closed
        | Event::SlowConsumer(_)
        | Event::ClientError(_) => tracing::debug!("NATS client: {event}"),
    }
}
