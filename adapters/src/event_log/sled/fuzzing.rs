//! Entry points for fuzzing: the parsers of bytes that a damaged disk may return.

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
    if let Some((message, number)) = with_checksum(bytes) {
        let whole = inspect::KINDS.contains(&bytes[0]).then_some((bytes[0], message.len()));
        assert_eq!(inspect::message(&message, number), whole);
    }
}

/// The message with these fields and payload, and the number of its segment.
fn with_checksum(bytes: &[u8]) -> Option<(Vec<u8>, u64)> {
    let mut payload = bytes.get(1..)?;
    let len = usize::try_from(inspect::varint(&mut payload)?).ok()?;
    let number = inspect::varint(&mut payload)?;
    inspect::varint(&mut payload)?;
    let header = &bytes[..bytes.len() - payload.len()];
    let payload = payload.get(..len)?;
    let checksum = !crc32fast::hash(&[payload, header].concat());
    Some(([&checksum.to_le_bytes(), header, payload].concat(), number))
}
