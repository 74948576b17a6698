//! The worked example of `docs/storage-adapters.md`: an event log in one plain file, a record per line.
//!
//! It is a real log that meets the contract, and as short as possible. It lacks what a service needs: it
//! reads the whole file for every read, and it does not reopen by itself after a failed write.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    path::Path,
    sync::Arc,
    time::Duration,
};

use application::{
    contract,
    ports::{
        AppendError, CommitId, Durability, DurabilityLevel, EventLog, Fault, LogError, Position, ReadBound,
        Record, StoredRecord, Version,
    },
};
use async_trait::async_trait;
use tokio::{
    sync::{Mutex, watch},
    time,
};

/// A log in one file.
struct FileLog {
    /// Locked for as long as an append takes: there is one end to write to.
    file: Mutex<Guarded>,
    head: watch::Sender<Version>,
}

struct Guarded {
    file: File,
    /// Why nothing may be written any more, if so. A failed sync is never tried again: what the cache shows
    /// afterwards proves nothing about the disk.
    failed: Option<LogError>,
}

impl FileLog {
    /// Opens the file, or makes it. A last line without its end was never acknowledged, and goes.
    fn open(path: &Path) -> Result<Self, LogError> {
        let opened = || -> io::Result<(File, Version)> {
            let mut file =
                OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
            file.try_lock().map_err(|_| io::Error::other("another process has it open"))?;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
            file.set_len(whole as u64)?;
            file.sync_all()?;
            File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()?;
            let mut lines = bytes[..whole].split_inclusive(|byte| *byte == b'\n');
            let position = Position(lines.clone().count() as u64);
            Ok((file, Version { position, commit: lines.next_back().map(commit_of).transpose()? }))
        };
        let (file, head) = opened().map_err(|error| {
            LogError::new(Fault::CannotOpen, format!("the log {} cannot be opened: {error}", path.display()))
        })?;
        let file = Mutex::new(Guarded { file, failed: None });
        Ok(Self { file, head: watch::Sender::new(head) })
    }
}

#[async_trait]
impl EventLog for FileLog {
    async fn append(&self, expected: Version, record: &Record) -> Result<Position, AppendError> {
        let mut guarded = self.file.lock().await;
        if let Some(error) = &guarded.failed {
            return Err(AppendError::Closed(error.clone()));
        }
        if expected != *self.head.borrow() {
            return Err(AppendError::Conflict);
        }
        let line = [record.id.0.to_string().as_bytes(), b" ", &escape(&record.bytes), b"\n"].concat();
        let mut store = || -> io::Result<()> {
            guarded.file.seek(SeekFrom::End(0))?;
            guarded.file.write_all(&line)?;
            guarded.file.sync_data()
        };
        if let Err(error) = store() {
            let error = LogError::new(Fault::WriteFailed, format!("the log cannot be written: {error}"));
            guarded.failed = Some(error.clone());
            return Err(AppendError::Closed(error));
        }
        let position = expected.position.next();
        self.head.send_replace(Version::at(position, record.id));
        Ok(position)
    }

    async fn read(&self, after: Position, bound: ReadBound) -> Result<Vec<StoredRecord>, LogError> {
        let mut guarded = self.file.lock().await;
        let mut bytes = Vec::new();
        let read = guarded.file.rewind().and_then(|()| guarded.file.read_to_end(&mut bytes));
        read.map_err(|error| LogError::new(Fault::Unreachable, format!("the log cannot be read: {error}")))?;
        let head = self.head.borrow().position;
        let lines = bytes
            .split(|byte| *byte == b'\n')
            .zip(1..=head.0)
            .skip(usize::try_from(after.0).unwrap_or(usize::MAX));
        let mut room = bound.bytes;
        let mut found = Vec::new();
        for (line, position) in lines.take(bound.records) {
            found
                .push(StoredRecord { position: Position(position), bytes: unescape(&line[ID_LEN..]).into() });
            room = room.saturating_sub(line.len());
            if room == 0 {
                break;
            }
        }
        Ok(found)
    }

    async fn head(&self) -> Result<Position, LogError> {
        match &self.file.lock().await.failed {
            Some(error) => Err(error.clone()),
            None => Ok(self.head.borrow().position),
        }
    }

    async fn wait_beyond(&self, position: Position, patience: Duration) -> Result<(), LogError> {
        let mut heads = self.head.subscribe();
        // Running out of patience is as good an end as any: waiting is only a hint.
        let _ = time::timeout(patience, heads.wait_for(|head| head.position > position)).await;
        Ok(())
    }

    fn durability(&self) -> Durability {
        Durability {
            engine: "file",
            level: DurabilityLevel::Synced,
            promise: "every acknowledged commit was synced to one file".into(),
            facts: vec![("sync".into(), "fdatasync before every acknowledgement".into())],
        }
    }
}

/// A line begins with the id of its commit and a space: an append compares it, and does not look into the record.
const ID_LEN: usize = 37;

fn commit_of(line: &[u8]) -> io::Result<CommitId> {
    let id = line.get(..ID_LEN - 1).and_then(|id| str::from_utf8(id).ok()?.parse().ok());
    id.map(CommitId).ok_or_else(|| io::Error::other("its last line does not begin with the id of a commit"))
}

/// A record may hold any byte; a line may not hold a line break.
fn escape(bytes: &[u8]) -> Vec<u8> {
    bytes
        .iter()
        .flat_map(|byte| match byte {
            b'\n' => vec![b'\\', b'n'],
            b'\\' => vec![b'\\', b'\\'],
            other => vec![*other],
        })
        .collect()
}

fn unescape(line: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(line.len());
    let mut rest = line.iter();
    while let Some(byte) = rest.next() {
        bytes.push(match (byte, byte == &b'\\') {
            (_, true) if rest.next() == Some(&b'n') => b'\n',
            (_, true) => b'\\',
            (other, false) => *other,
        });
    }
    bytes
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_meets_the_contract() {
    let folder = tempfile::tempdir().unwrap();
    let number = std::sync::atomic::AtomicUsize::new(0);
    contract::check_all(async || {
        let name = number.fetch_add(1, std::sync::atomic::Ordering::Relaxed).to_string();
        Arc::new(FileLog::open(&folder.path().join(name)).unwrap()) as Arc<dyn EventLog>
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_can_be_reopened() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    contract::a_reopened_log_holds_everything(async || {
        Arc::new(FileLog::open(&path).unwrap()) as Arc<dyn EventLog>
    })
    .await;
}

#[tokio::test]
async fn the_example_drops_a_torn_line_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let log = FileLog::open(&path).unwrap();
    let head = contract::fill(&log, Version::START, 1).await;
    drop(log);
    OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"v\":2,\"posi").unwrap();
    let log = FileLog::open(&path).unwrap();
    assert_eq!(log.head().await, Ok(Position(1)));
    assert_eq!(log.append(head, &contract::record(2)).await, Ok(Position(2)));
}
