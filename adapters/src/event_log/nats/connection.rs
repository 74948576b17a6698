//! The connection to the servers. It reconnects automatically, and classifies failed requests by what is certain about
//! them.

use std::{
    error::Error as _,
    future::{self, Ready},
    io,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use application::ports::{Fault, LogError};
use async_nats::{
    Client, ConnectError, ConnectErrorKind, ConnectOptions, Event, HeaderMap, Message, ReconnectToServer,
    Request, RequestErrorKind, Server, ServerInfo, connection::State, jetstream::response::Response, rustls,
};
use bytes::Bytes;
use parking_lot::Mutex;
use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    sync::watch,
    time::{self, Instant},
};

use super::address::{Address, Credentials, TlsMode};
use crate::{event_log::loopback::is_loopback, root_certificates};

/// How long one server may take to accept a connection.
const GREETING_TIMEOUT: Duration = Duration::from_secs(2);
/// How long connecting may take in total, for any number of servers.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
pub(super) const RESPONSE_TIMEOUT: Duration = Duration::from_secs(3);
/// An API request is sent up to three times, with these timeouts, because no server replies during an election and the
/// new leader should be asked soon. Together they are as long as `RESPONSE_TIMEOUT`.
const REQUEST_TIMEOUTS: [Duration; 3] =
    [Duration::from_millis(500), Duration::from_secs(1), Duration::from_millis(1_500)];
/// How often an idle server is pinged. The client disconnects from a server that misses three pings.
const PING_INTERVAL: Duration = Duration::from_secs(1);
/// Another server is tried if no leader has replied for this long. Longer than an election usually takes.
const LEADERLESS_MAX: Duration = Duration::from_secs(5);
/// The delay before each attempt to reconnect. Never shorter, because a server may accept connections and close them at
/// once, for example when the account has reached its connection limit.
const RECONNECT_DELAY: Duration = Duration::from_millis(250);

const CONNECT_ADVICE: &str = "check the URL, the credentials, and that the server is running";

pub(super) struct NatsConnection {
    pub(super) client: Client,
    /// How many times the connection has been lost.
    epoch: watch::Receiver<u64>,
    /// The last error that a server has reported.
    server_error: watch::Sender<String>,
    /// When a leader last replied, or another server was tried.
    leader_seen: Mutex<Instant>,
}

/// A request without a reply, by what is certain about it.
pub(super) enum RequestFailure {
    /// It never left this process.
    NotSent(LogError),
    /// It was sent, and the servers dropped it because its subject has no subscriber.
    NoResponders(LogError),
    /// It may have been processed, or may still be.
    NoResponse(LogError),
}

impl RequestFailure {
    pub(super) fn into_error(self) -> LogError {
        match self {
            Self::NotSent(error) | Self::NoResponders(error) | Self::NoResponse(error) => error,
        }
    }
}

impl NatsConnection {
    /// Connects to one of the servers. Fails within seconds if none of them responds.
    pub(super) async fn open(address: &Address) -> Result<Self, LogError> {
        let (lost, epoch) = watch::channel(0);
        let server_error = watch::Sender::default();
        let reported = server_error.clone();
        let options = options(address)
            .await?
            .name("petstore")
            .connection_timeout(GREETING_TIMEOUT)
            .request_timeout(None)
            .ping_interval(PING_INTERVAL)
            .reconnect_delay_callback(|_| RECONNECT_DELAY)
            .reconnect_to_server_callback(round_robin(address.tls))
            .event_callback(move |event| {
                log_event(&event);
                if let Event::ServerError(error) = &event {
                    reported.send_replace(error.to_string());
                }
                if event == Event::Disconnected {
                    lost.send_modify(|count| *count += 1);
                }
                async {}
            });
        let connecting = time::timeout(CONNECT_TIMEOUT, options.connect(&address.servers));
        match connecting.await {
            Ok(Ok(client)) => {
                Ok(Self { client, epoch, server_error, leader_seen: Mutex::new(Instant::now()) })
            }
            Ok(Err(error)) => {
                let (fault, advice) = match error.kind() {
                    _ if failed_handshake(&error) => {
                        (Fault::CannotOpen, "use tls=off if the server has no TLS and the network is trusted")
                    }
                    ConnectErrorKind::ServerParse
                    | ConnectErrorKind::Authentication
                    | ConnectErrorKind::AuthorizationViolation => (Fault::CannotOpen, CONNECT_ADVICE),
                    _ => (Fault::Unreachable, CONNECT_ADVICE),
                };
                let options = "ca=FILE, or use tls=off if the network is trusted";
                let cause = root_certificates::rejection(&error, options);
                let cause = cause.unwrap_or_else(|| format!("{error}; {advice}"));
                Err(fault.error(format!("cannot connect to {address}: {cause}")))
            }
            Err(_) => Err(Fault::Unreachable.error(format!(
                "cannot connect to {address} within {CONNECT_TIMEOUT:?}; check that it is running"
            ))),
        }
    }

    /// Sends a request and waits for its reply.
    ///
    /// The client queues requests that it cannot send, and sends them after a reconnect, even if their callers have
    /// stopped waiting. So nothing is passed to it while it is disconnected (`NotSent`). Once it has a request,
    /// most failures leave it open whether the request was processed (`NoResponse`).
    pub(super) async fn request(
        &self,
        subject: String,
        headers: HeaderMap,
        payload: Bytes,
        timeout: Duration,
    ) -> Result<Message, RequestFailure> {
        let mut epoch = self.watch().map_err(RequestFailure::NotSent)?;
        let request = Request::new().headers(headers).payload(payload);
        let reply = time::timeout(timeout, self.client.send_request(subject, request));
        let reply = tokio::select! {
            biased;
            reply = reply => reply,
            _ = epoch.changed() => {
                return Err(RequestFailure::NoResponse(Fault::Unreachable.error("the connection was lost before the reply arrived")));
            }
        };
        match reply {
            Ok(Ok(message)) => Ok(message),
            Ok(Err(error)) => Err(match error.kind() {
                RequestErrorKind::NoResponders => RequestFailure::NoResponders(Fault::Unreachable.error(
                    "no server responded: the stream has no leader at the moment, or JetStream is not enabled",
                )),
                RequestErrorKind::MaxPayloadExceeded => {
                    RequestFailure::NotSent(Fault::TooLarge.error(format!(
                        "the NATS server accepts at most {} bytes",
                        self.client.max_payload()
                    )))
                }
                RequestErrorKind::InvalidSubject | RequestErrorKind::TimedOut | RequestErrorKind::Other => {
                    RequestFailure::NoResponse(Fault::Unreachable.error(error.to_string()))
                }
            }),
            Err(_) => Err(RequestFailure::NoResponse(Fault::Unreachable.error(format!(
                "the NATS servers did not reply within {timeout:?}"
            )))),
        }
    }

    /// Waits until a server reports that this node may not publish on the subject. Such a request gets no reply.
    pub(super) async fn denied(&self, subject: &str) -> LogError {
        self.server_error.send_replace(String::new());
        let (mut errors, quoted) = (self.server_error.subscribe(), format!("Publish to \"{subject}\""));
        let error = errors.wait_for(|error| error.contains(&quoted)).await;
        let error = error.expect("this connection holds the sender").clone();
        Fault::WriteFailed
            .error(format!("NATS rejected a commit ({error}): allow the user to publish on {subject}"))
    }

    /// Sends an idempotent request to the JetStream API, and repeats it if necessary. The response may be an error.
    pub(super) async fn ask<T: DeserializeOwned>(
        &self,
        what: &str,
        stream: &str,
        body: &impl Serialize,
    ) -> Result<Response<T>, LogError> {
        let body = Bytes::from(serde_json::to_vec(body).expect("our requests always serialise"));
        let subject = format!("$JS.API.{what}.{stream}");
        let mut last_error = Fault::Unreachable.error("no request was sent");
        for timeout in REQUEST_TIMEOUTS {
            match self.request(subject.clone(), HeaderMap::new(), body.clone(), timeout).await {
                Ok(reply) => {
                    return serde_json::from_slice(&reply.payload).map_err(|error| {
                        Fault::Unreachable.error(format!(
                            "the reply of the NATS server to {what} cannot be parsed: {error}"
                        ))
                    });
                }
                Err(RequestFailure::NotSent(error) | RequestFailure::NoResponders(error)) => {
                    return Err(error);
                }
                Err(RequestFailure::NoResponse(error)) => last_error = error,
            }
        }
        Err(last_error)
    }

    pub(super) fn leader_responded(&self) {
        *self.leader_seen.lock() = Instant::now();
    }

    /// Whether no leader has replied for a while.
    pub(super) fn is_leaderless(&self) -> bool {
        self.leader_seen.lock().elapsed() > LEADERLESS_MAX
    }

    /// Reconnects to another server if no leader has replied for [`LEADERLESS_MAX`]. A server that is cut off from
    /// the others still responds to pings, so the client would stay connected to it.
    pub(super) async fn leave_if_leaderless(&self) {
        {
            let mut seen = self.leader_seen.lock();
            if seen.elapsed() <= LEADERLESS_MAX {
                return;
            }
            *seen = Instant::now();
        }
        if self.client.connection_state() == State::Connected {
            tracing::warn!(
                target: "petstore::storage",
                "the NATS server does not know the leader of the stream; connecting to another server"
            );
            // Fails only if the client has ended; then every request fails too.
            let _ = self.client.force_reconnect().await;
        }
    }

    /// How many times the connection has been lost.
    pub(super) fn epoch(&self) -> u64 {
        *self.epoch.borrow()
    }

    /// Returns a receiver that changes when the connection is lost. Fails if there is no connection now.
    pub(super) fn watch(&self) -> Result<watch::Receiver<u64>, LogError> {
        let mut epoch = self.epoch.clone();
        epoch.mark_unchanged();
        match self.client.connection_state() {
            State::Connected => Ok(epoch),
            State::Disconnected | State::Pending => {
                Err(Fault::Unreachable.error("not connected to the NATS servers"))
            }
        }
    }
}

/// Whether TLS is the cause: the server has none, or its certificate is not trusted.
fn failed_handshake(error: &ConnectError) -> bool {
    let cause =
        error.source().and_then(|cause| cause.downcast_ref::<io::Error>()).and_then(io::Error::get_ref);
    error.kind() == ConnectErrorKind::Tls
        || cause.and_then(|cause| cause.downcast_ref::<rustls::Error>()).is_some()
}

async fn options(address: &Address) -> Result<ConnectOptions, LogError> {
    let mut options = match &address.identity {
        Credentials::Anonymous => ConnectOptions::new(),
        Credentials::Token(token) => ConnectOptions::with_token(token.clone()),
        Credentials::Password { user, password } => {
            ConnectOptions::with_user_and_password(user.clone(), password.clone())
        }
        Credentials::File(file) => ConnectOptions::with_credentials_file(file)
            .await
            .map_err(|error| Fault::CannotOpen.error(format!("cannot use {}: {error}", file.display())))?,
    };
    options = options.require_tls(address.tls == TlsMode::Required);
    if let Some(ca) = &address.ca {
        options = options.add_root_certificates(ca.clone());
    }
    if let Some((cert, key)) = &address.client_certificate {
        options = options.add_client_certificate(cert.clone(), key.clone());
    }
    Ok(options)
}

/// The client chooses the first server; after that, servers take turns. By default, the client prefers servers that
/// never failed, and would always return to one that responds but has no leader. In mode
/// `ServerDecides`, only servers on loopback are used: the cluster may announce others, to which the connection could be
/// unencrypted.
fn round_robin(mode: TlsMode) -> impl Fn(Vec<Server>, ServerInfo) -> Ready<Option<ReconnectToServer>> {
    let calls = AtomicUsize::new(0);
    move |mut servers, _| {
        if mode == TlsMode::ServerDecides {
            servers.retain(|server| is_loopback(server.addr.host()));
        }
        // Sorted, because the client reorders its list between attempts.
        servers.sort_by_key(|server| (server.addr.host().to_owned(), server.addr.port()));
        let next = calls.fetch_add(1, Ordering::Relaxed).checked_sub(1);
        let server = next.and_then(|next| servers.get(next % servers.len()));
        future::ready(server.map(|server| ReconnectToServer { addr: server.addr.clone(), delay: None }))
    }
}

fn log_event(event: &Event) {
    match event {
        Event::Connected => tracing::info!(target: "petstore::storage", "connected to NATS"),
        Event::Disconnected => {
            tracing::warn!(target: "petstore::storage", "connection to NATS lost; reconnecting");
        }
        // The only sign of a missing permission: such a request gets no reply.
        Event::ServerError(error) => {
            tracing::warn!(target: "petstore::storage", %error, "NATS server reported an error");
        }
        Event::LameDuckMode
        | Event::Draining
        | Event::Closed
        | Event::SlowConsumer(_)
        | Event::ClientError(_) => {
            tracing::debug!(target: "petstore::storage", %event, "NATS client event");
        }
    }
}
