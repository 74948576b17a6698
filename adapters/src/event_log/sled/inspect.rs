//! Inspects sled's file before sled opens it, and opens a suspect store on a copy first, so that a rejected store stays
//! unchanged.
//!
//! sled repairs a file while it opens it: from the first message that it cannot read, it overwrites everything with
//! zeros. After a power cut that is right, because nothing of value follows. After bit rot it destroys records that
//! could have been salvaged. This inspection changes nothing, and only a suspect file needs a dry run on a copy. A false
//! alarm costs only time.
//!
//! The format of the file (sled 0.34, pinned): it consists of slots that hold one segment each. A segment has a header
//! (checksum, log sequence number) and messages up to a closing one; the newest segment has no closing message. A
//! message has a checksum, a kind, its length, the number of its segment and a page. All but the first two are varints,
//! which sled itself decodes.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{self, Read as _, Seek as _, SeekFrom},
};

use ::sled::{MAX_MSG_HEADER_LEN, SEG_HEADER_LEN, Serialize as _};
use application::ports::{LogError, Position, ReadBound, Version};

use super::{Sled, chunks, records};
use crate::{
    event_log::embedded::{Engine as _, Layout, StoreCopy, check, discard, io_error, read_within},
    private_files::{if_exists, is_full, open_to_read},
};

/// The size of sled's segments: its default. A file cannot be read with a different size.
pub(super) const SEGMENT: usize = 512 * 1024;

const KIND_CLOSING: u8 = 2;
pub(super) const KINDS: std::ops::RangeInclusive<u8> = 1..=11;

/// Rejects a store that has lost commits, with all its files unchanged.
///
/// Without room for a copy, the dry run is skipped. A store that was hit by a power cut on a full disk still opens. One
/// that was damaged on a full disk is rejected, but sled may have overwritten the data after the damage.
pub(super) fn try_if_suspect(layout: &Layout, acknowledged: Version) -> Result<(), LogError> {
    let doing = "inspecting the log before opening it";
    let suspect = first_suspect_offset(layout, acknowledged).map_err(io_error(doing))?;
    let Some(at) = suspect else { return Ok(()) };
    let store = layout.path.display();
    tracing::info!(
        target: "petstore::storage",
        %store, offset = at,
        "the log may be damaged, or a write was interrupted; checking a copy of it first"
    );
    let copy = match StoreCopy::in_store::<Sled>(layout, "dry-run") {
        Ok(copy) => copy,
        Err(error) if is_full(&error) => {
            tracing::warn!(
                target: "petstore::storage",
                %store,
                "no disk space to check a copy of the log first; opening it directly"
            );
            return Ok(());
        }
        Err(error) => return Err(io_error(doing)(error)),
    };
    let engine = Sled::open_in(&copy.layout)?;
    // Every record must be present. Its content is checked by the replay.
    let outcome = check(&engine, acknowledged).and_then(|last| {
        let mut after = Position::START;
        while let Some(record) = read_within(&engine, after, last.position, ReadBound::BATCH)?.last() {
            after = record.position;
        }
        Ok(())
    });
    discard(engine);
    outcome
}

/// Returns the offset of the first suspect bytes in sled's file: bytes that a clean shutdown does not leave. A file
/// without the commit of the `mark` was truncated.
pub(super) fn first_suspect_offset(layout: &Layout, mark: Version) -> io::Result<Option<u64>> {
    let Some(file) = if_exists(open_to_read(&records(layout)))? else { return Ok(None) };
    let len = file.metadata()?.len();
    let mut segments = BTreeMap::new();
    for offset in (0..len).step_by(SEGMENT) {
        let header = read(&file, offset, SEG_HEADER_LEN)?;
        let suspect = match segment_number(&header) {
            Some(number) => segments.insert(number, offset).is_some(),
            // Unused slots hold only zeros.
            None => read(&file, offset, SEGMENT)?.iter().any(|byte| *byte != 0),
        };
        if suspect {
            return Ok(Some(offset));
        }
    }
    if mark.position > Position::START && !holds(&file, segments.values().rev(), mark)? {
        return Ok(Some(len));
    }
    // sled does not read, and so does not repair, what its snapshot covers.
    let covered = newest_snapshot(layout)?;
    let mut segments = segments.split_off(&(covered / SEGMENT as u64)).into_iter().peekable();
    // The snapshot may end with a segment; otherwise the segment that it ends in must exist.
    let mut reached = covered / SEGMENT as u64 * SEGMENT as u64;
    while let Some((number, offset)) = segments.next() {
        let slot = read(&file, offset, SEGMENT)?;
        let end = open_end(&slot, number);
        reached = number * SEGMENT as u64 + end.unwrap_or(SEGMENT) as u64;
        let Some(end) = end else { continue };
        // The newest segment is not closed. Leftovers of an older segment may follow its end.
        let is_newest = segments.peek().is_none();
        let has_more = || (end + 1..slot.len()).any(|at| message(&slot[at..], number).is_some());
        if !is_newest || has_more() {
            return Ok(Some(offset + end as u64));
        }
    }
    Ok((reached < covered).then_some(len))
}

/// Whether all chunks of the commit are in these segments. Usually they are in the newest ones.
fn holds<'a>(file: &File, offsets: impl Iterator<Item = &'a u64>, mark: Version) -> io::Result<bool> {
    let mut found = BTreeSet::new();
    for offset in offsets {
        let slot = read(file, *offset, SEGMENT)?;
        for (header, _) in chunks::find(&slot) {
            if header.version == mark {
                found.insert(header.number);
                if found.len() == header.chunks() {
                    return Ok(true);
                }
            }
        }
    }
    Ok(false)
}

/// Reads up to `len` bytes, fewer at the end of the file.
fn read(mut file: &File, offset: u64, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(len);
    file.seek(SeekFrom::Start(offset))?;
    file.take(len as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The number of the segment in the slot, if its header is intact.
pub(super) fn segment_number(slot: &[u8]) -> Option<u64> {
    const SEQUENCE_MASK: u64 = 0x7FFF_FFFF_FFFF_FFFF;
    let (checksum, rest) = slot.get(..SEG_HEADER_LEN)?.split_first_chunk::<4>()?;
    let sequence = u64::from_le_bytes(*rest.first_chunk()?) ^ SEQUENCE_MASK;
    let sound = u32::from_le_bytes(*checksum) == !crc32fast::hash(rest);
    sound.then_some(sequence / SEGMENT as u64)
}

/// The end of the messages in a segment, or `None` if a closing message or the end of the slot ends them.
pub(super) fn open_end(slot: &[u8], number: u64) -> Option<usize> {
    let mut at = SEG_HEADER_LEN;
    // No message starts in the last bytes of a segment, because its header might not fit.
    while at + MAX_MSG_HEADER_LEN <= SEGMENT {
        match message(slot.get(at..).unwrap_or_default(), number) {
            Some((KIND_CLOSING, _)) => return None,
            Some((_, len)) => at += len,
            None => return Some(at),
        }
    }
    None
}

/// The kind and the length of the message at the start of `bytes`, if it is intact and belongs to the segment.
pub(super) fn message(bytes: &[u8], number: u64) -> Option<(u8, usize)> {
    // A header has at most this length. sled reads beyond the end of a shorter one.
    let mut header = [0; MAX_MSG_HEADER_LEN];
    let available = bytes.len().min(header.len());
    header[..available].copy_from_slice(&bytes[..available]);
    let mut rest = &header[..];
    let checksum = u32::deserialize(&mut rest).ok()?;
    let kind = u8::deserialize(&mut rest).ok()?;
    let len = u64::deserialize(&mut rest).ok()?;
    let in_segment = u64::deserialize(&mut rest).ok()?;
    let _page = u64::deserialize(&mut rest).ok()?;
    if !KINDS.contains(&kind) || in_segment != number {
        return None;
    }
    let start = header.len() - rest.len();
    let end = start.checked_add(usize::try_from(len).ok()?)?;
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(bytes.get(start..end)?);
    hasher.update(&bytes[4..start]);
    (checksum == !hasher.finalize()).then_some((kind, end))
}

/// The sequence number up to which sled's newest snapshot covers the file. The name of a snapshot holds it.
fn newest_snapshot(layout: &Layout) -> io::Result<u64> {
    let files = Sled::files(layout)?;
    let sequences = files.iter().filter_map(|path| {
        let name = path.file_name()?.to_str()?;
        u64::from_str_radix(name.strip_prefix("snap.")?, 16).ok()
    });
    Ok(sequences.max().unwrap_or(0))
}
