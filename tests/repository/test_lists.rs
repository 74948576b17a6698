//! Lists that name tests: an entry that matches no test is an error. Without this check, a renamed test silently leaves
//! a list.

use std::{fs, path::Path, process::Command};

use harness::{files_below, root, succeed};

use super::documentation;
use crate::storage::engines;

#[test]
fn every_filter_in_a_list_matches_a_test() {
    let engines = [&engines::INTERFACE[..], &engines::DURABLE, &engines::DURABLE_IN_BUCKETS].concat();
    let scenarios = words("tests/crash-suite", "scenarios=\"", "\n\"");
    let lists = [
        ("tests/storage/engines.rs", engines.into_iter().map(str::to_owned).collect()),
        ("tests/crash-suite", scenarios.into_iter().skip(1).step_by(2).collect()),
        ("tests/mutants", words("tests/mutants", "acceptance=(", ")")),
        ("the documentation", documentation::test_filters()),
    ];
    let tests = acceptance_tests();
    for (list, filters) in lists {
        assert!(!filters.is_empty(), "{list} names no test");
        for filter in filters {
            assert!(tests.iter().any(|test| test.contains(&filter)), "{list}: {filter} matches no test");
        }
    }
}

/// Building and catching the bugs takes long: see `tests/planted-bugs`.
#[test]
fn every_planted_bug_applies_to_the_sources_and_names_tests_that_exist() {
    let (tests, bugs) = (acceptance_tests(), files_below(&root().join("tests/planted")));
    assert!(!bugs.is_empty(), "there are bugs to plant");
    for path in bugs {
        let (text, bug) = (fs::read_to_string(&path).unwrap(), path.display());
        assert!(text.starts_with("Bug: "), "{bug} begins with what is wrong");
        assert_applies(&path);
        let mut named = text.lines().filter_map(|line| line.strip_prefix("Caught by: ")).peekable();
        assert!(named.peek().is_some(), "{bug} names no test");
        for test in named {
            let exists = tests.iter().any(|known| known == test) || is_unit_test(test);
            assert!(exists, "{bug}: {test} matches no test");
        }
    }
}

/// Asserts that a patch applies to the sources.
fn assert_applies(patch: &Path) {
    let applied = Command::new("git").args(["apply", "--check"]).arg(patch).current_dir(root()).output();
    let applied = applied.expect("git is installed");
    let reason = String::from_utf8_lossy(&applied.stderr);
    assert!(applied.status.success(), "{} does not apply: {reason}", patch.display());
}

#[test]
fn every_file_that_is_mutated_or_has_an_accepted_mutant_exists() {
    let files = format!("ls {}", words("tests/mutants", "files=(", "\n)").join(" "));
    let listed = succeed(Command::new("bash").args(["-c", &files]).current_dir(root()));
    assert!(listed.lines().count() > 20, "{listed}");
    let mutants = read("tests/mutants.txt");
    for line in mutants.lines().filter(|line| !line.starts_with('#')) {
        let (file, _) = line.split_once(": ").unwrap_or_else(|| panic!("tests/mutants.txt: {line}"));
        assert!(root().join(file).is_file(), "tests/mutants.txt: {file} does not exist");
    }
}

/// The names of all tests in this binary.
fn acceptance_tests() -> Vec<String> {
    let listed = Command::new("/proc/self/exe").arg("--list").output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    listed.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect()
}

/// Whether the crate that the name begins with defines a function of that name. Which module defines it is not checked.
fn is_unit_test(test: &str) -> bool {
    let (Some((package, _)), Some((_, function))) = (test.split_once("::"), test.rsplit_once("::")) else {
        return false;
    };
    let (sources, definition) = (root().join(package).join("src"), format!("fn {function}("));
    let defines = |file| fs::read_to_string(file).is_ok_and(|text| text.contains(&definition));
    sources.is_dir() && files_below(&sources).into_iter().any(defines)
}

/// The words of a script between two marks, without the backslashes that continue a line.
fn words(script: &str, begin: &str, end: &str) -> Vec<String> {
    let text = read(script);
    let list = text.split_once(begin).and_then(|(_, rest)| rest.split_once(end));
    let (list, _) = list.unwrap_or_else(|| panic!("{script} has no list between {begin:?} and {end:?}"));
    list.split_whitespace().filter(|word| *word != "\\").map(str::to_owned).collect()
}

fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap()
}
