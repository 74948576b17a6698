//! The running tally of a history, and the manifest that ends an export. The manifest proves that no record is missing.

use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::holds;
use crate::{
    log::{codec, commit::Commit, digest::Digest, history::History},
    ports::{Fault, LogError, LogSource, Position, ReadBound, StoredRecord},
};

/// The first bytes of a manifest.
const MANIFEST: &[u8] = br#"{"manifest""#;
/// The first bytes of a damage notice.
const DAMAGED: &[u8] = br#"{"damaged""#;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum LastLine {
    Manifest {
        /// The first position; 0 if there are no records.
        first: u64,
        last: u64,
        commits: u64,
        events: u64,
        bytes: u64,
        sha256: String,
        /// The head hash. `None` for a part of a log without records.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        head: Option<String>,
        exported: String,
    },
    /// Ends a response of a service that cannot read the record at this position.
    Damaged { position: u64 },
}

impl LastLine {
    fn to_line(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(self).expect("texts and numbers are always JSON");
        line.push(b'\n');
        line
    }
}

/// A running tally of consecutive records. It also checks the records of a whole history.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// The position before the first record.
    after: Position,
    /// The number of events.
    pub events: u64,
    /// The total size of the records, in bytes.
    pub bytes: u64,
    /// The times of the first and the last commit.
    pub span: Option<(DateTime<Utc>, DateTime<Utc>)>,
    digest: Sha256,
    last: Option<StoredRecord>,
    /// The checked records, up to the last one.
    history: History,
}

impl Tally {
    /// An empty tally. The first record will follow `position`.
    pub fn after(position: Position) -> Self {
        Self { after: position, ..Self::default() }
    }

    /// A tally that continues after this record. Its totals count only later records.
    pub(super) fn resume(last: StoredRecord) -> Result<Self, LogError> {
        let history = History::after(&codec::decode_stored(&last)?, Digest::of(&last.bytes))?;
        Ok(Self { after: last.position, last: Some(last), history, ..Self::default() })
    }

    /// Decodes the next record, and checks that it continues the history.
    pub(super) fn check_next(&mut self, record: &StoredRecord) -> Result<Commit, LogError> {
        let commit = codec::decode_stored(record)?;
        self.history.add(&commit, Digest::of(&record.bytes))?;
        Ok(commit)
    }

    /// The position of the last record.
    pub fn position(&self) -> Position {
        self.last().map_or(self.after, |last| last.position)
    }

    pub(super) fn last(&self) -> Option<&StoredRecord> {
        self.last.as_ref()
    }

    /// SHA-256 over the bytes of all records in order: the same on every engine for the same history.
    pub fn digest(&self) -> Digest {
        Digest(self.digest.clone().finalize().into())
    }

    /// The head hash, which identifies the whole history and which the next record will contain. `None` without
    /// records, if the log before them is unknown.
    pub fn head_hash(&self) -> Option<Digest> {
        let empty = || (self.after == Position::START).then(|| Digest::of(b""));
        self.last().map(|last| Digest::of(&last.bytes)).or_else(empty)
    }

    /// Adds the next record. Its events are not counted.
    pub fn add(&mut self, record: StoredRecord) {
        self.bytes += record.bytes.len() as u64;
        self.digest.update(&record.bytes);
        self.last = Some(record);
    }

    /// Adds the next record with the commit in it.
    pub fn add_commit(&mut self, record: StoredRecord, commit: &Commit) {
        self.add(record);
        self.events += commit.entries.len() as u64;
        self.span = Some((self.span.map_or(commit.time, |(first, _)| first), commit.time));
    }

    /// Reads the records after the last one. An empty result means that there are no more at the moment. Fails if the
    /// log was replaced, because the records of two histories must not be mixed. The first record proves the last one with
    /// its hash; only a record that does not follow needs a second read, to tell a replaced log from a damaged one.
    pub async fn read_next(
        &self,
        log: &dyn LogSource,
        bound: ReadBound,
    ) -> Result<Vec<StoredRecord>, LogError> {
        let records = log.read(self.position(), bound).await?;
        if let (Some(last), Some(next)) = (self.last(), records.first())
            && !codec::decode_stored(next).is_ok_and(|commit| commit.previous == Digest::of(&last.bytes))
            && holds(log, last).await? != Some(true)
        {
            return Err(Fault::Diverged.error(format!(
                "the log was replaced while it was read: the commit at position {} is different; start again",
                last.position
            )));
        }
        Ok(records)
    }

    /// The manifest of these records, with its newline.
    pub fn manifest(&self, now: DateTime<Utc>) -> Vec<u8> {
        let manifest = LastLine::Manifest {
            first: self.first(),
            last: self.position().0,
            commits: self.commits(),
            events: self.events,
            bytes: self.bytes,
            sha256: self.digest().to_string(),
            head: self.head_hash().map(|head| head.to_string()),
            exported: now.to_rfc3339_opts(SecondsFormat::Secs, true),
        };
        manifest.to_line()
    }

    /// The line that ends these records if the next one is damaged, with its newline.
    pub fn damage_notice(&self) -> Vec<u8> {
        LastLine::Damaged { position: self.position().next().0 }.to_line()
    }

    /// Whether this line is a manifest or a damage notice, and not a record.
    pub fn is_last_line(line: &[u8]) -> bool {
        Self::is_manifest(line) || Self::is_damage_notice(line)
    }

    /// Whether this line is a damage notice.
    pub fn is_damage_notice(line: &[u8]) -> bool {
        line.starts_with(DAMAGED)
    }

    /// Whether this line is a manifest.
    pub fn is_manifest(line: &[u8]) -> bool {
        line.starts_with(MANIFEST)
    }

    /// Whether this manifest describes exactly these records and their events.
    pub fn matches(&self, manifest: &[u8]) -> bool {
        self.stated_events(manifest) == Some(self.events)
    }

    /// The number of events in this manifest, if it describes exactly these records. For a tally without their commits.
    pub fn stated_events(&self, manifest: &[u8]) -> Option<u64> {
        let Ok(LastLine::Manifest { first, last, commits, events, bytes, sha256, head, .. }) =
            serde_json::from_slice(manifest)
        else {
            return None;
        };
        let is_described = (first, last, commits, bytes)
            == (self.first(), self.position().0, self.commits(), self.bytes)
            && sha256 == self.digest().to_string()
            && head == self.head_hash().map(|head| head.to_string());
        is_described.then_some(events)
    }

    fn first(&self) -> u64 {
        if self.commits() == 0 { 0 } else { self.after.next().0 }
    }

    fn commits(&self) -> u64 {
        self.position().0 - self.after.0
    }
}
