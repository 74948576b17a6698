//! The record format: a commit as one line of JSON that carries its own version and checksum.
//!
//! The layout is described in `docs/storage-format.md`. Golden files of every version ever written must stay
//! decodable, so a change here is a new version with an upcast, never an edit of an old one.

mod canonical;
mod plain;

use std::borrow::Cow;

use bytes::Bytes;
use chrono::{DateTime, SecondsFormat};
use domain::{CategoryId, NewPet, Pet, PetEvent, PetId, PetName, PetStatus};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use uuid::Uuid;

use crate::{
    commit::{Commit, CommitId, CommitView, Entry, Format, NodeId, Position},
    digest::push_hex,
    idempotency::RequestKey,
    ports::{Fault, LogError, Record, StoredRecord},
    principal::KeyId,
};

/// Why bytes are not a commit, named by what the reader does next.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// Not what was written: restore, or salvage what is sound.
    #[error("{0}")]
    Damaged(String),
    /// Written by a newer program: upgrade this one.
    #[error("it contains {what} of version {version}, which requires a newer petstore")]
    Newer {
        /// The part that is too new.
        what: String,
        /// Its version.
        version: u64,
    },
}

impl DecodeError {
    /// The same as an error of the log at `position`.
    pub fn at(&self, position: Position) -> LogError {
        match self {
            Self::Damaged(what) => {
                LogError::new(Fault::Damaged, format!("the commit at position {position} is damaged: {what}"))
            }
            Self::Newer { .. } => LogError::new(
                Fault::NewerFormat,
                format!(
                    "the commit at position {position} cannot be read: {self}; run that version or a later one"
                ),
            ),
        }
    }
}

/// The newest version of the envelope.
const VERSION: u64 = 2;
/// What every record of a version that is known begins with.
const PREFIXES: [&[u8]; 2] = [b"{\"v\":1,", b"{\"v\":2,"];
/// The checksum stands in the last bytes of every record of every version: `,"crc32c":"` 8 digits `"}`.
const CHECKSUM_OPEN: &[u8] = b",\"crc32c\":\"";
const CHECKSUM_CLOSE: &[u8] = b"\"}";
const CHECKSUM_LEN: usize = CHECKSUM_OPEN.len() + 8 + CHECKSUM_CLOSE.len();

/// The most bytes that a record takes beside its entries.
pub(crate) const ENVELOPE_SIZE_BOUND: usize = 288;

/// The most bytes an entry may take in a record, whatever is in it. Escaping at most doubles a text, since
/// neither names nor request keys hold control characters.
pub(crate) fn entry_size_bound(entry: &Entry) -> usize {
    let PetEvent::Added(pet) = &entry.event;
    let texts =
        pet.details.name.as_str().len() + entry.request_key.as_ref().map_or(0, |key| key.as_str().len());
    256 + 2 * (texts + entry.by.0.len())
}

/// Writes a commit down.
pub fn encode(commit: &Commit) -> Record {
    let mut bytes =
        Vec::with_capacity(ENVELOPE_SIZE_BOUND + commit.entries.iter().map(entry_size_bound).sum::<usize>());
    if plain::write(&mut bytes, commit).is_none() {
        bytes.clear();
        serde_json::to_writer(&mut bytes, &Envelope::from(commit))
            .expect("text keys and values always serialise");
        bytes.pop(); // The closing brace: the checksum goes in before it.
    }
    let checksum = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(CHECKSUM_OPEN);
    push_hex(&mut bytes, &checksum.to_be_bytes());
    bytes.extend_from_slice(CHECKSUM_CLOSE);
    Record { id: commit.id, bytes: Bytes::from(bytes) }
}

/// Reads a commit back. Checks the checksum first, then the version, then every rule of the domain.
pub fn decode(bytes: &[u8]) -> Result<Commit, DecodeError> {
    check_checksum(bytes)?;
    parse(bytes)
}

/// A commit that was read from a record, and borrows from it if it can.
pub(crate) enum Decoded<'a> {
    /// From a record as this program writes it.
    Read(CommitView<'a>),
    /// From any other.
    Parsed(Commit),
}

impl Decoded<'_> {
    pub(crate) fn view(&self) -> Cow<'_, CommitView<'_>> {
        match self {
            Self::Read(commit) => Cow::Borrowed(commit),
            Self::Parsed(commit) => Cow::Owned(commit.view()),
        }
    }
}

/// The same as [`decode_stored`], but faster.
pub(crate) fn read_stored(record: &StoredRecord) -> Result<Decoded<'_>, LogError> {
    let read = || {
        let body = check_checksum(&record.bytes)?;
        canonical::read(body)
            .map_or_else(|| parse(&record.bytes).map(Decoded::Parsed), |commit| Ok(Decoded::Read(commit)))
    };
    let commit = read().map_err(|error| error.at(record.position))?;
    check_position(record, commit.view().position)?;
    Ok(commit)
}

/// The record without its checksum, if that matches.
fn check_checksum(bytes: &[u8]) -> Result<&[u8], DecodeError> {
    let damaged = |what: &str| DecodeError::Damaged(what.into());
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

/// Reads a record whose checksum matches.
fn parse(bytes: &[u8]) -> Result<Commit, DecodeError> {
    if !PREFIXES.iter().any(|prefix| bytes.starts_with(prefix)) {
        return Err(unknown_version(bytes));
    }
    let commit: Envelope<'_> =
        serde_json::from_slice(bytes).map_err(|error| unknown_content(bytes, &error))?;
    commit.try_into()
}

/// Decodes a stored record, and checks that it is the commit of the position where it is stored.
pub fn decode_stored(record: &StoredRecord) -> Result<Commit, LogError> {
    let commit = decode(&record.bytes).map_err(|error| error.at(record.position))?;
    check_position(record, commit.position)?;
    Ok(commit)
}

fn check_position(record: &StoredRecord, written_for: Position) -> Result<(), LogError> {
    if written_for == record.position {
        return Ok(());
    }
    let detail =
        format!("position {} holds the commit that was written for position {written_for}", record.position);
    Err(LogError::new(Fault::Damaged, detail))
}

#[derive(Serialize, Deserialize)]
struct Envelope<'a> {
    v: u64,
    position: u64,
    id: Uuid,
    /// From version 2 on.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    previous: Option<Cow<'a, str>>,
    /// From version 2 on.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    node: Option<Cow<'a, str>>,
    #[serde(borrow)]
    time: Cow<'a, str>,
    #[serde(borrow)]
    events: Vec<EventV1<'a>>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct EventV1<'a> {
    #[serde(borrow)]
    r#type: Cow<'a, str>,
    v: u64,
    pet: PetV1<'a>,
    #[serde(borrow)]
    by: Cow<'a, str>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    request_key: Option<Cow<'a, str>>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PetV1<'a> {
    id: i64,
    #[serde(borrow)]
    name: Cow<'a, str>,
    category_id: i64,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    status: Option<Cow<'a, str>>,
}

const PET_ADDED: (&str, u64) = ("pet_added", 1);

impl<'a> From<&'a Commit> for Envelope<'a> {
    fn from(commit: &'a Commit) -> Self {
        let (v, previous, node) = match commit.format {
            Format::V1 => (1, None, None),
            Format::V2 { previous, node } => (2, Some(previous.to_string()), Some(node.to_string())),
        };
        Self {
            v,
            position: commit.position.0,
            id: commit.id.0,
            previous: previous.map(Cow::from),
            node: node.map(Cow::from),
            time: commit.time.to_rfc3339_opts(SecondsFormat::Micros, true).into(),
            events: commit.entries.iter().map(EventV1::from).collect(),
        }
    }
}

impl<'a> From<&'a Entry> for EventV1<'a> {
    fn from(entry: &'a Entry) -> Self {
        let (name, version) = PET_ADDED;
        let PetEvent::Added(pet) = &entry.event;
        Self {
            r#type: name.into(),
            v: version,
            pet: PetV1 {
                id: pet.id.get(),
                name: pet.details.name.as_str().into(),
                category_id: pet.details.category_id.0,
                status: pet.details.status.map(|status| status.as_str().into()),
            },
            by: (&*entry.by.0).into(),
            request_key: entry.request_key.as_ref().map(|key| key.as_str().into()),
        }
    }
}

impl TryFrom<Envelope<'_>> for Commit {
    type Error = DecodeError;

    fn try_from(commit: Envelope<'_>) -> Result<Self, DecodeError> {
        let format = if commit.v == 1 { Format::V1 } else { format_v2(&commit)? };
        let time = DateTime::parse_from_rfc3339(&commit.time)
            .map_err(|_| DecodeError::Damaged(format!("its time is {:?}", commit.time)))?;
        Ok(Self {
            format,
            position: Position(commit.position),
            id: CommitId(commit.id),
            time: time.to_utc(),
            entries: commit.events.into_iter().map(Entry::try_from).collect::<Result<_, _>>()?,
        })
    }
}

impl TryFrom<EventV1<'_>> for Entry {
    type Error = DecodeError;

    fn try_from(event: EventV1<'_>) -> Result<Self, DecodeError> {
        if (&*event.r#type, event.v) != PET_ADDED {
            return Err(DecodeError::Newer {
                what: format!("an event {:?}", event.r#type),
                version: event.v,
            });
        }
        let pet = event.pet;
        let broken = |rule: String| DecodeError::Damaged(format!("pet {}: {rule}", pet.id));
        let id = PetId::new(pet.id).map_err(|error| broken(error.to_string()))?;
        let name = PetName::new(&*pet.name).map_err(|error| broken(format!("its name {error}")))?;
        let status = pet.status.map(|text| text.parse::<PetStatus>()).transpose();
        let status = status.map_err(|error| broken(format!("its status {error}")))?;
        let request_key = event.request_key.map(|key| RequestKey::new(&*key)).transpose();
        let request_key = request_key.map_err(|error| broken(format!("its request key {error}")))?;
        let details = NewPet { name, category_id: CategoryId(pet.category_id), status };
        let by = KeyId((&*event.by).into());
        Ok(Self { event: PetEvent::Added(Pet { id, details }), by, request_key })
    }
}

fn format_v2(commit: &Envelope<'_>) -> Result<Format, DecodeError> {
    let previous = commit.previous.as_deref().and_then(|text| text.parse().ok());
    let node = commit
        .node
        .as_deref()
        .filter(|text| text.len() == 16 && text.bytes().all(|digit| digit.is_ascii_hexdigit()));
    let node = node.and_then(|text| u64::from_str_radix(text, 16).ok());
    match (previous, node) {
        (Some(previous), Some(node)) => Ok(Format::V2 { previous, node: NodeId(node) }),
        (None, _) => Err(DecodeError::Damaged("it has no valid hash of the history before it".into())),
        (_, None) => Err(DecodeError::Damaged("it has no valid id of the node that wrote it".into())),
    }
}

/// Says why the version of a record with a sound checksum is not known: it is newer, or the record is none of ours.
fn unknown_version(bytes: &[u8]) -> DecodeError {
    #[derive(Deserialize)]
    struct Version {
        v: u64,
    }
    match serde_json::from_slice::<Version>(bytes) {
        Ok(Version { v }) if v > VERSION => DecodeError::Newer { what: "an envelope".into(), version: v },
        Ok(_) | Err(_) => DecodeError::Damaged("it is not a petstore record".into()),
    }
}

/// Says why a record of a known version cannot be read: an event that is too new, or plain nonsense.
fn unknown_content(bytes: &[u8], error: &serde_json::Error) -> DecodeError {
    #[derive(Deserialize)]
    struct Events {
        events: Vec<Tag>,
    }
    #[derive(Deserialize)]
    struct Tag {
        r#type: String,
        v: u64,
    }
    let tags = serde_json::from_slice::<Events>(bytes).map(|commit| commit.events).unwrap_or_default();
    match tags.into_iter().find(|tag| (tag.r#type.as_str(), tag.v) != PET_ADDED) {
        Some(tag) => DecodeError::Newer { what: format!("an event {:?}", tag.r#type), version: tag.v },
        None => DecodeError::Damaged(format!("its content is not a commit: {error}")),
    }
}

#[cfg(test)]
mod tests;
