//! A memory log that fails in one named way at a time.

use std::{
    collections::VecDeque,
    slice,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use adapters::event_log::memory::MemoryLog;
use application::{
    log::{codec, contract},
    ports::{
        AppendError, Durability, EventLog, Fault, LogError, LogSource, Position, ReadBound, Record,
        StoredRecord, Version,
    },
};
use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::{sync::watch, time};

/// How the log fails. What is said about an append holds for the next one, which mends the log; everything else lasts
/// until another fault is chosen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LogFault {
    /// Not at all.
    #[default]
    None,
    /// The append is stored, and its response is lost.
    LosesTheResponse,
    /// The append is not stored, and the outcome is unclear.
    LosesTheAppend,
    /// The append is stored, and can be seen only after it was sent again.
    LandsLate,
    /// The append is stored, and can be seen only after it was sent again, which fails without a connection.
    LandsLateWhileDisconnected,
    /// Another node stores a commit first, and the response to ours is lost.
    OvertakenUnseen,
    /// Another node stores a commit first.
    Overtaken,
    /// Another node stores a commit in an unknown format first, and the response to ours is lost.
    OvertakenByANewerProgram,
    /// The record is rejected with this fault. The next read fails with it.
    Fails(Fault),
    /// The next read shows nothing.
    ShowsNothing,
    /// The log closes without having stored the append, and can be used again a little later.
    ClosesBeforeStoring,
    /// The log closes having stored the append, and can be used again a little later.
    ClosesAfterStoring,
    /// Nothing gets through, and the outcome of an append is unclear.
    Away,
    /// Nothing gets through, and that is certain.
    Disconnected,
    /// Every append is lost; everything else works.
    LosesEveryAppend,
    /// Every append is rejected, and everything else works.
    RejectsEveryAppend,
    /// Every append is rejected, and so is every probe.
    RejectsEveryAppendAndProbe,
    /// Every append is reported as a conflict, and there is no other commit.
    ReportsConflicts,
    /// Every read gets one record.
    ReadsOneRecord,
    /// The next read of a batch gets one record, and another log of the same length takes the place of this one.
    ReplacedBetweenReads,
    /// The head cannot be read, with this fault; everything else works.
    HeadFails(Fault),
    /// Every read takes six seconds.
    SlowReads,
    /// Every append takes a minute.
    Slow,
    /// Every append panics.
    AppendsPanic,
    /// Waiting for commits panics.
    WaitsPanic,
}

/// A memory log with a fault.
#[derive(Default)]
pub struct FaultyLog {
    log: Mutex<Arc<MemoryLog>>,
    fault: Mutex<LogFault>,
    /// The faults of the next reads and of the next appended records, which go first, each once.
    reads: Mutex<VecDeque<LogFault>>,
    appends: Mutex<VecDeque<LogFault>>,
    /// How often the head still cannot be read.
    closed_for: AtomicUsize,
    /// The outcome of the next append, until which the last commit cannot be seen.
    hidden_until: Mutex<Option<AppendError>>,
}

impl FaultyLog {
    /// An empty log that fails like this.
    pub fn with(fault: LogFault) -> Arc<Self> {
        let log = Arc::<Self>::default();
        log.fails_with(fault);
        log
    }

    /// A log with so many commits, whose next reads and next appended records meet these faults.
    pub async fn with_next(commits: u64, reads: &[LogFault], appends: &[LogFault]) -> Arc<Self> {
        let log = Arc::<Self>::default();
        contract::fill(&*log, Version::START, commits).await;
        log.appends.lock().extend(appends);
        log.next_reads(reads);
        log
    }

    /// The next reads meet these faults.
    pub fn next_reads(&self, faults: &[LogFault]) {
        self.reads.lock().extend(faults);
    }

    /// Fails like this from now on.
    pub fn fails_with(&self, fault: LogFault) {
        *self.fault.lock() = fault;
    }

    /// Replaces the log by another one with these commits and so many more, without a notification.
    pub async fn is_replaced(&self, records: &[Record], more: u64) {
        let other = MemoryLog::default();
        let head = contract::append_all(&other, records.to_vec()).await;
        contract::fill(&other, head, more).await;
        *self.log.lock() = Arc::new(other);
    }

    /// What the log really holds.
    pub async fn records(&self) -> Vec<Record> {
        let stored = self.log().read(Position::START, ReadBound::BATCH).await.expect("memory has no faults");
        let record =
            |StoredRecord { bytes, .. }| Record { id: codec::decode(&bytes).expect("ours").id, bytes };
        stored.into_iter().map(record).collect()
    }

    /// How many commits the log really holds.
    pub async fn commits(&self) -> u64 {
        self.log().head().await.expect("memory has no faults").0
    }

    fn log(&self) -> Arc<MemoryLog> {
        self.log.lock().clone()
    }

    fn fault(&self) -> LogFault {
        *self.fault.lock()
    }

    /// The fault of this append. One that concerns a single append is over with it.
    fn fault_of_append(&self) -> LogFault {
        if let Some(next) = self.appends.lock().pop_front() {
            return next;
        }
        let fault = self.fault();
        let is_lasting = matches!(
            fault,
            LogFault::Away
                | LogFault::Disconnected
                | LogFault::LosesEveryAppend
                | LogFault::RejectsEveryAppend
                | LogFault::RejectsEveryAppendAndProbe
                | LogFault::ReadsOneRecord
                | LogFault::ReplacedBetweenReads
                | LogFault::ReportsConflicts
                | LogFault::HeadFails(_)
                | LogFault::SlowReads
                | LogFault::Slow
                | LogFault::AppendsPanic
                | LogFault::WaitsPanic
        );
        if !is_lasting {
            self.fails_with(LogFault::None);
        }
        fault
    }

    fn reach(&self) -> Result<Arc<MemoryLog>, LogError> {
        match self.fault() {
            LogFault::Away | LogFault::Disconnected => Err(lost()),
            _ => Ok(self.log()),
        }
    }

    fn close(&self) -> AppendError {
        self.closed_for.store(2, Ordering::SeqCst);
        AppendError::Closed(Fault::WriteFailed.error("the disk said no"))
    }
}

#[async_trait]
impl LogSource for FaultyLog {
    async fn read(&self, after: Position, bound: ReadBound) -> Result<Vec<StoredRecord>, LogError> {
        if self.hidden_until.lock().is_some() {
            return Ok(vec![]);
        }
        match self.reads.lock().pop_front() {
            Some(LogFault::Fails(fault)) => return Err(fault.error("cannot read")),
            Some(LogFault::ShowsNothing) => return Ok(vec![]),
            _ => {}
        }
        if self.fault() == LogFault::SlowReads {
            time::sleep(Duration::from_secs(6)).await;
        }
        let mut records = self.reach()?.read(after, bound).await?;
        let is_replaced = self.fault() == LogFault::ReplacedBetweenReads && bound != ReadBound::ONE;
        if is_replaced {
            self.fails_with(LogFault::None);
            self.is_replaced(&[], self.commits().await).await;
        }
        if is_replaced || self.fault() == LogFault::ReadsOneRecord {
            records.truncate(1);
        }
        Ok(records)
    }

    async fn head(&self) -> Result<Position, LogError> {
        let closed =
            self.closed_for.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        if let LogFault::HeadFails(fault) = self.fault() {
            return Err(fault.error("the head cannot be read"));
        }
        match closed {
            Ok(_) => Err(Fault::WriteFailed.error("not opened again yet")),
            Err(_) => self.reach()?.head().await,
        }
    }

    fn changes(&self) -> watch::Receiver<Position> {
        assert_ne!(self.fault(), LogFault::WaitsPanic, "the log has a bug");
        self.log().changes()
    }

    fn durability(&self) -> Durability {
        self.log().durability()
    }
}

#[async_trait]
impl EventLog for FaultyLog {
    async fn append(&self, expected: Version, records: &[Record]) -> Result<Position, AppendError> {
        let mut head = expected;
        for record in records {
            match self.append_one(head, record).await {
                Ok(_) => head = head.then(record.id),
                Err(_) if head != expected => break,
                Err(error) => return Err(error),
            }
        }
        Ok(head.position)
    }

    async fn check_writable(&self) -> Result<(), LogError> {
        match self.fault() {
            LogFault::RejectsEveryAppendAndProbe => Err(rejected()),
            _ => self.head().await.map(drop),
        }
    }
}

impl FaultyLog {
    async fn append_one(&self, expected: Version, record: &Record) -> Result<Position, AppendError> {
        let (log, records) = (self.log(), slice::from_ref(record));
        let of_another_node = contract::record_after(
            contract::head_hash(&*log, log.head().await.expect("memory has no faults")).await,
            expected.position.0 + 1,
        );
        let hidden_until = self.hidden_until.lock().take();
        if let Some(error) = hidden_until {
            return Err(error);
        }
        let fault = self.fault_of_append();
        match fault {
            LogFault::None
            | LogFault::ReadsOneRecord
            | LogFault::ReplacedBetweenReads
            | LogFault::ShowsNothing
            | LogFault::WaitsPanic
            | LogFault::SlowReads
            | LogFault::HeadFails(_) => log.append(expected, records).await,
            LogFault::LosesTheResponse => {
                log.append(expected, records).await?;
                Err(AppendError::Unclear(lost()))
            }
            LogFault::LosesTheAppend | LogFault::LosesEveryAppend | LogFault::Away => {
                Err(AppendError::Unclear(lost()))
            }
            LogFault::LandsLate | LogFault::LandsLateWhileDisconnected => {
                log.append(expected, records).await?;
                self.closed_for.store(1, Ordering::SeqCst);
                let connected = fault == LogFault::LandsLate;
                let next = if connected { AppendError::Conflict } else { AppendError::NotStored(lost()) };
                *self.hidden_until.lock() = Some(next);
                Err(AppendError::Unclear(lost()))
            }
            LogFault::OvertakenUnseen => {
                log.append(expected, &[of_another_node]).await?;
                Err(AppendError::Unclear(lost()))
            }
            LogFault::Overtaken => {
                log.append(expected, &[of_another_node]).await?;
                log.append(expected, records).await
            }
            LogFault::OvertakenByANewerProgram => {
                log.append(expected, &[in_format(2, record)]).await?;
                Err(AppendError::Unclear(lost()))
            }
            LogFault::Fails(fault) => Err(AppendError::NotStored(fault.error("rejected"))),
            LogFault::RejectsEveryAppend | LogFault::RejectsEveryAppendAndProbe => {
                Err(AppendError::NotStored(rejected()))
            }
            LogFault::ReportsConflicts => Err(AppendError::Conflict),
            LogFault::ClosesBeforeStoring => Err(self.close()),
            LogFault::ClosesAfterStoring => {
                log.append(expected, records).await?;
                Err(self.close())
            }
            LogFault::Disconnected => Err(AppendError::NotStored(lost())),
            LogFault::Slow => {
                time::sleep(Duration::from_mins(1)).await;
                log.append(expected, records).await
            }
            LogFault::AppendsPanic => panic!("the log has a bug"),
        }
    }
}

fn rejected() -> LogError {
    Fault::WriteFailed.error("permission denied")
}

fn lost() -> LogError {
    Fault::Unreachable.error("the connection broke")
}

/// The same record in another format.
pub fn in_format(format: u64, record: &Record) -> Record {
    let text = str::from_utf8(&record.bytes).expect("records are text");
    let text = text.replacen("{\"v\":1,", &format!("{{\"v\":{format},"), 1);
    let body = &text[..text.rfind(",\"crc32c\"").expect("a record ends with its checksum")];
    let bytes = format!("{body},\"crc32c\":\"{:08x}\"}}", crc32c::crc32c(body.as_bytes()));
    Record { id: record.id, bytes: bytes.into() }
}
