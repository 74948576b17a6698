//! The newest object of a log, and the polls that find newer ones of other nodes.

use std::{sync::Arc, time::Duration};

use application::{
    log::codec,
    ports::{Fault, LogError, Position, StoredRecord},
};
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, watch},
    time::{self, Instant},
};

use super::{
    objects::{Object, Objects, RecordCache},
    segments::Segmenter,
};

/// The interval between polls for commits of other nodes: half of the time since the last one, within these limits.
const POLL_MIN: Duration = Duration::from_millis(10);
const POLL_MAX: Duration = Duration::from_secs(1);
/// The number of objects that are read one by one before a listing is used to find the end.
const SINGLE_READS: usize = 32;
/// The maximum size of the newest records that are kept for the next read, in bytes.
const RECENT_BYTES: usize = 4 * 1024 * 1024;

/// The newest object that this node has read or created.
#[derive(Debug)]
pub(super) struct End {
    /// The first position of the object. 0 for the empty log.
    pub(super) first: Position,
    /// The last record in it. Without bytes, the log is empty or the object is damaged.
    pub(super) newest: StoredRecord,
    /// The newest records, for readers that wait for them.
    pub(super) recent: RecordCache,
    /// When the newest object was found.
    found: Instant,
    /// When it was last known that the log is the same and ends here.
    pub(super) confirmed: Instant,
    /// When the next poll is due.
    next_poll: Instant,
}

impl End {
    /// Finds the newest object in the listing of a log.
    async fn find(objects: &Objects) -> Result<Self, LogError> {
        let confirmed = Instant::now();
        let segmented = objects.list_segments(Position::START).await?.pop();
        let segmented = segmented.map_or(Position::START, |segment| segment.last);
        let newest = objects.list_from(segmented, usize::MAX).await?.pop();
        if newest.is_none() && segmented > Position::START {
            return Err(objects.missing(segmented).await);
        }
        let first = newest.map_or(Position::START, |(first, _)| first);
        let mut newest = StoredRecord { position: first, id: None, bytes: Bytes::new() };
        if first > Position::START {
            match objects.get(first).await {
                Ok(Some(object)) => newest = last_of(&object),
                Ok(None) => return Err(objects.missing(first).await),
                // Reported by its readers. The other objects can be salvaged.
                Err(error) if error.fault == Fault::Damaged => {}
                Err(error) => return Err(error),
            }
        }
        if newest.position < segmented && !newest.bytes.is_empty() {
            return Err(objects.missing(newest.position.next()).await);
        }
        let now = Instant::now();
        Ok(Self { first, newest, recent: RecordCache::default(), found: now, confirmed, next_poll: now })
    }
}

/// The last record of an object, with its id. A copy: a slice would keep the whole object in memory.
fn last_of(object: &Object) -> StoredRecord {
    let StoredRecord { position, id, bytes } = object.last();
    let id = id.or_else(|| codec::envelope(bytes).map(|(_, id, _)| id));
    StoredRecord { position: *position, id, bytes: bytes.to_vec().into() }
}

/// The end of a log, as this node knows it.
pub(super) struct Tail {
    objects: Arc<Objects>,
    pub(super) end: Mutex<End>,
    /// The last position of the end.
    position: watch::Sender<Position>,
    /// Notified when a reader begins to wait, and when an object is found.
    polls: Notify,
    /// `None` in a log that is only read, or closed.
    pub(super) segmenter: Mutex<Option<Segmenter>>,
}

impl Tail {
    pub(super) async fn find(objects: Arc<Objects>) -> Result<Self, LogError> {
        let end = End::find(&objects).await?;
        let position = watch::Sender::new(end.newest.position);
        Ok(Self { objects, end: end.into(), position, polls: Notify::new(), segmenter: Mutex::default() })
    }

    pub(super) fn position(&self) -> Position {
        *self.position.borrow()
    }

    /// The last position, which polls move for as long as the receiver exists.
    pub(super) fn changes(&self) -> watch::Receiver<Position> {
        self.polls.notify_one();
        self.position.subscribe()
    }

    /// Polls while a reader waits. Several readers share the polls.
    pub(super) async fn poll(self: Arc<Self>) {
        loop {
            let next = self.end.lock().next_poll;
            tokio::select! {
                () = self.polls.notified() => continue,
                () = time::sleep_until(next), if self.position.receiver_count() > 0 => {}
            }
            if self.position.receiver_count() > 0 {
                {
                    let mut end = self.end.lock();
                    end.next_poll = Instant::now() + (end.found.elapsed() / 2).clamp(POLL_MIN, POLL_MAX);
                }
                // The readers get the error: they read after their timeout.
                drop(self.read_next().await);
            }
        }
    }

    /// Records an object that was read or created after the newest one. Another task may have recorded it already.
    pub(super) fn record(&self, object: &Object) {
        let mut end = self.end.lock();
        if object.first != end.newest.position.next() {
            return;
        }
        end.first = object.first;
        end.newest = last_of(object);
        end.recent.push(object);
        end.recent.shrink_to(RECENT_BYTES);
        end.found = Instant::now();
        end.next_poll = end.found + POLL_MIN;
        if let Some(segmenter) = &mut *self.segmenter.lock() {
            segmenter.add(object);
        }
        self.position.send_replace(end.newest.position);
        self.polls.notify_one();
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
    pub(super) async fn advance(&self) -> Result<(), LogError> {
        for _ in 0..SINGLE_READS {
            if !self.read_next().await? {
                return Ok(());
            }
        }
        let found = End::find(&self.objects).await?;
        let mut end = self.end.lock();
        if found.newest.position > end.newest.position {
            self.position.send_replace(found.newest.position);
            *end = found;
        }
        Ok(())
    }
}
