//! Copies of a store's files, to try out steps that may change files.

use std::{
    fs::{self, DirBuilder},
    io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use application::ports::LogError;

use super::{engine::Engine, layout::Layout, space};
use crate::private_files::{FOLDER_MODE, create_file, open_to_read};

/// A copy of what the engine stores, without mark and lock. It goes away by itself.
#[derive(Debug)]
pub struct Copy {
    /// Where its files are.
    pub layout: Layout,
    folder: PathBuf,
}

impl Copy {
    /// A copy in the folder for temporary files.
    pub fn temporary<E: Engine>(store: &Layout) -> Result<Self, LogError> {
        let folder = tempfile::tempdir().map(tempfile::TempDir::keep);
        folder.and_then(|folder| Self::make::<E>(store, folder)).map_err(|error| {
            store.refused(&format!(
                "cannot be copied to the folder for temporary files: {error}; check the path, and that there is room \
                 (TMPDIR names another folder)"
            ))
        })
    }

    /// A copy in a folder of its own beside the files of the store.
    pub fn beside<E: Engine>(store: &Layout, name: &str) -> io::Result<Self> {
        let folder = store.folder.join(name);
        // A process that was killed may have left one.
        remove(&folder)?;
        DirBuilder::new().mode(FOLDER_MODE).create(&folder)?;
        Self::make::<E>(store, folder)
    }

    fn make<E: Engine>(store: &Layout, folder: PathBuf) -> io::Result<Self> {
        let layout = E::layout(&folder.join(below(&store.folder, &store.path)));
        let copy = Self { layout, folder };
        let files = E::files(store)?;
        let size = files.iter().try_fold(0, |size, file| io::Result::Ok(size + file.metadata()?.len()))?;
        space::check_room_for_copy(&copy.folder, size)?;
        for file in &files {
            let to = copy.folder.join(below(&store.folder, file));
            to.parent().map_or(Ok(()), fs::create_dir_all)?;
            io::copy(&mut open_to_read(file)?, &mut create_file(&to)?)?;
        }
        Ok(copy)
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.folder) {
            tracing::warn!("the copy {} could not be removed: {error}", self.folder.display());
        }
    }
}

fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// The path as seen from the folder. A file in the working directory has no folder in front of its name.
fn below<'a>(folder: &Path, path: &'a Path) -> &'a Path {
    path.strip_prefix(folder).unwrap_or(path.file_name().map_or(path, Path::new))
}
