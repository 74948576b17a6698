//! Copies the files of a store, to try steps that may change them.

use std::{
    fs::{self, DirBuilder, Permissions},
    io,
    os::unix::fs::{DirBuilderExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use application::ports::LogError;

use super::{engine::Engine, layout::Layout, space};
use crate::private_files::{DIRECTORY_MODE, create_file, open_to_read};

/// A copy of the engine's files, without mark and lock. Dropping it deletes it.
#[derive(Debug)]
pub struct StoreCopy {
    /// The paths of the copy.
    pub layout: Layout,
    directory: PathBuf,
}

impl StoreCopy {
    /// Copies the store to the temporary directory.
    pub fn temporary<E: Engine>(store: &Layout) -> Result<Self, LogError> {
        let mode = Permissions::from_mode(DIRECTORY_MODE);
        let directory = tempfile::Builder::new().permissions(mode).tempdir().map(tempfile::TempDir::keep);
        directory.and_then(|directory| Self::make::<E>(store, directory)).map_err(|error| {
            store.rejected(&format!(
                "cannot be copied to the temporary directory: {error}; check the path and the free space, or set TMPDIR to \
                 another directory"
            ))
        })
    }

    /// Copies the store to a new directory inside it.
    pub fn in_store<E: Engine>(store: &Layout, name: &str) -> io::Result<Self> {
        let directory = store.directory.join(name);
        // A killed process may have left one.
        remove(&directory)?;
        DirBuilder::new().mode(DIRECTORY_MODE).create(&directory)?;
        Self::make::<E>(store, directory)
    }

    fn make<E: Engine>(store: &Layout, directory: PathBuf) -> io::Result<Self> {
        let layout = E::layout(&directory.join(below(&store.directory, &store.path)));
        let copy = Self { layout, directory };
        let files = E::files(store)?;
        let size = files.iter().try_fold(0, |size, file| io::Result::Ok(size + file.metadata()?.len()))?;
        space::check_room_for_copy(&copy.directory, size)?;
        for file in &files {
            let to = copy.directory.join(below(&store.directory, file));
            to.parent().map_or(Ok(()), fs::create_dir_all)?;
            io::copy(&mut open_to_read(file)?, &mut create_file(&to)?)?;
        }
        Ok(copy)
    }
}

impl Drop for StoreCopy {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.directory) {
            tracing::warn!(
                target: "petstore::storage",
                directory = %self.directory.display(), %error,
                "cannot delete the copy of the store"
            );
        }
    }
}

fn remove(directory: &Path) -> io::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// The path relative to the directory. A file in the working directory has no parent to strip.
fn below<'a>(directory: &Path, path: &'a Path) -> &'a Path {
    path.strip_prefix(directory).unwrap_or(path.file_name().map_or(path, Path::new))
}
