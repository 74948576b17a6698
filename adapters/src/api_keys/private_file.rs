//! Files for one pair of eyes: made 0600 in folders made 0700, replaced whole or not at all, changed by one
//! process at a time.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, fchown},
    path::{Path, PathBuf},
};

const FILE_MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;

/// The folder that `path` lies in.
pub(super) fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        Some(_) | None => Path::new("."),
    }
}

/// `path` with something added to its last part.
pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Makes the folder and those above it, as far as they are missing, and makes sure that they stay.
pub(super) fn create_folder(folder: &Path) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    let above = folder_of(folder);
    create_folder(above)?;
    match DirBuilder::new().mode(FOLDER_MODE).create(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && folder.is_dir() => Ok(()),
        Err(error) => Err(error),
        Ok(()) => sync_folder(above),
    }
}

/// Waits until nobody else holds the lock at `path`. It is given back when the file is dropped, by the system too
/// if the process dies. The file stays: to delete it would let two hold it at once.
pub(super) fn lock(path: &Path) -> io::Result<File> {
    let file =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(FILE_MODE).open(path)?;
    hand_over(&file, folder_of(path));
    file.lock()?;
    Ok(file)
}

/// Replaces the file at once: whoever reads meanwhile sees all of the old content or all of the new, and after
/// `Ok` the new one survives a power cut. The caller holds a lock that covers `path`.
pub(super) fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let draft = beside(path, ".new");
    // One may be left from a process that was killed. A link that somebody put there is not followed.
    remove_if_there(&draft)?;
    let stored = write_new(&draft, path, content).and_then(|()| fs::rename(&draft, path));
    if stored.is_err() {
        // The reason why it could not be stored is the one to tell.
        let _ = remove_if_there(&draft);
    }
    stored?;
    sync_folder(folder_of(path))
}

/// The content of a regular file of at most `max` bytes.
pub(super) fn read(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    // To open a pipe would wait for its other end.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    let mut content = Vec::new();
    File::open(path)?.take(max + 1).read_to_end(&mut content)?;
    if content.len() as u64 > max {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it has more than {max} bytes")));
    }
    Ok(content)
}

/// Whether others than the owner may change the file.
pub(super) fn is_writable_by_others(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.mode() & 0o022 != 0)
}

fn write_new(path: &Path, replaced: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(path)?;
    hand_over(&file, if replaced.exists() { replaced } else { folder_of(replaced) });
    file.write_all(content)?;
    file.sync_all()
}

/// What root writes for a service that runs as somebody else belongs to that somebody, or the service could not
/// read it.
fn hand_over(file: &File, like: &Path) {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    if let Ok(owner) = fs::metadata(like) {
        // Where root may not do that either, the file stays root's and the service says that it cannot read it.
        let _ = fchown(file, Some(owner.uid()), Some(owner.gid()));
    }
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}
