//! The folder of a store: what lies where, who may read it, and that only one process at a time opens it.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError},
    io,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use application::ports::{Fault, LogError};

use crate::event_log::disk::{FILE_MODE, FOLDER_MODE, create_folders, sync_folder};

/// A store's folder, held by this process until it is dropped.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    _lock: File,
}

impl Folder {
    /// Opens the folder, and makes it if there is none.
    pub(super) fn open_or_create(path: &Path) -> Result<Self, LogError> {
        if path.exists() && !path.is_dir() {
            return Err(not_a_folder(path));
        }
        create_folders(path).map_err(|error| unusable(path, &error))?;
        let folder = Self::lock(path)?;
        let engine = folder.engine();
        if !engine.exists() {
            create_folders(&engine).map_err(|error| unusable(path, &error))?;
        }
        Ok(folder)
    }

    /// Opens the folder of a store that exists already.
    pub(super) fn open_existing(path: &Path) -> Result<Self, LogError> {
        if path.exists() && !path.is_dir() {
            return Err(not_a_folder(path));
        }
        if !path.join("sled").join("db").is_file() {
            let detail = format!("there is no store at {}; check the path", path.display());
            return Err(LogError::new(Fault::CannotOpen, detail));
        }
        Self::lock(path)
    }

    fn lock(path: &Path) -> Result<Self, LogError> {
        let lock = path.join("lock");
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(FILE_MODE).open(&lock);
        let file = file.map_err(|error| unusable(path, &error))?;
        match file.try_lock() {
            Ok(()) => Ok(Self { path: path.into(), _lock: file }),
            Err(TryLockError::WouldBlock) => Err(in_use(path)),
            Err(TryLockError::Error(error)) => Err(unusable(path, &error)),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Where sled keeps its files.
    pub(super) fn engine(&self) -> PathBuf {
        self.path.join("sled")
    }

    /// The file that holds every record.
    pub(super) fn records(&self) -> PathBuf {
        self.path.join("sled").join("db")
    }

    pub(super) fn mark(&self) -> PathBuf {
        self.path.join("mark")
    }

    pub(super) fn ballast(&self) -> PathBuf {
        self.path.join("ballast")
    }

    /// A copy of sled's files to try something on.
    pub(super) fn rehearsal(&self) -> PathBuf {
        self.path.join("rehearsal")
    }

    /// Stands there while the files may hold data that the disk does not have.
    pub(super) fn suspicion(&self) -> PathBuf {
        self.path.join("not-synced")
    }

    /// The files that sled made, without its folder for large values, which stays empty.
    pub(super) fn engine_files(&self) -> io::Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(self.engine())? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                files.push(entry.path());
            }
        }
        Ok(files)
    }

    /// Removes what an interrupted start has left behind and sled would take for damage: an unfinished
    /// snapshot, and settings that may be cut short, since sled writes them before it makes the file for
    /// records.
    pub(super) fn remove_unfinished(&self) -> io::Result<()> {
        let never_used = !self.records().exists();
        for path in self.engine_files()? {
            let is_snapshot = path.extension().is_some_and(|extension| extension == "generating");
            if never_used || is_snapshot {
                fs::remove_file(path)?;
            }
        }
        Ok(())
    }

    /// Closes sled's files to everybody else, and brings them and the folders that name them to the disk.
    pub(super) fn settle(&self) -> io::Result<()> {
        for path in self.engine_files()? {
            let file = File::open(&path)?;
            file.set_permissions(Permissions::from_mode(FILE_MODE))?;
            file.sync_all()?;
        }
        sync_folder(&self.engine())?;
        sync_folder(&self.path)
    }
}

/// Refuses a store that another process has open. Changes nothing, so the answer holds only for the moment.
pub(super) fn check_unused(path: &Path) -> Result<(), LogError> {
    match File::open(path.join("lock")).map(|lock| lock.try_lock_shared()) {
        Ok(Err(TryLockError::WouldBlock)) => Err(in_use(path)),
        // Without a lock that can be read nobody has the store open, or nobody can tell.
        Ok(Ok(()) | Err(TryLockError::Error(_))) | Err(_) => Ok(()),
    }
}

/// Makes a folder that only this user may look into.
pub(super) fn create_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(FOLDER_MODE).create(path)
}

fn in_use(path: &Path) -> LogError {
    let detail = format!(
        "the store {} is in use by another process; stop that process or choose another store",
        path.display()
    );
    LogError::new(Fault::CannotOpen, detail)
}

fn not_a_folder(path: &Path) -> LogError {
    let detail = format!("{} is not a folder; choose another path for the store", path.display());
    LogError::new(Fault::CannotOpen, detail)
}

fn unusable(path: &Path, error: &io::Error) -> LogError {
    let detail = format!(
        "the store {} cannot be written to ({error}); make the folder writable for this user or choose \
         another path for the store",
        path.display()
    );
    LogError::new(Fault::CannotOpen, detail)
}
