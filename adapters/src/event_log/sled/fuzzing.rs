//! Entry points for fuzzing: the parsers of bytes that a damaged disk may return.

use ::sled::Serialize as _;
use application::ports::{CommitId, Position, Version};
use uuid::Uuid;

use super::{chunks::Header, inspect};

/// Checks that a chunk with these fields is parsed if its payload has the right length, and rejected otherwise. Random
/// bytes, which never have a matching checksum, are rejected.
pub fn check_chunk(bytes: &[u8]) {
    assert!(Header::parse(bytes).is_none_or(|(header, payload)| bytes.starts_with(&header.encode(payload))));
    let Some((position, rest)) = bytes.split_first_chunk() else { return };
    let Some((number, rest)) = rest.split_first_chunk() else { return };
    let Some((len, payload)) = rest.split_first_chunk() else { return };
    let header = Header {
        version: Version::at(Position(u64::from_be_bytes(*position)), CommitId(Uuid::nil())),
        number: u32::from_be_bytes(*number),
        len: u32::from_be_bytes(*len),
    };
    let whole = header.payload_len() == Some(payload.len());
    assert_eq!(Header::parse(&header.encode(payload)), whole.then_some((header, payload)));
}

/// Checks that the segment parser never reads beyond a segment, and that a message of a known kind is parsed as a
/// whole.
pub fn check_segment(bytes: &[u8]) {
    let number = inspect::segment_number(bytes).unwrap_or_default();
    assert!(inspect::open_end(bytes, number).is_none_or(|end| end <= inspect::SEGMENT));
    let Some(([kind, page, number @ ..], payload)) = bytes.split_first_chunk::<10>() else { return };
    let (len, number) = (payload.len() as u64, u64::from_le_bytes(*number));
    let varints = [len, number, u64::from(*page)].map(|number| number.serialize());
    let header = [&[*kind][..], &varints.concat()].concat();
    let checksum = !crc32fast::hash(&[payload, &header].concat());
    let message = [&checksum.to_le_bytes()[..], &header, payload].concat();
    let whole = inspect::KINDS.contains(kind).then_some((*kind, message.len()));
    assert_eq!(inspect::message(&message, number), whole);
}
