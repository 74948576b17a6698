//! What a snapshot holds: everything that a replay of the log up to one commit would give.

use std::{
    io::{self, Write},
    sync::{Arc, mpsc::sync_channel},
    thread,
};

use chrono::{DateTime, Utc};
use domain::{CategoryId, NewPet, Pet, PetId, PetName, PetStatus};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{
    Unusable,
    frame::{FrameReader, FrameWriter, Kind},
};
use crate::{
    HASH_PREFIX,
    bookmark::Recent,
    commit::{CommitId, Version},
    digest::Digest,
    history::{History, SavedHistory},
    idempotency::{Answered, Cursor, RequestKey, SavedAnswer},
    log_clock::{from_parts, parts},
    ports::SavedPets,
    principal::KeyId,
    projection::{Projection, State},
};

/// How many blocks are read before they are needed.
const BLOCKS_AHEAD: usize = 4;

/// The first block: small, and enough to tell whether the rest is worth reading.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Head {
    /// Seconds since 1970.
    pub(super) taken: i64,
    /// The first commit of the log.
    pub(super) first: Uuid,
    /// The digest of the record of the last commit. In version 1 of the format the head hash is not one of a record.
    pub(super) record: String,
    history: SavedHistory,
    pets: usize,
    /// How many requests were ever remembered.
    remembered: u64,
}

/// The state of one moment, while it is being written down.
pub(crate) struct Frozen {
    projection: Arc<Projection>,
    history: History,
    first: Option<CommitId>,
    recent: Vec<[u8; HASH_PREFIX]>,
    pets: SavedPets,
    pet_count: usize,
    keys: Cursor,
    remembered: u64,
}

impl Frozen {
    /// Everything that was applied so far. Readers wait for a moment, and the next commit.
    pub(crate) fn take(projection: &Arc<Projection>) -> Self {
        projection.freeze(|state, recent, first, read_model| Self {
            projection: projection.clone(),
            history: state.history.clone(),
            first,
            recent: recent.save(),
            pets: read_model.save(),
            pet_count: read_model.count(),
            keys: state.answered.begin_saving(),
            remembered: state.answered.last(),
        })
    }

    pub(super) fn version(&self) -> Version {
        self.history.version
    }

    pub(super) fn pet_count(&self) -> usize {
        self.pet_count
    }

    /// Writes everything, a little at a time. `record` is the digest of the record of the last commit.
    pub(super) fn write(
        &mut self,
        to: &mut dyn Write,
        record: Digest,
        taken: DateTime<Utc>,
    ) -> io::Result<()> {
        let (Some(history), Some(first)) = (self.history.save(), self.first) else {
            return Err(io::Error::other("the log is empty"));
        };
        let head = Head {
            taken: taken.timestamp(),
            first: first.0,
            record: record.to_string(),
            history,
            pets: self.pet_count,
            remembered: self.remembered,
        };
        let mut frame = FrameWriter::begin(to)?;
        frame.block(Kind::Head, &serde_json::to_vec(&head)?)?;
        frame.block(Kind::Recent, self.recent.as_flattened())?;
        loop {
            let copied = self.projection.look(|state| state.answered.copy_some(&mut self.keys));
            let copied = copied.ok_or_else(replaced)?;
            if copied.is_empty() {
                break;
            }
            frame.block(Kind::Keys, &encode_keys(&copied))?;
        }
        let forgotten = self.projection.end_saving().ok_or_else(replaced)?;
        for of_one_owner in forgotten.chunk_by(|one, next| one.owner == next.owner) {
            for some in of_one_owner.chunks(512) {
                frame.block(Kind::Keys, &encode_keys(some))?;
            }
        }
        for block in self.pets.blocks.by_ref() {
            frame.block(Kind::Pets, &block)?;
        }
        frame.block(Kind::End, &[])
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.projection.end_saving();
    }
}

fn replaced() -> io::Error {
    io::Error::other("the log was replaced meanwhile")
}

/// A snapshot of which only the beginning was read.
pub(super) struct Opened {
    pub(super) head: Head,
    pub(super) history: History,
    frame: FrameReader,
}

impl Opened {
    pub(super) fn begin(from: Box<dyn io::Read + Send>) -> Result<Self, Unusable> {
        let mut frame = FrameReader::begin(from)?;
        let head: Head =
            serde_json::from_slice(&frame.next(Kind::Head)?).map_err(|error| invalid(error.to_string()))?;
        let history = History::load(&head.history).ok_or_else(|| invalid("its history is none"))?;
        Ok(Self { head, history, frame })
    }

    /// Reads the rest, and makes it the state of `projection`, which must be empty. After an error that holds rubbish.
    pub(super) fn load(self, projection: &Projection) -> Result<(), Unusable> {
        let Self { head, history, mut frame } = self;
        let hashes = frame.next(Kind::Recent)?.as_chunks().0.to_vec();
        let recent = Recent::load(history.version.position, hashes);
        let recent = recent.ok_or_else(|| invalid("the hashes of the last commits are incomplete"))?;
        if recent.last().hash != Some(crate::bookmark::prefix(history.head_hash)) {
            return Err(invalid("its hashes contradict each other"));
        }
        let first = CommitId(head.first);
        let (answered, pets) = load_in_parallel(frame, &head, history.version, projection)?;
        if pets != head.pets {
            return Err(invalid(format!("it holds {pets} pets, and not {}", head.pets)));
        }
        projection.restore(State { history, answered }, recent, first);
        Ok(())
    }
}

/// Reads the request keys and the pets, each on a thread of its own, while a third one reads the file and checks it.
fn load_in_parallel(
    mut frame: FrameReader,
    head: &Head,
    version: Version,
    projection: &Projection,
) -> Result<(Answered, usize), Unusable> {
    let (keys, blocks_of_keys) = sync_channel(BLOCKS_AHEAD);
    let (pets, blocks_of_pets) = sync_channel(BLOCKS_AHEAD);
    thread::scope(|scope| {
        let reading = scope.spawn(move || {
            // Whoever no longer takes blocks has found something wrong in them.
            while let Some(block) = frame.next_if(Kind::Keys)? {
                let _ = keys.send(block);
            }
            drop(keys);
            while let Some(block) = frame.next_if(Kind::Pets)? {
                let _ = pets.send(block);
            }
            frame.next(Kind::End)
        });
        let answered = scope.spawn(move || {
            let mut broken = false;
            let answers = blocks_of_keys.into_iter().map_while(|block: Vec<u8>| {
                let answers = decode_keys(&block);
                broken = answers.is_none();
                answers
            });
            let answered = Answered::load(head.remembered, answers.flatten());
            (!broken).then_some(answered)
        });
        let blocks = Box::new(blocks_of_pets.into_iter());
        let loaded = projection.load_pets(SavedPets { version, blocks });
        // What is wrong with the file comes first: it may be all that is wrong with what is in it.
        reading.join().map_err(|_| invalid("reading it panicked"))??;
        let answered = answered.join().map_err(|_| invalid("reading its request keys panicked"))?;
        let answered = answered.ok_or_else(|| invalid("its request keys cannot be read"))?;
        Ok((answered, loaded.map_err(|error| invalid(error.to_string()))?))
    })
}

fn invalid(what: impl Into<String>) -> Unusable {
    Unusable::Damaged(what.into())
}

/// Writes down answers to requests of one owner.
fn encode_keys(answers: &[SavedAnswer]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(128 * answers.len());
    let text = |bytes: &mut Vec<u8>, text: &str| {
        let len = u32::try_from(text.len()).expect("no record is that large");
        bytes.extend(len.to_le_bytes());
        bytes.extend(text.as_bytes());
    };
    text(&mut bytes, answers.first().map_or("", |answer| &answer.owner.0));
    for SavedAnswer { owner: _, number, time, key, pet } in answers {
        let (seconds, nanoseconds) = parts(*time);
        bytes.extend(number.to_le_bytes());
        bytes.extend(seconds.to_le_bytes());
        bytes.extend(nanoseconds.to_le_bytes());
        text(&mut bytes, key.as_str());
        bytes.extend(pet.id.get().to_le_bytes());
        bytes.extend(pet.details.category_id.0.to_le_bytes());
        text(&mut bytes, pet.details.status.map_or("", PetStatus::as_str));
        text(&mut bytes, pet.details.name.as_str());
    }
    bytes
}

fn decode_keys(block: &[u8]) -> Option<Vec<SavedAnswer>> {
    let (mut fields, mut answers) = (Fields(block), Vec::new());
    let owner = KeyId(fields.text()?.into());
    while !fields.0.is_empty() {
        let number = u64::from_le_bytes(fields.bytes()?);
        let seconds = i64::from_le_bytes(fields.bytes()?);
        let time = from_parts((seconds, u32::from_le_bytes(fields.bytes()?)))?;
        let key = RequestKey::new(fields.text()?).ok()?;
        let id = PetId::new(i64::from_le_bytes(fields.bytes()?)).ok()?;
        let category_id = CategoryId(i64::from_le_bytes(fields.bytes()?));
        let status = match fields.text()? {
            "" => None,
            status => Some(status.parse().ok()?),
        };
        let name = PetName::new(fields.text()?).ok()?;
        let pet = Pet { id, details: NewPet { name, category_id, status } };
        answers.push(SavedAnswer { owner: owner.clone(), number, time, key, pet });
    }
    Some(answers)
}

/// Fields that are read one after the other.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*bytes)
    }

    fn text(&mut self) -> Option<&'a str> {
        let len = u32::from_le_bytes(self.bytes()?) as usize;
        let (text, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        str::from_utf8(text).ok()
    }
}

#[cfg(test)]
mod tests;
