//! Finds intact records in the file of a sled store that can no longer be opened, without using sled.
//!
//! Nothing is written, not even a lock. Chunks are found by their headers and checksums, so damage costs only the
//! records that it hits, even if it destroys sled's pages, headers or snapshots. Old copies of a chunk, which sled
//! leaves when it moves pages, are equally good.

use std::{fs::File, io};

use application::ports::{Fault, LogError, Position, StoredRecord, Version};

use super::chunks::{self, CHUNK_MAX, Header};
use crate::{
    event_log::embedded::{Layout, Records, Visit, damaged, io_error, read_around_errors},
    private_files::open_to_read,
};

/// The number of bytes scanned at a time, plus one chunk, so that no chunk is missed between two blocks.
const BLOCK: usize = 4 * 1024 * 1024;

#[derive(Debug)]
pub(super) struct FoundChunks {
    file: File,
    /// The chunks of complete records, with their offsets: one record per position, in order. Positions may be missing.
    chunks: Vec<(Header, u64)>,
}

pub(super) fn find(layout: &Layout, acknowledged: Option<Version>) -> Result<FoundChunks, LogError> {
    let find = || {
        let file = open_to_read(&super::records(layout))?;
        let chunks = of_complete_records(intact_chunks(&file)?, acknowledged);
        Ok(FoundChunks { file, chunks })
    };
    find().map_err(|error: io::Error| {
        let detail = format!("the store {} cannot be read: {error}; check the path", layout.path.display());
        Fault::CannotOpen.error(detail)
    })
}

impl Records for FoundChunks {
    fn last(&self) -> Result<Version, LogError> {
        Ok(self.chunks.last().map_or(Version::START, |(header, _)| header.version))
    }

    fn visit(&self, after: Position, last: Position, visit: &mut Visit<'_>) -> Result<(), LogError> {
        let records = self.after(after).chunk_by(|(one, _), (other, _)| one.version == other.version);
        for record in records.take_while(|record| record[0].0.version.position <= last) {
            let Version { position, commit } = record[0].0.version;
            let changed = || damaged(position, "the file changed while it was read");
            let (version, bytes) = chunks::assemble(position, |number| {
                let (_, offset) = record.get(number as usize).ok_or_else(changed)?;
                read_around_errors(&self.file, *offset, CHUNK_MAX).map_err(io_error("reading the log"))
            })?;
            if version.commit != commit {
                return Err(changed());
            }
            if visit(StoredRecord { position, id: commit, bytes }).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn skip(&self, damaged: Position) -> Position {
        self.after(damaged).first().map_or(Position(u64::MAX), |(header, _)| header.version.position)
    }
}

impl FoundChunks {
    fn after(&self, position: Position) -> &[(Header, u64)] {
        let start = self.chunks.partition_point(|(header, _)| header.version.position <= position);
        &self.chunks[start..]
    }
}

/// Returns every intact chunk in the readable part of the file, with its offset.
fn intact_chunks(file: &File) -> io::Result<Vec<(Header, u64)>> {
    let mut found = Vec::new();
    for offset in (0..file.metadata()?.len()).step_by(BLOCK) {
        let bytes = read_around_errors(file, offset, BLOCK + CHUNK_MAX)?;
        let begun = chunks::find(&bytes).take_while(|(_, at)| *at < BLOCK);
        found.extend(begun.map(|(header, at)| (header, offset + at as u64)));
    }
    Ok(found)
}

/// Returns the chunks of one complete record per position.
///
/// A position can have two commits in the file: one that was never acknowledged, because the process ended while it was
/// written, and the one that replaced it. At the position of the mark, the mark decides; elsewhere, the newer commit
/// wins, by its id.
fn of_complete_records(mut found: Vec<(Header, u64)>, mark: Option<Version>) -> Vec<(Header, u64)> {
    let record =
        |header: &Header| (header.version.position, header.version.commit.map(|commit| commit.0), header.len);
    found.sort_unstable_by_key(|(header, offset)| (record(header), header.number, *offset));
    found.dedup_by_key(|(header, _)| *header);
    let mut complete: Vec<(Header, u64)> = Vec::new();
    for parts in found.chunk_by(|(one, _), (other, _)| record(one) == record(other)) {
        let (first, _) = parts[0];
        let version = first.version;
        let is_another = mark.is_some_and(|mark| mark.position == version.position && mark != version);
        if parts.len() < first.chunks() || is_another {
            continue;
        }
        // Replaces an older commit at this position.
        complete
            .truncate(complete.partition_point(|(earlier, _)| earlier.version.position < version.position));
        complete.extend_from_slice(parts);
    }
    complete
}
