//! Private files: created 0600 in directories created 0700, and replaced atomically. A leaf that every adapter may use.
//!
//! Two kinds of files are kept apart. A file that an operator names may be a link, so it is opened wherever the
//! link leads. A file that the program creates beside it is its own: it is never opened through a symbolic link,
//! it must be a regular file with one name, and only a file that was just created gets another owner. The program
//! may run as root in a directory that belongs to the user of the service, and that user may have put anything there.

use std::{
    ffi::OsStr,
    fs::{DirBuilder, File, Metadata, TryLockError},
    io::{self, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, fchown},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    fs::{
        AtFlags, CWD, FileType, Mode, OFlags, StatVfsMountFlags, openat, renameat, statat, statvfs, unlinkat,
    },
    io::Errno,
    process::geteuid,
};

/// Only the user that runs the service may read files and look into directories.
pub(crate) const FILE_MODE: u32 = 0o600;
pub(crate) const DIRECTORY_MODE: u32 = 0o700;

/// How long to wait before trying again to take a lock: the system does not wait for one with a deadline.
const LOCK_RETRY_DELAY: Duration = Duration::from_millis(10);

/// A pipe that somebody put in the place of a file must not keep the program waiting for its other end.
const NON_BLOCKING: OFlags = OFlags::NONBLOCK.union(OFlags::CLOEXEC);
/// How files of our own are opened, existing or new.
const OWN_FILE: OFlags = OFlags::RDWR.union(OFlags::NOFOLLOW).union(NON_BLOCKING);

/// The directory that a file or directory lies in.
pub(crate) fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// `path` with something added to its last part.
pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Creates the directory and the missing ones above it. After `Ok` they survive a power cut.
pub(crate) fn create_directories(path: &Path) -> io::Result<()> {
    let missing: Vec<_> = path.ancestors().take_while(|directory| !directory.exists()).collect();
    DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(path)?;
    missing.into_iter().try_for_each(|directory| sync_directory(directory_of(directory)))
}

/// Brings the names of the files in a directory to the disk.
pub(crate) fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// The file that a path named by an operator leads to, through any link, or the path itself if there is no file yet.
/// Root does not follow a link of another user to a file that this user does not own: it could be any file of root's.
pub(crate) fn behind_links(path: &Path) -> io::Result<PathBuf> {
    let Ok(target) = path.canonicalize() else { return Ok(path.to_owned()) };
    let owner = target.metadata()?.uid();
    let leads_astray = |part: &Path| {
        let link = part.symlink_metadata().ok().filter(Metadata::is_symlink);
        link.is_some_and(|link| link.uid() != 0 && link.uid() != owner)
    };
    match path.ancestors().find(|part| leads_astray(part)) {
        Some(link) if geteuid().is_root() => {
            let why = format!(
                "the link {} belongs to another user than the file: name the file itself",
                link.display()
            );
            Err(io::Error::new(io::ErrorKind::InvalidInput, why))
        }
        Some(_) | None => Ok(target),
    }
}

/// The content of a regular file of at most `max` bytes that an operator has named, through any link.
pub(crate) fn read_named(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let file = File::from(openat(CWD, path, OFlags::RDONLY | NON_BLOCKING, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(not_regular());
    }
    read_up_to(&file, max)
}

/// The content of one of our own files, of at most `max` bytes.
pub(crate) fn read(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    read_up_to(&open_to_read(path)?, max)
}

/// Opens a file of our own that exists, to read it.
pub(crate) fn open_to_read(path: &Path) -> io::Result<File> {
    DirectoryEntry::of(path)?.open(OFlags::RDONLY | OFlags::NOFOLLOW | NON_BLOCKING)
}

/// Opens a file of our own that exists, to read it from the disk, past the cache of the system.
pub(crate) fn open_past_cache(path: &Path) -> io::Result<File> {
    DirectoryEntry::of(path)?.open(OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::DIRECT | NON_BLOCKING)
}

/// Opens a file of our own that exists, to read and write it.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    DirectoryEntry::of(path)?.open(OWN_FILE)
}

/// Opens a file of our own to read and write it, and creates it if it is missing.
pub(crate) fn open_or_create(path: &Path) -> io::Result<File> {
    let place = DirectoryEntry::of(path)?;
    loop {
        match place.open(OWN_FILE) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            opened => return opened,
        }
        match place.create() {
            // Somebody else created it in between.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            created => return created,
        }
    }
}

/// Creates a file of our own, or empties the one that is there.
pub(crate) fn create_file(path: &Path) -> io::Result<File> {
    let file = open_or_create(path)?;
    // Emptied only now that it is known to be a file of our own.
    file.set_len(0)?;
    Ok(file)
}

/// Refuses a path that a library is about to open, unless nothing is there or a file of our own. A change between this check
/// and the opening goes unnoticed, so it is only for files that a library opens itself.
pub(crate) fn check_file(path: &Path) -> io::Result<()> {
    match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        about => check_alone(&about?).map_err(|error| at(path, &error)),
    }
}

/// The same for a directory.
pub(crate) fn check_directory(path: &Path) -> io::Result<()> {
    match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Ok(about) if about.is_dir() => Ok(()),
        Ok(about) if about.is_symlink() => Err(at(path, &link())),
        Ok(_) => Err(at(path, &invalid("it is not a directory"))),
        Err(error) => Err(error),
    }
}

/// Takes the lock at `path`, or fails with `WouldBlock` if another process still holds it after `timeout`. Dropping
/// the file releases the lock, and so does the end of the process. The file stays: if it were deleted, two processes
/// could hold the lock at once.
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

/// Replaces a file atomically: a reader sees all of the old content or all of the new, and after `Ok` the new
/// content survives a power cut. The caller holds a lock that covers `path`.
pub(crate) fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    replace_with(path, |file| file.write_all(content)).map(drop)
}

/// Replaces a file as [`replace`] does with what `write` puts into it, and returns it still open.
///
/// Creating and renaming happen in one open directory, so renaming that directory meanwhile leads nowhere else; the
/// crate `tempfile` works on paths and cannot promise that.
pub(crate) fn replace_with(path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<File> {
    let place = DirectoryEntry::of(path)?;
    let draft_path = with_suffix(path, ".new");
    let draft = DirectoryEntry { directory: place.directory.try_clone()?, name: name_of(&draft_path)? };
    // A process that was killed may have left one behind.
    draft.remove_if_exists()?;
    let stored = draft.create_like(place.owner_of_regular_file()).and_then(|mut file| {
        write(&mut file)?;
        file.sync_all()?;
        renameat(&draft.directory, draft.name, &place.directory, place.name)?;
        Ok(file)
    });
    if stored.is_err() {
        // The caller learns why the content could not be stored, not why the draft could not be removed.
        let _ = draft.remove_if_exists();
    }
    let file = stored?;
    place.directory.sync_all()?;
    Ok(file)
}

/// Whether users other than the owner may change the file. Not on a read-only mount, whatever its mode.
pub(crate) fn is_writable_by_others(path: &Path) -> bool {
    path.metadata().is_ok_and(|file| file.mode() & 0o022 != 0) && !is_mounted_read_only(path)
}

/// Whether every user may put another file in the place of this one: others can write to its directory. In a sticky
/// directory they cannot replace a file of root or of this user.
pub(crate) fn is_replaceable_by_others(path: &Path) -> bool {
    let directory = directory_of(path);
    let (Ok(about), Ok(file)) = (directory.metadata(), path.symlink_metadata()) else { return false };
    let is_sticky = about.mode() & 0o1000 != 0;
    let is_ours = file.uid() == 0 || file.uid() == geteuid().as_raw();
    about.mode() & 0o002 != 0 && !(is_sticky && is_ours) && !is_mounted_read_only(directory)
}

fn is_mounted_read_only(path: &Path) -> bool {
    statvfs(path).is_ok_and(|mount| mount.f_flag.contains(StatVfsMountFlags::RDONLY))
}

/// Whether every user of the machine may read the file.
pub(crate) fn is_readable_by_all(path: &Path) -> bool {
    path.metadata().is_ok_and(|file| file.mode() & 0o004 != 0)
}

/// A name in an open directory.
struct DirectoryEntry<'a> {
    directory: File,
    name: &'a OsStr,
}

/// User and group.
type UserAndGroup = (u32, u32);

impl<'a> DirectoryEntry<'a> {
    fn of(path: &'a Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = File::from(openat(CWD, directory_of(path), flags, Mode::empty())?);
        Ok(Self { directory, name: name_of(path)? })
    }

    fn open(&self, flags: OFlags) -> io::Result<File> {
        let file = match openat(&self.directory, self.name, flags, Mode::empty()) {
            Err(Errno::LOOP) => return Err(link()),
            opened => File::from(opened?),
        };
        check_alone(&file.metadata()?)?;
        Ok(file)
    }

    fn create(&self) -> io::Result<File> {
        self.create_like(None)
    }

    /// Creates a file that does not exist yet. What root creates for a service that runs as another user belongs
    /// to `owner`, or else to the owner of the directory: otherwise the service could not read it.
    fn create_like(&self, owner: Option<UserAndGroup>) -> io::Result<File> {
        let flags = OWN_FILE | OFlags::CREATE | OFlags::EXCL;
        let file = File::from(openat(&self.directory, self.name, flags, Mode::from_raw_mode(FILE_MODE))?);
        if geteuid().is_root() {
            let directory = self.directory.metadata()?;
            let (user, group) = owner.unwrap_or((directory.uid(), directory.gid()));
            // Where even root may not do that, the file stays root's, and the service says that it cannot read it.
            let _ = fchown(&file, Some(user), Some(group));
        }
        Ok(file)
    }

    fn owner_of_regular_file(&self) -> Option<UserAndGroup> {
        let about = statat(&self.directory, self.name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let alone = FileType::from_raw_mode(about.st_mode).is_file() && about.st_nlink == 1;
        alone.then_some((about.st_uid, about.st_gid))
    }

    fn remove_if_exists(&self) -> io::Result<()> {
        match unlinkat(&self.directory, self.name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn name_of(path: &Path) -> io::Result<&OsStr> {
    path.file_name().ok_or_else(|| invalid("the path does not name a file"))
}

fn read_up_to(file: &File, max: u64) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    file.take(max + 1).read_to_end(&mut content)?;
    if content.len() as u64 > max {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it has more than {max} bytes")));
    }
    Ok(content)
}

/// Refuses what is not a regular file with one name.
fn check_alone(about: &Metadata) -> io::Result<()> {
    match about.file_type() {
        kind if kind.is_symlink() => Err(link()),
        kind if !kind.is_file() => Err(not_regular()),
        _ if about.nlink() > 1 => Err(invalid("it has a second name (a hard link): remove it")),
        _ => Ok(()),
    }
}

/// The error with the path that it is about.
fn at(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn link() -> io::Error {
    invalid("it is a symbolic link, which is not followed: remove it")
}

fn not_regular() -> io::Error {
    invalid("it is not a regular file")
}

fn invalid(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

#[cfg(test)]
mod tests;
