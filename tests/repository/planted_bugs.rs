//! The bugs that `tests/planted-bugs` plants: each patch still applies to the sources. Building and catching the bugs
//! takes long, so every test run checks only this, and `test_lists` that the tests which must catch them exist.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use harness::root;

/// Every bug: its file and the text.
pub(super) fn bugs() -> Vec<(PathBuf, String)> {
    let files = fs::read_dir(root().join("tests/planted")).unwrap().map(|entry| entry.unwrap().path());
    let mut bugs: Vec<_> = files.map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect();
    bugs.sort();
    assert!(!bugs.is_empty(), "there are bugs to plant");
    bugs
}

#[test]
fn every_planted_bug_is_described_and_applies_to_the_sources() {
    for (bug, text) in bugs() {
        assert!(text.starts_with("Bug: "), "{} begins with what is wrong", bug.display());
        assert_applies(&bug);
    }
}

/// Asserts that a patch applies to the sources.
pub(super) fn assert_applies(patch: &Path) {
    let applied = Command::new("git").args(["apply", "--check"]).arg(patch).current_dir(root()).output();
    let applied = applied.expect("git is installed");
    let reason = String::from_utf8_lossy(&applied.stderr);
    assert!(applied.status.success(), "{} does not apply: {reason}", patch.display());
}
