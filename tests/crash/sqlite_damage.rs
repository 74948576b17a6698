//! Bit rot in a SQLite log: it is detected or harmless, although SQLite has no checksums of its own.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use harness::{App, Finished, petstore, program};
use serde_json::Value;

use super::{
    damage::{End, assert_refused, changes, commits, contents, copy, no_changes},
    ledger::Ledger,
    load::create,
    part::{Dice, Part, Rounds, Tally},
    snapshots::{EVERY_COMMIT, NEVER, Served},
};

/// Half of them are in the database when the others come.
const PETS: u64 = 120;
/// Every so many rounds a file is cut off instead.
const CUTS: u64 = 5;
/// Every so many rounds the service itself is started on the damaged log, too.
const SERVED: u64 = 4;

#[test]
fn damage_to_a_sqlite_log_is_detected_or_harmless_and_the_rest_can_be_salvaged() {
    damage_logs(Part::begin("sqlite damages", Rounds { short: 24, full: 200 }), NEVER);
}

#[test]
fn damage_to_a_sqlite_log_is_detected_or_harmless_after_a_start_from_a_snapshot_too() {
    damage_logs(Part::begin("sqlite snapshot damages", Rounds { short: 16, full: 150 }), EVERY_COMMIT);
}

fn damage_logs(mut part: Part, snapshots: &[&str]) {
    let mut tally = Tally::default();
    let mut dice = part.dice(0);
    let originals = [End::Clean, End::Kill].map(|end| Original::new(end, snapshots));
    while tally.rounds < part.rounds {
        tally.rounds += 1;
        let original = dice.one_of(&originals);
        let log = original.copy();
        let what = log.damage(tally.rounds.is_multiple_of(CUTS), &mut dice);
        let before = log.contents();
        let served = snapshots == NEVER && tally.rounds.is_multiple_of(SERVED);
        let refusal = log.refusal(served, &what);
        if snapshots == EVERY_COMMIT {
            let twin = log.twin();
            let served =
                Served { app: twin.serve(snapshots), snapshot: twin.folder.path().join("log/pets.snapshot") };
            served.check(&original.pets, refusal.is_none(), &what, &mut tally);
        }
        if let Some(refusal) = refusal {
            assert_eq!(
                changes(&before, &log.contents()),
                no_changes(),
                "{what}: a refused log stays as it is"
            );
            tally.count("refused", 1);
            tally.count("commits salvaged of them", log.salvage(original, &refusal, &what));
            assert_eq!(changes(&before, &log.contents()), no_changes(), "{what}: salvaging changes nothing");
        } else {
            assert_eq!(commits(&log.run("export")), original.commits, "{what}: what opens is whole");
            tally.count("harmless", 1);
        }
        part.check(&tally);
    }
    part.end(&tally);
}

#[test]
fn a_sqlite_log_that_lost_its_last_byte_is_rejected_and_left_unchanged() {
    let log = Original::new(End::Kill, NEVER).copy();
    let waiting = log.folder.path().join("log/pets-wal");
    let mut bytes = fs::read(&waiting).expect("commits wait there after a kill");
    bytes.pop();
    fs::write(&waiting, bytes).expect("a file of the log");
    let before = log.contents();
    for _ in 0..2 {
        let refusal = log.refusal(true, "one byte less").expect("it is noticed");
        let last = PETS - 1;
        assert!(refusal.contains(&format!("ends at position {last}, but commits up to {PETS}")), "{refusal}");
        assert_eq!(changes(&before, &log.contents()), no_changes());
    }
}

/// A sound log, and its commits.
struct Original {
    folder: tempfile::TempDir,
    commits: Vec<String>,
    pets: Vec<Value>,
}

impl Original {
    /// Fills a log in two lives of the service, the second of which ends like this.
    fn new(end: End, snapshots: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let files = tempfile::tempdir().expect("a temporary folder");
        let mut app = App::start_on(program(), &url(folder.path()), files, snapshots);
        let (ledger, half) = (Arc::new(Ledger::default()), PETS / 2);
        let fill = |app: &App, pets: std::ops::Range<u64>| {
            let post = app.call("POST", "/v1/pets");
            for count in pets {
                assert_eq!(create(&post, &ledger, &format!("pet {count}")), Some(201));
            }
        };
        fill(&app, 0..half);
        assert_eq!(app.terminate().code(), Some(0));
        app.start_again();
        fill(&app, half..PETS);
        let pets = app.all_pets();
        match end {
            End::Clean => assert_eq!(app.terminate().code(), Some(0)),
            End::Kill => app.kill(),
        }
        let original = Self { folder, commits: vec![], pets };
        let commits = commits(&original.copy().run("export"));
        assert_eq!(commits.len() as u64, PETS, "one each");
        Self { commits, ..original }
    }

    fn copy(&self) -> Log {
        let folder = tempfile::tempdir().expect("a temporary folder");
        copy(&self.folder.path().join("log"), &folder.path().join("log"));
        Log { folder }
    }
}

/// A copy of a log.
struct Log {
    folder: tempfile::TempDir,
}

impl Log {
    /// Flips a bit of one of the files, or cuts it off.
    fn damage(&self, cut: bool, dice: &mut Dice) -> String {
        let files: Vec<_> = self.contents().into_iter().filter(|(_, bytes)| !bytes.is_empty()).collect();
        let (file, mut bytes) = dice.one_of(&files).clone();
        let place = usize::try_from(dice.below(bytes.len() as u64)).expect("within the file");
        if cut {
            bytes.truncate(place);
        } else {
            bytes[place] ^= 1 << dice.below(8);
        }
        fs::write(&file, &bytes).expect("a file of the log");
        format!("{} {} at byte {place}", file.display(), if cut { "cut off" } else { "flipped" })
    }

    fn twin(&self) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        copy(&self.folder.path().join("log"), &folder.path().join("log"));
        Self { folder }
    }

    fn serve(&self, snapshots: &[&str]) -> Result<App, Finished> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut app = App::stopped_on(program(), &url(self.folder.path()), folder, snapshots);
        app.try_start_again()?;
        Ok(app)
    }

    /// What the program says about the log if it refuses it.
    fn refusal(&self, served: bool, what: &str) -> Option<String> {
        let verified = self.run("verify");
        if verified.code == Some(0) {
            return None;
        }
        assert_refused(&verified, what);
        if served {
            let refused = self.serve(NEVER).map(drop).expect_err("what is refused once is refused again");
            assert_refused(&refused, what);
        }
        Some(verified.stderr)
    }

    /// Saves what can be saved; a file that SQLite cannot make any sense of has nothing to save.
    fn salvage(&self, original: &Original, refusal: &str, what: &str) -> u64 {
        let target = tempfile::tempdir().expect("a temporary folder");
        let from = url(self.folder.path());
        let told = petstore(["log", "salvage", "--from", &from, "--to", &url(target.path())]);
        if told.code != Some(0) {
            assert_refused(&told, what);
            return 0;
        }
        let saved = commits(&petstore(["log", "export", "--store", &url(target.path())]));
        assert_eq!(saved, original.commits[..saved.len()], "{what}: what is salvaged is what was written");
        // A log that is sound up to its lost end can be read up to there.
        if let Some(end) = refusal.split("ends at position ").nth(1) {
            let readable = end.split(|c: char| !c.is_ascii_digit()).next();
            assert_eq!(readable, Some(saved.len().to_string().as_str()), "{what}: {}", told.stdout);
        }
        saved.len() as u64
    }

    /// What the log consists of. The index of the write-ahead log is made anew whenever it is opened.
    fn contents(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut files = contents(&self.folder.path().join("log"));
        files.retain(|path, _| !path.ends_with("pets-shm") && !path.ends_with("pets.lock"));
        files
    }

    fn run(&self, command: &str) -> Finished {
        petstore(["log", command, "--store", &url(self.folder.path())])
    }
}

fn url(folder: &Path) -> String {
    format!("sqlite:{}", folder.join("log/pets").display())
}
