//! Bit rot: flipped bits and truncated files are detected or harmless, and intact records can be salvaged. SQLite has
//! no checksums; what it does not notice, the checksums of the records show.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    thread,
};

use harness::{App, Chance, Finished, files_below, fill_embedded, finished, petstore, program};

use super::{
    engine::Engine,
    ledger::Ledger,
    load::create,
    scenario::{self, Scenario, Tally},
    short_writes::preloaded,
};

/// Commits of one pet each, and then so many writers at a time with so many pets each.
const SINGLE_PETS: u64 = 60;
const WRITERS: u64 = 48;
const SHARED_PETS: u64 = 8;
/// Every so many rounds the service itself is started on the damaged store, too.
const SERVED: u64 = 5;
/// Every so many rounds a file of SQLite is cut off instead.
const CUTS: u64 = 4;

#[test]
fn a_flipped_bit_is_detected_or_harmless_and_the_rest_can_be_salvaged() {
    damage_stores(Scenario::begin("flips", 48, 300), Engine::Sled, |_, bytes, dice| flip(bytes, dice));
}

#[test]
fn a_truncated_file_is_detected_or_harmless_and_the_rest_can_be_salvaged() {
    damage_stores(Scenario::begin("truncations", 16, 100), Engine::Sled, |_, bytes, dice| {
        cut_off(bytes, dice)
    });
}

#[test]
fn damage_to_a_sqlite_log_is_detected_or_harmless_and_the_rest_can_be_salvaged() {
    damage_stores(Scenario::begin("sqlite damages", 24, 200), Engine::Sqlite, flip_or_cut_off);
}

#[test]
fn a_sqlite_log_that_lost_its_last_byte_is_rejected_and_left_unchanged() {
    let original = Original::new(Engine::Sqlite, End::Kill);
    let store = original.copy();
    let waiting = store.path().join("pets-wal");
    let mut bytes = fs::read(&waiting).expect("commits wait there after a kill");
    bytes.pop();
    fs::write(&waiting, bytes).expect("a file of the log");
    let before = store.contents();
    let (last, head) = (original.commits.len() - 1, original.commits.len());
    for rejected in [store.export(), store.serve().err().expect("it is noticed"), store.export()] {
        assert_rejected(&rejected, "one byte less");
        let reason = format!("ends at position {last}, but commits up to {head}");
        assert!(rejected.stderr.contains(&reason), "{}", rejected.stderr);
        assert_eq!(changes(&before, &store.contents()), Vec::<PathBuf>::new());
    }
}

#[test]
fn a_page_that_the_disk_cannot_read_costs_only_its_commits() {
    const COMMITS: u64 = 2_000;
    for (engine, file) in [("sled", "log/sled/db"), ("sqlite", "log")] {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = |name: &str| directory.path().join(name);
        let Some(library) =
            scenario::available("unreadable pages", preloaded("unreadable_page.c", directory.path()))
        else {
            return;
        };
        let store = format!("{engine}:{}", path("log").display());
        fill_embedded(&store, COMMITS);
        let inode = path(file).metadata().expect("a file of the store").ino();
        let target = format!("sled:{}", path("target").display());
        let variables = [library, format!("UNREADABLE_INODE={inode}"), "UNREADABLE_OFFSET=131072".to_owned()];
        let log = |command: &[&str]| {
            finished(Command::new("env").args(&variables).arg(program()).arg("log").args(command))
        };
        // sled is read from a copy of the whole file.
        if engine == "sled" {
            let verified =
                log(&["verify", "--store", &store]).exits_with(1).says("the disk cannot read the store");
            assert!(verified.stdout.starts_with("damaged "), "{verified:?}");
        }
        let salvaged = log(&["salvage", "--accept-gaps", "--from", &store, "--to", &target]);
        let kept: u64 = salvaged.value("position").parse().expect("a number");
        println!("{engine}: {kept} of {COMMITS} commits were salvaged around an unreadable page");
        assert!(kept > COMMITS * 9 / 10, "{engine}: {salvaged:?}");
        // sled may have copied the records of the page to another place; then nothing is lost.
        salvaged.exits_with(if kept < COMMITS { 3 } else { 0 });
    }
}

fn flip(bytes: &mut [u8], dice: &mut Chance) -> String {
    let used = bytes.iter().rposition(|byte| *byte != 0).map_or(bytes.len(), |last| last + 1);
    let place = dice.index(used);
    bytes[place] ^= 1 << dice.index(8);
    format!("bit flipped in byte {place}")
}

fn cut_off(bytes: &mut Vec<u8>, dice: &mut Chance) -> String {
    let len = dice.index(bytes.len());
    bytes.truncate(len);
    format!("cut off at {len}")
}

fn flip_or_cut_off(round: u64, bytes: &mut Vec<u8>, dice: &mut Chance) -> String {
    if round.is_multiple_of(CUTS) { cut_off(bytes, dice) } else { flip(bytes, dice) }
}

/// Damages copies of sound stores, one file of each, and looks at what the program makes of them.
fn damage_stores(
    mut scenario: Scenario,
    engine: Engine,
    damage: impl Fn(u64, &mut Vec<u8>, &mut Chance) -> String,
) {
    let mut tally = Tally::default();
    let mut dice = scenario.dice(0);
    let originals = [End::Clean, End::Kill].map(|end| Original::new(engine, end));
    tally.acknowledged = originals.iter().map(|original| original.acknowledged).sum();
    while tally.rounds < scenario.rounds {
        tally.rounds += 1;
        let original = &originals[dice.index(originals.len())];
        let store = original.copy();
        let file = store.choose_file(&mut dice);
        let mut bytes = fs::read(&file).expect("a file of the store");
        let what = format!("{}: {}", file.display(), damage(tally.rounds, &mut bytes, &mut dice));
        fs::write(&file, &bytes).expect("a file of the store");
        let before = store.contents();
        let served = tally.rounds.is_multiple_of(SERVED).then(|| store.serve());
        if let Some(Err(rejected)) = &served {
            assert_rejected(rejected, &what);
        }
        // Dropping the app kills it.
        let was_served = served.is_some_and(|served| served.is_ok());
        let outcome = store.export();
        if outcome.code == Some(0) {
            assert_eq!(commits(&outcome), original.commits, "{what}: what opens is whole");
            tally.count("harmless", 1);
        } else {
            assert_rejected(&outcome, &what);
            assert!(!was_served, "{what}: what is rejected once is rejected every time");
            assert_eq!(
                changes(&before, &store.contents()),
                Vec::<PathBuf>::new(),
                "{what}: it stays as it is"
            );
            tally.count("rejected", 1);
            let saved = salvage(&store, original, &outcome.stderr, &what);
            tally.count("commits salvaged of them", saved);
            tally.count("lost to damage", original.commits.len() as u64 - saved);
        }
        scenario.check(&tally);
    }
    scenario.end(&tally);
}

/// Salvages a damaged store and checks that the sound part was saved, and that what is missing was named.
fn salvage(damaged: &Store, original: &Original, rejection: &str, what: &str) -> u64 {
    let target = damaged.engine.url(&damaged.directory.path().join("salvaged"));
    let before = damaged.contents();
    let output = petstore(["log", "salvage", "--from", &damaged.url(), "--to", &target]);
    assert_eq!(
        changes(&before, &damaged.contents()),
        Vec::<PathBuf>::new(),
        "{what}: salvaging changes nothing"
    );
    if !matches!(output.code, Some(0 | 3)) {
        // SQLite can make no sense of some files; sled's chunks are found whatever happened to the rest of the file.
        assert!(damaged.engine == Engine::Sqlite || output.stderr.contains("nothing"), "{what}: {output:?}");
        assert_rejected(&output, what);
        return 0;
    }
    let saved = commits(&petstore(["log", "export", "--store", &target]));
    let sound = &original.commits[..saved.len()];
    assert_eq!(saved, sound, "{what}: what is salvaged is what was written");
    let whole = saved.len() == original.commits.len();
    let nothing = output.stdout.contains("unreadable  nothing\n");
    let named = output.stdout.lines().find_map(|line| line.strip_prefix("unreadable  "));
    let named = named.is_some_and(|named| leading_number(named) == Some(saved.len() + 1));
    // Without a high-water mark, the missing end is not detected.
    let unknown = output.stdout.contains("unknown");
    assert!((nothing == whole && named != whole) || unknown, "{what}: {}", output.stdout);
    assert_eq!(output.code == Some(0), whole && !unknown, "{what}: {output:?}");
    // A SQLite log that is sound up to its lost end can be read up to there.
    if let (Engine::Sqlite, Some(end)) = (damaged.engine, rejection.split("ends at position ").nth(1)) {
        assert_eq!(leading_number(end), Some(saved.len()), "{what}: {}", output.stdout);
    }
    saved.len() as u64
}

fn leading_number(text: &str) -> Option<usize> {
    text.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

fn assert_rejected(rejected: &Finished, what: &str) {
    assert_eq!(rejected.code, Some(1), "{what}: {}", rejected.stderr);
    assert!(!rejected.stderr.contains("panicked"), "{what}: {}", rejected.stderr);
    let sentences = rejected.stderr.lines().filter(|line| line.starts_with("petstore: "));
    assert_eq!(sentences.count(), 1, "{what}: one sentence: {}", rejected.stderr);
}

/// How the service ended that filled a store.
#[derive(Debug, Clone, Copy)]
enum End {
    Clean,
    Kill,
}

/// A sound store with small and large commits.
struct Original {
    engine: Engine,
    app: App,
    commits: Vec<String>,
    acknowledged: u64,
}

impl Original {
    /// Fills a store in two lives of the service, the second of which ends like this: what the first one stored is in
    /// SQLite's database when the rest comes.
    fn new(engine: Engine, end: End) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let url = engine.url(&directory.path().join("log"));
        let mut app = App::start_on(program(), &url, directory, &[]);
        let ledger = Arc::new(Ledger::default());
        let post = app.call("POST", "/v1/pets");
        for count in 0..SINGLE_PETS {
            create(&post, &ledger, &format!("single {count}"));
        }
        assert_eq!(app.terminate().code(), Some(0));
        app.start_again();
        let post = app.call("POST", "/v1/pets");
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
        match end {
            End::Clean => assert_eq!(app.terminate().code(), Some(0)),
            End::Kill => app.kill(),
        }
        // Exporting opens the store: the copies that are damaged have never been opened again.
        let acknowledged = tally.acknowledged;
        let original = Self { engine, app, commits: vec![], acknowledged };
        let commits = commits(&original.copy().export());
        assert!(commits.iter().any(|commit| commit.len() > 6_144), "some commits are in several chunks");
        Self { commits, ..original }
    }

    fn copy(&self) -> Store {
        Store::copy_of(&self.app.directory().join("log"), self.engine)
    }
}

/// A copy of a store.
struct Store {
    engine: Engine,
    directory: tempfile::TempDir,
}

impl Store {
    fn copy_of(path: &Path, engine: Engine) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let store = Self { engine, directory };
        let copied = Command::new("cp").arg("-r").args([path, &store.path()]).status();
        assert!(copied.expect("cp runs").success());
        for ballast in ["ballast", "pets.ballast"] {
            // It holds nothing, and a full disk may have taken it away.
            let _ = fs::remove_file(store.path().join(ballast));
        }
        store
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    fn url(&self) -> String {
        self.engine.url(&self.path())
    }

    fn export(&self) -> Finished {
        petstore(["log", "export", "--store", &self.url()])
    }

    fn serve(&self) -> Result<App, Finished> {
        let mut app = App::stopped(&self.url(), &[]);
        app.try_start_again()?;
        Ok(app)
    }

    /// Mostly a file with records, now and then one of the others that are not empty.
    fn choose_file(&self, dice: &mut Chance) -> PathBuf {
        let mut files: Vec<_> = self.contents().into_iter().filter(|(_, bytes)| !bytes.is_empty()).collect();
        if dice.index(4) > 0 {
            let names = ["sled/db", "pets", "pets-wal"];
            files.retain(|(path, _)| names.iter().any(|name| path.ends_with(name)));
        }
        files[dice.index(files.len())].0.clone()
    }

    /// What the store consists of, without the files that are recreated whenever it is opened.
    fn contents(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let made_anew = ["pets-shm", "pets.lock", "pets.ballast", "ballast"];
        let mut files = files_below(&self.path());
        files.retain(|path| !made_anew.iter().any(|name| path.ends_with(name)));
        files.into_iter().map(|path| (path.clone(), fs::read(path).expect("a file"))).collect()
    }
}

/// The lines of an export that hold commits.
fn commits(export: &Finished) -> Vec<String> {
    assert_eq!(export.code, Some(0), "{}", export.stderr);
    export.stdout.lines().filter(|line| line.starts_with("{\"v\":")).map(str::to_owned).collect()
}

/// The files that differ.
fn changes(one: &BTreeMap<PathBuf, Vec<u8>>, other: &BTreeMap<PathBuf, Vec<u8>>) -> Vec<PathBuf> {
    let differs = |path: &&PathBuf| one.get(*path) != other.get(*path);
    one.keys().chain(other.keys()).filter(differs).cloned().collect()
}
