//! Disks of our own, in files: their power can be cut, and they can be as small as a test needs them.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

use harness::eventually;
use tempfile::TempDir;

/// What a disk is formatted with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Ext4,
    Xfs,
}

/// A file system in a file, mounted until it is dropped.
pub(crate) struct Disk {
    folder: TempDir,
    mounted: bool,
}

impl Disk {
    /// Makes a disk; tells why not if this machine does not let us.
    pub(crate) fn new(format: Format, mebibytes: u64) -> Result<Self, String> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let disk = Self { folder, mounted: false };
        run("truncate", &["-s", &format!("{mebibytes}M"), text(&disk.image())])?;
        match format {
            // Nothing is kept back for the administrator, so that a full disk is full for everybody.
            Format::Ext4 => run("mkfs.ext4", &["-q", "-F", "-m", "0", text(&disk.image())])?,
            Format::Xfs => run("mkfs.xfs", &["-q", text(&disk.image())])?,
        }
        run("mkdir", &[text(&disk.path())])?;
        disk.mount()
    }

    /// Where it is mounted.
    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("mounted")
    }

    /// Stops the file system from one moment to the next: what was not synced by now is gone.
    pub(crate) fn cut_power(&self) {
        let cut = run("xfs_io", &["-x", "-c", "shutdown", text(&self.path())]);
        cut.expect("a mounted file system can be shut down");
    }

    /// Mounts the disk again, as after a restart of the machine. Nobody may use it any more.
    pub(crate) fn restart(mut self) -> Self {
        self.unmount();
        self.mount().expect("what was mounted once can be mounted again")
    }

    fn mount(mut self) -> Result<Self, String> {
        run("mount", &["-o", "loop", text(&self.image()), text(&self.path())])?;
        self.mounted = true;
        Ok(self)
    }

    fn unmount(&mut self) {
        // A process that was killed may still be letting go of its files.
        eventually("nobody uses the disk", || run("umount", &[text(&self.path())]).ok());
        self.mounted = false;
    }

    fn image(&self) -> PathBuf {
        self.folder.path().join("image")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.mounted {
            // A failed test may have left somebody on it.
            let _ = run("umount", &["--lazy", text(&self.path())]);
        }
    }
}

/// Runs a command of the system to its end.
pub(crate) fn run(command: &str, arguments: &[&str]) -> Result<(), String> {
    let Output { status, stderr, .. } =
        Command::new(command).args(arguments).output().map_err(|error| format!("{command}: {error}"))?;
    let words = String::from_utf8_lossy(&stderr);
    status.success().then_some(()).ok_or_else(|| format!("{command} fails: {}", words.trim()))
}

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary folders have plain names")
}
