//! Histories with gaps: everything that can be read of a damaged log as a file, and a new history made of such a file.
//!
//! The file is an export whose records need not be contiguous. Its manifest says `incomplete` and lists the gaps, so that
//! nobody takes it for the whole history.

use std::{
    io::{BufRead, Read as _, Write},
    ops::AsyncFnMut,
};

use bytes::Bytes;
use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use super::{Check, CopyError, ExportError, Summary, export::LINE_MAX, intake::append, manifest::MANIFEST};
use crate::{
    codec,
    commit::{Commit, CommitId, NodeId, Version},
    digest::Digest,
    ports::{EventLog, Fault, LogError, LogSource, Position, ReadBound, StoredRecord},
};

/// From the first to the last position that cannot be read.
pub type Gap = (Position, Position);

/// What can be read of a log, and what cannot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Remains {
    /// The last position that the log is known to have had.
    pub reach: Position,
    /// What cannot be read up to there, in order.
    pub gaps: Vec<Gap>,
    /// How many commits can be read.
    pub commits: u64,
    /// How many events they hold.
    pub events: u64,
}

#[derive(Serialize, Deserialize)]
struct LastLine {
    manifest: Manifest,
}

#[derive(Serialize, Deserialize)]
struct Manifest {
    incomplete: bool,
    last: u64,
    gaps: Vec<(u64, u64)>,
    commits: u64,
    events: u64,
    sha256: String,
    exported: String,
}

/// Reads every record up to `reach` that is sound in itself, and hands it on.
pub async fn read_around_gaps<E: From<LogError>>(
    log: &dyn LogSource,
    reach: Position,
    mut visit: impl AsyncFnMut(&StoredRecord) -> Result<(), E>,
) -> Result<Remains, E> {
    let mut remains = Remains { reach, ..Remains::default() };
    let (mut after, mut bound) = (Position::START, ReadBound::BATCH);
    while after < reach {
        let records = match log.read(after, bound).await {
            Err(error) if !matches!(error.fault, Fault::Damaged | Fault::Foreign) => return Err(error.into()),
            // Something in the batch is damaged or not ours; what comes before it is sound.
            Err(_) if bound != ReadBound::ONE => {
                bound = ReadBound::ONE;
                continue;
            }
            Err(_) => vec![],
            Ok(records) => records,
        };
        if records.is_empty() {
            remains.misses(after.next());
            after = after.next();
        }
        for record in records {
            after = record.position;
            match codec::decode_stored(&record) {
                Ok(commit) => {
                    remains.commits += 1;
                    remains.events += commit.entries.len() as u64;
                    bound = ReadBound::BATCH;
                    visit(&record).await?;
                }
                Err(error) if error.fault == Fault::Damaged => remains.misses(record.position),
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(remains)
}

/// Writes every readable record to `file`, and a manifest that lists the gaps.
pub async fn export_around_gaps(
    log: &dyn LogSource,
    reach: Position,
    mut file: impl Write,
    now: DateTime<Utc>,
    mut progress: impl FnMut(Position),
) -> Result<Remains, ExportError> {
    let mut digest = Sha256::new();
    let remains = read_around_gaps::<ExportError>(log, reach, async |record| {
        digest.update(&record.bytes);
        file.write_all(&record.bytes)?;
        file.write_all(b"\n")?;
        progress(record.position);
        Ok(())
    })
    .await?;
    let manifest = Manifest {
        incomplete: true,
        last: reach.0,
        gaps: remains.gaps.iter().map(|(first, last)| (first.0, last.0)).collect(),
        commits: remains.commits,
        events: remains.events,
        sha256: Digest(digest.finalize().into()).to_string(),
        exported: now.to_rfc3339_opts(SecondsFormat::Secs, true),
    };
    serde_json::to_writer(&mut file, &LastLine { manifest }).map_err(std::io::Error::from)?;
    file.write_all(b"\n")?;
    file.flush()?;
    Ok(remains)
}

/// Reads a file with gaps to its end, and tells what is missing from it.
pub async fn check_export_with_gaps(file: impl BufRead) -> Result<Remains, ExportError> {
    read(file, async |_| Ok(())).await
}

/// Adds the events of a file with gaps anew to `to`, which must be empty: the same pets under the same ids, in commits of
/// a history of its own.
pub async fn import_with_gaps(
    file: impl BufRead,
    to: &dyn EventLog,
    mut progress: impl FnMut(Position),
) -> Result<(Remains, Summary), ExportError> {
    if to.head().await.map_err(CopyError::Target)? != Position::START {
        return Err(CopyError::AnotherHistory(Position::START.next()).into());
    }
    let mut check = Check::default();
    let (mut last, node) = (Version::START, NodeId::random());
    let remains = read(file, async |commit| {
        let position = last.position.next();
        let (id, previous) = (CommitId(Uuid::now_v7()), check.history.head_hash);
        let anew = Commit { position, id, previous, node, ..commit };
        let record = codec::encode(&anew);
        let stored = StoredRecord { position, bytes: record.bytes.clone() };
        check.follows(&stored)?;
        append(to, last, &record).await?;
        check.take(&stored, &anew);
        last = Version::at(position, id);
        progress(position);
        Ok(())
    })
    .await?;
    Ok((remains, check.summary()))
}

async fn read(
    mut file: impl BufRead,
    mut visit: impl AsyncFnMut(Commit) -> Result<(), ExportError>,
) -> Result<Remains, ExportError> {
    let (mut remains, mut digest) = (Remains::default(), Sha256::new());
    let mut line = Vec::new();
    for number in 1.. {
        let wrong = |what: &str| ExportError::NotAnExport { line: number, what: what.to_owned() };
        line.clear();
        if file.by_ref().take(LINE_MAX).read_until(b'\n', &mut line)? == 0 {
            return Err(wrong("is missing: the file must end with a manifest; salvage again"));
        }
        let bytes = line.strip_suffix(b"\n").unwrap_or(&line);
        if bytes.starts_with(MANIFEST) {
            let manifest: LastLine = serde_json::from_slice(bytes).map_err(|_| {
                wrong("is not the manifest of a file with gaps: import it without --accept-gaps")
            })?;
            remains.ends(Position(manifest.manifest.last));
            if !fits(&manifest.manifest, &remains, digest) {
                return Err(wrong("is a manifest that does not match the lines before it: salvage again"));
            }
            return Ok(remains);
        }
        let commit = codec::decode(bytes).map_err(|error| wrong(&format!("is not a commit: {error}")))?;
        if commit.position <= remains.reach {
            return Err(wrong("does not follow the one before it"));
        }
        remains.ends(Position(commit.position.0 - 1));
        remains.reach = commit.position;
        remains.commits += 1;
        remains.events += commit.entries.len() as u64;
        digest.update(Bytes::copy_from_slice(bytes));
        visit(commit).await?;
    }
    unreachable!("a file ends before the numbers do")
}

fn fits(manifest: &Manifest, found: &Remains, digest: Sha256) -> bool {
    let gaps: Vec<_> = found.gaps.iter().map(|(first, last)| (first.0, last.0)).collect();
    manifest.incomplete
        && manifest.gaps == gaps
        && (manifest.commits, manifest.events) == (found.commits, found.events)
        && manifest.sha256 == Digest(digest.finalize().into()).to_string()
}

impl Remains {
    /// One more position that cannot be read.
    fn misses(&mut self, position: Position) {
        match self.gaps.last_mut() {
            Some((_, last)) if last.next() == position => *last = position,
            Some(_) | None => self.gaps.push((position, position)),
        }
    }

    /// Everything between what was found so far and `end` is a gap.
    fn ends(&mut self, end: Position) {
        if self.reach < end {
            self.gaps.push((self.reach.next(), end));
            self.reach = end;
        }
    }
}
