//! A history as a file: the records, one per line, and a manifest as the last line.

use std::io::{self, BufRead, Read as _, Write};

use bytes::Bytes;
use chrono::{DateTime, Utc};
use thiserror::Error;

use super::{
    Broken, Check, CopyError, Summary,
    copy::Target,
    manifest::{MANIFEST, Manifest},
    walk,
};
use crate::{
    commit::Commit,
    ports::{EventLog, LogError, LogSource, Position, StoredRecord},
};

/// A line is a commit, and commits are far smaller than this: whatever is longer is no export.
pub const LINE_MAX: u64 = 64 * 1024 * 1024;

/// Why a history was not written to a file or not read from one.
#[derive(Debug, Error)]
pub enum ExportError {
    /// The log that is exported cannot be read.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The file cannot be read or written.
    #[error("the file cannot be read or written: {0}")]
    File(#[from] io::Error),
    /// The file is not a whole export.
    #[error("line {line} of the file {what}")]
    NotAnExport {
        /// Where, counted from 1.
        line: u64,
        /// What is wrong with it.
        what: String,
    },
    /// The history cannot go into the target.
    #[error(transparent)]
    Target(#[from] CopyError),
}

/// Writes the log to `file`. Each line is the stored bytes of one commit, which are JSON themselves, so that
/// importing the lines gives back the very same log.
pub async fn export(
    log: &dyn LogSource,
    mut file: impl Write,
    now: DateTime<Utc>,
    mut progress: impl FnMut(Position),
) -> Result<Summary, Broken<ExportError>> {
    let summary = walk(log, async |record, _| {
        file.write_all(&record.bytes)?;
        file.write_all(b"\n")?;
        progress(record.position);
        Ok(())
    })
    .await?;
    match Manifest::of(&summary, now).write(&mut file) {
        Ok(()) => Ok(summary),
        Err(error) => Err(Broken { sound: Box::new(summary), error: error.into() }),
    }
}

/// Reads an export into `to`. Goes on where an earlier import stopped; refuses a target that holds anything else,
/// and a file that does not end with a manifest which fits it. Only the end of the file tells that, so whatever can be
/// read twice should be [checked](check_export) first.
pub async fn import(
    file: impl BufRead,
    to: &dyn EventLog,
    mut progress: impl FnMut(Position),
) -> Result<Summary, Broken<ExportError>> {
    let mut target = match Target::open(to).await {
        Ok(target) => target,
        Err(error) => return Err(Broken { sound: Box::default(), error: error.into() }),
    };
    let summary = read(file, async |record, commit| {
        target.take(record, commit.id).await?;
        progress(record.position);
        Ok(())
    })
    .await?;
    match target.ends_at(summary.last) {
        Ok(()) => Ok(summary),
        Err(error) => Err(Broken { sound: Box::new(summary), error: error.into() }),
    }
}

/// Reads an export to its end, and tells whether it is whole.
pub async fn check_export(file: impl BufRead) -> Result<Summary, Broken<ExportError>> {
    read(file, async |_, _| Ok(())).await
}

async fn read(
    mut file: impl BufRead,
    mut visit: impl AsyncFnMut(&StoredRecord, &Commit) -> Result<(), ExportError>,
) -> Result<Summary, Broken<ExportError>> {
    let mut check = Check::default();
    let ended = async {
        let mut line = Vec::new();
        loop {
            let position = check.sound.last.next();
            let wrong = |what: String| ExportError::NotAnExport { line: position.0, what };
            line.clear();
            if file.by_ref().take(LINE_MAX).read_until(b'\n', &mut line)? == 0 {
                return Err(wrong("is missing: an export must end with a manifest; export again".into()));
            }
            let bytes = line.strip_suffix(b"\n").unwrap_or(&line);
            if bytes.starts_with(MANIFEST) {
                if !Manifest::read(bytes).is_some_and(|manifest| manifest.fits(&check.summary())) {
                    return Err(wrong(
                        "is a manifest that does not match the lines before it: some were lost or changed; export again".into(),
                    ));
                }
                if !file.fill_buf()?.is_empty() {
                    return Err(wrong("is a manifest, but not the last line".into()));
                }
                return Ok(());
            }
            let record = StoredRecord { position, id: None, bytes: Bytes::copy_from_slice(bytes) };
            let commit =
                check.follows(&record).map_err(|error| wrong(format!("is not the next commit: {error}")))?;
            visit(&record, &commit).await?;
            check.take(&record, &commit);
        }
    };
    let ended = ended.await;
    check.end(ended)
}
