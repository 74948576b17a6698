//! Finds intact records in the file of a sled store that can no longer be opened, without using sled.
//!
//! Nothing is written, not even a lock. Chunks are found by their headers and checksums, so damage costs only the
//! records that it hits, even if it destroys sled's pages, headers or snapshots. Old copies of a chunk, which sled
//! leaves when it moves pages, are equally good.

use std::{fs::File, io};

use application::ports::{Fault, LogError, Position, StoredRecord, Version};
use bytes::Bytes;

use super::{
    chunks::{self, CHUNK_MAX, Header},
    inspect::read,
};
use crate::{
    event_log::embedded::{FoundRecords, Layout, Records, Visit, damaged, read_around_errors},
    private_files::open_to_read,
};

/// The number of bytes scanned at a time, plus one chunk, so that no chunk is missed between two blocks.
const BLOCK: usize = 4 * 1024 * 1024;

#[derive(Debug)]
struct FoundChunks {
    file: File,
    /// One per position, in order. Positions may be missing.
    records: Vec<CompleteRecord>,
}

/// A record whose chunks were all found.
#[derive(Debug)]
struct CompleteRecord {
    version: Version,
    /// The offsets of its chunks.
    places: Vec<u64>,
}

pub(super) fn find(layout: &Layout, acknowledged: Option<Version>) -> Result<FoundRecords, LogError> {
    let find = || {
        let file = open_to_read(&super::records(layout))?;
        let records = whole_records(pieces(&file)?, acknowledged);
        Ok(FoundChunks { file, records })
    };
    let found = find().map_err(|error: io::Error| {
        let detail = format!("the store {} cannot be read: {error}; check the path", layout.path.display());
        Fault::CannotOpen.error(detail)
    })?;
    let last = found.records.last().map_or(Position::START, |record| record.version.position);
    Ok(FoundRecords { records: Box::new(found), last, copy: None })
}

impl Records for FoundChunks {
    fn visit(&self, after: Position, last: Position, visit: &mut Visit<'_>) -> Result<(), LogError> {
        let start = self.records.partition_point(|record| record.version.position <= after);
        for record in self.records[start..].iter().take_while(|record| record.version.position <= last) {
            let (Version { position, commit }, bytes) = (record.version, self.assemble(record)?);
            if visit(StoredRecord { position, id: commit, bytes }).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn skip(&self, damaged: Position) -> Position {
        let next = self.records.partition_point(|record| record.version.position <= damaged);
        self.records.get(next).map_or(Position(u64::MAX), |record| record.version.position)
    }
}

impl FoundChunks {
    fn assemble(&self, record: &CompleteRecord) -> Result<Bytes, LogError> {
        let position = record.version.position;
        let changed = || damaged(position, "the file changed while it was read");
        let (version, bytes) = chunks::assemble(position, |number| {
            let place = record.places.get(number as usize).ok_or_else(changed)?;
            read(&self.file, *place, CHUNK_MAX)
                .map_err(|error| damaged(position, &format!("a chunk of it cannot be read ({error})")))
        })?;
        if version == record.version { Ok(bytes) } else { Err(changed()) }
    }
}

/// Returns every intact chunk in the readable part of the file, with its offset.
fn pieces(file: &File) -> io::Result<Vec<(Header, u64)>> {
    let mut pieces = Vec::new();
    let mut offset = 0;
    loop {
        let bytes = read_around_errors(file, offset, BLOCK + CHUNK_MAX)?;
        for at in chunks::find(&bytes).take_while(|at| *at < BLOCK) {
            if let Some((header, _)) = Header::parse(&bytes[at..]) {
                pieces.push((header, offset + at as u64));
            }
        }
        if bytes.len() <= BLOCK {
            return Ok(pieces);
        }
        offset += BLOCK as u64;
    }
}

/// Assembles chunks into one complete record per position.
///
/// A position can have two commits in the file: one that was never acknowledged, because the process ended while it was
/// written, and the one that replaced it. At the position of the mark, the mark decides; elsewhere, the newer commit
/// wins, by its id.
fn whole_records(mut pieces: Vec<(Header, u64)>, mark: Option<Version>) -> Vec<CompleteRecord> {
    let commit =
        |header: &Header| (header.version.position, header.version.commit.map(|commit| commit.0), header.len);
    pieces.sort_unstable_by_key(|(header, place)| (commit(header), header.number, *place));
    pieces.dedup_by_key(|(header, _)| *header);
    let mut records: Vec<CompleteRecord> = Vec::new();
    for parts in pieces.chunk_by(|(one, _), (other, _)| commit(one) == commit(other)) {
        let (first, _) = parts[0];
        let is_another =
            mark.is_some_and(|mark| mark.position == first.version.position && mark != first.version);
        if parts.len() < first.chunks() || is_another {
            continue;
        }
        if records.last().is_some_and(|earlier| earlier.version.position == first.version.position) {
            records.pop();
        }
        let places = parts.iter().map(|(_, place)| *place).collect();
        records.push(CompleteRecord { version: first.version, places });
    }
    records
}
