//! Bit rot under a log in SQLite, which has no checksums of its own: noticed or harmless all the same.

use std::{fs, path::Path, sync::Arc};

use harness::{App, Finished, petstore, program};

use super::{
    damage::{assert_refused, commits},
    ledger::Ledger,
    load::create,
    part::{Part, Rounds, Tally},
};

const PETS: u64 = 120;
/// Every so many rounds the file is cut off instead.
const CUTS: u64 = 5;

#[test]
fn damage_to_a_sqlite_log_is_noticed_or_harmless_and_the_rest_can_be_salvaged() {
    let mut part = Part::begin("sqlite damages", Rounds { short: 12, full: 100 });
    let mut tally = Tally::default();
    let mut dice = part.dice(0);
    let original = tempfile::tempdir().expect("a temporary folder");
    let sound = fill(original.path());
    while tally.rounds < part.rounds {
        tally.rounds += 1;
        let folder = tempfile::tempdir().expect("a temporary folder");
        for name in ["log", "log.mark"] {
            fs::copy(original.path().join(name), folder.path().join(name)).expect("a file of the log");
        }
        let file = folder.path().join("log");
        let mut bytes = fs::read(&file).expect("a file");
        let place = usize::try_from(dice.below(bytes.len() as u64)).expect("within the file");
        if tally.rounds.is_multiple_of(CUTS) {
            bytes.truncate(place);
        } else {
            bytes[place] ^= 1 << dice.below(8);
        }
        fs::write(&file, &bytes).expect("a file");
        let what = format!("round {} at byte {place}", tally.rounds);
        let outcome = log(&["export", "--store", &url(&file)]);
        if outcome.code == Some(0) {
            assert_eq!(commits(&outcome), sound, "{what}: what opens is whole");
            tally.count("harmless", 1);
        } else {
            assert_refused(&outcome, &what);
            tally.count("refused", 1);
            tally.count("commits salvaged of them", salvage(&file, &sound, &what));
        }
        part.check(&tally);
    }
    part.end(&tally);
}

/// Makes a log with some pets and returns its commits.
fn fill(folder: &Path) -> Vec<String> {
    let store = url(&folder.join("log"));
    let files = tempfile::tempdir().expect("a temporary folder");
    let mut app = App::start_on(program(), &store, files, &[]);
    let (ledger, post) = (Arc::new(Ledger::default()), app.call("POST", "/v1/pets"));
    for count in 0..PETS {
        assert_eq!(create(&post, &ledger, &format!("pet {count}")), Some(201));
    }
    assert_eq!(app.terminate().code(), Some(0));
    commits(&log(&["export", "--store", &store]))
}

/// Saves what can be saved; a file that SQLite cannot make any sense of has nothing to save.
fn salvage(file: &Path, sound: &[String], what: &str) -> u64 {
    let before = fs::read(file).expect("a file");
    let target = url(&file.with_file_name("salvaged"));
    let told = log(&["salvage", "--from", &url(file), "--to", &target]);
    assert!(fs::read(file).expect("a file") == before, "{what}: salvaging changes nothing");
    if told.code != Some(0) {
        assert_refused(&told, what);
        return 0;
    }
    let saved = commits(&log(&["export", "--store", &target]));
    assert_eq!(saved, sound[..saved.len()], "{what}: what is salvaged is what was written");
    saved.len() as u64
}

fn log(arguments: &[&str]) -> Finished {
    petstore(["log"].iter().chain(arguments))
}

fn url(file: &Path) -> String {
    format!("sqlite:{}", file.display())
}
