//! The state file: a small checksummed file that names the newest commit that this node has applied. Startup rejects a
//! log that does not hold this commit, so that a node never goes back. When an operator accepts such a log, a line in a
//! journal next to the state file says which commits were given up.

use std::{
    fs,
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
    time::Duration,
};

use application::{Digest, ports::LogIdentity};
use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Deserialize, Serialize};

use crate::private_files::{
    create_directories, create_file, directory_of, if_exists, is_full, lock, read, replace, sync_directory,
    with_suffix,
};

/// The name of the journal. All logs of a state directory share it.
const JOURNAL: &str = "accepted.jsonl";

/// The maximum size: far more than a state file needs.
const SIZE_MAX: u64 = 64 * 1024;
/// The size of a trial write: a block, which is more than a usual state file.
const TRIAL_SIZE: usize = 4096;
/// How long to wait for another node that updates the same file.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// The state file of one log. Nodes that follow the same log may share it.
#[derive(Debug)]
pub struct StateFile {
    file: PathBuf,
    log: String,
}

#[derive(Serialize, Deserialize)]
struct Content {
    log: String,
    #[serde(flatten)]
    identity: LogIdentity,
}

/// A line of the journal.
#[derive(Serialize)]
struct Acceptance<'a> {
    time: String,
    log: &'a str,
    /// The record that was replaced; `None` if it could not be read.
    recorded: Option<LogIdentity>,
    /// The log that was accepted; `None` if it is missing or empty.
    accepted: Option<LogIdentity>,
}

impl StateFile {
    /// The state file of the log with this name. The name contains neither hosts nor users.
    pub fn of(log: String, directory: &Path) -> Self {
        let hash = Digest::of(log.as_bytes()).to_string();
        Self { file: directory.join(format!("log-{}.json", &hash[..16])), log }
    }

    /// The path of the file.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Creates the directory if it is missing, and checks with a trial write that the file can be updated. On a full disk
    /// an earlier record is enough, so that a node can be restarted to serve reads.
    pub fn prepare(&self) -> io::Result<()> {
        create_directories(directory_of(&self.file))?;
        let _lock = self.lock()?;
        match self.try_write() {
            Err(error) if is_full(&error) && matches!(self.read(), Ok(Some(_))) => Ok(()),
            tried => tried,
        }
    }

    fn try_write(&self) -> io::Result<()> {
        let draft = with_suffix(&self.file, ".new");
        let mut file = create_file(&draft)?;
        let written = file.write_all(&[0; TRIAL_SIZE]).and_then(|()| file.sync_all());
        fs::remove_file(draft)?;
        written
    }

    /// Returns the recorded log, or `None` without a record.
    pub fn read(&self) -> io::Result<Option<LogIdentity>> {
        let Some(bytes) = if_exists(read(&self.file, SIZE_MAX))? else { return Ok(None) };
        let damaged = || io::Error::new(io::ErrorKind::InvalidData, "its checksum does not match");
        let text = str::from_utf8(&bytes).map_err(|_| damaged())?;
        let (json, checksum) = text.split_once('\n').ok_or_else(damaged)?;
        if checksum != format!("{:08x}\n", crc32c::crc32c(json.as_bytes())) {
            return Err(damaged());
        }
        let content: Content = serde_json::from_str(json)?;
        Ok(Some(content.identity))
    }

    /// Records a newer commit of the same log. An older commit changes nothing, because another node may be ahead.
    pub fn advance(&self, identity: LogIdentity) -> io::Result<()> {
        let _lock = self.lock()?;
        match self.read()? {
            Some(stored) if stored.first != identity.first => {
                let reason = format!("{} is the record of a different log", self.file.display());
                Err(io::Error::new(io::ErrorKind::InvalidData, reason))
            }
            Some(stored) if stored.position >= identity.position => Ok(()),
            Some(_) | None => self.write(identity),
        }
    }

    /// Replaces the record, or deletes it for a log without commits, after the journal has a line about it on disk.
    /// `recorded` is the record that the operator has seen, `None` if it cannot be read. Fails if the record is
    /// another one now: a node still updates it.
    pub fn accept(
        &self,
        recorded: Option<LogIdentity>,
        accepted: Option<LogIdentity>,
        now: DateTime<Utc>,
    ) -> io::Result<()> {
        let _lock = self.lock()?;
        if self.read().ok().flatten() != recorded {
            return Err(io::Error::other("it has changed: stop the node that updates it, and start again"));
        }
        let time = now.to_rfc3339_opts(SecondsFormat::Millis, true);
        let line = serde_json::to_string(&Acceptance { time, log: &self.log, recorded, accepted })?;
        let journal = self.journal();
        append_line(&journal, &line)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", journal.display())))?;
        match accepted {
            Some(identity) => self.write(identity),
            None => if_exists(fs::remove_file(&self.file)).map(drop),
        }
    }

    /// The path of the journal.
    pub fn journal(&self) -> PathBuf {
        self.file.with_file_name(JOURNAL)
    }

    fn lock(&self) -> io::Result<fs::File> {
        lock(&with_suffix(&self.file, ".lock"), LOCK_TIMEOUT)
    }

    fn write(&self, identity: LogIdentity) -> io::Result<()> {
        let content = Content { log: self.log.clone(), identity };
        let json = serde_json::to_string(&content)?;
        replace(&self.file, format!("{json}\n{:08x}\n", crc32c::crc32c(json.as_bytes())).as_bytes())
    }
}

/// Appends a line. After `Ok` it survives a power cut. A part of a line, left by a crash or a full disk, stays as
/// a separate line.
fn append_line(path: &Path, line: &str) -> io::Result<()> {
    // The state files of other logs share the journal.
    let mut file = lock(path, LOCK_TIMEOUT)?;
    let mut last = [b'\n'];
    if file.seek(SeekFrom::End(0))? > 0 {
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
    }
    let separator = if last == [b'\n'] { "" } else { "\n" };
    file.write_all(format!("{separator}{line}\n").as_bytes())?;
    file.sync_all()?;
    sync_directory(directory_of(path))
}

#[cfg(test)]
mod tests {
    use application::ports::{CommitId, Position};
    use uuid::Uuid;

    use super::*;

    fn identity(first: u128, position: u64) -> LogIdentity {
        let id = |number: u128| CommitId(Uuid::from_u128(number));
        LogIdentity {
            first: id(first),
            position: Position(position),
            newest: id(first + u128::from(position)),
        }
    }

    fn record(directory: &Path) -> StateFile {
        StateFile::of("sled:/pets".into(), directory)
    }

    #[test]
    fn a_record_moves_forwards_only() {
        let directory = tempfile::tempdir().unwrap();
        let nodes = [record(directory.path()), record(directory.path())];
        assert_eq!(nodes[0].read().unwrap(), None);
        nodes[0].advance(identity(1, 7)).unwrap();
        nodes[1].advance(identity(1, 5)).unwrap();
        assert_eq!(nodes[1].read().unwrap(), Some(identity(1, 7)));
        nodes[1].advance(identity(1, 8)).unwrap();
        assert_eq!(nodes[0].read().unwrap(), Some(identity(1, 8)));
    }

    #[test]
    fn another_log_is_recorded_only_when_it_is_accepted_and_the_journal_keeps_every_line() {
        let directory = tempfile::tempdir().unwrap();
        let record = record(directory.path());
        record.advance(identity(1, 7)).unwrap();
        record.advance(identity(2, 9)).unwrap_err();
        assert_eq!(record.read().unwrap(), Some(identity(1, 7)));
        let now = DateTime::UNIX_EPOCH;
        record.accept(Some(identity(1, 6)), Some(identity(2, 3)), now).unwrap_err();
        assert_eq!(record.read().unwrap(), Some(identity(1, 7)), "the operator has seen another record");
        record.accept(Some(identity(1, 7)), Some(identity(2, 3)), now).unwrap();
        assert_eq!(record.read().unwrap(), Some(identity(2, 3)));
        let written = fs::read_to_string(record.journal()).unwrap();
        fs::write(record.journal(), format!("{written}{{\"time\":\"19")).unwrap();
        record.accept(Some(identity(2, 3)), None, now).unwrap();
        assert_eq!(record.read().unwrap(), None);
        let journal = fs::read_to_string(record.journal()).unwrap();
        let lines: Vec<_> = journal.lines().collect();
        assert!(journal.starts_with(&written) && lines.len() == 3, "{journal}");
        let last: serde_json::Value = serde_json::from_str(lines[2]).unwrap();
        assert_eq!((&last["recorded"]["position"], &last["accepted"]), (&3.into(), &serde_json::Value::Null));
    }

    #[test]
    fn nothing_is_accepted_without_a_line_in_the_journal() {
        let directory = tempfile::tempdir().unwrap();
        let record = record(directory.path());
        record.advance(identity(1, 7)).unwrap();
        let elsewhere = directory.path().join("elsewhere");
        std::os::unix::fs::symlink(&elsewhere, record.journal()).unwrap();
        record.accept(Some(identity(1, 7)), None, DateTime::UNIX_EPOCH).unwrap_err();
        assert_eq!(record.read().unwrap(), Some(identity(1, 7)));
        assert!(!elsewhere.exists(), "links are not followed");
    }

    #[test]
    fn a_record_with_any_flipped_bit_is_rejected() {
        let directory = tempfile::tempdir().unwrap();
        let record = record(directory.path());
        record.advance(identity(1, 7)).unwrap();
        let sound = fs::read(&record.file).unwrap();
        for place in 0..sound.len() {
            let mut damaged = sound.clone();
            damaged[place] ^= 1;
            fs::write(&record.file, damaged).unwrap();
            assert!(record.read().is_err(), "byte {place}");
            record.advance(identity(1, 8)).unwrap_err();
        }
    }

    #[test]
    fn a_directory_that_cannot_be_written_is_rejected() {
        let directory = tempfile::tempdir().unwrap();
        record(&directory.path().join("new")).prepare().unwrap();
        fs::write(directory.path().join("file"), "").unwrap();
        record(&directory.path().join("file/state")).prepare().unwrap_err();
    }
}
