//! The format of exports and of the log of a running service, without I/O: one record per line. The last line is a manifest, which
//! proves that no record is missing, or a notice that the next record is damaged. Blank lines keep a connection alive.

use std::io::{BufRead as _, Read as _};

use bytes::Bytes;
use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Deserialize, Serialize};

use super::Tally;
use crate::ports::{Position, RECORD_MAX, StoredRecord};

/// The first bytes of a manifest.
const MANIFEST: &[u8] = br#"{"manifest""#;
/// The first bytes of a damage notice.
const DAMAGED: &[u8] = br#"{"damaged""#;

/// The last line of an export.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LastLine {
    manifest: Manifest,
}

#[derive(PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    /// The first position, or the next one if there are no records.
    first: u64,
    last: u64,
    /// The head hash, which proves every record. `None` for a part of a log without records.
    head: Option<String>,
    exported: String,
}

impl Tally {
    /// The manifest of these records, with its newline.
    pub fn manifest(&self, now: DateTime<Utc>) -> Vec<u8> {
        let manifest = self.describe(now.to_rfc3339_opts(SecondsFormat::Secs, true));
        let mut line = serde_json::to_vec(&LastLine { manifest }).expect("texts and numbers are always JSON");
        line.push(b'\n');
        line
    }

    fn describe(&self, exported: String) -> Manifest {
        let head = self.head_hash().map(|head| head.to_string());
        Manifest { first: self.after.next().0, last: self.position().0, head, exported }
    }

    /// The line that ends these records if the next one is damaged, with its newline.
    pub fn damage_notice(&self) -> Vec<u8> {
        format!("{{\"damaged\":{{\"position\":{}}}}}\n", self.position().next()).into_bytes()
    }

    /// Whether this manifest describes exactly these records.
    fn matches(&self, manifest: &[u8]) -> bool {
        serde_json::from_slice(manifest)
            .is_ok_and(|LastLine { manifest }| manifest == self.describe(manifest.exported.clone()))
    }
}

/// The content of a line.
#[derive(Debug)]
pub enum Step {
    /// A record, which is not decoded.
    Record(StoredRecord),
    /// A blank line.
    Heartbeat,
    /// A manifest that describes the records before it.
    End,
    /// A manifest that does not describe the records before it.
    WrongManifest,
    /// The service cannot read the next record.
    Damaged,
    /// The line is longer than any record.
    TooLong,
}

/// Splits a stream into records.
#[derive(Debug)]
pub struct Decoder {
    /// The decoded records, without their events.
    pub(super) tally: Tally,
    /// The start of an incomplete line.
    begun: Vec<u8>,
}

impl Decoder {
    /// Decodes the records after this position.
    pub fn after(position: Position) -> Self {
        Self { tally: Tally::between(position, None), begun: Vec::new() }
    }

    /// The position of the last decoded record.
    pub fn position(&self) -> Position {
        self.tally.position()
    }

    /// Whether the line at the end is incomplete.
    pub fn is_within_line(&self) -> bool {
        !self.begun.is_empty()
    }

    /// Takes bytes up to the end of a line. Returns their number, and the content of the line if it is complete.
    pub fn feed(&mut self, bytes: &[u8]) -> (usize, Option<Step>) {
        // The longest record and its line break.
        let room = (RECORD_MAX + 1 - self.begun.len()) as u64;
        let used = bytes.take(room).read_until(b'\n', &mut self.begun).expect("a slice can be read");
        if self.begun.pop_if(|last| *last == b'\n').is_none() {
            return (used, (self.begun.len() > RECORD_MAX).then_some(Step::TooLong));
        }
        let step = if self.begun.is_empty() {
            Step::Heartbeat
        } else if self.begun.starts_with(MANIFEST) {
            if self.tally.matches(&self.begun) { Step::End } else { Step::WrongManifest }
        } else if self.begun.starts_with(DAMAGED) {
            Step::Damaged
        } else {
            let position = self.position().next();
            let record = StoredRecord { position, id: None, bytes: Bytes::copy_from_slice(&self.begun) };
            self.tally.add(record.clone());
            Step::Record(record)
        };
        self.begun.clear();
        (used, Some(step))
    }
}
