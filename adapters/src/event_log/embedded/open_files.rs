//! Detects open files that were deleted, moved or replaced.
//!
//! A process can keep writing to a deleted file, and every sync succeeds, but those writes are lost when the process
//! ends. So before a commit is acknowledged, the device and inode of its files are looked up by path and compared with
//! those of the open files. The kernel does not reuse the inode of an open file.
//!
//! The three or four lookups take about 2 µs per commit on an idle core; a sync takes hundreds of microseconds. They
//! must not ask for times: after that, Linux 6.13 and later changes the times of the file with every write instead of
//! once per tick, and each change makes a sync write to the journal of the file system.

use std::{
    fs::File,
    os::fd::AsFd,
    path::{Path, PathBuf},
};

use application::ports::{Fault, LogError};
use rustix::{
    fs::{AtFlags, CWD, StatxFlags, statx},
    io::Errno,
};

use super::io_error::io_error;

/// The files, each with its device (major and minor number) and inode.
#[derive(Debug, Default)]
pub(super) struct OpenFiles(Vec<(PathBuf, [u64; 3])>);

impl OpenFiles {
    /// Records the identity of the open mark and lock, and of the files that an engine has just opened. The files of the
    /// engine are looked up by path: opening and closing one of SQLite's files a second time would release its locks.
    pub(super) fn new(own_files: [(&Path, &File); 2], engine_files: Vec<PathBuf>) -> Result<Self, LogError> {
        let mut files = Vec::new();
        for path in engine_files {
            let file_id = look_up(&path)?.ok_or_else(|| file_missing(&path))?;
            files.push((path, file_id));
        }
        for (path, file) in own_files {
            let file_id = file_id(file, Path::new(""), AtFlags::EMPTY_PATH);
            files.push((path.to_path_buf(), file_id.map_err(|error| not_looked_up(path, error))?));
        }
        let files = Self(files);
        files.check()?;
        Ok(files)
    }

    /// Fails with [`Fault::FilesMissing`] if one of the files is no longer at its path.
    pub(super) fn check(&self) -> Result<(), LogError> {
        for (path, file_id) in &self.0 {
            if look_up(path)? != Some(*file_id) {
                return Err(file_missing(path));
            }
        }
        Ok(())
    }
}

/// The identity of the file at `path`, if it exists.
fn look_up(path: &Path) -> Result<Option<[u64; 3]>, LogError> {
    match file_id(CWD, path, AtFlags::empty()) {
        Ok(file_id) => Ok(Some(file_id)),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(error) => Err(not_looked_up(path, error)),
    }
}

fn not_looked_up(path: &Path, error: Errno) -> LogError {
    io_error(&format!("looking up {}", path.display()))(error.into())
}

fn file_id(directory: impl AsFd, path: &Path, flags: AtFlags) -> Result<[u64; 3], Errno> {
    let found = statx(directory, path, flags, StatxFlags::INO)?;
    Ok([found.stx_dev_major.into(), found.stx_dev_minor.into(), found.stx_ino])
}

fn file_missing(path: &Path) -> LogError {
    Fault::FilesMissing
        .error(format!("the file {} was deleted, moved or replaced while the store was open", path.display()))
}
