//! A log in an S3 bucket. An append creates an object only if it is absent, so of two nodes that append at the same
//! position exactly one succeeds. Nothing is ever overwritten or deleted.
//!
//! Objects are contiguous: the object after one that ends at `p` can only be named `p + 1`. So creating that key is the
//! check of an append, also for a request that was delayed.
//!
//! Reading order: this file (the public API), `object_store/objects.rs` (the objects of a log), `object_store/segments.rs`
//! (copies for fast reading), `object_store/marker.rs` (new logs), `object_store/bucket.rs` (requests),
//! `object_store/client.rs` (HTTP).

mod bucket;
mod client;
mod marker;
mod objects;
mod segments;

use std::{slice, sync::Arc, time::Duration};

use application::{
    log::codec,
    ports::{
        AppendError, Durability, DurabilityLevel, EventLog, Fault, LogError, LogSource, Position, ReadBound,
        Record, StoredRecord, Version,
    },
};
use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::{
    sync::watch,
    time::{self, Instant},
};
use uuid::Uuid;

pub use bucket::Variables;

use self::{
    bucket::{Bucket, NotCreated},
    objects::{OBJECT_RECORDS_MAX, Object, Objects, Window},
    segments::Segmenter,
};
use super::{ReadPurpose, within_limit};

/// How long an append may take, and the additional time for each MiB.
const APPEND_TIMEOUT: Duration = Duration::from_millis(3_500);
const APPEND_TIMEOUT_PER_MIB: Duration = Duration::from_secs(1);
/// How long each of its requests may take, with the same additional time. A new request uses another connection.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(1);
/// The delay before the same bytes are sent again.
const RETRY_DELAY: Duration = Duration::from_millis(100);
/// How long an append relies on the last check that the log is still the same, and how long a reader does.
const APPEND_CONFIRMATION: Duration = Duration::from_secs(1);
const READ_CONFIRMATION: Duration = Duration::from_secs(10);
/// The interval between polls for commits of other nodes: half of the time since the last one, within these limits.
const POLL_MIN: Duration = Duration::from_millis(10);
const POLL_MAX: Duration = Duration::from_secs(1);
/// The number of objects that are read one by one before a listing is used to find the end.
const SINGLE_READS: usize = 32;
/// The maximum size of the newest records that are kept for the next read, in bytes.
const RECENT_BYTES: usize = 4 * 1024 * 1024;

/// A log in a bucket, which many nodes may share.
pub struct ObjectLog {
    objects: Arc<Objects>,
    purpose: ReadPurpose,
    end: watch::Sender<End>,
    /// Held during an append. A node never has two objects in flight: if only the second one arrived, the log would have
    /// a gap.
    appending: tokio::sync::Mutex<()>,
    /// When the next poll is due. Several readers share the polls.
    next_poll: Mutex<Instant>,
    /// Records that were read ahead.
    ahead: tokio::sync::Mutex<Window>,
    /// `None` in a log that is only read, or closed.
    segmenter: Mutex<Option<Segmenter>>,
}

/// The newest object that this node has read or created.
#[derive(Debug)]
struct End {
    /// The first position of the object. 0 for the empty log.
    first: Position,
    /// The last record in it. `None` for the empty log.
    newest: Option<StoredRecord>,
    /// The newest records, for readers that wait for them.
    recent: Window,
    /// When the newest object was found.
    found: Instant,
    /// When it was last known that the log is the same and ends here.
    confirmed: Instant,
}

impl End {
    fn position(&self) -> Position {
        self.newest.as_ref().map_or(Position::START, |newest| newest.position)
    }

    /// Finds the newest object in the listing of a log.
    async fn find(objects: &Objects) -> Result<Self, LogError> {
        let confirmed = Instant::now();
        let segmented = objects.list_segments(Position::START).await?.pop();
        let segmented = segmented.map_or(Position::START, |segment| segment.last);
        let newest = objects.list_from(segmented, usize::MAX).await?.pop();
        let Some((first, _)) = newest else {
            if segmented > Position::START {
                return Err(objects.missing(segmented).await);
            }
            return Ok(Self::at(Position::START, None, confirmed));
        };
        let newest = match objects.get(first).await {
            Ok(Some(newest)) => newest.last().clone(),
            Ok(None) => return Err(objects.missing(first).await),
            // Reported by its readers. The other objects can be salvaged.
            Err(error) if error.fault == Fault::Damaged => {
                StoredRecord { position: first, id: None, bytes: Bytes::new() }
            }
            Err(error) => return Err(error),
        };
        if newest.position < segmented && !newest.bytes.is_empty() {
            return Err(objects.missing(newest.position.next()).await);
        }
        Ok(Self::at(first, Some(newest), confirmed))
    }

    fn at(first: Position, newest: Option<StoredRecord>, confirmed: Instant) -> Self {
        Self { first, newest, recent: Window::default(), found: Instant::now(), confirmed }
    }
}

impl ObjectLog {
    /// Opens the log at a `s3://BUCKET/PREFIX` URL, and creates it if the prefix is empty. The server of a new log must
    /// show that it creates an object only once.
    pub async fn open(url: &str, variables: &Variables) -> Result<Self, LogError> {
        let bucket = Bucket::open(url, variables).await?;
        let log = marker::find_or_create(&bucket).await?;
        Self::attach(bucket, log, ReadPurpose::Use).await.map(Self::with_segmenter)
    }

    /// Opens an existing log.
    pub async fn open_existing(url: &str, variables: &Variables) -> Result<Self, LogError> {
        Self::read_only(url, variables, ReadPurpose::Use).await.map(Self::with_segmenter)
    }

    /// Opens an existing log to read it. Creates nothing.
    pub async fn read_only(url: &str, variables: &Variables, purpose: ReadPurpose) -> Result<Self, LogError> {
        let bucket = Bucket::open(url, variables).await?;
        let log = marker::find(&bucket).await?.ok_or_else(|| marker::missing(&bucket))?;
        Self::attach(bucket, log, purpose).await
    }

    /// The name of the log that a URL selects. `None` if the URL selects none.
    pub fn name_in(url: &str) -> Option<String> {
        bucket::parse(url).map(|(bucket, prefix)| format!("s3:{bucket}/{prefix}"))
    }

    async fn attach(bucket: Arc<Bucket>, log: Uuid, purpose: ReadPurpose) -> Result<Self, LogError> {
        let objects = Arc::new(Objects::of(bucket, log));
        Ok(Self {
            end: watch::Sender::new(End::find(&objects).await?),
            objects,
            purpose,
            appending: tokio::sync::Mutex::default(),
            next_poll: Mutex::new(Instant::now()),
            ahead: tokio::sync::Mutex::default(),
            segmenter: Mutex::new(None),
        })
    }

    fn with_segmenter(self) -> Self {
        let segmenter = Segmenter::start(self.objects.clone(), self.position());
        Self { segmenter: Mutex::new(Some(segmenter)), ..self }
    }

    fn position(&self) -> Position {
        self.end.borrow().position()
    }

    /// Records an object that was read or created after the newest one. Another task may have recorded it already.
    fn record(&self, object: &Object) {
        self.end.send_if_modified(|end| {
            if object.first != end.position().next() {
                return false;
            }
            end.first = object.first;
            // A copy: a slice would keep the whole object in memory.
            end.newest = Some(StoredRecord { bytes: object.last().bytes.to_vec().into(), ..*object.last() });
            end.recent.push(object);
            end.recent.shrink_to(RECENT_BYTES);
            end.found = Instant::now();
            *self.next_poll.lock() = end.found + POLL_MIN;
            if let Some(segmenter) = &mut *self.segmenter.lock() {
                segmenter.add(object);
            }
            true
        });
    }

    /// Reads the object after the newest known one. Returns whether there is one.
    async fn read_next(&self) -> Result<bool, LogError> {
        let object = self.objects.get(self.position().next()).await?;
        if let Some(object) = &object {
            self.record(object);
        }
        Ok(object.is_some())
    }

    /// Reads the objects after the newest known one. Skips most of them if there are many.
    async fn advance(&self) -> Result<(), LogError> {
        for _ in 0..SINGLE_READS {
            if !self.read_next().await? {
                return Ok(());
            }
        }
        let found = End::find(&self.objects).await?;
        self.end.send_if_modified(|end| {
            let is_later = found.position() > end.position();
            if is_later {
                *end = found;
            }
            is_later
        });
        Ok(())
    }

    /// Checks that marker and newest object are still the same, and that no object follows a gap.
    async fn confirm(&self, max_age: Duration) -> Result<(), LogError> {
        let (first, newest) = {
            let end = self.end.borrow();
            if end.confirmed.elapsed() < max_age {
                return Ok(());
            }
            (end.first, end.newest.clone())
        };
        let begun = Instant::now();
        let position = newest.as_ref().map_or(Position::START, |newest| newest.position);
        let is_same = async {
            // A damaged one is reported by its readers.
            let Some(newest) = newest.filter(|newest| !newest.bytes.is_empty()) else { return Ok(true) };
            Ok(self.objects.record_at(position, first).await?.bytes == newest.bytes)
        };
        let later = self.objects.list(position, 1);
        let ((), is_same, later) = tokio::try_join!(self.objects.check_marker(), is_same, later)?;
        if !is_same {
            return Err(Fault::AnotherLog.error(format!(
                "the log holds a different commit at position {position} than the one that was stored"
            )));
        }
        let next = position.next();
        if !later.is_empty() && self.objects.get(next).await?.is_none() {
            return Err(self.objects.missing(next).await);
        }
        self.end.send_if_modified(|end| {
            end.confirmed = begun;
            false
        });
        Ok(())
    }

    /// Whether the newest commit is this one.
    fn ends_with(&self, expected: Version) -> bool {
        let end = self.end.borrow();
        let Some(newest) = &end.newest else { return expected == Version::START };
        newest.position == expected.position && expected.commit.is_some() && {
            let id = newest.id.or_else(|| codec::envelope(&newest.bytes).map(|(_, id, _)| id));
            id == expected.commit
        }
    }

    /// Sends the same bytes until their outcome is known, or the time is over.
    async fn create(&self, object: &Object) -> Result<(), AppendError> {
        let mebibytes = u32::try_from(object.bytes.len() >> 20).unwrap_or(u32::MAX);
        let transfer = APPEND_TIMEOUT_PER_MIB * mebibytes;
        let deadline = Instant::now() + APPEND_TIMEOUT + transfer;
        let attempt_timeout = ATTEMPT_TIMEOUT + transfer;
        let mut may_be_stored = false;
        loop {
            let error = match time::timeout(attempt_timeout, self.objects.create(object)).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(NotCreated::Rejected(error))) if !may_be_stored => {
                    return Err(AppendError::NotStored(error));
                }
                Ok(Err(error)) => error.into(),
                Err(_elapsed) => self.objects.bucket.late(),
            };
            may_be_stored = true;
            match time::timeout(attempt_timeout, self.objects.get(object.first)).await {
                Ok(Ok(Some(found))) if found.bytes == object.bytes => return Ok(()),
                Ok(Ok(Some(other))) => {
                    self.record(&other);
                    return Err(AppendError::Conflict);
                }
                Ok(Err(error)) if error.fault == Fault::Damaged => return Err(AppendError::Closed(error)),
                // Nothing is there after a conflict of two requests that both failed.
                Ok(Ok(None) | Err(_)) | Err(_) => {}
            }
            if Instant::now() + RETRY_DELAY >= deadline {
                return Err(AppendError::Unclear(error));
            }
            time::sleep(RETRY_DELAY).await;
        }
    }
}

/// The error of an append before anything was sent.
fn before_sending(error: LogError) -> AppendError {
    match error.fault {
        Fault::Unreachable | Fault::CannotOpen => AppendError::NotStored(error),
        _ => AppendError::Closed(error),
    }
}

#[async_trait]
impl LogSource for ObjectLog {
    async fn read(&self, after: Position, bound: ReadBound) -> Result<Vec<StoredRecord>, LogError> {
        let first = after.next();
        if first > self.position() {
            self.advance().await?;
        }
        if first > self.position() {
            // A gap is not the end. The reader of a single record acts on its absence.
            let max_age = if bound.records == 1 { Duration::ZERO } else { READ_CONFIRMATION };
            self.confirm(max_age).await?;
            return Ok(vec![]);
        }
        if bound.records == 1 {
            // Always from the server: the reader wants to know whether the log still holds the record.
            let newest = self.end.borrow().first;
            return Ok(vec![self.objects.record_at(first, newest).await?]);
        }
        let recent = self.end.borrow().recent.read(first, bound);
        if !recent.is_empty() {
            return Ok(recent);
        }
        let mut ahead = self.ahead.lock().await;
        ahead.drop_before(first);
        if ahead.read(first, ReadBound::ONE).is_empty() {
            *ahead = self.objects.window(first, self.purpose).await?;
        }
        match ahead.read(first, bound) {
            records if records.is_empty() => Err(self.objects.missing(first).await),
            records => Ok(records),
        }
    }

    async fn head(&self) -> Result<Position, LogError> {
        self.advance().await?;
        self.confirm(READ_CONFIRMATION).await?;
        Ok(self.position())
    }

    async fn wait_for(&self, after: Position, timeout: Duration) -> Result<(), LogError> {
        let deadline = Instant::now() + timeout;
        let mut end = self.end.subscribe();
        while self.position() <= after {
            let next = *self.next_poll.lock();
            tokio::select! {
                _ = end.wait_for(|end| end.position() > after) => return Ok(()),
                () = time::sleep_until(next.min(deadline)) => {}
            }
            if next > deadline {
                return Ok(());
            }
            let interval = (self.end.borrow().found.elapsed() / 2).clamp(POLL_MIN, POLL_MAX);
            *self.next_poll.lock() = Instant::now() + interval;
            self.read_next().await?;
        }
        Ok(())
    }

    async fn skip(&self, damaged: Position) -> Result<Position, LogError> {
        let later = self.objects.list(damaged, 1).await?;
        Ok(later.first().map_or(damaged.next(), |(first, _)| *first))
    }

    fn durability(&self) -> Durability {
        let Bucket { name, prefix, server, .. } = &*self.objects.bucket;
        let settings =
            [("endpoint", server.clone()), ("bucket", name.clone()), ("prefix", prefix.to_string())];
        Durability {
            engine: "s3",
            level: DurabilityLevel::Synced,
            promise: "every acknowledged commit is an object that the server has acknowledged; petstore cannot check how \
                      the server stores it"
                .into(),
            settings: settings.map(|(name, value)| (name.to_owned(), value)).into(),
        }
    }
}

#[async_trait]
impl EventLog for ObjectLog {
    async fn append(&self, expected: Version, record: &Record) -> Result<Position, AppendError> {
        self.append_many(expected, slice::from_ref(record)).await
    }

    /// Stores one object, or nothing.
    async fn append_many(&self, expected: Version, records: &[Record]) -> Result<Position, AppendError> {
        let records = within_limit(records, self.record_limit())?;
        let records = &records[..records.len().min(OBJECT_RECORDS_MAX)];
        if records.is_empty() {
            return Ok(expected.position);
        }
        let _appending = self.appending.lock().await;
        if expected.position > self.position() {
            self.advance().await.map_err(before_sending)?;
        }
        if !self.ends_with(expected) {
            return Err(AppendError::Conflict);
        }
        self.confirm(APPEND_CONFIRMATION).await.map_err(before_sending)?;
        let object = Object::of(expected.position.next(), records).ok_or_else(|| {
            let detail = "a record with a line feed cannot be stored: records are lines";
            AppendError::NotStored(Fault::WriteFailed.error(detail))
        })?;
        self.create(&object).await?;
        self.record(&object);
        Ok(object.last().position)
    }

    async fn check_writable(&self) -> Result<(), LogError> {
        self.objects.check_writable().await
    }

    async fn close(&self) {
        let segmenter = self.segmenter.lock().take();
        if let Some(segmenter) = segmenter {
            segmenter.close().await;
        }
    }
}
