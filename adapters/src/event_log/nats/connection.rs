//! The connection to the servers. It reconnects automatically, and classifies failed requests by what is certain about
//! them.

use std::{
    future::{self, Ready},
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use application::ports::{Fault, LogError};
use async_nats::{
    Client, ConnectError, ConnectErrorKind, ConnectOptions, Event, HeaderMap, Message, ReconnectToServer,
    Request, RequestErrorKind, Server, ServerInfo, connection::State, jetstream::response::Response,
};
use bytes::Bytes;
use parking_lot::Mutex;
use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    sync::watch,
    time::{self, Instant},
};

use super::address::{Address, TlsMode};
use crate::{loopback::is_loopback, root_certificates};

/// How long one server may take to accept a connection.
const GREETING_TIMEOUT: Duration = Duration::from_secs(2);
/// How long connecting may take in total, for any number of servers.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
pub(super) const RESPONSE_TIMEOUT: Duration = Duration::from_secs(3);
/// An API request is sent up to three times in `RESPONSE_TIMEOUT`, because no server replies during an election.
const REQUEST_TIMEOUTS: [Duration; 3] =
    [Duration::from_millis(500), Duration::from_secs(1), Duration::from_millis(1_500)];
/// How often an idle server is pinged. The client disconnects from a server that misses three pings.
const PING_INTERVAL: Duration = Duration::from_secs(1);
/// The delay before a request that found no server is sent again.
const LEADER_DELAY: Duration = Duration::from_millis(100);
/// Another server is tried if no leader has replied for this long. Longer than an election usually takes.
const LEADERLESS_MAX: Duration = Duration::from_secs(5);
/// The delay before each attempt to reconnect. Never shorter, because a server may accept connections and close them at
/// once, for example when the account has reached its connection limit.
const RECONNECT_DELAY: Duration = Duration::from_millis(250);

const CONNECT_ADVICE: &str = "check the URL, the credentials, and that the server is running";

pub(super) struct NatsConnection {
    pub(super) address: Address,
    pub(super) client: Client,
    /// How many times the connection has been lost.
    epoch: watch::Receiver<u64>,
    /// The last error that a server has reported.
    server_error: watch::Sender<String>,
    /// When a leader last replied, or another server was tried.
    leader_expected: Mutex<Instant>,
}

impl NatsConnection {
    /// Connects to one of the servers. Fails within seconds if none of them responds.
    pub(super) async fn open(address: Address) -> Result<Self, LogError> {
        let (lost, epoch) = watch::channel(0);
        let server_error = watch::Sender::default();
        let reported = server_error.clone();
        let options = ConnectOptions::new()
            .name("petstore")
            .require_tls(address.tls == TlsMode::Required)
            .connection_timeout(GREETING_TIMEOUT)
            .request_timeout(None)
            .ping_interval(PING_INTERVAL)
            .reconnect_delay_callback(|_| RECONNECT_DELAY)
            .reconnect_to_server_callback(round_robin(address.tls))
            .event_callback(move |event| {
                match &event {
                    Event::Connected => tracing::info!(target: "petstore::storage", "connected to NATS"),
                    Event::Disconnected => {
                        tracing::warn!(target: "petstore::storage", "connection to NATS lost; reconnecting");
                        lost.send_modify(|count| *count += 1);
                    }
                    // The only sign of a missing permission: such a request gets no reply.
                    Event::ServerError(error) => {
                        tracing::warn!(target: "petstore::storage", %error, "NATS server reported an error");
                        reported.send_replace(error.to_string());
                    }
                    _ => tracing::debug!(target: "petstore::storage", %event, "NATS client event"),
                }
                async {}
            });
        let mut options = match (&address.user, &address.password) {
            (Some(user), Some(password)) => options.user_and_password(user.clone(), password.clone()),
            (Some(token), None) => options.token(token.clone()),
            (None, _) => options,
        };
        if let Some(file) = &address.credentials {
            options = options.credentials_file(file).await.map_err(|error| {
                Fault::CannotOpen.error(format!("cannot use {}: {error}", file.display()))
            })?;
        }
        if let Some(ca) = &address.ca {
            options = options.add_root_certificates(ca.clone());
        }
        if let Some((cert, key)) = &address.client_certificate {
            options = options.add_client_certificate(cert.clone(), key.clone());
        }
        let (fault, cause) = match time::timeout(CONNECT_TIMEOUT, options.connect(&address.servers)).await {
            Ok(Ok(client)) => {
                let leader_expected = Mutex::new(Instant::now());
                return Ok(Self { address, client, epoch, server_error, leader_expected });
            }
            Ok(Err(error)) => describe(&error),
            Err(_elapsed) => {
                (Fault::Unreachable, format!("no response within {CONNECT_TIMEOUT:?}; {CONNECT_ADVICE}"))
            }
        };
        Err(fault.error(format!("cannot connect to {address}: {cause}")))
    }

    /// Sends a request and waits for its reply. After the outer error, the request was certainly not processed. After the
    /// inner one, it may have been processed, or may still be.
    ///
    /// The client queues requests that it cannot send, and sends them after a reconnect, even if their callers have
    /// stopped waiting. So nothing is passed to it while it is disconnected. Once it has a request, most failures leave it
    /// open whether the request was processed.
    pub(super) async fn request(
        &self,
        subject: String,
        headers: HeaderMap,
        payload: Bytes,
        timeout: Duration,
    ) -> Result<Result<Message, LogError>, LogError> {
        let deadline = Instant::now() + timeout;
        loop {
            let mut epoch = self.watch()?;
            let request = Request::new().headers(headers.clone()).payload(payload.clone());
            let unclear = |detail: String| Ok(Err(Fault::Unreachable.error(detail)));
            let error = tokio::select! {
                biased;
                reply = time::timeout_at(deadline, self.client.send_request(subject.clone(), request)) => match reply {
                    Ok(Ok(message)) => return Ok(Ok(message)),
                    Ok(Err(error)) => error,
                    Err(_elapsed) => return unclear(format!("the NATS servers did not reply within {timeout:?}")),
                },
                _ = epoch.changed() => return unclear("the connection was lost before the reply arrived".into()),
            };
            match error.kind() {
                // Sent again during an election: no server has received the request.
                RequestErrorKind::NoResponders if Instant::now() + LEADER_DELAY < deadline => {
                    time::sleep(LEADER_DELAY).await;
                }
                RequestErrorKind::NoResponders => {
                    return Err(Fault::Unreachable.error(
                        "no server responded: the stream has no leader at the moment, or JetStream is not enabled",
                    ));
                }
                RequestErrorKind::MaxPayloadExceeded => {
                    let detail = format!("the NATS server does not accept the record: {error}");
                    return Err(Fault::TooLarge.error(detail));
                }
                _ => return unclear(error.to_string()),
            }
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
        body: &impl Serialize,
    ) -> Result<Response<T>, LogError> {
        let body = Bytes::from(serde_json::to_vec(body).expect("our requests always serialise"));
        let subject = format!("$JS.API.{what}.{}", self.address.stream);
        let mut last_error = None;
        for timeout in REQUEST_TIMEOUTS {
            match self.request(subject.clone(), HeaderMap::new(), body.clone(), timeout).await? {
                Ok(reply) => {
                    return serde_json::from_slice(&reply.payload).map_err(|error| {
                        Fault::Unreachable.error(format!("the reply to {what} cannot be parsed: {error}"))
                    });
                }
                Err(error) => last_error = Some(error),
            }
        }
        Err(last_error.expect("there was an attempt"))
    }

    /// Begins the time in which a leader has to reply.
    pub(super) fn expect_leader(&self) {
        *self.leader_expected.lock() = Instant::now();
    }

    /// Whether no leader has replied for [`LEADERLESS_MAX`].
    pub(super) fn is_leaderless(&self) -> bool {
        self.leader_expected.lock().elapsed() > LEADERLESS_MAX
    }

    /// Reconnects to another server if there is no leader. A server that is cut off from the others still responds to pings,
    /// so the client would stay connected to it.
    pub(super) async fn leave_if_leaderless(&self) {
        if !self.is_leaderless() {
            return;
        }
        self.expect_leader();
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
        if self.client.connection_state() == State::Connected {
            return Ok(epoch);
        }
        Err(Fault::Unreachable.error("not connected to the NATS servers"))
    }
}

/// What is wrong, and what to do.
fn describe(error: &ConnectError) -> (Fault, String) {
    let options = "ca=FILE, or use tls=off if the network is trusted";
    if let Some(reason) = root_certificates::rejection(error, options) {
        return (Fault::CannotOpen, reason);
    }
    let (fault, advice) = match error.kind() {
        kind if kind == ConnectErrorKind::Tls || root_certificates::is_tls_error(error) => {
            (Fault::CannotOpen, "use tls=off if the server has no TLS and the network is trusted")
        }
        ConnectErrorKind::ServerParse
        | ConnectErrorKind::Authentication
        | ConnectErrorKind::AuthorizationViolation => (Fault::CannotOpen, CONNECT_ADVICE),
        _ => (Fault::Unreachable, CONNECT_ADVICE),
    };
    (fault, format!("{error}; {advice}"))
}

/// The client chooses the first server; after that, servers take turns. By default, the client would always return to one
/// that never failed but has no leader. In mode `ServerDecides`, only servers on loopback are used: the cluster may
/// announce others, to which the connection could be unencrypted.
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
