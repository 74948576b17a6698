//! A decoder for records exactly as [`encode`](super::encode) writes them: the fields in their order, no spaces, no
//! escapes in strings. Serde decodes every other record.
//!
//! A second decoder is worth its lines because every startup decodes the whole log: without it, a start with two million
//! pets takes four tenths longer, although serde borrows every text. `docs/decisions/0012` has the figures.

use chrono::DateTime;
use domain::{CategoryId, NewPet, Pet, PetEvent, PetId, PetName, PetStatus};
use uuid::Uuid;

use super::node_id;
use crate::log::{
    commit::{Commit, CommitId, Entry, OwnerId, Position, RequestKey},
    digest::Digest,
};

const UUID_LEN: usize = 36;
/// The first bytes of every event.
const EVENT_OPEN: &str = r#"{"type":"pet_added","v":1,"pet":{"id":"#;

/// Reads the first fields of a record. `None` means that serde has to decode it.
pub(super) fn envelope(record: &[u8]) -> Option<(Position, CommitId, Digest)> {
    Text(str::from_utf8(record).ok()?).envelope()
}

/// Decodes a record without its checksum, which must match. `None` means that serde has to decode it.
pub(super) fn read(body: &[u8]) -> Option<Commit> {
    let mut text = Text(str::from_utf8(body).ok()?);
    let (position, id, previous) = text.envelope()?;
    text.skip(r#","node":""#)?;
    let node = node_id(text.quoted()?)?;
    text.skip(r#","time":""#)?;
    let time = DateTime::parse_from_rfc3339(text.quoted()?).ok()?.to_utc();
    text.skip(r#","events":["#)?;
    let mut entries = Vec::with_capacity(text.0.len() / (2 * EVENT_OPEN.len()));
    if text.0 != "]" {
        entries.push(text.entry(None)?);
        while text.skip(",").is_some() {
            entries.push(text.entry(entries.last())?);
        }
    }
    (text.0 == "]").then_some(Commit { position, id, previous, node, time, entries })
}

struct Text<'a>(&'a str);

impl<'a> Text<'a> {
    fn skip(&mut self, expected: &str) -> Option<()> {
        self.0 = self.0.strip_prefix(expected)?;
        Some(())
    }

    fn envelope(&mut self) -> Option<(Position, CommitId, Digest)> {
        self.skip(r#"{"v":1,"position":"#)?;
        let position = Position(self.unsigned()?);
        self.skip(r#","id":""#)?;
        let id = self.quoted().filter(|id| id.len() == UUID_LEN)?;
        let id = CommitId(Uuid::try_parse(id).ok()?);
        self.skip(r#","previous":""#)?;
        Some((position, id, self.quoted()?.parse().ok()?))
    }

    /// The rest of a text whose opening quote was skipped.
    fn quoted(&mut self) -> Option<&'a str> {
        let end = self.0.bytes().position(|byte| byte == b'"' || byte == b'\\' || byte < b' ')?;
        let quoted = &self.0[..end];
        self.0 = self.0[end..].strip_prefix('"')?;
        Some(quoted)
    }

    /// A number as serde writes it: no sign, no leading zeros.
    fn unsigned(&mut self) -> Option<u64> {
        let end = self.0.bytes().position(|byte| !byte.is_ascii_digit())?;
        let (digits, rest) = self.0.split_at(end);
        if digits.starts_with('0') && digits.len() > 1 {
            return None;
        }
        self.0 = rest;
        digits.parse().ok()
    }

    fn signed(&mut self) -> Option<i64> {
        match self.skip("-") {
            None => self.unsigned()?.try_into().ok(),
            Some(()) => 0_i64.checked_sub_unsigned(self.unsigned().filter(|size| *size > 0)?),
        }
    }

    /// The next event. It shares the owner string with the previous one if they are equal.
    fn entry(&mut self, previous: Option<&Entry>) -> Option<Entry> {
        self.skip(EVENT_OPEN)?;
        let id = PetId::new(self.signed()?).ok()?;
        self.skip(r#","name":""#)?;
        let name = PetName::new(self.quoted()?).ok()?;
        self.skip(r#","categoryId":"#)?;
        let category_id = CategoryId(self.signed()?);
        let status = match self.skip(r#","status":""#) {
            None => None,
            Some(()) => Some(self.quoted()?.parse::<PetStatus>().ok()?),
        };
        self.skip(r#"},"by":""#)?;
        let owner = self.quoted()?;
        let by = match previous {
            Some(Entry { by, .. }) if *by.0 == *owner => by.clone(),
            Some(_) | None => OwnerId(owner.into()),
        };
        let request_key = match self.skip(r#","requestKey":""#) {
            None => None,
            Some(()) => Some(RequestKey::new(self.quoted()?).ok()?),
        };
        self.skip("}")?;
        let event = PetEvent::Added(Pet { id, details: NewPet { name, category_id, status } });
        Some(Entry { event, by, request_key })
    }
}
