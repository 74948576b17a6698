//! A log in an S3 bucket. An append creates an object only if it is absent, so of two nodes that append at the same
//! position exactly one succeeds. Nothing is ever overwritten or deleted.
//!
//! Objects are contiguous: the object after one that ends at `p` can only be named `p + 1`. So creating that key is the
//! check of an append, also for a request that was delayed.
//!
//! Reading order: this file (the public API), `object_store/objects.rs` (the objects of a log), `object_store/tail.rs` (the
//! newest of them, and polls), `object_store/segments.rs` (copies for fast reading), `object_store/marker.rs` (new logs), `object_store/bucket.rs` (requests),
//! `object_store/client.rs` (HTTP).

mod bucket;
mod client;
mod marker;
mod objects;
mod segments;
mod tail;

use std::{sync::Arc, time::Duration};

use application::ports::{
    AppendError, Durability, DurabilityLevel, EventLog, Fault, LogError, LogSource, Position, ReadBound,
    Record, StoredRecord, Version,
};
use async_trait::async_trait;
use tokio::{
    sync::{Mutex, watch},
    time::{self, Instant},
};
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

pub use bucket::variables;

use self::{
    bucket::{Bucket, NotCreated},
    objects::{OBJECT_RECORDS_MAX, Object, Objects, RecordCache},
    segments::Segmenter,
    tail::Tail,
};
use super::ReadPurpose;

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

/// A log in a bucket, which many nodes may share.
pub struct ObjectLog {
    objects: Arc<Objects>,
    purpose: ReadPurpose,
    tail: Arc<Tail>,
    /// Held during an append. A node never has two objects in flight: if only the second one arrived, the log would have
    /// a gap.
    appending: Mutex<()>,
    /// Records that were read ahead.
    ahead: Mutex<RecordCache>,
    /// Polls for commits of other nodes. Ends with the log.
    _polling: AbortOnDropHandle<()>,
}

impl ObjectLog {
    /// Opens the log at a `s3://BUCKET/PREFIX` URL. Without a known commit, it is created if the prefix is empty. The server
    /// of a new log must show that it creates an object only once.
    pub async fn open(
        url: &str,
        variables: &[(String, String)],
        known: Option<Version>,
    ) -> Result<Self, LogError> {
        let bucket = Bucket::open(url, variables).await?;
        let id = match known {
            None => marker::find_or_create(&bucket).await?,
            Some(_) => marker::existing(&bucket).await?,
        };
        let log = Self::attach(bucket, id, ReadPurpose::Use).await?;
        *log.tail.segmenter.lock() = Some(Segmenter::start(log.objects.clone(), log.tail.position()));
        Ok(log)
    }

    /// Opens an existing log to read it. Creates nothing.
    pub async fn read_only(
        url: &str,
        variables: &[(String, String)],
        purpose: ReadPurpose,
    ) -> Result<Self, LogError> {
        let bucket = Bucket::open(url, variables).await?;
        let id = marker::existing(&bucket).await?;
        Self::attach(bucket, id, purpose).await
    }

    /// The name of the log that a URL selects. `None` if the URL selects none.
    pub fn name_in(url: &str) -> Option<String> {
        bucket::parse(url).map(|(bucket, prefix)| format!("s3:{bucket}/{prefix}"))
    }

    async fn attach(bucket: Arc<Bucket>, log: Uuid, purpose: ReadPurpose) -> Result<Self, LogError> {
        let objects = Arc::new(Objects::of(bucket, log));
        let tail = Arc::new(Tail::find(objects.clone()).await?);
        Ok(Self {
            _polling: AbortOnDropHandle::new(tokio::spawn(tail.clone().poll())),
            objects,
            purpose,
            tail,
            appending: Mutex::default(),
            ahead: Mutex::default(),
        })
    }

    /// Checks that marker and newest object are still the same, and that no object follows a gap.
    async fn confirm(&self, max_age: Duration) -> Result<(), LogError> {
        let (first, newest) = {
            let end = self.tail.end.lock();
            if end.confirmed.elapsed() < max_age {
                return Ok(());
            }
            (end.first, end.newest.clone())
        };
        let begun = Instant::now();
        let position = newest.position;
        let is_same = async {
            // A damaged one is reported by its readers.
            Ok(newest.bytes.is_empty()
                || self.objects.record_at(position, first).await?.bytes == newest.bytes)
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
        self.tail.end.lock().confirmed = begun;
        Ok(())
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
                    self.tail.record(&other);
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
        if first > self.tail.position() {
            self.tail.advance().await?;
        }
        if first > self.tail.position() {
            // A gap is not the end. The reader of a single record acts on its absence.
            let max_age = if bound.records == 1 { Duration::ZERO } else { READ_CONFIRMATION };
            self.confirm(max_age).await?;
            return Ok(vec![]);
        }
        if bound.records == 1 {
            // Always from the server: the reader wants to know whether the log still holds the record.
            let newest = self.tail.end.lock().first;
            return Ok(vec![self.objects.record_at(first, newest).await?]);
        }
        let recent = self.tail.end.lock().recent.read(first, bound);
        if !recent.is_empty() {
            return Ok(recent);
        }
        let mut ahead = self.ahead.lock().await;
        ahead.drop_before(first);
        if ahead.read(first, ReadBound::ONE).is_empty() {
            *ahead = self.objects.read_ahead(first, self.purpose).await?;
        }
        match ahead.read(first, bound) {
            records if records.is_empty() => Err(self.objects.missing(first).await),
            records => Ok(records),
        }
    }

    async fn head(&self) -> Result<Position, LogError> {
        self.tail.advance().await?;
        self.confirm(READ_CONFIRMATION).await?;
        Ok(self.tail.position())
    }

    fn changes(&self) -> watch::Receiver<Position> {
        self.tail.changes()
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
    /// Stores one object, or nothing.
    async fn append(&self, expected: Version, records: &[Record]) -> Result<Position, AppendError> {
        let records = &records[..records.len().min(OBJECT_RECORDS_MAX)];
        let _appending = self.appending.lock().await;
        if expected.position > self.tail.position() {
            self.tail.advance().await.map_err(before_sending)?;
        }
        if self.tail.end.lock().newest.version() != expected {
            return Err(AppendError::Conflict);
        }
        self.confirm(APPEND_CONFIRMATION).await.map_err(before_sending)?;
        let object = Object::of(expected.position.next(), records).ok_or_else(|| {
            let detail = "a record with a line feed cannot be stored: records are lines";
            AppendError::NotStored(Fault::WriteFailed.error(detail))
        })?;
        self.create(&object).await?;
        self.tail.record(&object);
        Ok(object.last().position)
    }

    async fn check_writable(&self) -> Result<(), LogError> {
        self.objects.check_writable().await
    }

    async fn close(&self) {
        let segmenter = self.tail.segmenter.lock().take();
        if let Some(segmenter) = segmenter {
            segmenter.close().await;
        }
    }
}
