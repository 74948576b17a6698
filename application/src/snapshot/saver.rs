//! Writes snapshots in the background, and a last one when the store is closed.

use std::{
    io::{self, Write},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    sync::oneshot,
    task,
    time::{self, Instant},
};

use super::{Frozen, SnapshotStatus, Snapshots};
use crate::{
    codec,
    commit::Version,
    digest::Digest,
    ports::{Clock, Position, ReadBound},
    replica::Replica,
};

/// At a clean end a snapshot is written only if it spares the next start so many commits. Fewer are replayed within
/// milliseconds, and a short log without a snapshot is checked as a whole by every start.
const WORTHWHILE: u64 = 100;
/// A snapshot takes at most a tenth of the time: the next one waits at least nine times as long as the last one took.
const REST: u32 = 9;
/// How long the last snapshot may delay the end.
const CLOSING_PATIENCE: Duration = Duration::from_secs(5);

/// The only task that writes snapshots.
pub(crate) struct Saver {
    snapshots: Snapshots,
    replica: Replica,
    clock: Arc<dyn Clock>,
    /// The last commit in the snapshot that there is.
    saved: Position,
    /// The last commit of the last try, whatever came of it: the next try waits for more commits.
    tried: Position,
}

impl Saver {
    pub(crate) fn new(snapshots: Snapshots, replica: Replica, clock: Arc<dyn Clock>) -> Self {
        let saved = snapshots.status().map_or(Position::START, |status| status.position);
        Self { snapshots, replica, clock, saved, tried: saved }
    }

    /// Writes snapshots until told to end, and then a last one.
    pub(crate) async fn run(mut self, mut end: oneshot::Receiver<()>) {
        let mut not_before = Instant::now();
        loop {
            tokio::select! {
                () = self.due(not_before) => {}
                _ = &mut end => break,
            }
            let (begun, stop) = (Instant::now(), Arc::<AtomicBool>::default());
            let mut saving = pin!(self.save(stop.clone()));
            tokio::select! {
                () = &mut saving => not_before = Instant::now() + begun.elapsed() * REST,
                _ = &mut end => {
                    // A newer one is written instead.
                    stop.store(true, Relaxed);
                    saving.await;
                    break;
                }
            }
        }
        self.save_last().await;
    }

    /// Returns when enough commits were applied since the last try, or when they are those of a shorter log, and not before
    /// the given time.
    async fn due(&self, not_before: Instant) {
        let mut positions = self.replica.projection.positions();
        let Position(tried) = self.tried;
        let due = |position: &Position| {
            position.0 < tried || position.0 >= tried.saturating_add(self.snapshots.every)
        };
        if positions.wait_for(due).await.is_err() {
            // Nothing is applied any more.
            std::future::pending::<()>().await;
        }
        time::sleep_until(not_before).await;
    }

    /// Writes a snapshot when no more commits will be applied, unless it would spare the next start next to nothing.
    async fn save_last(&mut self) {
        let news = self.replica.projection.version().position.0.saturating_sub(self.saved.0);
        if news < self.snapshots.every.min(WORTHWHILE) {
            return;
        }
        let stop = Arc::<AtomicBool>::default();
        let mut saving = pin!(self.save(stop.clone()));
        if time::timeout(CLOSING_PATIENCE, &mut saving).await.is_err() {
            stop.store(true, Relaxed);
            saving.await;
        }
    }

    /// Writes a snapshot, unless the log was found unfit.
    async fn save(&mut self, stop: Arc<AtomicBool>) {
        let _turn = self.snapshots.turn.clone().lock_owned().await;
        if self.replica.unfit().is_some() {
            return;
        }
        let begun = Instant::now();
        let frozen = Frozen::take(&self.replica.projection);
        let (version, pets) = (frozen.version(), frozen.pet_count());
        self.tried = version.position;
        if version == Version::START {
            return;
        }
        match self.write(frozen, stop).await {
            Ok(status) => {
                *self.snapshots.status.lock() = Some(status);
                self.saved = version.position;
                *self.snapshots.reported.lock() = None;
                tracing::debug!(
                    "wrote a snapshot of {pets} pets at position {} in {:?}",
                    version.position,
                    begun.elapsed()
                );
            }
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                tracing::info!("the snapshot was not finished: {error}");
            }
            Err(error) => {
                let place = self.snapshots.store.place();
                if self.snapshots.note_reason(&error) {
                    tracing::warn!(
                        "the snapshot {place} could not be written, so the next start takes longer: {error}; {}",
                        advice(&error)
                    );
                } else {
                    tracing::debug!("the snapshot {place} could not be written: {error}");
                }
            }
        }
    }

    async fn write(&self, mut frozen: Frozen, stop: Arc<AtomicBool>) -> io::Result<SnapshotStatus> {
        let (version, taken) = (frozen.version(), self.clock.now());
        let before = Position(version.position.0.saturating_sub(1));
        let found = self.replica.log.read(before, ReadBound::ONE).await.map_err(io::Error::other)?;
        let record = found.first().filter(|record| {
            codec::decode_stored(record).is_ok_and(|commit| Some(commit.id) == version.commit)
        });
        let record = record.ok_or_else(|| io::Error::other("the log no longer holds its last commit"))?;
        let (digest, store) = (Digest::of(&record.bytes), self.snapshots.store.clone());
        let written = task::spawn_blocking(move || {
            store.replace(&mut |to| frozen.write(&mut Stoppable { to, stop: &stop }, digest, taken))
        });
        written.await.map_err(io::Error::other)??;
        Ok(SnapshotStatus { position: version.position, taken })
    }
}

/// What an operator should do about a snapshot that could not be written.
fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull => {
            "free some space on that disk, or turn snapshots off with --snapshot-every 0"
        }
        _ => "remove the cause, or turn snapshots off with --snapshot-every 0",
    }
}

/// Fails as soon as it is told to stop.
struct Stoppable<'a> {
    to: &'a mut dyn Write,
    stop: &'a AtomicBool,
}

impl Write for Stoppable<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.stop.load(Relaxed) {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "there is no time left to write it"));
        }
        self.to.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}
