//! Exports: the records, one per line, and a manifest as the last line.

use std::io::{self, BufRead, Write};

use chrono::{DateTime, Utc};

use super::{CopyError, Cut, Decoder, Step, Tally, copy::CopyTarget, walk};
use crate::{
    log::commit::Commit,
    ports::{EventLog, Fault, LogError, LogSource, Position, RECORD_MAX, ReadBound, StoredRecord},
};

/// Writes the records of the log up to the end of `tally` to `file`. Each line holds the stored bytes of one commit, which
/// are JSON, so that an import reproduces the same log.
pub async fn export<E: From<LogError> + From<io::Error>>(
    log: &dyn LogSource,
    mut file: impl Write,
    mut tally: Tally,
    now: DateTime<Utc>,
    mut progress: impl FnMut(Position),
) -> Result<(), E> {
    let walked = walk::<E>(log, &mut tally, async |record, _| {
        file.write_all(&record.bytes)?;
        file.write_all(b"\n")?;
        progress(record.position);
        Ok(())
    });
    walked.await?;
    file.write_all(&tally.manifest(now))?;
    Ok(file.flush()?)
}

/// Imports the commits of a file before the end of `cut` into `to`, and counts them in `tally`. Unless the target fails, it
/// holds all of them. Resumes an interrupted import, and changes nothing in a target that holds all of them, and
/// possibly more. Rejects a target with a different history, and a file without a
/// matching manifest. Only the end of the file shows a missing manifest, so a file that can be read twice should be
/// [checked](check_export) first.
pub async fn import(
    file: impl BufRead,
    to: &dyn EventLog,
    cut: &mut Cut,
    tally: &mut Tally,
    mut stored: impl FnMut(&Commit),
) -> Result<(), CopyError> {
    let mut target = CopyTarget::open(to).await?;
    let (mut batch, mut bytes) = (Vec::new(), 0);
    let read = read(file, async |record, commit| {
        if cut.takes(&commit) {
            bytes += record.bytes.len();
            batch.push((record, commit));
        }
        if batch.len() >= ReadBound::APPEND.records || bytes >= ReadBound::APPEND.bytes {
            bytes = 0;
            target.store_all(&mut batch, tally, &mut stored).await?;
        }
        Ok(())
    });
    let read = read.await;
    if matches!(read, Ok(_) | Err(CopyError::Source(_))) {
        // The records before a bad line are intact.
        target.store_all(&mut batch, tally, &mut stored).await?;
    }
    read?;
    target.check_holds(tally.last.as_ref()).await
}

/// Reads an export to its end, checks that it is complete, and passes its commits to `cut`. Returns the last position.
pub async fn check_export(file: impl BufRead, cut: &mut Cut) -> Result<Position, LogError> {
    read(file, async |_, commit| {
        cut.takes(&commit);
        Ok(())
    })
    .await
}

async fn read<E: From<LogError>>(
    mut file: impl BufRead,
    mut visit: impl AsyncFnMut(StoredRecord, Commit) -> Result<(), E>,
) -> Result<Position, E> {
    let mut decoder = Decoder::after(Position::START);
    loop {
        let line = decoder.position().next();
        let bad_line = |what| E::from(Fault::CannotOpen.error(format!("line {line} {what}")));
        let unreadable = |error| bad_line(format!("cannot be read: {error}"));
        let bytes = file.fill_buf().map_err(unreadable)?;
        let is_at_end = bytes.is_empty();
        // The line break at the end may be missing.
        let (used, step) = decoder.feed(if is_at_end { b"\n" } else { bytes });
        file.consume(if is_at_end { 0 } else { used });
        let what = match step {
            None => continue,
            Some(Step::Record(record)) => match decoder.tally.check_next(&record) {
                Ok(commit) => {
                    visit(record, commit).await?;
                    continue;
                }
                Err(error) => format!("cannot be used: {error}; check the path, or export again"),
            },
            Some(Step::End) if file.fill_buf().map_err(unreadable)?.is_empty() => {
                return Ok(decoder.position());
            }
            Some(Step::End) => "is a manifest, but not the last line".into(),
            Some(Step::WrongManifest) => {
                "is a manifest that does not match the lines before it: lines were lost or changed; export again".into()
            }
            Some(Step::Heartbeat) if is_at_end => {
                "is missing: an export ends with a manifest; check the path, or export again".into()
            }
            Some(Step::Heartbeat | Step::Damaged) => {
                "is not a record; check the path, or export again".into()
            }
            Some(Step::TooLong) => {
                format!("is longer than any record ({RECORD_MAX} bytes); check the path, or export again")
            }
        };
        return Err(bad_line(what));
    }
}
