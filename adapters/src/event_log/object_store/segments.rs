//! Segments: copies of whole objects, joined for fast reading. They are derived from the log alone and are never
//! needed: a reader that finds a segment missing or damaged reads the single objects.

use std::{sync::Arc, time::Duration};

use application::{
    Digest,
    log::codec,
    ports::{LogError, Position},
};
use bytes::Bytes;
use futures_util::{StreamExt as _, future, stream};
use object_store::{ObjectMeta, path::Path};
use tokio::{sync::watch, task, time};
use tokio_util::task::AbortOnDropHandle;

use super::{
    bucket::or_exists,
    objects::{Object, Objects, name},
};

/// A segment ends with the object that reaches one of these limits.
const COMMITS_MAX: u64 = 1_000;
const BYTES_MAX: u64 = 8 * 1024 * 1024;
/// The maximum number of commits in a segment: its last object may have as many as a whole segment.
const SPAN_MAX: usize = 2_000;
/// The number of segments that are read at the same time.
const PARALLEL_READS: usize = 4;
/// How long a node that closes its log creates segments. The next node creates the others.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// A stored segment. Its name is `FIRST-LAST-HASH`, where the hash is that of the last record.
#[derive(Debug, PartialEq, PartialOrd)]
pub(super) struct Segment {
    pub(super) first: Position,
    pub(super) last: Position,
    head: Digest,
    pub(super) size: u64,
}

impl Segment {
    /// Parses the name. `None` if petstore would have chosen another one.
    fn parse(directory: &Path, object: &ObjectMeta) -> Option<Self> {
        let (first, rest) = object.location.filename()?.split_once('-')?;
        let (last, head) = rest.split_once('-')?;
        let (first, last, head) = (first.parse().ok()?, last.parse().ok()?, head.parse().ok()?);
        let segment = Self { first: Position(first), last: Position(last), head, size: object.size };
        (segment.key(directory) == object.location).then_some(segment)
    }

    fn key(&self, directory: &Path) -> Path {
        directory.clone().join(format!("{}-{}-{}", name(self.first), name(self.last), self.head))
    }
}

/// Splits joined objects, and returns the hash of their last record. `None` if they are damaged, or not a chain, in which
/// each record has the hash of the one before it.
async fn parse_chain(first: Position, bytes: Bytes) -> Option<(Object, Digest)> {
    let parsing = task::spawn_blocking(move || {
        let object = Object::parse(first, &bytes, SPAN_MAX).ok()?;
        let mut head = None;
        for record in &object.records {
            if head.is_some() && codec::envelope(&record.bytes).map(|(_, _, previous)| previous) != head {
                return None;
            }
            head = Some(Digest::of(&record.bytes));
        }
        Some((object, head?))
    });
    parsing.await.expect("hashing does not panic, and is not cancelled")
}

impl Objects {
    /// Lists the segments, starting with the one that holds `position`, if it exists.
    pub(super) async fn list_segments(&self, position: Position) -> Result<Vec<Segment>, LogError> {
        let after = name(Position(position.0.saturating_sub(SPAN_MAX as u64)));
        let mut segments = self
            .bucket
            .list(&self.segments, &after, usize::MAX, |object| Segment::parse(&self.segments, &object))
            .await?;
        segments.retain(|segment| segment.last >= position);
        Ok(segments)
    }

    /// Reads consecutive segments at the same time, up to the first that is missing, damaged or not of this log. The hash
    /// chain proves a segment with its last record.
    pub(super) async fn get_segments(&self, segments: impl IntoIterator<Item = Segment>) -> Vec<Object> {
        let read = async |segment: Segment| {
            let key = segment.key(&self.segments);
            let bytes = self.bucket.get(&key).await.ok().flatten()?;
            let last = self.record_at(segment.last, segment.last).await.ok()?;
            let is_proven = |(object, head): &_| *head == segment.head && *Object::last(object) == last;
            let proven = parse_chain(segment.first, bytes).await.filter(is_proven);
            if proven.is_none() {
                tracing::warn!(target: "petstore::log", segment = %key, "segment ignored: damaged");
            }
            proven.map(|(object, _)| object)
        };
        let objects = stream::iter(segments).map(read).buffered(PARALLEL_READS);
        objects.take_while(|object| future::ready(object.is_some())).filter_map(future::ready).collect().await
    }

    /// Creates the segments that are missing after `last`, a position where a segment or the log ended, up to `end`, where
    /// the log ends. Returns the last position in a segment.
    async fn create_segments(&self, mut last: Position, end: Position) -> Result<Position, LogError> {
        for segment in self.list_segments(last.next()).await? {
            self.create_segments_between(last, segment.first.before()).await?;
            last = segment.last;
        }
        self.create_segments_between(last, end).await
    }

    /// Segments depend on the names and sizes of objects alone, so all nodes create the same ones.
    async fn create_segments_between(&self, mut last: Position, end: Position) -> Result<Position, LogError> {
        let positions = usize::try_from(end.0.saturating_sub(last.0)).unwrap_or(usize::MAX);
        let mut listed = self.list(last, positions).await?;
        listed.retain(|(first, _)| *first <= end);
        let ends = listed.iter().skip(1).map(|(next, _)| next.before()).chain([end]);
        let (mut firsts, mut bytes) = (Vec::new(), 0);
        for ((first, size), object_end) in listed.iter().zip(ends) {
            firsts.push(*first);
            bytes += size;
            if object_end.0 - last.0 >= COMMITS_MAX || bytes >= BYTES_MAX {
                self.join(&firsts, object_end).await?;
                firsts.clear();
                (last, bytes) = (object_end, 0);
            }
        }
        Ok(last)
    }

    /// Creates the segment of these objects, unless it exists.
    async fn join(&self, firsts: &[Position], last: Position) -> Result<(), LogError> {
        let [first, _, ..] = firsts else { return Ok(()) };
        let objects = self.get_all(firsts.to_vec()).await?;
        let joined: Vec<_> = objects.iter().map(|object| &object.bytes[..]).collect();
        let parsed = parse_chain(*first, joined.concat().into()).await;
        // A log that is not a chain, or has a gap, is reported by its readers.
        let Some((joined, head)) = parsed.filter(|(joined, _)| joined.last().position == last) else {
            return Ok(());
        };
        let segment = Segment { first: *first, last, head, size: joined.bytes.len() as u64 };
        or_exists(self.bucket.create(&segment.key(&self.segments), joined.bytes).await)
    }
}

/// Creates segments in the background: at once those that other nodes have not created, and then as the log grows.
#[derive(Debug)]
pub(super) struct Segmenter {
    /// The end of the log when there was enough for a segment.
    end: watch::Sender<Position>,
    /// The bytes after it.
    bytes: u64,
    task: AbortOnDropHandle<()>,
}

impl Segmenter {
    pub(super) fn start(objects: Arc<Objects>, end: Position) -> Self {
        let (end, mut ends) = watch::channel(end);
        ends.mark_changed();
        let task = tokio::spawn(async move {
            let mut last = Position::START;
            while ends.changed().await.is_ok() {
                let end = *ends.borrow_and_update();
                match objects.create_segments(last, end).await {
                    Ok(created) => last = created,
                    Err(error) => {
                        tracing::warn!(target: "petstore::log", after = last.0, %error, "segments not created");
                    }
                }
            }
        });
        Self { end, bytes: 0, task: AbortOnDropHandle::new(task) }
    }

    /// Counts an object. If this node has created it and there is enough for a segment, the task continues.
    pub(super) fn add(&mut self, object: &Object) {
        self.bytes += object.bytes.len() as u64;
        let last = object.last();
        let commits = last.position.0.saturating_sub(self.end.borrow().0);
        if last.id.is_some() && (commits >= COMMITS_MAX || self.bytes >= BYTES_MAX) {
            self.bytes = 0;
            self.end.send_replace(last.position);
        }
    }

    /// Finishes the segments that have been begun.
    pub(super) async fn close(self) {
        drop(self.end);
        let _ = time::timeout(CLOSE_TIMEOUT, self.task).await;
    }
}
