//! The stream that holds the log: the settings it needs, and the state that its leader reports.

use std::time::Duration;

use application::ports::{Fault, LogError, Position};
use async_nats::jetstream::{
    Error, ErrorCode,
    response::Response,
    stream::{
        Config, DiscardPolicy, Info, PeerInfo, PersistenceMode, Republish, RetentionPolicy, StorageType,
    },
};
use tokio::time::{self, Instant};

use super::{address::Address, connection::NatsConnection};

/// The number of replicas of a new stream if there are enough servers. With three, it survives the loss of one.
const REPLICAS: usize = 3;
/// A replica that the leader has not heard from for this long does not count towards the majority. The time of
/// three heartbeats.
const CONTACT_MAX: Duration = Duration::from_secs(3);
/// How long to look for an existing stream. Longer than an election usually takes.
const FIND_TIMEOUT: Duration = Duration::from_secs(5);
const FIND_INTERVAL: Duration = Duration::from_millis(250);

/// The subject of a store's commits. Each store has its own, so stores can share a cluster.
pub(super) fn commits_subject(stream: &str) -> String {
    format!("petstore.{stream}.commits")
}

/// The subject on which the leader announces each stored commit, without its content.
pub(super) fn stored_subject(stream: &str) -> String {
    format!("petstore.{stream}.stored")
}

/// Creates the stream if it does not exist. Several nodes may do so at once: creating the same stream again changes
/// nothing.
pub(super) async fn ensure(connection: &NatsConnection, address: &Address) -> Result<(), LogError> {
    if exists(connection, address).await? { Ok(()) } else { create(connection, address).await }
}

/// Waits until the stream exists: a newly elected leader of the cluster may not know of it yet.
pub(super) async fn find(connection: &NatsConnection, address: &Address) -> Result<(), LogError> {
    let deadline = Instant::now() + FIND_TIMEOUT;
    while !exists(connection, address).await? {
        if Instant::now() >= deadline {
            let detail = format!("stream {} does not exist; check the URL", address.stream);
            return Err(Fault::AnotherLog.error(detail));
        }
        time::sleep(FIND_INTERVAL).await;
    }
    Ok(())
}

async fn exists(connection: &NatsConnection, address: &Address) -> Result<bool, LogError> {
    match connection.ask::<Info>("STREAM.INFO", &address.stream, &()).await? {
        Response::Ok(_) => Ok(true),
        Response::Err { error } if error.error_code() == ErrorCode::STREAM_NOT_FOUND => Ok(false),
        Response::Err { error } => Err(rejection("find", address, &error)),
    }
}

/// Requests the state of the stream from its leader. Fails if there is no leader or if it has lost its majority,
/// because the other servers may have elected a new one.
pub(super) async fn leader_info(connection: &NatsConnection, address: &Address) -> Result<Info, LogError> {
    let info: Info = match connection.ask("STREAM.INFO", &address.stream, &()).await? {
        Response::Ok(info) => info,
        // Only after a while without a leader, because a newly elected one may not know of the stream yet.
        Response::Err { error }
            if error.error_code() == ErrorCode::STREAM_NOT_FOUND && connection.is_leaderless() =>
        {
            let detail = format!("stream {} was deleted; restore it from a backup", address.stream);
            return Err(Fault::AnotherLog.error(detail));
        }
        Response::Err { error } => return Err(rejection("describe", address, &error)),
    };
    // A former leader that is cut off from the others still replies, and names no leader.
    if info.cluster.as_ref().is_some_and(|cluster| cluster.leader.as_ref().is_none_or(String::is_empty)) {
        return Err(
            Fault::Unreachable.error(format!("stream {} has no leader at the moment", address.stream))
        );
    }
    let followers = info.cluster.as_ref().map_or(0, |cluster| cluster.replicas.len());
    let heard = in_contact(&info).count();
    if 2 * (heard + 1) <= followers + 1 {
        return Err(Fault::Unreachable.error(format!(
            "the leader of stream {} can reach only {heard} of the {followers} other servers: no majority",
            address.stream
        )));
    }
    Ok(info)
}

/// The replicas that the leader is in contact with. A new leader reports a contact time of zero for a replica that it
/// has not heard from since its election, for example the leader that it replaced.
pub(super) fn in_contact(info: &Info) -> impl Iterator<Item = &PeerInfo> {
    let replicas = info.cluster.iter().flat_map(|cluster| &cluster.replicas);
    let heard = |peer: &PeerInfo| peer.current || !peer.active.is_zero();
    replicas.filter(move |peer| !peer.offline && heard(peer) && peer.active < CONTACT_MAX)
}

/// Returns the head of the log, if the stream has the settings that a log needs and no message is missing.
pub(super) fn head(info: &Info) -> Result<Position, LogError> {
    let name = &info.config.name;
    let broken = broken_rules(&info.config);
    if !broken.is_empty() {
        return Err(Fault::CannotOpen.error(format!(
            "the settings of stream {name} do not suit a log ({}): correct them or name another stream",
            broken.join(", ")
        )));
    }
    let state = &info.state;
    if state.messages != state.last_sequence || (state.messages > 0 && state.first_sequence != 1) {
        return Err(Fault::Damaged.error(format!(
            "stream {name} holds {} messages with sequence numbers {} to {}, so commits are missing",
            state.messages, state.first_sequence, state.last_sequence
        )));
    }
    Ok(Position(state.last_sequence))
}

async fn create(connection: &NatsConnection, address: &Address) -> Result<(), LogError> {
    let create = async |replicas| {
        let config = config(&address.stream, replicas);
        connection.ask::<Info>("STREAM.CREATE", &address.stream, &config).await
    };
    let servers = connection.client.server_info().connect_urls.len().max(address.servers.len());
    let mut made = create(address.replicas.unwrap_or(REPLICAS)).await?;
    // Use one replica only if fewer servers are known than replicas are needed. Otherwise some servers are down: fail and
    // let the caller retry, rather than create a stream with less redundancy than the operator expects.
    if let Response::Err { error } = &made
        && address.replicas.is_none()
        && servers < REPLICAS
        && [ErrorCode::STREAM_REPLICAS_NOT_SUPPORTED, ErrorCode::CLUSTER_NO_PEERS]
            .contains(&error.error_code())
    {
        made = create(1).await?;
    }
    match made {
        Response::Ok(_) => Ok(()),
        // Another node has created it with a different number of replicas.
        Response::Err { error } if error.error_code() == ErrorCode::STREAM_NAME_EXIST => Ok(()),
        Response::Err { error } => Err(rejection("create", address, &error)),
    }
}

/// The settings of a new stream: it keeps all messages in order on disk, and nothing can be deleted.
fn config(stream: &str, replicas: usize) -> Config {
    let commits = commits_subject(stream);
    Config {
        name: stream.into(),
        description: Some("The log of a petstore: one message per commit".into()),
        subjects: vec![commits.clone()],
        retention: RetentionPolicy::Limits,
        storage: StorageType::File,
        num_replicas: replicas,
        max_messages: -1,
        max_bytes: -1,
        max_messages_per_subject: -1,
        max_consumers: -1,
        discard: DiscardPolicy::New,
        deny_delete: true,
        deny_purge: true,
        allow_direct: true,
        republish: Some(Republish {
            source: commits,
            destination: stored_subject(stream),
            headers_only: true,
        }),
        ..Config::default()
    }
}

fn broken_rules(config: &Config) -> Vec<&'static str> {
    let rules = [
        (
            config.subjects == [commits_subject(&config.name)],
            "its only subject must be petstore.NAME.commits",
        ),
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
        (!config.allow_rollup, "allow_rollup_hdrs must not be set"),
        (!config.allow_message_ttl, "allow_msg_ttl must not be set"),
        (!config.allow_message_counter, "allow_msg_counter must not be set"),
        (!config.allow_message_schedules, "allow_msg_schedules must not be set"),
        (!config.no_ack, "no_ack must not be set"),
        (!config.sealed, "it must not be sealed"),
        (config.mirror.is_none(), "it must not be a mirror"),
        (config.sources.as_ref().is_none_or(Vec::is_empty), "it must have no sources"),
        (config.subject_transform.is_none(), "it must have no subject_transform"),
        (config.first_sequence.is_none_or(|first| first <= 1), "first_seq must be 1"),
    ];
    rules.into_iter().filter_map(|(kept, rule)| (!kept).then_some(rule)).collect()
}

fn rejection(action: &str, address: &Address, error: &Error) -> LogError {
    let fault = match error.error_code() {
        ErrorCode::JETSTREAM_NOT_ENABLED
        | ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT
        | ErrorCode::STREAM_SUBJECT_OVERLAP
        | ErrorCode::STREAM_REPLICAS_NOT_SUPPORTED => Fault::CannotOpen,
        // Any other error may pass: a newly elected leader, for example, may not know of the stream yet.
        _ => Fault::Unreachable,
    };
    fault.error(format!("NATS rejected the request to {action} stream {}: {error}", address.stream))
}
