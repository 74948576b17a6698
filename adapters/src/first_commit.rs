//! Remembers across restarts which log a store holds, by the id of its first commit. For logs on servers: an embedded
//! engine has its high-water mark.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use application::{
    Digest,
    ports::{CommitId, Fault, LogError},
};
use serde::{Deserialize, Serialize};

use crate::private_files::{beside, create_folders, folder_of, lock, read, replace};

/// Far more than an entry takes.
const SIZE_MAX: u64 = 64 * 1024;
/// Other nodes of this machine may remember the same log.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);

/// The file that remembers the log of one store.
#[derive(Debug, Clone)]
pub struct FirstCommit {
    file: PathBuf,
    store: String,
}

#[derive(Serialize, Deserialize)]
struct Entry {
    store: String,
    first_commit: uuid::Uuid,
}

impl FirstCommit {
    /// The entry of the store with this name in a folder.
    pub fn of(store: String, folder: &Path) -> Self {
        let hash = Digest::of(store.as_bytes()).to_string();
        Self { file: folder.join(format!("log-{}.json", &hash[..16])), store }
    }

    /// The first commit that the log had before, if there was one.
    pub fn recall(&self) -> Result<Option<CommitId>, LogError> {
        let entry = match read(&self.file, SIZE_MAX) {
            Ok(bytes) => serde_json::from_slice::<Entry>(&bytes).map_err(io::Error::other),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => Err(error),
        };
        entry.map(|entry| Some(CommitId(entry.first_commit))).map_err(|error| {
            let detail = format!(
                "{} does not say which log the store had ({error}): restore the file, or start the service with \
                 --accept-new-log",
                self.file.display()
            );
            LogError::new(Fault::CannotOpen, detail)
        })
    }

    /// Remembers the first commit of the log.
    pub fn remember(&self, first: CommitId) -> io::Result<()> {
        create_folders(folder_of(&self.file))?;
        let _lock = lock(&beside(&self.file, ".lock"), LOCK_PATIENCE)?;
        let entry = Entry { store: self.store.clone(), first_commit: first.0 };
        replace(&self.file, &serde_json::to_vec(&entry)?)
    }

    /// Forgets the log.
    pub fn forget(&self) -> io::Result<()> {
        match fs::remove_file(&self.file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}
