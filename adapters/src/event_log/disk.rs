//! What embedded engines ask of the file system: files for one user, names that survive a power cut, and errors
//! that say what to do.

use std::{
    fs::{DirBuilder, File, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::Path,
};

use application::ports::{Fault, LogError};
use rustix::process::Signal;
use tokio::{
    runtime::Handle,
    signal::unix::{SignalKind, signal},
};

/// Only the user that runs the service may look inside.
pub(crate) const FOLDER_MODE: u32 = 0o700;
pub(crate) const FILE_MODE: u32 = 0o600;

/// Makes a file that only this user may read.
pub(crate) fn create_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(FILE_MODE).open(path)
}

/// Makes the folder and those above it that are missing, and sees to it that a power cut cannot take them
/// away.
pub(crate) fn create_folders(path: &Path) -> io::Result<()> {
    let missing: Vec<_> = path.ancestors().take_while(|folder| !folder.exists()).collect();
    DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(path)?;
    for folder in missing {
        sync_folder(folder_of(folder))?;
    }
    Ok(())
}

/// Brings the names of the files in a folder to the disk.
pub(crate) fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// The folder that a file or folder lies in.
pub(crate) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// An error of the system while something was done with a file of the store.
pub(crate) fn io_trouble(doing: &str, error: &io::Error) -> LogError {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            LogError::new(Fault::Full, format!("{doing} failed ({error}): the disk is full; free some space"))
        }
        io::ErrorKind::FileTooLarge => LogError::new(
            Fault::WriteFailed,
            format!("{doing} failed ({error}): a limit on file sizes is in force; raise it (ulimit -f)"),
        ),
        _ => LogError::new(Fault::WriteFailed, format!("{doing} failed ({error}): check the disk")),
    }
}

/// A file-size limit sends a signal that ends the process. With a handler in place the write fails instead,
/// and a failed write is something the log can deal with. Without an async runtime nothing is done: offline
/// tools may end.
pub(crate) fn survive_the_file_size_limit() {
    if Handle::try_current().is_ok() {
        // The handler stays for as long as the process runs, though nobody listens.
        if let Err(error) = signal(SignalKind::from_raw(Signal::XFSZ.as_raw())) {
            tracing::warn!("a file-size limit would end this process: {error}");
        }
    }
}
