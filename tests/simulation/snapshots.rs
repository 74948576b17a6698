//! What a node finds in the place of its snapshot when it starts, and how it reads that without making a run
//! depend on threads.

use std::{
    future,
    io::{self, Cursor},
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Poll,
    thread,
};

use adapters::{event_log::memory::MemoryLog, read_model::MemoryReadModel, system::SystemClock};
use application::{
    Digest, LogAccess, Options, PetStore, Snapshots, contract,
    ports::{EventLog as _, Record, SnapshotStore, Version, WriteSnapshot},
};
use tokio::runtime;

use super::{engine::Engine, link::Link, plan::Found};

/// How many commits the other log has.
const FOREIGN: u64 = 3;

/// The place of a snapshot.
#[derive(Debug, Default)]
pub(crate) struct Place(Mutex<Option<Vec<u8>>>);

impl Place {
    /// What a node finds that starts now.
    pub(crate) fn holding(found: Found, engine: &Engine) -> Arc<Self> {
        let [mut records, lost] = engine.records();
        let snapshot = match found {
            Found::Nothing => None,
            Found::Newest => taken_of(&records),
            Found::Older { per_mille } => {
                records.truncate(part(records.len(), per_mille));
                taken_of(&records)
            }
            Found::Lost => taken_of(&lost),
            Found::Foreign => taken_of(&foreign()),
            Found::Damaged { per_mille } => taken_of(&records).map(|mut bytes| {
                let place = part(bytes.len(), per_mille);
                bytes[place] ^= 1;
                bytes
            }),
            Found::CutShort { per_mille } => taken_of(&records).map(|mut bytes| {
                bytes.truncate(part(bytes.len(), per_mille));
                bytes
            }),
        };
        Arc::new(Self(Mutex::new(snapshot)))
    }

    fn bytes(&self) -> MutexGuard<'_, Option<Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The records of another log.
fn foreign() -> Vec<Record> {
    let mut previous = Digest::of(b"");
    (1..=FOREIGN)
        .map(|position| {
            let record = contract::record_after(previous, position);
            previous = Digest::of(&record.bytes);
            record
        })
        .collect()
}

impl SnapshotStore for Place {
    fn open(&self) -> io::Result<Option<Box<dyn io::Read + Send>>> {
        Ok(self.bytes().clone().map(|bytes| Box::new(Cursor::new(bytes)) as Box<dyn io::Read + Send>))
    }

    fn replace(&self, write: &mut WriteSnapshot<'_>) -> io::Result<()> {
        let mut bytes = vec![];
        write(&mut bytes)?;
        *self.bytes() = Some(bytes);
        Ok(())
    }

    fn remove(&self) -> io::Result<()> {
        *self.bytes() = None;
        Ok(())
    }

    fn place(&self) -> String {
        "in the memory of the run".into()
    }
}

/// Opens a store while nothing else happens, save in the engine: a snapshot is read on a thread of its own, and the
/// order of events must not depend on how fast that is.
pub(crate) async fn undisturbed<T>(link: &Link, opening: impl Future<Output = T>) -> T {
    let mut opening = pin!(opening);
    future::poll_fn(|context| {
        loop {
            match opening.as_mut().poll(context) {
                Poll::Pending if !link.is_called() => thread::yield_now(),
                outcome => return outcome,
            }
        }
    })
    .await
}

/// The snapshot that a node writes when it has applied these records. The run stands still meanwhile.
fn taken_of(records: &[Record]) -> Option<Vec<u8>> {
    let taking = || {
        let runtime = runtime::Builder::new_current_thread().enable_time().build();
        runtime.expect("a runtime without I/O always starts").block_on(take(records))
    };
    thread::scope(|scope| scope.spawn(taking).join()).expect("a snapshot is taken")
}

async fn take(records: &[Record]) -> Option<Vec<u8>> {
    let log = Arc::<MemoryLog>::default();
    let mut version = Version::START;
    for record in records {
        let position = log.append(version, record).await.expect("memory takes everything");
        version = Version { position, commit: Some(record.id) };
    }
    let place = Arc::<Place>::default();
    let snapshots = Snapshots::new(place.clone(), 1);
    let (read_model, options) = (Arc::<MemoryReadModel>::default(), Options::new(LogAccess::Exclusive));
    let store = PetStore::open_with(log, read_model, Arc::new(SystemClock), options, Some(snapshots)).await;
    store.expect("memory can be read").close().await;
    place.bytes().take()
}

/// A place before the end of something that has so many.
fn part(len: usize, per_mille: u64) -> usize {
    len * usize::try_from(per_mille).expect("at most a thousand") / 1_000
}
