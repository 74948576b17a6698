//! The objects under `PREFIX/<log id>/commits`, which are the log: their keys, and the records in them.

use std::{collections::VecDeque, sync::Arc};

use application::ports::{Fault, LogError, Position, ReadBound, Record, StoredRecord};
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use object_store::{ObjectMeta, path::Path};
use uuid::Uuid;

use super::{
    bucket::{Bucket, NotCreated, or_exists},
    marker,
};
use crate::event_log::ReadPurpose;

/// The maximum number of records in an object.
pub(super) const OBJECT_RECORDS_MAX: usize = 1_000;
/// The number of objects that are read at the same time.
const PARALLEL_READS: usize = 64;

/// How much is read ahead: objects, and their bytes.
const AHEAD_OBJECTS: usize = 1_000;
const AHEAD_BYTES: u64 = 32 * 1024 * 1024;

/// Consecutive records, each on one line.
#[derive(Debug)]
pub(super) struct Object {
    pub(super) first: Position,
    pub(super) bytes: Bytes,
    /// Ids are known only in an object that this node has created.
    pub(super) records: Vec<StoredRecord>,
}

impl Object {
    /// Joins records to an object. `None` if one of them is not a line.
    pub(super) fn of(first: Position, records: &[Record]) -> Option<Self> {
        let lines: Vec<_> = records.iter().flat_map(|record| [&record.bytes[..], b"\n"]).collect();
        let mut object = Self::parse(first, &lines.concat().into(), OBJECT_RECORDS_MAX).ok()?;
        for (stored, record) in object.records.iter_mut().zip(records) {
            stored.id = Some(record.id);
        }
        (object.records.len() == records.len()).then_some(object)
    }

    /// Splits the content of an object with at most `max` records. The error continues a sentence about the object.
    pub(super) fn parse(first: Position, bytes: &Bytes, max: usize) -> Result<Self, &'static str> {
        let lines =
            bytes.strip_suffix(b"\n").ok_or(if bytes.is_empty() { "is empty" } else { "is truncated" })?;
        let records = lines.split(|byte| *byte == b'\n').zip(first.0..);
        if records.clone().nth(max).is_some() {
            return Err("has too many lines");
        }
        let records = records.map(|(line, position)| StoredRecord {
            position: Position(position),
            id: None,
            bytes: bytes.slice_ref(line),
        });
        Ok(Self { first, records: records.collect(), bytes: bytes.clone() })
    }

    pub(super) fn last(&self) -> &StoredRecord {
        self.records.last().expect("an object holds at least one record")
    }
}

/// Contiguous records in memory.
#[derive(Debug, Default)]
pub(super) struct RecordCache(VecDeque<StoredRecord>);

impl RecordCache {
    /// Joins objects, up to the first gap between them.
    pub(super) fn of(objects: Vec<Object>) -> Self {
        let mut cache = Self::default();
        for object in objects {
            if cache.0.back().is_some_and(|last| last.position.next() != object.first) {
                break;
            }
            cache.push(&object);
        }
        cache
    }

    /// Adds the object after the last record.
    pub(super) fn push(&mut self, object: &Object) {
        self.0.extend(object.records.iter().cloned());
    }

    /// Drops the records before a position.
    pub(super) fn drop_before(&mut self, position: Position) {
        let count = self.0.partition_point(|record| record.position < position);
        self.0.drain(..count);
    }

    /// Drops the oldest records, until the others have at most so many bytes.
    pub(super) fn shrink_to(&mut self, bytes_max: usize) {
        let mut bytes: usize = self.0.iter().map(|record| record.bytes.len()).sum();
        while bytes > bytes_max
            && let Some(oldest) = self.0.pop_front()
        {
            bytes -= oldest.bytes.len();
        }
    }

    /// Returns records from `first` on. Empty if that record is not in memory.
    pub(super) fn read(&self, first: Position, bound: ReadBound) -> Vec<StoredRecord> {
        let start = self.0.front().and_then(|oldest| first.0.checked_sub(oldest.position.0));
        let start = start.and_then(|start| usize::try_from(start).ok()).unwrap_or(usize::MAX);
        bound.take(self.0.iter().skip(start).cloned())
    }
}

/// The objects of one log.
#[derive(Debug)]
pub(super) struct Objects {
    pub(super) bucket: Arc<Bucket>,
    log: Uuid,
    commits: Path,
    pub(super) segments: Path,
}

impl Objects {
    pub(super) fn of(bucket: Arc<Bucket>, log: Uuid) -> Self {
        let directory = |name| bucket.key(&[&log.to_string(), name]);
        Self { commits: directory("commits"), segments: directory("segments"), log, bucket }
    }

    fn key(&self, first: Position) -> Path {
        self.commits.clone().join(name(first))
    }

    pub(super) async fn create(&self, object: &Object) -> Result<(), NotCreated> {
        self.bucket.create(&self.key(object.first), object.bytes.clone()).await
    }

    /// Reads the object whose first record is at this position, if it exists.
    pub(super) async fn get(&self, first: Position) -> Result<Option<Object>, LogError> {
        let key = self.key(first);
        let Some(bytes) = self.bucket.get(&key).await? else { return Ok(None) };
        let parsed = Object::parse(first, &bytes, OBJECT_RECORDS_MAX);
        parsed.map(Some).map_err(|damage| Fault::Damaged.error(format!("the object {key} {damage}")))
    }

    /// Reads these objects at the same time, up to the first that is damaged or follows a gap. Fails if the first is
    /// damaged, or one cannot be read now.
    pub(super) async fn get_all(&self, firsts: Vec<Position>) -> Result<Vec<Object>, LogError> {
        let mut reading =
            stream::iter(firsts).map(async |first| self.get(first).await).buffered(PARALLEL_READS);
        let mut objects: Vec<Object> = Vec::new();
        while let Some(object) = reading.next().await {
            let next = objects.last().map(|object| object.last().position.next());
            match object {
                Ok(Some(object)) if next.is_none_or(|next| next == object.first) => objects.push(object),
                Err(error) if objects.is_empty() || error.fault == Fault::Unreachable => return Err(error),
                Ok(_) | Err(_) => break,
            }
        }
        Ok(objects)
    }

    /// Lists the first positions and the sizes of at most `max` objects that begin after `after`. Ignores objects that
    /// have other keys: they are not petstore's.
    pub(super) async fn list(&self, after: Position, max: usize) -> Result<Vec<(Position, u64)>, LogError> {
        let parse = |object: ObjectMeta| {
            let first = object.location.filename()?.parse().ok().map(Position);
            let first = first.filter(|first| *first <= Position::MAX)?;
            (object.location == self.key(first)).then_some((first, object.size))
        };
        self.bucket.list(&self.commits, &name(after), max, parse).await
    }

    /// Like [`list`](Self::list), but starts with the object that holds `position`, if it exists.
    pub(super) async fn list_from(
        &self,
        position: Position,
        max: usize,
    ) -> Result<Vec<(Position, u64)>, LogError> {
        let earliest = Position(position.0.saturating_sub(OBJECT_RECORDS_MAX as u64));
        let mut listed = self.list(earliest, max.saturating_add(OBJECT_RECORDS_MAX)).await?;
        let start = listed.iter().rposition(|(first, _)| *first <= position).unwrap_or(0);
        Ok(listed.split_off(start))
    }

    /// Reads the record at this position. `newest` is where the newest object begins.
    pub(super) async fn record_at(
        &self,
        position: Position,
        newest: Position,
    ) -> Result<StoredRecord, LogError> {
        let mut object = self.get(position.min(newest)).await?;
        if object.is_none() {
            // Inside an object.
            let listed = self.list_from(position, 1).await?;
            if let Some((first, _)) = listed.first() {
                object = self.get(*first).await?;
            }
        }
        let mut records = object.into_iter().flat_map(|object| object.records);
        match records.find(|record| record.position == position) {
            Some(record) => Ok(record),
            None => Err(self.missing(position).await),
        }
    }

    /// Reads many records, of which the first object holds `position`: from segments, or many objects at the same time.
    pub(super) async fn read_ahead(
        &self,
        position: Position,
        purpose: ReadPurpose,
    ) -> Result<RecordCache, LogError> {
        if purpose == ReadPurpose::Use {
            let mut segments = self.list_segments(position).await?;
            if segments.first().is_some_and(|segment| segment.first <= position) {
                segments.truncate(count_ahead(segments.iter().map(|segment| segment.size)));
                let objects = self.get_segments(segments).await;
                if !objects.is_empty() {
                    return Ok(RecordCache::of(objects));
                }
            }
        }
        let mut listed = self.list_from(position, AHEAD_OBJECTS).await?;
        listed.truncate(count_ahead(listed.iter().map(|(_, size)| *size)));
        let objects = self.get_all(listed.into_iter().map(|(first, _)| first).collect()).await?;
        Ok(RecordCache::of(objects))
    }

    /// Checks that the prefix still holds this log.
    pub(super) async fn check_marker(&self) -> Result<(), LogError> {
        if marker::existing(&self.bucket).await? == self.log {
            return Ok(());
        }
        Err(Fault::AnotherLog.error(format!(
            "the prefix {} holds another log than the one that was opened",
            self.bucket.prefix
        )))
    }

    /// Checks that this node may create objects.
    pub(super) async fn check_writable(&self) -> Result<(), LogError> {
        // Otherwise, the request could create the marker of a log that was deleted.
        self.check_marker().await?;
        or_exists(marker::create(&self.bucket, self.log).await)
    }

    /// Explains why a commit that was stored cannot be found.
    pub(super) async fn missing(&self, position: Position) -> LogError {
        let later = async {
            self.check_marker().await?;
            self.list(position, 1).await
        };
        match later.await.as_deref() {
            Err(error) => error.clone(),
            Ok([(later, _), ..]) => Fault::Damaged.error(format!(
                "the commit at position {position} is missing, but the log continues at position {later}: first try \
                 to restore its object under {} in the bucket {}, from an older version or a copy of the bucket",
                self.commits, self.bucket.name
            )),
            Ok([]) => Fault::AnotherLog
                .error(format!("the log ends before position {position}, but a commit was stored there")),
        }
    }
}

/// How many items of these sizes are read ahead.
fn count_ahead(sizes: impl Iterator<Item = u64>) -> usize {
    let mut bytes = 0;
    let fits = sizes.take_while(|size| {
        bytes += size;
        bytes - size < AHEAD_BYTES
    });
    fits.count()
}

/// A position as a name: 20 digits, so that names sort like positions.
pub(super) fn name(position: Position) -> String {
    format!("{:020}", position.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_lines_and_each_of_them_is_ended() {
        let parse = |text: &'static str| {
            let object = Object::parse(Position(7), &Bytes::from(text), OBJECT_RECORDS_MAX)?;
            Ok(object.records.into_iter().map(|record| (record.position.0, record.bytes)).collect::<Vec<_>>())
        };
        assert_eq!(parse("a\nbc\n"), Ok(vec![(7, "a".into()), (8, "bc".into())]));
        assert_eq!(parse(""), Err("is empty"));
        assert_eq!(parse("a\nb"), Err("is truncated"));
        assert!(Object::parse(Position(1), &"\n\n".into(), 2).is_ok());
        assert_eq!(Object::parse(Position(1), &"\n\n\n".into(), 2).err(), Some("has too many lines"));
    }
}
