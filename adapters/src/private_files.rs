//! Private files: created 0600 in directories created 0700, and replaced atomically. A leaf that every adapter may use.
//!
//! A file that an operator names may be a link, so it is opened through links. A file that petstore creates next to it
//! is never opened through a symbolic link, and must be a regular file with one name.

use std::{
    fs::{self, DirBuilder, File, Metadata, OpenOptions, TryLockError},
    io::{self, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use rustix::{fs::OFlags, process::geteuid};

/// Modes: only the owner may read files and list directories.
pub(crate) const FILE_MODE: u32 = 0o600;
pub(crate) const DIRECTORY_MODE: u32 = 0o700;

/// The delay between attempts to take a lock: the system has no lock with a timeout.
const LOCK_RETRY_DELAY: Duration = Duration::from_millis(10);

const LINK: &str = "it is a symbolic link, which petstore does not follow: remove it";
const NOT_A_FILE: &str = "it is not a regular file";

/// Whether the disk or a quota is full.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

pub(crate) fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Creates the directory and its missing parents. After `Ok` they survive a power cut.
pub(crate) fn create_directories(path: &Path) -> io::Result<()> {
    let missing: Vec<_> = path.ancestors().take_while(|directory| !directory.exists()).collect();
    DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(path)?;
    missing.into_iter().try_for_each(|directory| sync_directory(directory_of(directory)))
}

/// Syncs a directory, so that the names of its files survive a power cut.
pub(crate) fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Reads a regular file of at most `max` bytes that an operator has named, through links.
pub(crate) fn read_named(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let file = open_with(path, OFlags::empty(), OpenOptions::new().read(true))?;
    if !file.metadata()?.is_file() {
        return Err(invalid(NOT_A_FILE));
    }
    read_up_to(&file, max)
}

/// Reads one of petstore's own files, of at most `max` bytes.
pub(crate) fn read(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    read_up_to(&open_to_read(path)?, max)
}

/// Opens an existing file of petstore for reading.
pub(crate) fn open_to_read(path: &Path) -> io::Result<File> {
    open_own(path, OpenOptions::new().read(true))
}

/// Opens an existing file of petstore for reading and writing.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    open_own(path, OpenOptions::new().read(true).write(true))
}

/// Opens a file of petstore for reading and writing, and creates it if it is missing.
pub(crate) fn open_or_create(path: &Path) -> io::Result<File> {
    open_own(path, OpenOptions::new().read(true).write(true).create(true))
}

/// Creates a file of petstore, or truncates the existing one.
pub(crate) fn create_file(path: &Path) -> io::Result<File> {
    let file = open_or_create(path)?;
    // Truncated only after the checks.
    file.set_len(0)?;
    Ok(file)
}

/// Turns the error that nothing exists at a path into `None`.
pub(crate) fn if_exists<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
}

/// Rejects a link or a special file at `path`. For files and directories that a library opens itself: a change between
/// this check and the opening is not detected.
pub(crate) fn check(path: &Path) -> io::Result<()> {
    match if_exists(path.symlink_metadata())? {
        Some(about) if !about.is_dir() => check_alone(&about)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display()))),
        Some(_) | None => Ok(()),
    }
}

/// Takes the lock at `path`, or fails with `WouldBlock` if another process still holds it after `timeout`. Dropping the
/// file releases the lock, and so does the end of the process. The file is never deleted: otherwise two processes could
/// hold the lock at once.
pub(crate) fn lock(path: &Path, timeout: Duration) -> io::Result<File> {
    let file = open_or_create(path)?;
    let deadline = Instant::now() + timeout;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => thread::sleep(LOCK_RETRY_DELAY),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Replaces a file atomically: readers see either the old or the new content, and after `Ok` the new content survives a
/// power cut. The caller holds a lock that covers `path`.
pub(crate) fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    replace_with(path, |file| file.write_all(content)).map(drop)
}

/// Replaces a file like [`replace`], with the content that `write` produces, and returns the open file.
pub(crate) fn replace_with(path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<File> {
    let (directory, draft) = (directory_of(path), with_suffix(path, ".new"));
    // A killed process may have left one.
    if_exists(fs::remove_file(&draft))?;
    let name = draft.file_name().ok_or_else(|| invalid("the path does not name a file"))?;
    let mut draft = tempfile::Builder::new().prefix(name).rand_bytes(0).tempfile_in(directory)?;
    write(draft.as_file_mut())?;
    draft.as_file().sync_all()?;
    let file = draft.persist(path)?;
    sync_directory(directory)?;
    Ok(file)
}

/// What other users can write to, with the mode for `chmod` that stops them: the file, or its directory, in which they
/// can replace the file. In a sticky directory, files of root and of this user cannot be replaced.
pub(crate) fn exposed_to_others(path: &Path) -> Option<(&Path, &'static str)> {
    if path.metadata().is_ok_and(|file| file.mode() & 0o022 != 0) {
        return Some((path, "go-w"));
    }
    let file = path.symlink_metadata().ok()?;
    let directory = directory_of(path).metadata().ok()?;
    let is_ours = file.uid() == 0 || file.uid() == geteuid().as_raw();
    let is_protected = directory.mode() & 0o002 == 0 || directory.mode() & 0o1000 != 0 && is_ours;
    (!is_protected).then(|| (directory_of(path), "o-w"))
}

/// Whether every user of the machine may read the file.
pub(crate) fn is_readable_by_all(path: &Path) -> bool {
    path.metadata().is_ok_and(|file| file.mode() & 0o004 != 0)
}

fn open_own(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let file = open_with(path, OFlags::NOFOLLOW, options)
        .map_err(|error| if path.is_symlink() { invalid(LINK) } else { error })?;
    check_alone(&file.metadata()?)?;
    Ok(file)
}

/// Does not wait for the other end of a pipe that was put in the place of the file.
fn open_with(path: &Path, flags: OFlags, options: &mut OpenOptions) -> io::Result<File> {
    options.mode(FILE_MODE).custom_flags((flags | OFlags::NONBLOCK).bits().cast_signed()).open(path)
}

fn read_up_to(file: &File, max: u64) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    file.take(max + 1).read_to_end(&mut content)?;
    if content.len() as u64 > max {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it has more than {max} bytes")));
    }
    Ok(content)
}

/// Rejects everything but a regular file with one name.
fn check_alone(about: &Metadata) -> io::Result<()> {
    match about.file_type() {
        kind if kind.is_symlink() => Err(invalid(LINK)),
        kind if !kind.is_file() => Err(invalid(NOT_A_FILE)),
        _ if about.nlink() > 1 => Err(invalid("it has another hard link: remove that link")),
        _ => Ok(()),
    }
}

fn invalid(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

#[cfg(test)]
mod tests;
