//! Copies the files of a store, to try steps that may change them.

use std::{
    fs::{self, File, Permissions},
    io::{self, Write as _},
    os::unix::fs::{FileExt as _, PermissionsExt as _},
    path::Path,
};

use application::ports::{Fault, LogError};
use rustix::io::Errno;
use tempfile::{Builder, TempDir};

use super::{engine::Engine, layout::Layout, space::Space};
use crate::private_files::{DIRECTORY_MODE, create_file, if_exists, open_to_read};

/// The number of bytes that are copied at a time, and the number that are given up if they cannot be read: a page.
const READ_BYTES: usize = 64 * 1024;
const PAGE_BYTES: usize = 4 * 1024;

/// A copy of the engine's files, without mark and lock. Dropping it deletes it.
#[derive(Debug)]
pub(crate) struct StoreCopy {
    /// The paths of the copy.
    pub(crate) layout: Layout,
    _directory: TempDir,
}

impl StoreCopy {
    /// Copies the store to the temporary directory, each file with `copy_file`.
    pub(super) fn temporary<E: Engine>(
        store: &Layout,
        copy_file: fn(&mut File, &mut File) -> io::Result<u64>,
    ) -> Result<Self, LogError> {
        let directory = Builder::new().permissions(Permissions::from_mode(DIRECTORY_MODE)).tempdir();
        directory.and_then(|directory| Self::make::<E>(store, directory, copy_file)).map_err(|error| {
            // Writes to the copy wait in memory, so this is a page of the store that the disk cannot read.
            if is_disk_error(&error) {
                let store = store.path.display();
                return Fault::Damaged.error(format!("the disk cannot read the store {store}: {error}"));
            }
            store.rejected(&format!(
                "cannot be copied to the temporary directory: {error}; check the path and the free space, or set TMPDIR to \
                 another directory"
            ))
        })
    }

    /// Copies the store to a new directory inside it.
    pub(crate) fn in_store<E: Engine>(store: &Layout, name: &str) -> io::Result<Self> {
        // A killed process may have left one.
        if_exists(fs::remove_dir_all(store.directory.join(name)))?;
        let mode = Permissions::from_mode(DIRECTORY_MODE);
        let directory =
            Builder::new().prefix(name).rand_bytes(0).permissions(mode).tempdir_in(&store.directory)?;
        Self::make::<E>(store, directory, io::copy)
    }

    fn make<E: Engine>(
        store: &Layout,
        directory: TempDir,
        copy_file: fn(&mut File, &mut File) -> io::Result<u64>,
    ) -> io::Result<Self> {
        let path = directory.path().to_owned();
        let layout = E::layout(&path.join(below(&store.directory, &store.path)));
        let copy = Self { layout, _directory: directory };
        let files = E::files(store)?;
        let size = files.iter().try_fold(0, |size, file| io::Result::Ok(size + file.metadata()?.len()))?;
        if !Space::of(&path)?.has_room_for(size) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        for file in &files {
            let to = path.join(below(&store.directory, file));
            to.parent().map_or(Ok(()), fs::create_dir_all)?;
            copy_file(&mut open_to_read(file)?, &mut create_file(&to)?)?;
        }
        Ok(copy)
    }
}

/// Copies what can be read.
pub(super) fn copy_around_errors(from: &mut File, to: &mut File) -> io::Result<u64> {
    let mut offset = 0;
    loop {
        let bytes = read_around_errors(from, offset, READ_BYTES)?;
        if bytes.is_empty() {
            return Ok(offset);
        }
        to.write_all(&bytes)?;
        offset += bytes.len() as u64;
    }
}

/// Reads up to `len` bytes. A page that the disk cannot read becomes zeros, so that the rest can be salvaged.
pub(crate) fn read_around_errors(file: &File, offset: u64, len: usize) -> io::Result<Vec<u8>> {
    let left = file.metadata()?.len().saturating_sub(offset);
    let mut bytes = vec![0; usize::try_from(left).map_or(len, |left| left.min(len))];
    for (page, at) in bytes.chunks_mut(PAGE_BYTES).zip((offset..).step_by(PAGE_BYTES)) {
        match file.read_exact_at(page, at) {
            Err(error) if is_disk_error(&error) => page.fill(0),
            read => read?,
        }
    }
    Ok(bytes)
}

fn is_disk_error(error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::IO)
}

/// The path relative to the directory. A file in the working directory has no parent to strip.
fn below<'a>(directory: &Path, path: &'a Path) -> &'a Path {
    path.strip_prefix(directory).unwrap_or(path.file_name().map_or(path, Path::new))
}
