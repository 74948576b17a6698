//! A log in an S3 bucket. An append creates an object only if it is absent, so of two nodes that append at the same
//! position exactly one succeeds. Nothing is ever overwritten or deleted.
//!
//! Objects are contiguous: the object after one that ends at `p` can only be named `p + 1`. So creating that key is the
//! check of an append, also for a request that was delayed.
//!
//! Reading order: this file (the public API), `object_store/reading.rs` (records), `object_store/segments.rs` (copies for
//! fast reading), `object_store/marker.rs` (new logs), `object_store/bucket.rs` (objects and requests),
//! `object_store/client.rs` (HTTP), `object_store/address.rs` (the URL), `object_store/layout.rs` (keys).

mod address;
mod bucket;
mod client;
mod layout;
mod marker;
mod reading;
mod segments;

use std::{collections::VecDeque, fmt, mem, slice, sync::Arc, time::Duration};

use application::ports::{
    AppendError, CommitId, Durability, DurabilityLevel, EventLog, Fault, LogError, LogSource, Position,
    ReadBound, Record, StoredRecord, Version,
};
use async_trait::async_trait;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{self, Instant},
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

pub use address::Variables;

use self::{
    address::Address,
    bucket::{Bucket, NotCreated, Object},
    layout::Layout,
    reading::Run,
    segments::OpenSegment,
};
use super::{ReadPurpose, within_limit};

/// The maximum size of a new object, in records and in bytes.
const OBJECT_RECORDS_MAX: usize = 1_000;
const OBJECT_BYTES_MAX: usize = 4 * 1024 * 1024;
/// How long an append may take, and the additional time for each MiB.
const APPEND_TIMEOUT: Duration = Duration::from_millis(3_500);
const APPEND_TIMEOUT_PER_MIB: Duration = Duration::from_secs(1);
/// The delay before the same bytes are sent again.
const RETRY_DELAY: Duration = Duration::from_millis(100);
/// How long an append relies on the last check that the log is still the same, and how long a reader does.
const APPEND_CONFIRMATION: Duration = Duration::from_secs(1);
const READ_CONFIRMATION: Duration = Duration::from_secs(10);
/// The interval between polls for commits of other nodes. It doubles while there are none.
const POLL_MIN: Duration = Duration::from_millis(50);
const POLL_MAX: Duration = Duration::from_secs(1);
/// The maximum size of the newest objects that are kept for the next read, in bytes.
const RECENT_BYTES: usize = 4 * 1024 * 1024;
/// How long a node that has read the end of a segment waits before it creates a segment that the writer has not created.
const SEGMENT_DELAY: Duration = Duration::from_secs(30);

/// A log in a bucket, which many nodes may share.
pub struct ObjectLog {
    bucket: Arc<Bucket>,
    log: Uuid,
    layout: Arc<Layout>,
    purpose: Purpose,
    end: Mutex<End>,
    /// The last position that this node has seen, for waits.
    seen: watch::Sender<Position>,
    polling: Mutex<Polling>,
    /// Records that were read ahead.
    run: tokio::sync::Mutex<Run>,
    /// The tasks that create segments. They end with the log.
    building: Mutex<JoinSet<()>>,
    closing: CancellationToken,
}

/// What a log is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Append,
    /// Creates nothing.
    Read,
    /// Like `Read`, but reads no segments: checks the objects that hold the log.
    Verify,
    /// Like `Verify`, but objects may be missing.
    Salvage,
}

/// The newest object that this node has read or created.
#[derive(Debug, Clone)]
struct End {
    /// The first position of the object. 0 for the empty log.
    first: Position,
    /// The last record in it. `None` for the empty log.
    newest: Option<StoredRecord>,
    /// The newest objects, which a reader has not read yet.
    recent: VecDeque<Object>,
    /// When it was last known that the log is the same and ends here.
    confirmed: Instant,
    segment: OpenSegment,
}

impl End {
    fn position(&self) -> Position {
        self.newest.as_ref().map_or(Position::START, |newest| newest.position)
    }
}

#[derive(Debug)]
struct Polling {
    interval: Duration,
    next: Instant,
}

impl Polling {
    fn restart(&mut self) {
        *self = Self { interval: POLL_MIN, next: Instant::now() + POLL_MIN };
    }
}

impl ObjectLog {
    /// Opens the log at a `s3://BUCKET/PREFIX` URL, and creates it if the prefix is empty. The server of a new log must
    /// show that it creates an object only once.
    pub fn open<'a>(url: &'a str, variables: &'a Variables) -> BoxFuture<'a, Result<Self, LogError>> {
        Box::pin(async move {
            let bucket = Arc::new(Bucket::open(url, variables)?);
            let log = marker::find_or_create(&bucket).await?;
            Self::attach(bucket, log, Purpose::Append).await
        })
    }

    /// Opens an existing log.
    pub fn open_existing<'a>(
        url: &'a str,
        variables: &'a Variables,
    ) -> BoxFuture<'a, Result<Self, LogError>> {
        Self::find(url, variables, Purpose::Append)
    }

    /// Opens an existing log to read it. Creates nothing.
    pub fn read_only<'a>(
        url: &'a str,
        variables: &'a Variables,
        purpose: ReadPurpose,
    ) -> BoxFuture<'a, Result<Self, LogError>> {
        Self::find(
            url,
            variables,
            match purpose {
                ReadPurpose::Use => Purpose::Read,
                ReadPurpose::Verify => Purpose::Verify,
            },
        )
    }

    /// Opens a log that may have lost objects, to read the remaining ones.
    pub fn salvage<'a>(url: &'a str, variables: &'a Variables) -> BoxFuture<'a, Result<Self, LogError>> {
        Self::find(url, variables, Purpose::Salvage)
    }

    /// The name of the log that a URL selects. `None` if the URL selects none.
    pub fn name_in(url: &str) -> Option<String> {
        Address::parse(url).map(|address| format!("s3:{}/{}", address.bucket, address.prefix))
    }

    fn find<'a>(
        url: &'a str,
        variables: &'a Variables,
        purpose: Purpose,
    ) -> BoxFuture<'a, Result<Self, LogError>> {
        Box::pin(async move {
            let bucket = Arc::new(Bucket::open(url, variables)?);
            let log = marker::find(&bucket).await?.ok_or_else(|| marker::missing(&bucket))?;
            Self::attach(bucket, log, purpose).await
        })
    }

    async fn attach(bucket: Arc<Bucket>, log: Uuid, purpose: Purpose) -> Result<Self, LogError> {
        let layout = Arc::new(Layout::of(&bucket, log));
        let end = reading::end(&bucket, &layout, purpose).await?;
        let log = Self {
            log,
            layout,
            purpose,
            seen: watch::Sender::new(end.position()),
            end: Mutex::new(end),
            polling: Mutex::new(Polling { interval: POLL_MIN, next: Instant::now() }),
            run: tokio::sync::Mutex::default(),
            building: Mutex::default(),
            closing: CancellationToken::new(),
            bucket,
        };
        if purpose == Purpose::Append {
            log.build_missing_segments();
        }
        Ok(log)
    }

    fn position(&self) -> Position {
        self.end.lock().position()
    }

    /// Records an object that was read or created after the newest one. Another task may have recorded it already.
    fn record(&self, object: &Object, author: Author) {
        let mut end = self.end.lock();
        if object.first != end.position().next() {
            return;
        }
        let ended = end.segment.add(object.last().position, object.bytes.len() as u64);
        let id = match author {
            Author::ThisNode(id) => Some(id),
            Author::Unknown => None,
        };
        // A copy: a slice would keep the whole object in memory.
        let last = object.last();
        let newest = StoredRecord { id, bytes: last.bytes.to_vec().into(), ..*last };
        self.seen.send_replace(newest.position);
        (end.first, end.newest) = (object.first, Some(newest));
        end.recent.push_back(object.clone());
        while end.recent.iter().map(|object| object.bytes.len()).sum::<usize>() > RECENT_BYTES {
            end.recent.pop_front();
        }
        drop(end);
        self.polling.lock().restart();
        if let Some((first, last)) = ended.filter(|_| self.purpose == Purpose::Append) {
            let delay = match author {
                Author::ThisNode(_) => Duration::ZERO,
                Author::Unknown => SEGMENT_DELAY,
            };
            self.build(delay, first, last);
        }
    }

    /// Whether the newest commit is this one.
    fn ends_with(&self, expected: Version) -> bool {
        let mut end = self.end.lock();
        let Some(newest) = &mut end.newest else { return expected == Version::START };
        if newest.position == expected.position && newest.id.is_none() {
            newest.id = bucket::commit_id(&newest.bytes);
        }
        newest.position == expected.position && newest.id.is_some() && newest.id == expected.commit
    }

    /// Checks that marker and newest object are still the same, and that no object follows a gap.
    async fn confirm(&self, max_age: Duration) -> Result<(), LogError> {
        let end = self.end.lock().clone();
        if end.confirmed.elapsed() < max_age {
            return Ok(());
        }
        let begun = Instant::now();
        let next = self.layout.commit(end.position().next());
        let newest = async {
            match &end.newest {
                None => Ok(None),
                Some(_) => self.bucket.object(&self.layout.commit(end.first), end.first).await,
            }
        };
        let after = Layout::name(end.position());
        let later = self.bucket.list(&self.layout.commits, &after, 1);
        let (marker, newest, later) = tokio::try_join!(marker::find(&self.bucket), newest, later)?;
        self.check_marker(marker)?;
        match (&end.newest, newest) {
            (None, _) => {}
            (Some(known), Some(found)) if found.last().bytes == known.bytes => {}
            (Some(known), Some(_)) => {
                return Err(Fault::AnotherLog.error(format!(
                    "the log holds a different commit at position {} than the one that was stored",
                    known.position
                )));
            }
            (Some(known), None) => return Err(self.missing(known.position).await),
        }
        if !later.is_empty() && self.bucket.get(&next).await?.is_none() {
            return Err(self.missing(end.position().next()).await);
        }
        self.end.lock().confirmed = begun;
        Ok(())
    }

    fn check_marker(&self, found: Option<Uuid>) -> Result<(), LogError> {
        match found {
            Some(log) if log == self.log => Ok(()),
            Some(_) => Err(Fault::AnotherLog.error(format!(
                "the prefix {} holds another log than the one that was opened",
                self.bucket.address.prefix
            ))),
            None => Err(marker::missing(&self.bucket)),
        }
    }

    /// Explains why a commit that was stored cannot be found.
    async fn missing(&self, position: Position) -> LogError {
        let later = async {
            self.check_marker(marker::find(&self.bucket).await?)?;
            let later = self.bucket.list(&self.layout.commits, &Layout::name(position), 1_000).await?;
            Ok(Layout::firsts(&later).next().map(|(first, _)| first))
        };
        match later.await {
            Err(error) => error,
            Ok(Some(later)) => Fault::Damaged.error(format!(
                "the commit at position {position} is missing, but the log continues at position {later}"
            )),
            Ok(None) => Fault::AnotherLog
                .error(format!("the log ends before position {position}, but a commit was stored there")),
        }
    }

    /// Creates the object after `expected`, which holds these records.
    async fn store(&self, expected: Version, records: &[Record]) -> Result<Position, AppendError> {
        if expected.position > self.position() {
            self.advance().await.map_err(before_sending)?;
        }
        if !self.ends_with(expected) {
            return Err(AppendError::Conflict);
        }
        self.confirm(APPEND_CONFIRMATION).await.map_err(before_sending)?;
        let object = Object::of(expected.position.next(), records);
        if object.records.len() != records.len() {
            let detail = "a record with a line feed cannot be stored: records are lines";
            return Err(AppendError::NotStored(Fault::WriteFailed.error(detail)));
        }
        self.create(&object).await?;
        let newest = records.last().expect("an append has a record");
        self.record(&object, Author::ThisNode(newest.id));
        Ok(object.last().position)
    }

    /// Sends the same bytes until their outcome is known, or the time is over.
    async fn create(&self, object: &Object) -> Result<(), AppendError> {
        let key = self.layout.commit(object.first);
        let mebibytes = u32::try_from(object.bytes.len() >> 20).unwrap_or(u32::MAX);
        let deadline = Instant::now() + APPEND_TIMEOUT + APPEND_TIMEOUT_PER_MIB * mebibytes;
        let mut may_be_stored = false;
        loop {
            let failed =
                match time::timeout_at(deadline, self.bucket.create(&key, object.bytes.clone())).await {
                    Ok(Ok(())) => return Ok(()),
                    Ok(Err(NotCreated::Rejected(error))) if !may_be_stored => {
                        return Err(AppendError::NotStored(error));
                    }
                    Ok(Err(NotCreated::Rejected(error))) => return Err(AppendError::Unclear(error)),
                    Ok(Err(NotCreated::Unclear(error))) => {
                        may_be_stored = true;
                        error
                    }
                    // The object is not there after a conflict of two requests that both failed.
                    Ok(Err(NotCreated::Exists)) => NotCreated::Exists.into(),
                    Err(_elapsed) => return Err(AppendError::Unclear(self.bucket.late())),
                };
            match time::timeout_at(deadline, self.bucket.object(&key, object.first)).await {
                Ok(Ok(Some(found))) if found.bytes == object.bytes => return Ok(()),
                Ok(Ok(Some(other))) => {
                    self.record(&other, Author::Unknown);
                    return Err(AppendError::Conflict);
                }
                Ok(Err(error)) if error.fault == Fault::Damaged => return Err(AppendError::Closed(error)),
                Ok(Ok(None) | Err(_)) | Err(_) => {}
            }
            if Instant::now() + RETRY_DELAY >= deadline {
                return Err(if may_be_stored {
                    AppendError::Unclear(failed)
                } else {
                    AppendError::NotStored(failed)
                });
            }
            time::sleep(RETRY_DELAY).await;
        }
    }

    /// Creates a segment in the background, after a delay in which another node may create it.
    fn build(&self, delay: Duration, first: Position, last: Position) {
        let (bucket, layout, closing) = (self.bucket.clone(), self.layout.clone(), self.closing.clone());
        let mut building = self.building.lock();
        while building.try_join_next().is_some() {}
        building.spawn(async move {
            if !delay.is_zero() && closing.run_until_cancelled(time::sleep(delay)).await.is_none() {
                return;
            }
            if let Err(error) = segments::build(&bucket, &layout, first, last).await {
                tracing::warn!(target: "petstore::log", first = first.0, last = last.0, %error, "segment not created");
            }
        });
    }

    /// Creates the segments that other nodes have not created before they stopped.
    fn build_missing_segments(&self) {
        let (bucket, layout, closing) = (self.bucket.clone(), self.layout.clone(), self.closing.clone());
        self.building.lock().spawn(async move {
            let built = closing.run_until_cancelled(segments::build_missing(&bucket, &layout)).await;
            if let Some(Err(error)) = built {
                tracing::warn!(target: "petstore::log", %error, "missing segments not created");
            }
        });
    }
}

/// The author of an object, if it is known.
#[derive(Debug, Clone, Copy)]
enum Author {
    /// This node, with the id of the last commit.
    ThisNode(CommitId),
    Unknown,
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
        if bound.records == 1 {
            return Ok(self.read_one(after.next()).await?.into_iter().collect());
        }
        self.read_run(after.next(), bound).await
    }

    async fn head(&self) -> Result<Position, LogError> {
        self.advance().await?;
        self.confirm(READ_CONFIRMATION).await?;
        Ok(self.position())
    }

    async fn wait_for(&self, after: Position, timeout: Duration) -> Result<(), LogError> {
        let deadline = Instant::now() + timeout;
        let mut seen = self.seen.subscribe();
        loop {
            if self.position() > after {
                return Ok(());
            }
            let next = self.polling.lock().next;
            tokio::select! {
                _ = seen.wait_for(|seen| *seen > after) => return Ok(()),
                () = time::sleep_until(next.min(deadline)) => {}
            }
            if next > deadline {
                return Ok(());
            }
            {
                let mut polling = self.polling.lock();
                polling.next = Instant::now() + polling.interval;
                polling.interval = POLL_MAX.min(2 * polling.interval);
            }
            self.advance().await?;
        }
    }

    fn durability(&self) -> Durability {
        let Bucket { address: Address { bucket, prefix }, server, .. } = &*self.bucket;
        Durability {
            engine: "s3",
            level: DurabilityLevel::Synced,
            promise: format!(
                "{server} has acknowledged the object of the commit; petstore cannot check how the server stores it"
            ),
            settings: [
                ("endpoint", server.clone()),
                ("bucket", bucket.clone()),
                ("prefix", prefix.to_string()),
            ]
            .map(|(name, value)| (name.to_owned(), value))
            .into(),
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
        let mut bytes = 0;
        let fits = records.iter().take(OBJECT_RECORDS_MAX).take_while(|record| {
            bytes += record.bytes.len();
            bytes <= OBJECT_BYTES_MAX
        });
        match fits.count() {
            0 => Ok(expected.position),
            count => self.store(expected, &records[..count]).await,
        }
    }

    async fn close(&self) {
        self.closing.cancel();
        let building = mem::take(&mut *self.building.lock());
        building.join_all().await;
    }
}

impl fmt::Debug for ObjectLog {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Address { bucket, prefix } = &self.bucket.address;
        write!(formatter, "ObjectLog(s3://{bucket}/{prefix})")
    }
}
