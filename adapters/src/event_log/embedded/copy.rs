//! Copies of a store's files, for what may change them.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use application::ports::{Fault, LogError};
use tempfile::TempDir;

use super::{engine::Engine, layout::Layout};

/// A copy in the folder for temporary files. It goes away by itself.
#[derive(Debug)]
pub struct Copy {
    /// Where it is.
    pub layout: Layout,
    _folder: TempDir,
}

impl Copy {
    /// Copies the files of the engine, without mark and lock.
    pub fn of<E: Engine>(layout: &Layout) -> Result<Self, LogError> {
        let copy = || {
            let folder = tempfile::tempdir()?;
            copy_files(&E::files(layout)?, &layout.folder, folder.path())?;
            let path = folder.path().join(below(&layout.folder, &layout.path));
            Ok(Self { layout: E::layout(&path), _folder: folder })
        };
        copy().map_err(|error: io::Error| {
            let detail = format!(
                "the store {} cannot be copied to the folder for temporary files: {error}; check the path, and that \
                 there is room (TMPDIR names another folder)",
                layout.path.display()
            );
            LogError::new(Fault::CannotOpen, detail)
        })
    }
}

/// Copies files, which are below the folder `from`, to the same places below `to`.
pub(crate) fn copy_files(files: &[PathBuf], from: &Path, to: &Path) -> io::Result<()> {
    for file in files {
        let copy = to.join(below(from, file));
        if let Some(folder) = copy.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::copy(file, copy)?;
    }
    Ok(())
}

/// The path as seen from the folder. A file in the working directory has no folder in front of its name.
fn below<'a>(folder: &Path, path: &'a Path) -> &'a Path {
    path.strip_prefix(folder).unwrap_or(path.file_name().map_or(path, Path::new))
}
