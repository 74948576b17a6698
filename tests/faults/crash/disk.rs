//! Disks in files: a test can cut their power, and they can be as small as a test needs.

use std::{
    fs::{self, File},
    io::Write as _,
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
    directory: TempDir,
    /// The mount points, in the order in which they were mounted.
    mounts: Vec<PathBuf>,
}

/// The part of a failing disk that is allocated in advance, for the structures of the file system.
const ALWAYS_THERE: &str = "24M";
/// The size of the tmpfs that holds a failing disk, and the size that the disk reports.
const FAILING_MEMORY: &str = "size=64M";
const FAILING_MIB: u64 = 256;
/// The largest write of the loop device. It reports a write as successful if the first page of it was stored, so on a
/// failing disk every write is a single page.
const PAGE_KIB: &str = "4";
const USUAL_KIB: &str = "1280";

impl Disk {
    /// Creates a disk. The error says why this machine cannot.
    pub(crate) fn new(format: Format, mebibytes: u64) -> Result<Self, String> {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut disk = Self { directory, mounts: vec![] };
        disk.make_image(mebibytes)?;
        match format {
            // No blocks are reserved for root, so a full disk is full for every user.
            Format::Ext4 => run("mkfs.ext4", &["-q", "-F", "-m", "0", text(&disk.image())])?,
            Format::Xfs => run("mkfs.xfs", &["-q", text(&disk.image())])?,
        }
        disk.mount()?;
        Ok(disk)
    }

    /// Creates a disk that can fail on request. It is a sparse file on a tmpfs, and [`fail`](Self::fail) fills the
    /// tmpfs. Then a sync of new data fails, the next one succeeds, and the data is lost, as on a disk with bad sectors.
    pub(crate) fn new_failing() -> Result<Self, String> {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut disk = Self { directory, mounts: vec![] };
        let memory = disk.memory();
        run("mkdir", &[text(&memory)])?;
        run("mount", &["-t", "tmpfs", "-o", FAILING_MEMORY, "tmpfs", text(&memory)])?;
        disk.mounts.push(memory);
        disk.make_image(FAILING_MIB)?;
        // The metadata and the journal are at the start, in the part that is allocated in advance.
        let tables =
            ["-b", "4096", "-J", "size=4", "-E", "packed_meta_blocks=1,lazy_itable_init=0,nodiscard"];
        run("mkfs.ext4", &[&["-q", "-F", "-m", "0"], &tables[..], &[text(&disk.image())]].concat())?;
        run("fallocate", &["-o", "0", "-l", ALWAYS_THERE, text(&disk.image())])?;
        disk.mount()?;
        Ok(disk)
    }

    /// Makes writes to new sectors fail.
    pub(crate) fn fail(&self) {
        let mut filler = File::create(self.memory().join("filler")).expect("a new file");
        let block = vec![0xAA; 4_096];
        while filler.write_all(&block).is_ok() {}
    }

    /// Makes writes succeed again.
    pub(crate) fn heal(&self) {
        fs::remove_file(self.memory().join("filler")).expect("the filler is ours");
    }

    /// Where it is mounted.
    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("mounted")
    }

    /// Shuts the file system down at once. Everything that was not synced is lost.
    pub(crate) fn cut_power(&self) {
        let cut = run("xfs_io", &["-x", "-c", "shutdown", text(&self.path())]);
        cut.expect("a mounted file system can be shut down");
    }

    /// Mounts the disk again, as after a restart of the machine. No process may use it any more.
    pub(crate) fn restart(&mut self) {
        self.lift_limit();
        // A killed process may not have closed its files yet.
        eventually("the disk is no longer in use", || run("umount", &[text(&self.path())]).ok());
        self.mounts.pop();
        // The tests in other mount namespaces keep the file system that was shut down, and it would be mounted again.
        eventually("no other namespace has the disk", || {
            let devices = Command::new("losetup").arg("--associated").arg(self.image()).output();
            devices.expect("losetup runs").stdout.is_empty().then_some(())
        });
        self.mount().expect("what was mounted once can be mounted again");
    }

    fn make_image(&self, mebibytes: u64) -> Result<(), String> {
        run("mkdir", &[text(&self.path())])?;
        run("truncate", &["-s", &format!("{mebibytes}M"), text(&self.image())])
    }

    fn mount(&mut self) -> Result<(), String> {
        run("mount", &["-o", "loop", text(&self.image()), text(&self.path())])?;
        self.mounts.push(self.path());
        if self.memory().exists() { self.limit_writes(PAGE_KIB) } else { Ok(()) }
    }

    /// Limits what the device writes at a time. The limit stays with the device, across its users.
    fn limit_writes(&self, kibibytes: &str) -> Result<(), String> {
        let finished = Command::new("findmnt").args(["-n", "-o", "SOURCE"]).arg(self.path()).output();
        let finished = finished.map_err(|error| format!("findmnt: {error}"))?;
        let device = String::from_utf8_lossy(&finished.stdout).trim().replace("/dev/", "");
        fs::write(format!("/sys/block/{device}/queue/max_sectors_kb"), kibibytes)
            .map_err(|error| format!("the writes of {device} cannot be limited: {error}"))
    }

    /// Gives the device back as it was.
    fn lift_limit(&self) {
        if self.memory().exists() {
            // A slow device is harmless.
            let _ = self.limit_writes(USUAL_KIB);
        }
    }

    fn memory(&self) -> PathBuf {
        self.directory.path().join("memory")
    }

    fn image(&self) -> PathBuf {
        let memory = self.memory();
        if memory.exists() { memory.join("image") } else { self.directory.path().join("image") }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.lift_limit();
        for mount in self.mounts.iter().rev() {
            // A failed test may have left a process on it.
            let _ = run("umount", &["--lazy", text(mount)]);
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
    path.to_str().expect("temporary directories have plain names")
}
