//! An engine that panics closes the log, which is then opened again. It stays closed only if handling the panic
//! panics.

use std::{fs, io, panic};

use super::*;

pub(crate) async fn an_engine_that_panics_while_it_writes_closes_the_log_which_is_then_opened_again<
    E: Engine,
>() {
    let directory = TempDir::new().unwrap();
    let path = store::<E>(&directory);
    let log = EmbeddedLog::<PanicsOnDemand<E>>::open(&path).unwrap();
    let head = append_up_to(&log, 3).await;

    demand(&path, "append");
    let rejected = log.append(head, &[record(4)]).await;
    let Err(AppendError::Closed(error)) = rejected else { panic!("{rejected:?}") };
    assert_eq!(error.fault, Fault::WriteFailed);
    assert!(error.detail.contains("on demand"), "{error}");
    assert!(!error.detail.contains('\n'), "{error}");
    assert!(log.head().await.is_err(), "a closed log says so");
    assert_eq!(read_all(&log).await.unwrap().len(), 3, "reads continue");

    demand(&path, "nothing");
    assert_eq!(reopened(&log).await, Position(3));
    append_up_to(&log, 5).await;
    log.close().await;
    assert_eq!(read_all(&EmbeddedLog::<E>::open(&path).unwrap()).await.unwrap().len(), 5);
}

pub(crate) async fn an_engine_that_panics_while_it_reads_makes_that_read_fail_and_no_other<E: Engine>() {
    let directory = TempDir::new().unwrap();
    let path = store::<E>(&directory);
    let log = EmbeddedLog::<PanicsOnDemand<E>>::open(&path).unwrap();
    append_up_to(&log, 3).await;
    for (what, message) in [("read", "on demand"), ("read twice", "for the last time")] {
        demand(&path, what);
        let error = log.read(Position(1), ReadBound::BATCH).await.unwrap_err();
        assert!(error.fault == Fault::Damaged && error.detail.contains(message), "{what}: {error}");
        assert_eq!(log.head().await, Ok(Position(3)), "the log thread is not concerned");
    }
    demand(&path, "nothing");
    assert_eq!(log.read(Position(1), ReadBound::BATCH).await.unwrap().len(), 2);
    append_up_to(&log, 4).await;
}

pub(crate) async fn a_thread_that_cannot_continue_stops_the_log_permanently<E: Engine>() {
    let directory = TempDir::new().unwrap();
    let path = store::<E>(&directory);
    let log = EmbeddedLog::<PanicsOnDemand<E>>::open(&path).unwrap();
    let head = append_up_to(&log, 3).await;
    demand(&path, "append twice");
    assert!(matches!(log.append(head, &[record(4)]).await, Err(AppendError::Closed(_))));
    let stopped = async {
        while !matches!(log.head().await, Err(error) if error.fault == Fault::Stopped) {
            task::yield_now().await;
        }
    };
    time::timeout(Duration::from_mins(1), stopped).await.expect("the head tells that the thread has ended");
    let rejected = log.append(head, &[record(4)]).await;
    assert!(
        matches!(&rejected, Err(AppendError::Closed(error)) if error.fault == Fault::Stopped),
        "{rejected:?}"
    );
}

/// Tells the engine of the store what to do from now on.
fn demand(store: &Path, what: &str) {
    fs::write(store.with_extension("demand"), what).unwrap();
}

/// A real engine that panics when a file next to its store exists.
struct PanicsOnDemand<E> {
    engine: E,
    demand: PathBuf,
}

/// A panic that comes back when it is caught.
struct Again;

impl Drop for Again {
    fn drop(&mut self) {
        panic!("for the last time");
    }
}

impl<E> PanicsOnDemand<E> {
    fn obey(&self, call: &str) {
        let demand = fs::read_to_string(&self.demand).unwrap_or_default();
        assert_ne!(demand, call, "on demand");
        if demand.strip_prefix(call) == Some(" twice") {
            panic::panic_any(Again);
        }
    }
}

impl<E: Engine> Engine for PanicsOnDemand<E> {
    const NAME: &'static str = E::NAME;

    fn layout(path: &Path) -> Layout {
        E::layout(path)
    }

    fn exists(layout: &Layout) -> Result<bool, LogError> {
        E::exists(layout)
    }

    fn files(layout: &Layout) -> io::Result<Vec<PathBuf>> {
        E::files(layout)
    }

    fn record_files(layout: &Layout) -> Vec<PathBuf> {
        E::record_files(layout)
    }

    fn open(layout: &Layout, acknowledged: Version) -> Result<Self, LogError> {
        let demand = layout.path.with_extension("demand");
        Ok(Self { engine: E::open(layout, acknowledged)?, demand })
    }

    fn prepare(&self, layout: &Layout) -> Result<(), LogError> {
        self.engine.prepare(layout)
    }

    fn append(&self, first: Position, records: &[Record]) -> Result<(), LogError> {
        self.obey("append");
        self.engine.append(first, records)
    }

    fn durability_settings(&self) -> Vec<(&'static str, String)> {
        self.engine.durability_settings()
    }

    fn checkpoint(&self) -> Result<(), LogError> {
        self.engine.checkpoint()
    }
}

impl<E: Engine> Records for PanicsOnDemand<E> {
    fn last(&self) -> Result<Version, LogError> {
        self.engine.last()
    }

    fn visit(&self, after: Position, last: Position, visit: &mut Visit<'_>) -> Result<(), LogError> {
        self.obey("read");
        self.engine.visit(after, last, visit)
    }
}
