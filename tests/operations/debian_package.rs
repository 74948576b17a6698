//! The Debian package: built by the documented command, inspected, and installed, upgraded, removed and purged by the real
//! dpkg on a copy of this machine that is thrown away.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use harness::{not_run, program, root, succeed};
use rustix::process::geteuid;

/// Builds the package of the program that the tests use.
fn build(directory: &Path, revision: &str) -> PathBuf {
    let stripped = directory.join("petstore");
    succeed(Command::new("strip").arg("-o").arg(&stripped).arg(program()));
    let built = succeed(
        Command::new(root().join("docs/deploy/build-deb"))
            .arg(&stripped)
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
    ] {
        let line = listed.lines().find(|line| line.ends_with(&format!(" ./{path}")));
        let line = line.unwrap_or_else(|| panic!("{path} in {listed}"));
        assert!(line.starts_with(mode) && line.contains(" root/root "), "{line}");
    }
    succeed(Command::new("md5sum").args(["--check", "--quiet", "DEBIAN/md5sums"]).current_dir(&unpacked));
    for conffile in fs::read_to_string(unpacked.join("DEBIAN/conffiles")).unwrap().lines() {
        assert!(unpacked.join(conffile.trim_start_matches('/')).is_file(), "{conffile}");
    }
    // Settings that are not in the package yet are named by variables that exist.
    let help = succeed(Command::new(program()).args(["serve", "--help"]));
    let settings = fs::read_to_string(unpacked.join("etc/default/petstore")).unwrap();
    for variable in settings.lines().filter_map(|line| line.strip_prefix('#')?.split_once('=')) {
        assert!(help.contains(&format!("[env: {}", variable.0)), "{variable:?}");
    }
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
