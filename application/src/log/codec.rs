//! The record format: a commit as one line of JSON with a version and a checksum.
//!
//! The layout is described in `docs/storage-format.md`, and `golden/commit-v1.json` pins it byte for byte: a different
//! layout is a new version.

mod fast_decoder;

use std::{borrow::Cow, fmt::Display};

use bytes::Bytes;
use chrono::{DateTime, SecondsFormat};
use domain::{CategoryId, NewPet, Pet, PetEvent, PetId, PetName, PetStatus};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::{
    log::{
        commit::{Commit, CommitId, Entry, NodeId, OwnerId, Position, RequestKey},
        digest::Digest,
    },
    ports::{Fault, LogError, RECORD_MAX, Record, StoredRecord},
};

/// The number of the record format.
pub const FORMAT: u64 = 1;
const PREFIX: &[u8] = b"{\"v\":1,";
/// The checksum is in the last bytes of a record of any format: `,"crc32c":"` 8 digits `"}`.
const CHECKSUM_OPEN: &[u8] = b",\"crc32c\":\"";
const CHECKSUM_CLOSE: &[u8] = b"\"}";
const CHECKSUM_LEN: usize = CHECKSUM_OPEN.len() + 8 + CHECKSUM_CLOSE.len();

/// The maximum size of a record without its entries, in bytes.
pub(crate) const ENVELOPE_SIZE_BOUND: usize = 288;

/// The maximum size of this entry in a record, in bytes. Escaping at most doubles a text, since neither names nor
/// request keys hold control characters.
pub(crate) fn entry_size_bound(entry: &Entry) -> usize {
    let name = entry.event.added().map_or("", |pet| pet.details.name.as_str());
    let texts = name.len() + entry.request_key.as_ref().map_or(0, |key| key.as_str().len());
    256 + 2 * (texts + entry.by.0.len())
}

/// Encodes a commit as a record.
pub fn encode(commit: &Commit) -> Record {
    let mut bytes =
        Vec::with_capacity(ENVELOPE_SIZE_BOUND + commit.entries.iter().map(entry_size_bound).sum::<usize>());
    serde_json::to_writer(&mut bytes, &Envelope::from(commit))
        .expect("text keys and values always serialise");
    bytes.pop(); // The closing brace: the checksum goes in before it.
    let checksum = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(CHECKSUM_OPEN);
    bytes.extend(format!("{checksum:08x}").into_bytes());
    bytes.extend_from_slice(CHECKSUM_CLOSE);
    Record { id: commit.id, bytes: Bytes::from(bytes) }
}

/// Decodes a record. Checks the checksum first, then the format, then every rule of the domain. The detail of an error
/// continues a sentence about the commit.
pub fn decode(bytes: &[u8]) -> Result<Commit, LogError> {
    let body = check_checksum(bytes)?;
    fast_decoder::read(body).map_or_else(|| parse(bytes), Ok)
}

/// Reads the position, the id and the hash of the history before it from a record, without checking the rest. For engines
/// that do not store them next to the bytes.
pub fn envelope(bytes: &[u8]) -> Option<(Position, CommitId, Digest)> {
    fast_decoder::envelope(bytes).or_else(|| {
        let commit: Envelope<'_> = serde_json::from_slice(bytes).ok()?;
        Some((Position(commit.position), CommitId(commit.id), commit.previous.parse().ok()?))
    })
}

/// Decodes a stored record, and checks that it is the commit of the position and of the id under which it is stored.
pub fn decode_stored(record: &StoredRecord) -> Result<Commit, LogError> {
    let &StoredRecord { position, id, ref bytes } = record;
    let commit = decode(bytes).map_err(|LogError { fault, detail }| {
        fault.error(format!("the commit at position {position} {detail}"))
    })?;
    let detail = match id {
        _ if commit.position != position => {
            format!("position {position} holds the commit that was written for position {}", commit.position)
        }
        Some(stored) if stored != commit.id => format!(
            "the commit at position {position} is stored with the id {}, but its record has {}",
            stored.0, commit.id.0
        ),
        Some(_) | None => return Ok(commit),
    };
    Err(Fault::Damaged.error(detail))
}

/// Returns the record without its checksum, if the checksum matches.
fn check_checksum(bytes: &[u8]) -> Result<&[u8], LogError> {
    if bytes.len() > RECORD_MAX {
        return Err(damaged("it is longer than any record"));
    }
    let (body, checksum) = bytes
        .split_at_checked(bytes.len().wrapping_sub(CHECKSUM_LEN))
        .ok_or_else(|| damaged("it is too short to be a record"))?;
    let written = checksum
        .strip_prefix(CHECKSUM_OPEN)
        .and_then(|rest| rest.strip_suffix(CHECKSUM_CLOSE))
        .ok_or_else(|| damaged("it does not end with a checksum"))?;
    if written != format!("{:08x}", crc32c::crc32c(body)).as_bytes() {
        return Err(damaged("its checksum does not match its content"));
    }
    Ok(body)
}

/// Decodes a record whose checksum matches.
fn parse(bytes: &[u8]) -> Result<Commit, LogError> {
    match serde_json::from_slice::<Envelope<'_>>(bytes) {
        Ok(commit) if bytes.starts_with(PREFIX) => commit.try_into(),
        Ok(_) => Err(unsupported_content(bytes, "it is not a petstore record")),
        Err(error) => Err(unsupported_content(bytes, format_args!("its content is not a commit: {error}"))),
    }
}

#[derive(Serialize, Deserialize)]
struct Envelope<'a> {
    v: u64,
    position: u64,
    id: Uuid,
    #[serde(borrow)]
    previous: Cow<'a, str>,
    #[serde(borrow)]
    node: Cow<'a, str>,
    #[serde(borrow)]
    time: Cow<'a, str>,
    #[serde(borrow)]
    events: Vec<EventFields<'a>>,
}

/// The fields of an event. Only [`Entry::try_from`] checks its type and version.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct EventFields<'a> {
    #[serde(borrow)]
    r#type: Cow<'a, str>,
    v: u64,
    #[serde(borrow)]
    pet: PetFields<'a>,
    #[serde(borrow)]
    by: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    request_key: Option<Cow<'a, str>>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PetFields<'a> {
    id: i64,
    #[serde(borrow)]
    name: Cow<'a, str>,
    category_id: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    status: Option<Cow<'a, str>>,
}

const PET_ADDED: (&str, u64) = ("pet_added", 1);

/// The known types of events, each with the version of its fields.
const EVENTS: [(&str, u64); 1] = [PET_ADDED];

impl<'a> From<&'a Commit> for Envelope<'a> {
    fn from(commit: &'a Commit) -> Self {
        Self {
            v: FORMAT,
            position: commit.position.0,
            id: commit.id.0,
            previous: commit.previous.to_string().into(),
            node: commit.node.to_string().into(),
            time: commit.time.to_rfc3339_opts(SecondsFormat::Micros, true).into(),
            events: commit.entries.iter().map(EventFields::from).collect(),
        }
    }
}

impl<'a> From<&'a Entry> for EventFields<'a> {
    fn from(entry: &'a Entry) -> Self {
        let (name, version) = PET_ADDED;
        let PetEvent::Added(Pet { id, details }) = &entry.event;
        Self {
            r#type: name.into(),
            v: version,
            pet: PetFields {
                id: id.get(),
                name: details.name.as_str().into(),
                category_id: details.category_id.0,
                status: details.status.map(|status| status.as_str().into()),
            },
            by: (&*entry.by.0).into(),
            request_key: entry.request_key.as_ref().map(|key| key.as_str().into()),
        }
    }
}

impl TryFrom<Envelope<'_>> for Commit {
    type Error = LogError;

    fn try_from(commit: Envelope<'_>) -> Result<Self, LogError> {
        let previous = commit.previous.parse();
        let previous = previous.map_err(|_| damaged("it has no valid hash of the history before it"))?;
        let node =
            node_id(&commit.node).ok_or_else(|| damaged("it has no valid id of the node that wrote it"))?;
        let time = DateTime::parse_from_rfc3339(&commit.time)
            .map_err(|_| damaged(format_args!("its time is {:?}", commit.time)))?;
        Ok(Self {
            position: Position(commit.position),
            id: CommitId(commit.id),
            previous,
            node,
            time: time.to_utc(),
            entries: commit.events.into_iter().map(Entry::try_from).collect::<Result<_, _>>()?,
        })
    }
}

impl TryFrom<EventFields<'_>> for Entry {
    type Error = LogError;

    fn try_from(event: EventFields<'_>) -> Result<Self, LogError> {
        let EventFields { r#type: kind, v: version, pet, by, request_key } = event;
        let broken = |rule: String| damaged(format_args!("event {kind:?}: {rule}"));
        let event = match (&*kind, version) {
            PET_ADDED => PetEvent::Added(pet.try_into().map_err(broken)?),
            _ => return Err(unsupported_event(&kind, version)),
        };
        let request_key = request_key.map(|key| RequestKey::new(&*key)).transpose();
        let request_key = request_key.map_err(|error| broken(format!("its request key {error}")))?;
        Ok(Self { event, by: OwnerId((&*by).into()), request_key })
    }
}

impl TryFrom<PetFields<'_>> for Pet {
    /// The rule that the pet breaks.
    type Error = String;

    fn try_from(pet: PetFields<'_>) -> Result<Self, String> {
        let broken = |rule: String| format!("pet {}: {rule}", pet.id);
        let id = PetId::new(pet.id).map_err(|error| broken(error.to_owned()))?;
        let name = PetName::new(&*pet.name).map_err(|error| broken(format!("its name {error}")))?;
        let status = pet.status.as_deref().map(str::parse::<PetStatus>).transpose();
        let status = status.map_err(|error| broken(format!("its status {error}")))?;
        Ok(Self { id, details: NewPet { name, category_id: CategoryId(pet.category_id), status } })
    }
}

/// The id of a node: 16 hex digits.
fn node_id(text: &str) -> Option<NodeId> {
    let is_id = text.len() == 16 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    u64::from_str_radix(text, 16).ok().filter(|_| is_id).map(NodeId)
}

/// The error of a record with a valid checksum that is not a commit of this format: it has another format or an unknown
/// event, or is damaged.
fn unsupported_content(bytes: &[u8], damage: impl Display) -> LogError {
    let record: Value = serde_json::from_slice(bytes).unwrap_or_default();
    if let Some(format) = record["v"].as_u64().filter(|format| *format != FORMAT) {
        return unsupported(format_args!(
            "its record format is {format}, and this version of petstore reads only {FORMAT}"
        ));
    }
    let events = record["events"].as_array().into_iter().flatten();
    let mut kinds = events.filter_map(|event| Some((event["type"].as_str()?, event["v"].as_u64()?)));
    match kinds.find(|kind| !EVENTS.contains(kind)) {
        Some((kind, version)) => unsupported_event(kind, version),
        None => damaged(damage),
    }
}

fn damaged(what: impl Display) -> LogError {
    Fault::Damaged.error(format!("is damaged: {what}"))
}

fn unsupported_event(kind: &str, version: u64) -> LogError {
    unsupported(format_args!(
        "it contains an event {kind:?} of version {version}, which this version of petstore does not read"
    ))
}

fn unsupported(what: impl Display) -> LogError {
    Fault::UnsupportedFormat.error(format!("cannot be read: {what}; use the version that wrote it"))
}

#[cfg(test)]
mod tests;
