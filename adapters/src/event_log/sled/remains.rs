//! What is left of a store that cannot be opened any more: the chunks that still lie in sled's file, found
//! without sled.
//!
//! Nothing is written, not even a lock. Chunks are recognised by what they say of themselves and by their
//! checksum, so damage costs the records that it hits and no others, whatever it does to sled's pages,
//! headers and snapshots. Old copies of a chunk, which sled leaves behind when it moves pages, are as good as
//! new ones.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use application::ports::{
    AppendError, Durability, DurabilityLevel, EventLog, Fault, LogError, Position, ReadBound, Record,
    StoredRecord, Version,
};
use async_trait::async_trait;
use bytes::Bytes;
use tokio::task;

use super::{
    chunks::{self, CHUNK_MAX, Header},
    folder,
};
use crate::event_log::high_water::{HighWater, Mark};

/// So much of the file is looked at in one go, and a chunk more, so that none is missed between two blocks.
const BLOCK: usize = 4 * 1024 * 1024;

/// The readable records of a store that nobody has open.
#[derive(Debug, Clone)]
pub struct SledRemains(Arc<Found>);

#[derive(Debug)]
struct Found {
    path: PathBuf,
    file: File,
    /// The mark, if it can be read.
    mark: Option<Mark>,
    /// One whole record per position, in order. Positions may be missing.
    records: Vec<Whole>,
}

/// A record of which every chunk was found.
#[derive(Debug)]
struct Whole {
    mark: Mark,
    len: u32,
    /// Where its chunks start in the file.
    places: Vec<u64>,
}

impl SledRemains {
    /// Looks through the store in the folder `path`. Blocks while it does so.
    pub fn find(path: impl AsRef<Path>) -> Result<Self, LogError> {
        let path = path.as_ref();
        let cannot_read = |error: io::Error| {
            let detail = format!("the store {} cannot be read: {error}; check the path", path.display());
            LogError::new(Fault::CannotOpen, detail)
        };
        folder::check_unused(path)?;
        let file = File::open(path.join("sled").join("db")).map_err(cannot_read)?;
        let mark = HighWater::peek(&path.join("mark"));
        let pieces = pieces(&file).map_err(cannot_read)?;
        let records = whole_records(pieces, mark);
        Ok(Self(Arc::new(Found { path: path.into(), file, mark, records })))
    }

    /// How far the log is known to have reached: to its mark, and to the last record that was found.
    pub fn reach(&self) -> Position {
        let last = self.0.records.last().map_or(Position::START, |record| record.mark.position);
        self.0.mark.map_or(last, |mark| last.max(mark.position))
    }

    /// Whether there is a mark that tells where the log ended. Without one, what is missing at the end is
    /// unknown.
    pub fn end_is_known(&self) -> bool {
        self.0.mark.is_some()
    }

    /// The positions up to the [`reach`](Self::reach) that cannot be read, as ranges from first to last.
    pub fn missing(&self) -> Vec<(Position, Position)> {
        let mut missing = Vec::new();
        let mut next = Position::START.next();
        let found = self.0.records.iter().map(|record| record.mark.position);
        for position in found.chain([self.reach().next()]) {
            if next < position {
                missing.push((next, Position(position.0 - 1)));
            }
            next = position.next();
        }
        missing
    }
}

#[async_trait]
impl EventLog for SledRemains {
    async fn append(&self, _: Version, _: &Record) -> Result<Position, AppendError> {
        let detail = "what is left of a damaged store is only read; salvage it into a new one";
        Err(AppendError::NotStored(LogError::new(Fault::CannotOpen, detail)))
    }

    async fn read(&self, after: Position, bound: ReadBound) -> Result<Vec<StoredRecord>, LogError> {
        let (found, reach) = (self.0.clone(), self.reach());
        let read = task::spawn_blocking(move || found.read(after, reach, bound)).await;
        read.expect("reading a file never panics")
    }

    async fn head(&self) -> Result<Position, LogError> {
        Ok(self.reach())
    }

    async fn wait_beyond(&self, _: Position, _: Duration) -> Result<(), LogError> {
        Ok(())
    }

    fn durability(&self) -> Durability {
        Durability {
            engine: "sled",
            level: DurabilityLevel::Volatile,
            promise: "nothing is written here: these are the remains of a damaged store".into(),
            facts: vec![("folder".into(), self.0.path.display().to_string())],
        }
    }
}

impl Found {
    fn read(
        &self,
        after: Position,
        reach: Position,
        bound: ReadBound,
    ) -> Result<Vec<StoredRecord>, LogError> {
        let mut found: Vec<StoredRecord> = Vec::new();
        let mut room = bound.bytes;
        let start = self.records.partition_point(|record| record.mark.position <= after);
        let mut records = self.records[start..].iter();
        let mut position = after.next();
        while position <= reach && found.len() < bound.records && (room > 0 || found.is_empty()) {
            match records.next().filter(|record| record.mark.position == position) {
                Some(record) => {
                    let bytes = self.assemble(record)?;
                    room = room.saturating_sub(bytes.len());
                    found.push(StoredRecord { position, bytes });
                }
                // What comes before the gap can be had first.
                None if !found.is_empty() => break,
                None => return Err(chunks::damaged(position, "it cannot be found in the file")),
            }
            position = position.next();
        }
        Ok(found)
    }

    fn assemble(&self, record: &Whole) -> Result<Bytes, LogError> {
        let mut bytes = Vec::with_capacity(record.len as usize);
        for (place, number) in record.places.iter().zip(0..) {
            let mut chunk = vec![0; CHUNK_MAX];
            let read = read_at(&self.file, &mut chunk, *place);
            let read = read.map_err(|error| {
                chunks::damaged(record.mark.position, &format!("a part of it cannot be read ({error})"))
            })?;
            let expected = Header { mark: record.mark, number, len: record.len };
            match Header::parse(&chunk[..read]) {
                Some((header, payload)) if header == expected => bytes.extend_from_slice(payload),
                Some(_) | None => {
                    return Err(chunks::damaged(record.mark.position, "the file changed while it was read"));
                }
            }
        }
        Ok(bytes.into())
    }
}

/// Every sound chunk in the file and where it starts.
fn pieces(file: &File) -> io::Result<Vec<(Header, u64)>> {
    let mut pieces = Vec::new();
    let mut block = vec![0; BLOCK + CHUNK_MAX];
    let mut offset = 0;
    loop {
        let read = read_at(file, &mut block, offset)?;
        let bytes = &block[..read];
        for at in chunks::find(bytes).take_while(|at| *at < BLOCK) {
            if let Some((header, _)) = Header::parse(&bytes[at..]) {
                pieces.push((header, offset + at as u64));
            }
        }
        if read <= BLOCK {
            return Ok(pieces);
        }
        offset += BLOCK as u64;
    }
}

/// Puts chunks together to one whole record per position.
///
/// A position can have two commits in the file: one that was never acknowledged, because the process ended
/// while it was written, and the one that took its place. The mark knows which one counts at its own
/// position; elsewhere it is the one that was made later, which its id tells.
fn whole_records(mut pieces: Vec<(Header, u64)>, mark: Option<Mark>) -> Vec<Whole> {
    let commit = |header: &Header| (header.mark.position, header.mark.commit.0, header.len);
    pieces.sort_unstable_by_key(|(header, place)| (commit(header), header.number, *place));
    pieces.dedup_by_key(|(header, _)| *header);
    let mut records: Vec<Whole> = Vec::new();
    for parts in pieces.chunk_by(|(one, _), (other, _)| commit(one) == commit(other)) {
        let (first, _) = parts[0];
        let is_another = mark.is_some_and(|mark| mark.position == first.mark.position && mark != first.mark);
        if parts.len() < first.chunks() || is_another {
            continue;
        }
        if records.last().is_some_and(|earlier| earlier.mark.position == first.mark.position) {
            records.pop();
        }
        let places = parts.iter().map(|(_, place)| *place).collect();
        records.push(Whole { mark: first.mark, len: first.len, places });
    }
    records
}

/// Fills the buffer as far as the file goes.
fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut len = 0;
    while len < buffer.len() {
        match file.read_at(&mut buffer[len..], offset + len as u64) {
            Ok(0) => break,
            Ok(read) => len += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(len)
}
