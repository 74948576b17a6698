//! Bit rot: flipped bits and truncated files are detected or harmless, and intact records can be salvaged.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    thread,
};

use harness::{App, Finished, petstore, program};
use serde_json::Value;

use super::{
    ledger::Ledger,
    load::create,
    part::{Dice, Part, Rounds, Tally},
    snapshots::{EVERY_COMMIT, NEVER, Served},
};

/// Commits of one pet each, and then so many writers at a time with so many pets each.
const SINGLE_PETS: u64 = 60;
const WRITERS: u64 = 48;
const SHARED_PETS: u64 = 8;
/// Every so many rounds the service itself is started on the damaged store, too.
const SERVED: u64 = 6;

#[test]
fn a_flipped_bit_is_detected_or_harmless_and_the_rest_can_be_salvaged() {
    damage_stores("flips", Rounds { short: 48, full: 300 }, NEVER, |bytes, dice| flip(bytes, dice));
}

#[test]
fn a_flipped_bit_is_detected_or_harmless_after_a_start_from_a_snapshot_too() {
    damage_stores("snapshot flips", Rounds { short: 16, full: 150 }, EVERY_COMMIT, |bytes, dice| {
        flip(bytes, dice)
    });
}

fn flip(bytes: &mut [u8], dice: &mut Dice) -> String {
    let used = bytes.iter().rposition(|byte| *byte != 0).map_or(bytes.len(), |last| last + 1);
    let place = usize::try_from(dice.below(used as u64)).expect("within the file");
    bytes[place] ^= 1 << dice.below(8);
    format!("bit flipped in byte {place}")
}

#[test]
fn a_truncated_file_is_detected_or_harmless_and_the_rest_can_be_salvaged() {
    damage_stores("truncations", Rounds { short: 16, full: 100 }, NEVER, truncate);
}

#[test]
fn a_truncated_file_is_detected_or_harmless_after_a_start_from_a_snapshot_too() {
    damage_stores("snapshot truncations", Rounds { short: 8, full: 50 }, EVERY_COMMIT, truncate);
}

fn truncate(bytes: &mut Vec<u8>, dice: &mut Dice) -> String {
    let len = usize::try_from(dice.below(bytes.len() as u64)).expect("within the file");
    bytes.truncate(len);
    format!("cut off at {len}")
}

#[test]
fn a_record_that_was_changed_behind_the_engines_back_is_never_served() {
    let store = Original::new(End::Clean, NEVER).copy();
    let position = change_a_record(&store.path);
    let served = store.serve(NEVER).map(|app| app.get("/v1/pets?limit=100").text().to_owned());
    for refused in [store.export(), served.expect_err("damage is refused")] {
        assert_refused(&refused, "a changed letter");
        assert!(refused.stderr.contains(&format!("position {position}")), "it is named: {}", refused.stderr);
    }
    let verified = petstore(["log", "verify", "--store", &store.url()]);
    assert!(verified.stdout.contains(&format!("first bad   {position}\n")), "{}", verified.stdout);
}

/// Damages copies of sound stores, one file of each, and looks at what the program makes of them.
fn damage_stores(
    name: &'static str,
    rounds: Rounds,
    snapshots: &[&str],
    damage: impl Fn(&mut Vec<u8>, &mut Dice) -> String,
) {
    let mut part = Part::begin(name, rounds);
    let mut tally = Tally::default();
    let mut dice = part.dice(0);
    let originals = [End::Clean, End::Kill].map(|end| Original::new(end, snapshots));
    tally.acknowledged = originals.iter().map(|original| original.acknowledged).sum();
    while tally.rounds < part.rounds {
        tally.rounds += 1;
        let original = dice.one_of(&originals);
        let store = original.copy();
        let file = store.choose_file(&mut dice);
        let mut bytes = fs::read(&file).expect("a file of the store");
        let what = format!("{}: {}", file.display(), damage(&mut bytes, &mut dice));
        fs::write(&file, &bytes).expect("a file of the store");
        let before = contents(&store.path);
        let outcome = store.export();
        if snapshots == EVERY_COMMIT {
            let twin = store.twin();
            let served = Served { app: twin.serve(snapshots), snapshot: twin.path.join("snapshot") };
            served.check(&original.pets, outcome.code == Some(0), &what, &mut tally);
        } else if tally.rounds.is_multiple_of(SERVED) {
            match store.serve(snapshots) {
                Ok(mut app) => app.kill(),
                Err(refused) => assert_refused(&refused, &what),
            }
        }
        if outcome.code == Some(0) {
            assert_eq!(commits(&outcome), original.commits, "{what}: what opens is whole");
            tally.count("harmless", 1);
        } else {
            assert_refused(&outcome, &what);
            assert_eq!(
                changes(&before, &contents(&store.path)),
                no_changes(),
                "{what}: a refused store stays as it is"
            );
            tally.count("refused", 1);
            let saved = salvage(&store, original, &what);
            tally.count("commits salvaged of them", saved);
            tally.count("lost to damage", original.commits.len() as u64 - saved);
        }
        part.check(&tally);
    }
    part.end(&tally);
}

/// Salvages a damaged store and checks that the sound part was saved, and that what is missing was named.
fn salvage(damaged: &Store, original: &Original, what: &str) -> u64 {
    let target = damaged.path.with_file_name("salvaged");
    let target = format!("sled:{}", target.display());
    let before = contents(&damaged.path);
    let told = petstore(["log", "salvage", "--from", &damaged.url(), "--to", &target]);
    assert_eq!(told.code, Some(0), "{what}: {}", told.stderr);
    assert_eq!(changes(&before, &contents(&damaged.path)), no_changes(), "{what}: salvaging changes nothing");
    let saved = commits(&petstore(["log", "export", "--store", &target]));
    let sound = &original.commits[..saved.len()];
    assert_eq!(saved, sound, "{what}: what is salvaged is what was written");
    let whole = saved.len() == original.commits.len();
    let nothing = told.stdout.contains("unreadable  nothing\n");
    let named = told.stdout.lines().find_map(|line| line.strip_prefix("unreadable  "));
    let named = named.is_some_and(|named| starts_with_number(named, saved.len() + 1));
    // Without a mark nobody knows that there was more.
    let unknown = told.stdout.contains("unknown");
    assert!((nothing == whole && named != whole) || unknown, "{what}: {}", told.stdout);
    saved.len() as u64
}

fn starts_with_number(text: &str, number: usize) -> bool {
    text.split(|c: char| !c.is_ascii_digit()).next() == Some(&number.to_string())
}

pub(super) fn assert_refused(refused: &Finished, what: &str) {
    assert_eq!(refused.code, Some(1), "{what}: {}", refused.stderr);
    assert!(!refused.stderr.contains("panicked"), "{what}: {}", refused.stderr);
    let sentences = refused.stderr.lines().filter(|line| line.starts_with("petstore: "));
    assert_eq!(sentences.count(), 1, "{what}: one sentence: {}", refused.stderr);
}

/// How the service ended that filled a store.
#[derive(Debug, Clone, Copy)]
pub(super) enum End {
    Clean,
    Kill,
}

/// A sound store with small and large commits.
struct Original {
    app: App,
    commits: Vec<String>,
    pets: Vec<Value>,
    acknowledged: u64,
}

impl Original {
    fn new(end: End, snapshots: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let store = format!("sled:{}", folder.path().join("log").display());
        let mut app = App::start_on(program(), &store, folder, snapshots);
        let ledger = Arc::new(Ledger::default());
        let post = app.call("POST", "/v1/pets");
        for count in 0..SINGLE_PETS {
            create(&post, &ledger, &format!("single {count}"));
        }
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (ledger, post) = (ledger.clone(), post.clone());
                // As long as names may be, so that commits of several pets need several chunks.
                let name = move |count: u64| format!("{writer}-{count:🐕>100}");
                thread::spawn(move || {
                    for count in 0..SHARED_PETS {
                        assert_eq!(create(&post, &ledger, &name(count)), Some(201));
                    }
                })
            })
            .collect();
        for writer in writers {
            writer.join().expect("writers do not panic");
        }
        let mut tally = Tally::default();
        ledger.settle(&app, &mut tally);
        let pets = app.all_pets();
        match end {
            End::Clean => assert_eq!(app.terminate().code(), Some(0)),
            End::Kill => app.kill(),
        }
        // Exporting opens the store: the copies that are damaged have never been opened again.
        let original = Self { app, commits: vec![], pets, acknowledged: tally.acknowledged };
        let commits = commits(&original.copy().export());
        assert!(commits.iter().any(|commit| commit.len() > 6_144), "some commits are in several chunks");
        Self { commits, ..original }
    }

    fn copy(&self) -> Store {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("log");
        copy(&self.app.folder().join("log"), &path);
        Store { path, _folder: folder }
    }
}

/// A copy of a store.
struct Store {
    path: PathBuf,
    _folder: tempfile::TempDir,
}

impl Store {
    fn url(&self) -> String {
        format!("sled:{}", self.path.display())
    }

    fn export(&self) -> Finished {
        petstore(["log", "export", "--store", &self.url()])
    }

    fn twin(&self) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("log");
        copy(&self.path, &path);
        Self { path, _folder: folder }
    }

    fn serve(&self, snapshots: &[&str]) -> Result<App, Finished> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut app = App::stopped_on(program(), &self.url(), folder, snapshots);
        app.try_start_again()?;
        Ok(app)
    }

    /// Mostly the file with the records, now and then one of the others that are not empty.
    fn choose_file(&self, dice: &mut Dice) -> PathBuf {
        let mut files: Vec<_> = contents(&self.path).into_keys().collect();
        files.retain(|file| fs::metadata(file).is_ok_and(|about| about.len() > 0));
        if dice.below(4) == 0 { dice.one_of(&files).clone() } else { self.path.join("sled/db") }
    }
}

/// The lines of an export that hold commits.
pub(super) fn commits(export: &Finished) -> Vec<String> {
    assert_eq!(export.code, Some(0), "{}", export.stderr);
    export.stdout.lines().filter(|line| line.starts_with("{\"v\":")).map(str::to_owned).collect()
}

/// Every file below a folder and what is in it.
pub(super) fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).expect("a folder").map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            found.extend(contents(&path));
        } else {
            found.insert(path.clone(), fs::read(&path).expect("a file"));
        }
    }
    found
}

/// The files that differ.
pub(super) fn changes(one: &BTreeMap<PathBuf, Vec<u8>>, other: &BTreeMap<PathBuf, Vec<u8>>) -> Vec<PathBuf> {
    let differs = |path: &&PathBuf| one.get(*path) != other.get(*path);
    one.keys().chain(other.keys()).filter(differs).cloned().collect()
}

pub(super) fn no_changes() -> Vec<PathBuf> {
    vec![]
}

/// Copies a store without its ballast, which holds nothing.
pub(super) fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-r").args([from, to]).status();
    assert!(copied.expect("cp runs").success());
    // A full disk may have taken it away.
    let _ = fs::remove_file(to.join("ballast"));
}

/// Changes a letter of a name in the middle of the history, so that neither the engine nor the chunk tells:
/// only the checksum of the record still can. Returns the position.
fn change_a_record(store: &Path) -> u64 {
    const CHECKSUM: std::ops::Range<usize> = 36..40;
    let database = sled::open(store.join("sled")).expect("a sound database");
    let position = SINGLE_PETS / 2;
    let (key, value) = database.range(position.to_be_bytes()..).next().unwrap().unwrap();
    let mut chunk = value.to_vec();
    let place = chunk.windows(6).position(|window| window == b"single").expect("the name of a pet");
    chunk[place] = b'j';
    let checksum = crc32c::crc32c_append(crc32c::crc32c(&chunk[..CHECKSUM.start]), &chunk[CHECKSUM.end..]);
    chunk[CHECKSUM].copy_from_slice(&checksum.to_be_bytes());
    database.insert(key, chunk).unwrap();
    database.flush().unwrap();
    position
}
