//! The state file: a small checksummed file that names the newest commit that this node has applied. Startup rejects a
//! log that does not hold this commit, so that a node never goes back.

use std::{
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
    time::Duration,
};

use application::{Digest, ports::LogIdentity};
use serde::{Deserialize, Serialize};

use crate::private_files::{
    create_directories, create_file, directory_of, if_exists, lock, read, replace, with_suffix,
};

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

    /// Creates the directory if it is missing, and checks that the file can be updated: a full disk fails a trial
    /// write.
    pub fn prepare(&self) -> io::Result<()> {
        create_directories(directory_of(&self.file))?;
        let _lock = self.lock()?;
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

    /// Replaces the record, or deletes it.
    pub fn replace(&self, identity: Option<LogIdentity>) -> io::Result<()> {
        let _lock = self.lock()?;
        match identity {
            Some(identity) => self.write(identity),
            None => if_exists(fs::remove_file(&self.file)).map(drop),
        }
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
    fn another_log_is_recorded_only_when_it_is_adopted() {
        let directory = tempfile::tempdir().unwrap();
        let record = record(directory.path());
        record.advance(identity(1, 7)).unwrap();
        record.advance(identity(2, 9)).unwrap_err();
        assert_eq!(record.read().unwrap(), Some(identity(1, 7)));
        record.replace(Some(identity(2, 3))).unwrap();
        assert_eq!(record.read().unwrap(), Some(identity(2, 3)));
        record.replace(None).unwrap();
        assert_eq!(record.read().unwrap(), None);
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
