//! The bugs that `tests/planted-bugs` plants: each patch still applies to the sources, and the tests that
//! must catch the bug exist. Building and catching the bugs takes long, so every test run checks only this
//! part.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace is the parent")
}

/// Every bug: its file and the text.
fn bugs() -> Vec<(PathBuf, String)> {
    let files = fs::read_dir(root().join("tests/planted")).unwrap().map(|entry| entry.unwrap().path());
    let mut bugs: Vec<_> = files.map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect();
    bugs.sort();
    assert!(!bugs.is_empty(), "there are bugs to plant");
    bugs
}

#[test]
fn every_planted_bug_applies_to_the_sources() {
    for (bug, _) in bugs() {
        assert_applies(&bug);
    }
}

/// Asserts that a patch fits the sources as they are.
pub(crate) fn assert_applies(patch: &Path) {
    let applied = Command::new("git").args(["apply", "--check"]).arg(patch).current_dir(root()).output();
    let applied = applied.expect("git is installed");
    let reason = String::from_utf8_lossy(&applied.stderr);
    assert!(applied.status.success(), "{} does not apply: {reason}", patch.display());
}

#[test]
fn every_planted_bug_says_what_it_is_and_names_tests_that_exist() {
    let listed = Command::new(env::current_exe().unwrap()).arg("--list").output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let accepted: Vec<_> = listed.lines().filter_map(|line| line.strip_suffix(": test")).collect();
    for (bug, text) in bugs() {
        let bug = bug.display();
        assert!(text.starts_with("Bug: "), "{bug} begins with what is wrong");
        let mut tests = text.lines().filter_map(|line| line.strip_prefix("Caught by: ")).peekable();
        assert!(tests.peek().is_some(), "{bug} names a test");
        for test in tests {
            assert!(accepted.contains(&test) || is_unit_test(test), "{bug} names {test}, which is no test");
        }
    }
}

/// Whether a file of the crate that the name begins with has a function of that name. Where exactly, only the
/// crate's own tests could tell.
fn is_unit_test(test: &str) -> bool {
    let (Some((package, _)), Some((_, function))) = (test.split_once("::"), test.rsplit_once("::")) else {
        return false;
    };
    let mut folders = vec![root().join(package).join("src")];
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
            } else if fs::read_to_string(&path).is_ok_and(|text| text.contains(&format!("fn {function}("))) {
                return true;
            }
        }
    }
    false
}
