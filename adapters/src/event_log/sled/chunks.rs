//! How a record is stored in sled: in chunks under the key `(position, chunk)`. The header of a chunk names its record
//! and its place in it, and carries a checksum. So a missing or foreign chunk is detected, and a chunk can be found
//! even where sled's own structure is destroyed: see [`salvage`](super::salvage).
//!
//! sled stores large pages in separate files, which it never syncs. A page holds up to 17 values, so chunks of 6 KiB
//! keep every page below the threshold of 128 KiB.

use application::ports::{CommitId, LogError, Position, Record, Version};
use bytes::Bytes;
use uuid::Uuid;

use crate::event_log::embedded::damaged;

pub(super) const CHUNK_MAX: usize = 6 * 1024;
/// The first bytes of every chunk. They never occur in UTF-8.
const MAGIC: [u8; 4] = *b"\xFFpet";

const ID_LEN: usize = 16;
const CHECKSUM_LEN: usize = 4;
/// Magic, position, chunk number, commit id, record length, and a checksum of all these and the payload.
const HEADER_LEN: usize = MAGIC.len() + 8 + 4 + ID_LEN + 4 + CHECKSUM_LEN;
const PAYLOAD_MAX: usize = CHUNK_MAX - HEADER_LEN;
const KEY_LEN: usize = 8 + 4;

pub(super) fn key(position: Position, chunk: u32) -> [u8; KEY_LEN] {
    let mut key = [0; KEY_LEN];
    key[..8].copy_from_slice(&position.0.to_be_bytes());
    key[8..].copy_from_slice(&chunk.to_be_bytes());
    key
}

/// The position that a key belongs to.
pub(super) fn position_of(key: &[u8]) -> Option<Position> {
    Some(Position(u64::from_be_bytes(*key.first_chunk()?)))
}

/// Encodes whole records, the first of them for the position `first`, as one atomic batch.
pub(super) fn batch(first: Position, records: &[Record]) -> ::sled::Batch {
    let mut batch = ::sled::Batch::default();
    for (record, position) in records.iter().zip((first.0..).map(Position)) {
        let len = u32::try_from(record.bytes.len()).expect("records are limited to far less than 4 GiB");
        let version = Version::at(position, record.id);
        // An empty record still has one chunk.
        let payloads = record.bytes.chunks(PAYLOAD_MAX).chain(record.bytes.is_empty().then_some(&[][..]));
        for (payload, number) in payloads.zip(0..) {
            batch.insert(&key(position, number), Header { version, number, len }.encode(payload));
        }
    }
    batch
}

/// Returns the headers of the intact chunks in the bytes of a file, with their offsets.
pub(super) fn find(bytes: &[u8]) -> impl Iterator<Item = (Header, usize)> {
    let starts = bytes.windows(MAGIC.len()).enumerate().filter(|(_, window)| *window == MAGIC);
    starts.filter_map(|(at, _)| Some((Header::parse(&bytes[at..])?.0, at)))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    /// The version of the log that ends with this record.
    pub(super) version: Version,
    /// The number of the chunk in its record, from 0.
    pub(super) number: u32,
    /// The length of the whole record.
    pub(super) len: u32,
}

impl Header {
    /// Parses the chunk at the start of `bytes`, and ignores the bytes after it. `None` if the chunk is not intact.
    pub(super) fn parse(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let rest = bytes.strip_prefix(&MAGIC)?;
        let (position, rest) = rest.split_first_chunk::<8>()?;
        let (number, rest) = rest.split_first_chunk::<4>()?;
        let (id, rest) = rest.split_first_chunk::<ID_LEN>()?;
        let (len, rest) = rest.split_first_chunk::<4>()?;
        let (checksum, rest) = rest.split_first_chunk::<CHECKSUM_LEN>()?;
        let header = Self {
            version: Version::at(Position(u64::from_be_bytes(*position)), CommitId(Uuid::from_bytes(*id))),
            number: u32::from_be_bytes(*number),
            len: u32::from_be_bytes(*len),
        };
        let payload = rest.get(..header.payload_len()?)?;
        (header.checksum(payload) == *checksum).then_some((header, payload))
    }

    pub(super) fn chunks(&self) -> usize {
        (self.len as usize).div_ceil(PAYLOAD_MAX).max(1)
    }

    /// The payload size of this chunk, or `None` if the record has no such chunk.
    pub(super) fn payload_len(&self) -> Option<usize> {
        let number = self.number as usize;
        let rest = || self.len as usize - number * PAYLOAD_MAX;
        (number < self.chunks()).then(|| rest().min(PAYLOAD_MAX))
    }

    /// Encodes the chunk: this header, then the payload.
    pub(super) fn encode(&self, payload: &[u8]) -> Vec<u8> {
        [&self.fields()[..], &self.checksum(payload), payload].concat()
    }

    fn checksum(&self, payload: &[u8]) -> [u8; CHECKSUM_LEN] {
        crc32c::crc32c_append(crc32c::crc32c(&self.fields()), payload).to_be_bytes()
    }

    fn fields(&self) -> Vec<u8> {
        let Self { version: Version { position, commit }, number, len } = self;
        let commit = commit.map_or(Uuid::nil(), |commit| commit.0);
        [&MAGIC[..], &position.0.to_be_bytes(), &number.to_be_bytes(), commit.as_bytes(), &len.to_be_bytes()]
            .concat()
    }
}

/// Assembles the record at `position` from its chunks, which `chunk` looks up by number.
pub(super) fn assemble<C: AsRef<[u8]>>(
    position: Position,
    mut chunk: impl FnMut(u32) -> Result<C, LogError>,
) -> Result<(Version, Bytes), LogError> {
    let broken = || damaged(position, "a chunk of it fails its checksum");
    let first = chunk(0)?;
    let (first, payload) = Header::parse(first.as_ref()).ok_or_else(broken)?;
    if first.version.position != position || first.number != 0 {
        return Err(broken());
    }
    let mut bytes = payload.to_vec();
    for number in (1..).take(first.chunks() - 1) {
        let chunk = chunk(number)?;
        match Header::parse(chunk.as_ref()) {
            Some((header, payload)) if header == (Header { number, ..first }) => {
                bytes.extend_from_slice(payload);
            }
            Some(_) | None => return Err(broken()),
        }
    }
    Ok((first.version, bytes.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: usize = 2 * PAYLOAD_MAX + 5;

    fn version(position: u64, commit: u128) -> Version {
        Version::at(Position(position), CommitId(Uuid::from_u128(commit)))
    }

    fn record(len: usize) -> Bytes {
        (0..=u8::MAX).cycle().take(len).collect()
    }

    /// The keys and chunks of a record.
    fn stored(version: Version, len: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
        let db = ::sled::Config::new().temporary(true).open().unwrap();
        let record = Record { id: version.commit.unwrap(), bytes: record(len) };
        db.apply_batch(batch(version.position, &[record])).unwrap();
        let pairs = db.iter().map(|pair| pair.map(|(key, chunk)| (key.to_vec(), chunk.to_vec())).unwrap());
        pairs.collect()
    }

    fn chunks_of(version: Version, len: usize) -> Vec<Vec<u8>> {
        stored(version, len).into_iter().map(|(_, chunk)| chunk).collect()
    }

    fn assembled(chunks: &[Vec<u8>]) -> Option<(Version, Bytes)> {
        assemble(Position(7), |number| Ok(&chunks[number as usize])).ok()
    }

    #[test]
    fn the_form_of_chunks_never_changes() {
        let pairs = stored(version(7, 1), 3);
        let key = [0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0];
        let fields =
            [&b"\xFFpet"[..], &key, &[0; 15], &[1], &[0, 0, 0, 3], &[0x7c, 0x67, 0x74, 0xb3], &[0, 1, 2]];
        assert_eq!(pairs, [(key.to_vec(), fields.concat())]);
        assert_eq!(chunks_of(version(7, 1), 6_104).iter().map(Vec::len).collect::<Vec<_>>(), [6_144]);
        assert_eq!(chunks_of(version(7, 1), 6_105).iter().map(Vec::len).collect::<Vec<_>>(), [6_144, 41]);
    }

    #[test]
    fn a_record_of_any_length_is_put_together_from_its_chunks() {
        for (len, count) in
            [(0, 1), (1, 1), (PAYLOAD_MAX, 1), (PAYLOAD_MAX + 1, 2), (2 * PAYLOAD_MAX, 2), (RECORD, 3)]
        {
            let pairs = stored(version(7, 1), len);
            let keys: Vec<_> = pairs.iter().map(|(key, _)| key.clone()).collect();
            let expected: Vec<_> = (0..count).map(|number| key(Position(7), number).to_vec()).collect();
            assert_eq!(keys, expected, "{len} bytes");
            assert!(keys.iter().all(|key| position_of(key) == Some(Position(7))));
            let chunks: Vec<_> = pairs.into_iter().map(|(_, chunk)| chunk).collect();
            assert_eq!(assembled(&chunks), Some((version(7, 1), record(len))), "{len} bytes");
        }
    }

    #[test]
    fn a_chunk_in_the_place_of_another_is_noticed() {
        let sound = chunks_of(version(7, 1), RECORD);
        let others = [(8, 1, RECORD), (7, 2, RECORD), (7, 1, RECORD + 1)]
            .map(|(position, commit, len)| chunks_of(version(position, commit), len));
        for (place, chunk) in sound.iter().enumerate() {
            for other in others.iter().chain([&sound]).flatten().filter(|other| *other != chunk) {
                let mut chunks = sound.clone();
                chunks[place].clone_from(other);
                assert_eq!(assembled(&chunks), None, "at place {place}: {:?}", Header::parse(other));
            }
        }
    }

    #[test]
    fn only_whole_and_unchanged_chunks_are_read_whatever_follows() {
        let chunk = chunks_of(version(7, 1), 3).remove(0);
        let header = Header { version: version(7, 1), number: 0, len: 3 };
        let followed = [&chunk[..], b"more"].concat();
        assert_eq!(Header::parse(&followed), Some((header, &[0, 1, 2][..])));
        for place in 0..chunk.len() {
            let mut changed = chunk.clone();
            changed[place] ^= 1;
            assert_eq!(Header::parse(&changed), None, "byte {place} changed");
            assert_eq!(Header::parse(&chunk[..place]), None, "cut at {place}");
        }
        let beyond = Header { number: 1, ..header };
        assert_eq!(Header::parse(&beyond.encode(&[])), None, "a record of three bytes has one chunk");
    }

    #[test]
    fn chunks_are_found_among_other_bytes() {
        let chunk = chunks_of(version(7, 1), 3).remove(0);
        let bytes = [b"ab", &chunk[..], b"\xFFpe", &chunk, b"pet"].concat();
        let offsets = find(&bytes).map(|(_, offset)| offset);
        assert_eq!(offsets.collect::<Vec<_>>(), [2, 5 + chunk.len()]);
    }
}
