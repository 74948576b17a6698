//! The snapshot in a file of this machine: beside an embedded log, or in a folder of its own for a log on a server.

use std::{
    fs::File,
    io::{self, BufReader, BufWriter, Write},
    path::{Path, PathBuf},
    time::Duration,
};

use application::{
    Digest,
    ports::{SnapshotStore, WriteSnapshot},
};
use rustix::fs::fstatvfs;

use crate::private_files::{
    beside, create_folders, folder_of, lock, open_to_read, remove, replace_with, sync_folder,
};

const MIB: u64 = 1024 * 1024;
/// Free space that is left to others: an eighth of the disk, within these bounds. More than twice of what an embedded log
/// keeps free, so that no snapshot ever stops a log.
const ROOM_SHARE: u64 = 8;
const ROOM_MIN: u64 = 4 * MIB;
const ROOM_MAX: u64 = 256 * MIB;
/// How much is written before it is brought to the disk: a sync of all of it at once would delay those of the log.
const SYNC_STEP: u64 = 4 * MIB;
/// How much is read or written with one call.
const BUFFER: usize = 256 * 1024;
/// Other nodes of this machine may have a snapshot of the same log.
const LOCK_PATIENCE: Duration = Duration::from_secs(30);

/// A file that holds the last snapshot.
#[derive(Debug, Clone)]
pub struct SnapshotFile {
    path: PathBuf,
    /// Missing where the lock of the log keeps other processes out.
    lock: Option<PathBuf>,
}

impl SnapshotFile {
    /// The file at `path`, which belongs to a log that only one process at a time has open.
    pub fn beside_log(path: PathBuf) -> Self {
        Self { path, lock: None }
    }

    /// The file for the log with this name in a folder that several nodes may share.
    pub fn in_folder(folder: &Path, log: &str) -> Self {
        let hash = Digest::of(log.as_bytes()).to_string();
        let path = folder.join(format!("snapshot-{}", &hash[..16]));
        Self { lock: Some(beside(&path, ".lock")), path }
    }

    /// Found before anything is written, and not by renaming a whole snapshot in vain.
    fn check_no_directory(&self) -> io::Result<()> {
        match self.path.symlink_metadata() {
            Ok(found) if found.is_dir() => {
                Err(io::Error::new(io::ErrorKind::IsADirectory, "it is a directory, in the place of a file"))
            }
            Ok(_) | Err(_) => Ok(()),
        }
    }

    fn lock(&self) -> io::Result<Option<File>> {
        self.lock.as_ref().map(|path| lock(path, LOCK_PATIENCE)).transpose()
    }
}

impl SnapshotStore for SnapshotFile {
    fn open(&self) -> io::Result<Option<Box<dyn io::Read + Send>>> {
        self.check_no_directory()?;
        match open_to_read(&self.path) {
            Ok(file) => Ok(Some(Box::new(BufReader::with_capacity(BUFFER, file)))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn replace(&self, write: &mut WriteSnapshot<'_>) -> io::Result<()> {
        create_folders(folder_of(&self.path))?;
        self.check_no_directory()?;
        let _lock = self.lock()?;
        let written = replace_with(&self.path, |file| {
            let mut to = BufWriter::with_capacity(BUFFER, Sparing { file, not_synced: 0 });
            write(&mut to)?;
            to.flush()
        });
        written.map(drop)
    }

    fn remove(&self) -> io::Result<()> {
        if !folder_of(&self.path).exists() {
            return Ok(());
        }
        let _lock = self.lock()?;
        remove(&self.path)?;
        sync_folder(folder_of(&self.path))
    }

    fn place(&self) -> String {
        self.path.display().to_string()
    }
}

/// A file that leaves others room on the disk, and time.
struct Sparing<'a> {
    file: &'a mut File,
    not_synced: u64,
}

impl Write for Sparing<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.not_synced == 0 {
            let disk = fstatvfs(&*self.file)?;
            let room = (disk.f_blocks * disk.f_frsize / ROOM_SHARE).clamp(ROOM_MIN, ROOM_MAX);
            if disk.f_bavail * disk.f_frsize < room + SYNC_STEP {
                return Err(io::ErrorKind::StorageFull.into());
            }
        }
        let written = self.file.write(bytes)?;
        self.not_synced += written as u64;
        if self.not_synced >= SYNC_STEP {
            self.file.sync_data()?;
            self.not_synced = 0;
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
