//! Copies the files of a store, to try steps that may change them.

use std::{
    fs::{self, Permissions},
    io,
    os::unix::fs::PermissionsExt as _,
    path::Path,
};

use application::ports::LogError;
use tempfile::{Builder, TempDir};

use super::{engine::Engine, layout::Layout, space::Space};
use crate::private_files::{DIRECTORY_MODE, create_file, if_exists, open_to_read};

/// A copy of the engine's files, without mark and lock. Dropping it deletes it.
#[derive(Debug)]
pub struct StoreCopy {
    /// The paths of the copy.
    pub layout: Layout,
    _directory: TempDir,
}

impl StoreCopy {
    /// Copies the store to the temporary directory.
    pub fn temporary<E: Engine>(store: &Layout) -> Result<Self, LogError> {
        let directory = Builder::new().permissions(Permissions::from_mode(DIRECTORY_MODE)).tempdir();
        directory.and_then(|directory| Self::make::<E>(store, directory)).map_err(|error| {
            store.rejected(&format!(
                "cannot be copied to the temporary directory: {error}; check the path and the free space, or set TMPDIR to \
                 another directory"
            ))
        })
    }

    /// Copies the store to a new directory inside it.
    pub fn in_store<E: Engine>(store: &Layout, name: &str) -> io::Result<Self> {
        // A killed process may have left one.
        if_exists(fs::remove_dir_all(store.directory.join(name)))?;
        let mode = Permissions::from_mode(DIRECTORY_MODE);
        let directory =
            Builder::new().prefix(name).rand_bytes(0).permissions(mode).tempdir_in(&store.directory)?;
        Self::make::<E>(store, directory)
    }

    fn make<E: Engine>(store: &Layout, directory: TempDir) -> io::Result<Self> {
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
            io::copy(&mut open_to_read(file)?, &mut create_file(&to)?)?;
        }
        Ok(copy)
    }
}

/// The path relative to the directory. A file in the working directory has no parent to strip.
fn below<'a>(directory: &Path, path: &'a Path) -> &'a Path {
    path.strip_prefix(directory).unwrap_or(path.file_name().map_or(path, Path::new))
}
