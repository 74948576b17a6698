//! The last line of an export, by which a reader tells that nothing is missing.

use std::io::{self, Write};

use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::Summary;
use crate::{digest::Digest, ports::Position};

/// How the last line begins.
pub(super) const MANIFEST: &[u8] = br#"{"manifest""#;

#[derive(Serialize, Deserialize)]
struct LastLine {
    manifest: Manifest,
}

/// What the lines before it hold.
#[derive(Serialize, Deserialize)]
pub(super) struct Manifest {
    /// The first position; 0 if there are no records.
    pub(super) first: u64,
    pub(super) last: u64,
    pub(super) commits: u64,
    pub(super) events: u64,
    pub(super) bytes: u64,
    pub(super) sha256: String,
    /// The head hash. A part of a log without records has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) head: Option<String>,
    pub(super) exported: String,
}

impl Manifest {
    /// The manifest of a whole history.
    pub(super) fn of(summary: &Summary, now: DateTime<Utc>) -> Self {
        Self {
            first: u64::from(summary.last > Position::START),
            last: summary.last.0,
            commits: summary.last.0,
            events: summary.events,
            bytes: summary.bytes,
            sha256: summary.digest.to_string(),
            head: Some(summary.head_hash.to_string()),
            exported: now.to_rfc3339_opts(SecondsFormat::Secs, true),
        }
    }

    pub(super) fn read(line: &[u8]) -> Option<Self> {
        serde_json::from_slice(line).ok().map(|LastLine { manifest }| manifest)
    }

    pub(super) fn write(self, mut file: impl Write) -> io::Result<()> {
        serde_json::to_writer(&mut file, &LastLine { manifest: self })?;
        file.write_all(b"\n")?;
        file.flush()
    }

    /// Whether the lines before it are the whole history that was found in them.
    pub(super) fn fits(&self, summary: &Summary) -> bool {
        self.first == u64::from(summary.last > Position::START)
            && self.last == summary.last.0
            && self.bytes == summary.bytes
            && self.commits == summary.last.0
            && self.events == summary.events
            && self.sha256 == summary.digest.to_string()
            && self.head.as_ref().is_none_or(|head| *head == summary.head_hash.to_string())
    }
}

/// The records of a part of a log as they pass, to be compared with the manifest behind them.
#[derive(Debug, Clone, Default)]
pub struct Passed {
    after: Position,
    commits: u64,
    bytes: u64,
    digest: Sha256,
}

impl Passed {
    /// Nothing yet, and records from right after `after` on to come.
    pub fn after(after: Position) -> Self {
        Self { after, ..Self::default() }
    }

    /// One more record.
    pub fn take(&mut self, record: &[u8]) {
        self.commits += 1;
        self.bytes += record.len() as u64;
        self.digest.update(record);
    }

    /// The position of the last record.
    pub fn last(&self) -> Position {
        Position(self.after.0 + self.commits)
    }

    /// Whether this line is a manifest, and so the last one.
    pub fn is_manifest(line: &[u8]) -> bool {
        line.starts_with(MANIFEST)
    }

    /// Whether this manifest tells of exactly these records.
    pub fn fits(&self, manifest: &[u8]) -> bool {
        Manifest::read(manifest).is_some_and(|manifest| {
            manifest.first == self.first()
                && manifest.last == self.last().0
                && manifest.commits == self.commits
                && manifest.bytes == self.bytes
                && manifest.sha256 == self.digest().to_string()
        })
    }

    pub(super) fn manifest(&self, events: u64, head: Option<Digest>, now: DateTime<Utc>) -> Manifest {
        Manifest {
            first: self.first(),
            last: self.last().0,
            commits: self.commits,
            events,
            bytes: self.bytes,
            sha256: self.digest().to_string(),
            head: head.map(|head| head.to_string()),
            exported: now.to_rfc3339_opts(SecondsFormat::Secs, true),
        }
    }

    pub(super) fn is_from_the_start(&self) -> bool {
        self.after == Position::START
    }

    pub(super) fn digest(&self) -> Digest {
        Digest(self.digest.clone().finalize().into())
    }

    fn first(&self) -> u64 {
        if self.commits == 0 { 0 } else { self.after.next().0 }
    }
}
