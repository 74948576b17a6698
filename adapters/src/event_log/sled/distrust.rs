//! What to do with files after a sync has failed.
//!
//! When a sync fails, Linux keeps the data in its cache and marks it clean: every reader sees it, the next sync
//! succeeds, and the disk does not have it. A log that was opened on top of such data would acknowledge commits
//! whose predecessors vanish with the power. So before the files are opened again, every byte of them is written
//! again, just as the cache shows it, and synced.
//!
//! This is sound whatever the cache and the disk held before: each page is dirty again, so a sync that succeeds after
//! it has brought all of them to the disk, and from then on both hold the same. It needs no space, since nothing
//! moves, and harms nothing if it fails half way, since no byte changes. (Dropping the cache instead would rest on
//! advice that the kernel need not follow.) Whether the bytes are a sound log is for the usual checks to say.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::FileExt as _,
    path::Path,
};

use super::folder::{Folder, create_file};

/// Between two syncs: so much may be dirty at a time.
const STRETCH: u64 = 64 * 1024 * 1024;
const BLOCK: usize = 1024 * 1024;

/// Leaves word for later starts that the files cannot be trusted. Succeeds only if the disk takes writes.
pub(super) fn declare(folder: &Folder) -> io::Result<()> {
    let mut file = create_file(&folder.suspicion())?;
    file.write_all(
        b"A write or sync failed. The next start writes all files of the store anew before it trusts them.\n",
    )?;
    file.sync_all()
}

/// Whether this or an earlier process has left such word.
pub(super) fn is_declared(folder: &Folder) -> bool {
    folder.suspicion().exists()
}

/// Makes the disk hold what the cache shows.
pub(super) fn resolve(folder: &Folder) -> io::Result<()> {
    for path in folder.engine_files()? {
        write_again(&path)?;
    }
    folder.settle()
}

/// The files can be trusted again.
pub(super) fn withdraw(folder: &Folder) -> io::Result<()> {
    fs::remove_file(folder.suspicion())
}

fn write_again(path: &Path) -> io::Result<()> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let mut block = vec![0; BLOCK];
    let mut offset = 0;
    loop {
        let len = read_block(&file, &mut block, offset)?;
        file.write_all_at(&block[..len], offset)?;
        offset += len as u64;
        if len < BLOCK {
            return file.sync_all();
        }
        if offset.is_multiple_of(STRETCH) {
            file.sync_data()?;
        }
    }
}

/// Fills the block as far as the file goes.
fn read_block(file: &File, block: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut len = 0;
    while len < block.len() {
        match file.read_at(&mut block[len..], offset + len as u64) {
            Ok(0) => break,
            Ok(read) => len += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(len)
}
