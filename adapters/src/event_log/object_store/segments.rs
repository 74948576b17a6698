//! Segments: copies of whole objects, joined for fast reading. They are derived from the log alone and are never
//! needed: a reader that finds a segment missing or damaged reads the single objects.

use std::mem;

use application::{
    Digest,
    ports::{LogError, Position},
};
use object_store::path::Path;

use super::{
    bucket::{Bucket, NotCreated, Object},
    layout::Layout,
};

/// A segment ends with the object that reaches one of these limits.
const COMMITS_MAX: u64 = 1_000;
const BYTES_MAX: u64 = 8 * 1024 * 1024;

/// The part of a record that has the hash of the one before it, in bytes.
const ENVELOPE_MAX: usize = 256;
/// The maximum number of commits in a segment: its last object may have as many as a whole segment.
const SPAN_MAX: u64 = 2 * COMMITS_MAX;

/// A stored segment.
#[derive(Debug, Clone)]
pub(super) struct Segment {
    pub(super) first: Position,
    pub(super) last: Position,
    head: Digest,
    pub(super) key: Path,
    pub(super) size: u64,
}

impl Segment {
    /// Parses the name `FIRST-LAST-HASH`.
    pub(super) fn parse(key: Path, size: u64) -> Option<Self> {
        let (first, rest) = key.filename()?.split_once('-')?;
        let (last, head) = rest.split_once('-')?;
        let (first, last, head) = (first.parse().ok()?, last.parse().ok()?, head.parse().ok()?);
        Some(Self { first: Position(first), last: Position(last), head, key, size })
    }

    /// Whether the object holds the records that the name promises. Each record has the hash of the one before it, and
    /// the name has the hash of the last one.
    pub(super) fn is_intact(&self, object: &Object) -> bool {
        let is_chained = object.records.windows(2).all(|pair| {
            let hash = format!("\"previous\":\"{}\"", Digest::of(&pair[0].bytes));
            let start = &pair[1].bytes[..pair[1].bytes.len().min(ENVELOPE_MAX)];
            start.windows(hash.len()).any(|part| part == hash.as_bytes())
        });
        object.last().position == self.last && Digest::of(&object.last().bytes) == self.head && is_chained
    }
}

/// The segment that grows at the end of the log.
#[derive(Debug, Clone, Copy)]
pub(super) struct OpenSegment {
    first: Position,
    objects: u64,
    bytes: u64,
}

impl OpenSegment {
    pub(super) fn after(last: Position) -> Self {
        Self { first: last.next(), objects: 0, bytes: 0 }
    }

    /// Adds the next object. Returns the range of the segment that it ends, if there is something to join.
    pub(super) fn add(&mut self, last: Position, size: u64) -> Option<(Position, Position)> {
        self.objects += 1;
        self.bytes += size;
        if last.0 + 1 - self.first.0 < COMMITS_MAX && self.bytes < BYTES_MAX {
            return None;
        }
        let ended = mem::replace(self, Self::after(last));
        (ended.objects > 1).then_some((ended.first, last))
    }
}

/// Creates the segment of these records, unless it exists.
pub(super) async fn build(
    bucket: &Bucket,
    layout: &Layout,
    first: Position,
    last: Position,
) -> Result<(), LogError> {
    let commits = usize::try_from(last.0 - first.before().0).expect("a segment fits into memory");
    let listed = bucket.list(&layout.commits, &Layout::name(first.before()), commits).await?;
    let keys = Layout::firsts(&listed).take_while(|(first, _)| *first <= last);
    let keys = keys.map(|(first, object)| (first, object.location.clone())).collect();
    let objects = bucket.objects(keys).await?;
    let joined: Vec<_> = objects.iter().map(|object| &object.bytes[..]).collect();
    let Ok(joined) = Object::parse(first, &joined.concat().into()) else { return Ok(()) };
    let head = Digest::of(&joined.last().bytes);
    let key = layout.segments.clone().join(format!("{}-{}-{head}", Layout::name(first), Layout::name(last)));
    let segment = Segment { first, last, head, key, size: 0 };
    // A log that is not a chain, or has a gap, is reported by its readers.
    if !segment.is_intact(&joined) {
        return Ok(());
    }
    match bucket.create(&segment.key, joined.bytes).await {
        Ok(()) | Err(NotCreated::Exists) => Ok(()),
        Err(NotCreated::Rejected(error) | NotCreated::Unclear(error)) => Err(error),
    }
}

/// Lists the segments, starting with the one that holds `position`, if it exists.
pub(super) async fn list(
    bucket: &Bucket,
    layout: &Layout,
    position: Position,
) -> Result<Vec<Segment>, LogError> {
    let after = Layout::name(Position(position.0.saturating_sub(SPAN_MAX)));
    let listed = bucket.list(&layout.segments, &after, usize::MAX).await?;
    Ok(listed.into_iter().filter_map(|object| Segment::parse(object.location, object.size)).collect())
}

/// Creates the segments that are missing between existing ones and after the last one.
pub(super) async fn build_missing(bucket: &Bucket, layout: &Layout) -> Result<(), LogError> {
    let segments = list(bucket, layout, Position::START).await?;
    let mut last = Position::START;
    let ends =
        segments.iter().map(|segment| (Some(segment.first), segment.last)).chain([(None, Position::START)]);
    for (end, next) in ends {
        if end != Some(last.next()) {
            build_between(bucket, layout, last, end).await?;
        }
        last = next;
    }
    Ok(())
}

/// Creates the segments after `last`, up to the segment that begins at `end` or to the end of the log.
async fn build_between(
    bucket: &Bucket,
    layout: &Layout,
    last: Position,
    end: Option<Position>,
) -> Result<(), LogError> {
    let listed = bucket.list(&layout.commits, &Layout::name(last), usize::MAX).await?;
    let objects: Vec<_> =
        Layout::firsts(&listed).take_while(|(first, _)| end.is_none_or(|end| *first < end)).collect();
    let mut segment = OpenSegment::after(last);
    let nexts = objects.iter().skip(1).map(|(next, _)| Some(*next)).chain([end]);
    for ((_, object), next) in objects.iter().zip(nexts) {
        // The end of the last object is not known.
        let Some(next) = next else { break };
        if let Some((first, last)) = segment.add(next.before(), object.size) {
            build(bucket, layout, first, last).await?;
        }
    }
    Ok(())
}
