//! The stream that holds the log: the settings it needs, and the state that its leader reports.

use std::time::Duration;

use application::ports::{Fault, LogError, Position, Version};
use async_nats::jetstream::{
    Error, ErrorCode,
    response::Response,
    stream::{
        Config, DiscardPolicy, Info, PeerInfo, PersistenceMode, Republish, RetentionPolicy, StorageType,
    },
};
use tokio::time::{self, Instant};

use super::{address::Address, connection::NatsConnection};
use crate::event_log::ReadPurpose;

/// The number of replicas of a new stream if there are enough servers. With three, it survives the loss of one.
const REPLICAS: usize = 3;
/// A replica that the leader has not heard from for this long does not count towards the majority. The time of
/// three heartbeats.
const CONTACT_MAX: Duration = Duration::from_secs(3);
/// How long to look for an existing stream. Longer than an election usually takes.
const FIND_TIMEOUT: Duration = Duration::from_secs(5);
const FIND_INTERVAL: Duration = Duration::from_millis(250);

impl NatsConnection {
    /// Finds the stream, or creates it if no commit is known. Several nodes may do so at once: creating the same stream
    /// again changes nothing. A newly elected leader of the cluster may not know of the stream yet.
    pub(super) async fn open_stream(&self, known: Option<Version>) -> Result<Info, LogError> {
        let deadline = Instant::now() + FIND_TIMEOUT;
        loop {
            match self.find_stream().await? {
                Some(info) => return Ok(info),
                None if Instant::now() >= deadline => {
                    let detail = format!("stream {} does not exist; check the URL", self.address.stream);
                    return Err(Fault::AnotherLog.error(detail));
                }
                None if known.is_none() => self.create_stream().await?,
                None => time::sleep(FIND_INTERVAL).await,
            }
        }
    }

    /// Requests the state of the stream from its leader.
    pub(super) async fn stream_info(&self) -> Result<Info, LogError> {
        let stream = &self.address.stream;
        match self.find_stream().await? {
            Some(info) => Ok(info),
            None if self.is_leaderless() => {
                Err(Fault::AnotherLog.error(format!("stream {stream} was deleted; restore it from a backup")))
            }
            // A newly elected leader may not know of it yet.
            None => Err(Fault::Unreachable.error(format!("stream {stream} is not known to the servers"))),
        }
    }

    /// Requests the state of the stream, if it exists. Fails if there is no leader or if it has lost its majority, because
    /// the other servers may have elected a new one.
    async fn find_stream(&self) -> Result<Option<Info>, LogError> {
        let info: Info = match self.ask("STREAM.INFO", &()).await? {
            Response::Ok(info) => info,
            Response::Err { error } if error.error_code() == ErrorCode::STREAM_NOT_FOUND => return Ok(None),
            Response::Err { error } => return Err(self.rejection("describe", &error)),
        };
        let unreachable =
            |why| Err(Fault::Unreachable.error(format!("stream {} {why}", self.address.stream)));
        let Some(cluster) = &info.cluster else { return Ok(Some(info)) };
        // A former leader that is cut off from the others still replies, and names no leader.
        if cluster.leader.as_ref().is_none_or(String::is_empty) {
            return unreachable("has no leader at the moment".to_owned());
        }
        let (servers, heard) = (cluster.replicas.len() + 1, servers_in_contact(&info).len());
        if 2 * heard <= servers {
            return unreachable(format!(
                "has a leader that reaches only {heard} of {servers} servers: no majority"
            ));
        }
        Ok(Some(info))
    }

    async fn create_stream(&self) -> Result<(), LogError> {
        let create =
            async |replicas| self.ask::<Info>("STREAM.CREATE", &config(&self.address, replicas)).await;
        let servers = self.client.server_info().connect_urls.len().max(self.address.servers.len());
        let mut created = create(self.address.replicas.unwrap_or(REPLICAS)).await?;
        // Use one replica only if fewer servers are known than replicas are needed. Otherwise some servers are down: fail and
        // let the caller retry, rather than create a stream with less redundancy than the operator expects.
        if let Response::Err { error } = &created
            && [ErrorCode::STREAM_REPLICAS_NOT_SUPPORTED, ErrorCode::CLUSTER_NO_PEERS]
                .contains(&error.error_code())
            && self.address.replicas.is_none()
            && servers < REPLICAS
        {
            created = create(1).await?;
        }
        match created {
            // Another node has created it with a different number of replicas.
            Response::Err { error } if error.error_code() != ErrorCode::STREAM_NAME_EXIST => {
                Err(self.rejection("create", &error))
            }
            Response::Ok(_) | Response::Err { .. } => Ok(()),
        }
    }

    fn rejection(&self, action: &str, error: &Error) -> LogError {
        let fault = match error.error_code() {
            ErrorCode::JETSTREAM_NOT_ENABLED
            | ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT
            | ErrorCode::STREAM_SUBJECT_OVERLAP
            | ErrorCode::STREAM_REPLICAS_NOT_SUPPORTED => Fault::CannotOpen,
            // Any other error may pass.
            _ => Fault::Unreachable,
        };
        fault.error(format!("NATS rejected the request to {action} stream {}: {error}", self.address.stream))
    }
}

/// The leader and the replicas that it is in contact with. Other replicas acknowledge nothing. A new leader reports a contact
/// time of zero for a replica that it has not heard from since its election, for example the leader that it replaced.
pub(super) fn servers_in_contact(info: &Info) -> Vec<&str> {
    let Some(cluster) = &info.cluster else { return vec![] };
    let is_heard = |peer: &&PeerInfo| peer.active < CONTACT_MAX && (peer.current || !peer.active.is_zero());
    let replicas = cluster.replicas.iter().filter(|peer| !peer.offline).filter(is_heard);
    let mut names: Vec<_> = replicas.map(|peer| &*peer.name).collect();
    names.sort_unstable();
    names.extend(cluster.leader.as_deref());
    names
}

/// The settings of a new stream. By default it keeps all messages in order on disk.
fn config(address: &Address, replicas: usize) -> Config {
    Config {
        name: address.stream.clone(),
        description: Some("The log of a petstore: one message per commit".into()),
        subjects: vec![address.subject("commits")],
        num_replicas: replicas,
        discard: DiscardPolicy::New,
        deny_delete: true,
        deny_purge: true,
        allow_direct: true,
        republish: Some(Republish {
            source: address.subject("commits"),
            destination: address.subject("stored"),
            headers_only: true,
        }),
        ..Config::default()
    }
}

/// Returns the head of the log. Unless it is salvaged, the settings of the stream must keep every commit, and no message
/// may be missing.
pub(super) fn head(Info { config, state, .. }: &Info, purpose: ReadPurpose) -> Result<Position, LogError> {
    if purpose == ReadPurpose::Salvage {
        return Ok(Position(state.last_sequence));
    }
    let (name, commits) = (&config.name, format!("petstore.{}.commits", config.name));
    let rules = [
        (config.subjects == [commits], "its only subject must be petstore.NAME.commits"),
        (config.retention == RetentionPolicy::Limits, "retention must be limits"),
        (config.storage == StorageType::File, "storage must be file"),
        (config.persist_mode != Some(PersistenceMode::Async), "persist_mode must not be async"),
        (config.max_messages <= 0, "max_msgs must be unlimited"),
        (config.max_bytes <= 0, "max_bytes must be unlimited"),
        (config.max_messages_per_subject <= 0, "max_msgs_per_subject must be unlimited"),
        (config.max_message_size <= 0, "max_msg_size must be unlimited"),
        (config.max_age.is_zero(), "max_age must be unlimited"),
        (config.discard == DiscardPolicy::New, "discard must be new"),
        (config.deny_delete, "deny_delete must be set"),
        (config.deny_purge, "deny_purge must be set"),
        (config.first_sequence.is_none_or(|first| first <= 1), "first_seq must be 1"),
    ];
    let broken: Vec<_> = rules.iter().filter(|(is_kept, _)| !is_kept).map(|(_, rule)| *rule).collect();
    if !broken.is_empty() {
        return Err(Fault::CannotOpen.error(format!(
            "the settings of stream {name} do not suit a log ({}): correct them or name another stream",
            broken.join(", ")
        )));
    }
    if state.messages != state.last_sequence || (state.messages > 0 && state.first_sequence != 1) {
        return Err(Fault::Damaged.error(format!(
            "stream {name} holds {} messages with sequence numbers {} to {}, so commits are missing",
            state.messages, state.first_sequence, state.last_sequence
        )));
    }
    Ok(Position(state.last_sequence))
}
