//! Reads records: the end of the log, one record, and long runs of records from segments or many objects at once.

use std::collections::VecDeque;

use application::ports::{Fault, LogError, Position, ReadBound, StoredRecord};
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use object_store::ObjectMeta;
use tokio::{task, time::Instant};

use super::{
    Author, End, OBJECT_RECORDS_MAX, ObjectLog, Purpose,
    bucket::{Bucket, Object},
    layout::Layout,
    segments::{self, OpenSegment, Segment},
};

/// How much is read ahead: objects, and their bytes.
const AHEAD_OBJECTS: usize = 1_000;
const AHEAD_BYTES: u64 = 32 * 1024 * 1024;
/// The number of objects that are read one by one before a listing is used to find the end.
const SINGLE_READS: usize = 32;
/// The number of segments that are read at the same time.
const PARALLEL_SEGMENTS: usize = 4;

/// Contiguous records that were read ahead.
#[derive(Debug, Default)]
pub(super) struct Run(VecDeque<StoredRecord>);

impl Run {
    /// Drops the records before `position`, or all of them if it is not in the run.
    fn start_at(&mut self, position: Position) {
        let first = self.0.front().map_or(position, |first| first.position);
        if position < first {
            self.0.clear();
        }
        self.0.drain(
            ..self.0.len().min(usize::try_from(position.0 - first.0.min(position.0)).unwrap_or(usize::MAX)),
        );
    }

    fn add(&mut self, objects: Vec<Object>, from: Position) {
        let records = objects.into_iter().flat_map(|object| object.records);
        self.0.extend(records.skip_while(|record| record.position < from));
    }

    fn take(&self, bound: ReadBound) -> Vec<StoredRecord> {
        let mut room = bound.bytes;
        let within = self.0.iter().take(bound.records).take_while(|record| {
            let fits = room > 0;
            room = room.saturating_sub(record.bytes.len());
            fits
        });
        within.cloned().collect()
    }
}

/// Finds the end of the log: an object after which there is nothing, or what other nodes append now. A gap is not the
/// end.
pub(super) async fn end(bucket: &Bucket, layout: &Layout, purpose: Purpose) -> Result<End, LogError> {
    let confirmed = Instant::now();
    let segments = segments::list(bucket, layout, Position::START).await?;
    let segmented = segments.last().map_or(Position::START, |segment| segment.last);
    let mut segment = OpenSegment::after(segmented);
    let listed = bucket.list(&layout.commits, &before(segmented), usize::MAX).await?;
    let objects: Vec<_> = Layout::firsts(&listed).collect();
    let Some(&(first, _)) = objects.last() else {
        if segmented > Position::START {
            return Err(
                Fault::Damaged.error("the log has segments, but its commits are missing: restore them")
            );
        }
        return Ok(End { first: Position::START, newest: None, recent: VecDeque::new(), confirmed, segment });
    };
    let newest = match bucket.object(&layout.commit(first), first).await {
        // The records in it are lost.
        Err(error) if purpose == Purpose::Salvage && error.fault == Fault::Damaged => {
            Some(Object::parse(first, &Bytes::from_static(b"\n")).expect("a line is an object"))
        }
        newest => newest?,
    };
    let newest = newest.ok_or_else(|| gap(first, first))?;
    let last = newest.last();
    let ends = objects.iter().skip(1).map(|(next, _)| next.before()).chain([last.position]);
    for ((_, object), end) in objects.iter().zip(ends).filter(|((first, _), _)| *first > segmented) {
        segment.add(end, object.size);
    }
    let later = bucket.list(&layout.commits, &Layout::name(last.position), 1_000).await?;
    if let Some((later, _)) = Layout::firsts(&later).next()
        && later > last.position.next()
        && bucket.get(&layout.commit(last.position.next())).await?.is_none()
    {
        return Err(gap(last.position.next(), later));
    }
    let newest = StoredRecord { bytes: last.bytes.to_vec().into(), ..*last };
    Ok(End { first, newest: Some(newest), recent: VecDeque::new(), confirmed, segment })
}

/// The name after which a listing contains the object that holds `position`.
fn before(position: Position) -> String {
    Layout::name(Position(position.0.saturating_sub(OBJECT_RECORDS_MAX as u64)))
}

fn gap(position: Position, later: Position) -> LogError {
    Fault::Damaged.error(format!(
        "the commit at position {position} is missing, but the log continues at position {later}"
    ))
}

impl ObjectLog {
    /// Reads the objects after the newest known one. Skips most of them if there are many.
    pub(super) async fn advance(&self) -> Result<(), LogError> {
        for _ in 0..SINGLE_READS {
            if self.next_object().await?.is_none() {
                return Ok(());
            }
        }
        let found = end(&self.bucket, &self.layout, self.purpose).await?;
        let mut end = self.end.lock();
        if found.position() > end.position() {
            *end = found;
            self.seen.send_replace(end.position());
        }
        Ok(())
    }

    /// Reads the object after the newest known one, if there is one.
    async fn next_object(&self) -> Result<Option<Object>, LogError> {
        let first = self.position().next();
        let object = self.bucket.object(&self.layout.commit(first), first).await?;
        if let Some(object) = &object {
            self.record(object, Author::Unknown);
        }
        Ok(object)
    }

    /// Reads a record from the server, if the log is that long.
    pub(super) async fn read_one(&self, position: Position) -> Result<Option<StoredRecord>, LogError> {
        while position > self.position() {
            if self.next_object().await?.is_none() {
                return Ok(None);
            }
        }
        let newest = self.end.lock().first;
        let first = if position >= newest { newest } else { position };
        let mut object = self.bucket.object(&self.layout.commit(first), first).await?;
        if object.is_none() && position < newest {
            // Inside an object.
            let listed = self.bucket.list(&self.layout.commits, &before(position), AHEAD_OBJECTS).await?;
            if let Some((first, _)) =
                Layout::firsts(&listed).take_while(|(first, _)| *first <= position).last()
            {
                object = self.bucket.object(&self.layout.commit(first), first).await?;
            }
        }
        let found =
            object.and_then(|object| object.records.into_iter().find(|record| record.position == position));
        match found {
            Some(found) => Ok(Some(found)),
            None => Err(self.missing(position).await),
        }
    }

    /// Reads records from `position` on, from those that were read ahead if possible.
    pub(super) async fn read_run(
        &self,
        position: Position,
        bound: ReadBound,
    ) -> Result<Vec<StoredRecord>, LogError> {
        let mut run = self.run.lock().await;
        run.start_at(position);
        // A replay reads the last record again, so one record is not enough.
        if run.0.len() < 2 {
            let next = Position(position.0 + run.0.len() as u64);
            let mut objects = self.recent(next);
            if objects.is_empty() && next > self.position() {
                self.next_object().await?;
                objects = self.recent(next);
            }
            if objects.is_empty() && next <= self.position() {
                objects = self.load(next).await?;
            }
            run.add(objects, next);
        }
        Ok(run.take(bound))
    }

    /// The objects from `position` on, if they are the newest ones.
    fn recent(&self, position: Position) -> Vec<Object> {
        let end = self.end.lock();
        let is_recent = end.recent.front().is_some_and(|object| object.first <= position);
        let objects = end.recent.iter().filter(|object| is_recent && object.last().position >= position);
        objects.cloned().collect()
    }

    /// Reads many objects, of which the first holds `position`.
    async fn load(&self, position: Position) -> Result<Vec<Object>, LogError> {
        let mut limit = self.position();
        if matches!(self.purpose, Purpose::Append | Purpose::Read) {
            let mut segments = segments::list(&self.bucket, &self.layout, position).await?;
            segments.retain(|segment| segment.last >= position);
            if segments.first().is_some_and(|segment| segment.first <= position) {
                let objects = self.load_segments(segments).await?;
                if !objects.is_empty() {
                    return Ok(objects);
                }
            } else if let Some(segment) = segments.first() {
                limit = limit.min(segment.first.before());
            }
        }
        let listed = self.bucket.list(&self.layout.commits, &before(position), 2 * AHEAD_OBJECTS).await?;
        let listed: Vec<_> = Layout::firsts(&listed).filter(|(first, _)| *first <= limit).collect();
        let start = listed.iter().rposition(|(first, _)| *first <= position).unwrap_or(listed.len());
        let mut bytes = 0;
        let wanted = listed[start..].iter().take(AHEAD_OBJECTS).take_while(|(_, object)| {
            bytes += object.size;
            bytes - object.size < AHEAD_BYTES
        });
        let keys = wanted.map(|(first, ObjectMeta { location, .. })| (*first, location.clone())).collect();
        let objects = contiguous(self.bucket.objects(keys).await?);
        if objects.first().is_none_or(|object| object.last().position < position) {
            return Err(self.missing(position).await);
        }
        Ok(objects)
    }

    /// Reads consecutive segments, up to the first that is not intact.
    async fn load_segments(&self, segments: Vec<Segment>) -> Result<Vec<Object>, LogError> {
        let mut bytes = 0;
        let wanted: Vec<_> = segments
            .into_iter()
            .take_while(|segment| {
                bytes += segment.size;
                bytes - segment.size < AHEAD_BYTES
            })
            .collect();
        let read = async |segment: Segment| {
            let object = self.bucket.object(&segment.key, segment.first).await.ok().flatten()?;
            let checked =
                task::spawn_blocking(move || segment.is_intact(&object).then_some(object).ok_or(segment));
            match checked.await.ok()? {
                Ok(object) => Some(object),
                Err(segment) => {
                    tracing::warn!(target: "petstore::log", segment = %segment.key, "segment ignored: damaged");
                    None
                }
            }
        };
        let objects = stream::iter(wanted).map(read).buffered(PARALLEL_SEGMENTS);
        let objects =
            objects.take_while(|object| std::future::ready(object.is_some())).filter_map(std::future::ready);
        Ok(contiguous(objects.collect().await))
    }
}

/// The objects up to the first gap.
fn contiguous(mut objects: Vec<Object>) -> Vec<Object> {
    let gap = objects.windows(2).position(|pair| pair[1].first != pair[0].last().position.next());
    objects.truncate(gap.map_or(usize::MAX, |gap| gap + 1));
    objects
}
