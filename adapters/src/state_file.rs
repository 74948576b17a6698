//! The state file: a small checksummed file that names the newest commit that this node has applied. Startup rejects a
//! log that does not hold this commit, so that a node never goes back. When an operator accepts such a log, a line in a
//! journal next to the state file says which commits were given up.

use std::{
    fs,
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
    time::Duration,
};

use application::{Digest, ports::LogIdentity};
use chrono::{DateTime, SecondsFormat, Utc};
use parking_lot::Mutex;
use serde_json::json;

use crate::private_files::{
    create_directories, directory_of, if_exists, is_full, lock, read, replace, sync_directory, with_suffix,
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
    /// What this node has recorded. It is not recorded again, because the operator may have accepted another log in the
    /// meantime.
    recorded: Mutex<Option<LogIdentity>>,
}

impl StateFile {
    /// The state file of the log with this name. The name contains neither hosts nor users.
    pub fn of(log: String, directory: &Path) -> Self {
        let hash = Digest::of(log.as_bytes()).to_string();
        Self { file: directory.join(format!("log-{}.json", &hash[..16])), log, recorded: Mutex::default() }
    }

    /// The path of the file.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Creates the directory if it is missing, and checks with a trial write that the file can be updated. On a full disk
    /// an earlier record is enough, so that a node can be restarted to serve reads.
    pub fn prepare(&self) -> io::Result<()> {
        let directory = directory_of(&self.file);
        create_directories(directory)?;
        let _lock = self.lock()?;
        let tried = tempfile::tempfile_in(directory).and_then(|mut file| {
            file.write_all(&[0; TRIAL_SIZE])?;
            file.sync_all()
        });
        match tried {
            Err(error) if is_full(&error) && matches!(self.read(), Ok(Some(_))) => Ok(()),
            tried => tried,
        }
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
        Ok(Some(serde_json::from_str(json)?))
    }

    /// Records a newer commit of the same log. An older commit changes nothing, because another node may be ahead.
    pub fn advance(&self, identity: LogIdentity) -> io::Result<()> {
        let mut recorded = self.recorded.lock();
        if *recorded == Some(identity) {
            return Ok(());
        }
        let _lock = self.lock()?;
        match self.read()? {
            Some(stored) if stored.first != identity.first => {
                let reason = format!("{} is the record of a different log", self.file.display());
                return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
            }
            Some(stored) if stored.position >= identity.position => {}
            Some(_) | None => self.write(identity)?,
        }
        *recorded = Some(identity);
        Ok(())
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
        // `null` is a record that cannot be read, or a log that is missing or empty.
        let line = json!({ "time": time, "log": self.log, "recorded": recorded, "accepted": accepted });
        let journal = self.journal();
        append_line(&journal, &line.to_string())
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
        let mut json = serde_json::to_value(identity)?;
        json["log"] = self.log.as_str().into();
        let json = json.to_string();
        replace(&self.file, format!("{json}\n{:08x}\n", crc32c::crc32c(json.as_bytes())).as_bytes())
    }
}

/// Appends a line. After `Ok` it survives a power cut. A part of a line, left by a crash or a full disk, stays as
/// a separate line.
fn append_line(path: &Path, line: &str) -> io::Result<()> {
    // The state files of other logs share the journal.
    let mut file = lock(path, LOCK_TIMEOUT)?;
    let mut journal = Vec::new();
    file.read_to_end(&mut journal)?;
    let separator = if journal.last().is_none_or(|last| *last == b'\n') { "" } else { "\n" };
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
