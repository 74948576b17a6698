//! Releases and the Debian package: built by the documented commands and inspected. The package is installed, upgraded,
//! removed and purged by the real dpkg on a copy of this machine that is thrown away. The commands of
//! docs/backup.md and docs/recovery.md for deleted files, a restore and a takeover are run there.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use harness::{not_run, program, root, succeed};
use rustix::process::geteuid;

/// The program that the tests use, without symbols.
fn stripped(directory: &Path) -> PathBuf {
    let stripped = directory.join("petstore");
    succeed(Command::new("strip").arg("-o").arg(&stripped).arg(program()));
    stripped
}

/// Builds the package of the program that the tests use.
fn build(directory: &Path, revision: &str) -> PathBuf {
    let built = succeed(
        Command::new(root().join("docs/deploy/build-deb"))
            .arg(stripped(directory))
            .arg(directory)
            .env("DEB_REVISION", revision)
            // Compressing takes longer than everything else.
            .env("DPKG_DEB_COMPRESSOR_TYPE", "none"),
    );
    built.trim_end().into()
}

#[test]
fn the_package_holds_the_program_and_what_belongs_to_it() {
    let directory = tempfile::tempdir().unwrap();
    let package = build(directory.path(), "7");
    let field = |name: &str| {
        succeed(Command::new("dpkg-deb").arg("--field").arg(&package).arg(name)).trim_end().to_owned()
    };
    assert_eq!(field("Package"), "petstore");
    assert_eq!(field("Version"), format!("{}-7", env!("CARGO_PKG_VERSION")));
    assert!(field("Depends").contains("libc6 (>= "), "{}", field("Depends"));

    let unpacked = directory.path().join("unpacked");
    succeed(Command::new("dpkg-deb").arg("--raw-extract").arg(&package).arg(&unpacked));
    let listed = succeed(Command::new("dpkg-deb").arg("--contents").arg(&package));
    for (mode, path) in [
        ("-rwxr-xr-x", "usr/bin/petstore"),
        ("-rw-r--r--", "usr/lib/systemd/system/petstore.service"),
        ("-rw-r--r--", "etc/default/petstore"),
        ("-rw-r--r--", "usr/share/man/man1/petstore.1.gz"),
        ("-rw-r--r--", "usr/share/man/man1/petstore-log-verify.1.gz"),
        ("-rw-r--r--", "usr/share/bash-completion/completions/petstore"),
        ("-rw-r--r--", "usr/share/zsh/vendor-completions/_petstore"),
        ("-rw-r--r--", "usr/share/fish/vendor_completions.d/petstore.fish"),
        ("-rw-r--r--", "usr/share/doc/petstore/copyright"),
        ("-rw-r--r--", "usr/share/doc/petstore/NOTICE"),
        ("-rw-r--r--", "usr/share/doc/petstore/docs/runbook.md"),
        ("-rw-r--r--", "usr/share/doc/petstore/docs/monitoring/alerts.yml"),
        ("-rwxr-xr-x", "usr/share/doc/petstore/docs/deploy/petstore-backup"),
    ] {
        let line = listed.lines().find(|line| line.ends_with(&format!(" ./{path}")));
        let line = line.unwrap_or_else(|| panic!("{path} in {listed}"));
        assert!(line.starts_with(mode) && line.contains(" root/root "), "{line}");
    }
    succeed(Command::new("md5sum").args(["--check", "--quiet", "DEBIAN/md5sums"]).current_dir(&unpacked));
    for conffile in fs::read_to_string(unpacked.join("DEBIAN/conffiles")).unwrap().lines() {
        assert!(unpacked.join(conffile.trim_start_matches('/')).is_file(), "{conffile}");
    }
}

#[test]
fn a_release_has_a_checksum_for_everything_in_it() {
    let directory = tempfile::tempdir().unwrap();
    let release = directory.path().join("release");
    succeed(
        Command::new(root().join("docs/deploy/build-release"))
            .arg(&release)
            .env("TEST_PROGRAM", stripped(directory.path()))
            .env("DPKG_DEB_COMPRESSOR_TYPE", "none"),
    );
    let listed = succeed(Command::new("sha256sum").args(["--check", "SHA256SUMS"]).current_dir(&release));
    let files = fs::read_dir(&release).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    let files: Vec<String> = files.filter(|file| file != "SHA256SUMS").collect();
    assert_eq!(files.len(), 3, "an archive, a package and a bill of materials: {files:?}");
    for file in &files {
        assert!(listed.contains(&format!("{file}: OK")), "{file} in {listed}");
    }
    let archive = files.iter().find(|file| file.ends_with(".tar.gz")).unwrap();
    succeed(
        Command::new("tar")
            .args(["--extract", "--strip-components=1", "--file"])
            .arg(archive)
            .current_dir(&release),
    );
    let version = succeed(Command::new(release.join("petstore")).arg("--version"));
    assert!(version.starts_with(&format!("petstore {}\n", env!("CARGO_PKG_VERSION"))), "{version}");
    assert!(release.join("LICENSE-MIT").is_file());
}

#[test]
fn the_package_is_installed_upgraded_removed_and_purged() {
    if !geteuid().is_root() {
        return not_run("debian_package::the_package_is_installed", "installing packages needs root");
    }
    let directory = tempfile::tempdir().unwrap();
    let (old, new) = (build(directory.path(), "1"), build(directory.path(), "2"));
    succeed(Command::new(root().join("tests/deploy/package-lifecycle")).args([old, new]));
}
