//! `log salvage --also`: copies that are damaged in different places are combined into the original history.

use std::{
    fs::{self, OpenOptions},
    path::Path,
    sync::Arc,
};

use adapters::event_log::memory::MemoryLog;
use application::{
    log::contract,
    ports::{Durability, Fault, LogError, LogSource, Position, ReadBound, StoredRecord, Version},
    transfer::{self, SalvagedLog},
};
use async_trait::async_trait;
use harness::{App, Finished, REX, close_embedded, head_hash, key_file, open_embedded, petstore};
use proptest::{collection::vec, prelude::*};
use tempfile::TempDir;

use super::salvage_gaps::{PETS, commits, damage, fill};

/// Two stores with the same history.
struct Stores {
    directory: TempDir,
    sled: String,
    sqlite: String,
}

impl Stores {
    fn new() -> Self {
        let directory = TempDir::new().unwrap();
        let url = |engine: &str, name| format!("{engine}:{}", directory.path().join(name).display());
        let (sled, sqlite) = (url("sled", "log"), url("sqlite", "copy"));
        assert!(fill(&sled).terminate().success());
        petstore(["log", "copy", "--from", &sled, "--to", &sqlite]).exits_with(0);
        Self { directory, sled, sqlite }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    fn target(&self) -> String {
        format!("sled:{}", self.path("target").display())
    }

    fn damage(&self, sled: &[u64], sqlite: &[u64]) {
        damage(&self.path("log/sled/db"), sled);
        damage(&self.path("copy"), sqlite);
    }

    fn salvage(&self, flags: &[&str]) -> Finished {
        let target = self.target();
        let sources = ["log", "salvage", "--from", &self.sled, "--also", &self.sqlite, "--to", &target];
        petstore([&sources, flags].concat())
    }
}

/// The content of every file below a directory, without locks.
fn content(directory: &Path) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let mut files: Vec<_> = harness::files_below(directory)
        .into_iter()
        .filter(|file| file.is_file() && !file.to_string_lossy().ends_with("lock"))
        .map(|file| (file.clone(), fs::read(file).unwrap()))
        .collect();
    files.sort();
    files
}

#[test]
fn two_damaged_stores_that_together_hold_everything_give_the_original_history() {
    let stores = Stores::new();
    let original = head_hash(&stores.sled);
    stores.damage(&[2, 5], &[1, 3, 6]);
    let before = content(stores.directory.path());
    let salvaged = stores.salvage(&[]).exits_with(0);
    assert_eq!(salvaged.value("head hash"), original);
    assert_eq!(salvaged.value("unreadable"), "nothing");
    let taken: Vec<_> = salvaged.stdout.lines().filter_map(|line| line.strip_prefix("taken ")).collect();
    assert_eq!(
        taken.iter().map(|line| line.trim()).collect::<Vec<_>>(),
        [format!("1, 3 to 4, 6, from {}", stores.sled), format!("2, 5, from {}", stores.sqlite)]
    );
    let after = content(stores.directory.path());
    assert!(before.iter().all(|file| after.contains(file)), "the sources are unchanged");
    assert_eq!(App::on(&stores.target()).all_pets().len(), usize::try_from(PETS).unwrap());

    // The same salvage again changes nothing.
    assert_eq!(stores.salvage(&[]).exits_with(0).value("head hash"), original);
    let other = Stores::new();
    let target = ["log", "salvage", "--from", &other.sled, "--also", &other.sqlite, "--to", &stores.target()];
    petstore(target).exits_with(1).says("the target has a different history");
}

#[test]
fn a_position_that_every_store_has_lost_ends_the_history_unless_gaps_are_accepted() {
    let stores = Stores::new();
    let original = commits(&stores.sled);
    stores.damage(&[2, 4], &[4, 6]);
    let salvaged = stores.salvage(&[]).exits_with(3);
    let (target, from) = (stores.target(), &stores.sled);
    assert_eq!(
        salvaged.stderr,
        format!("petstore: incomplete: {target} lacks these positions of {from}: 4 to 6\n")
    );
    assert_eq!((salvaged.value("position"), salvaged.value("unreadable")), ("3", "4"));
    assert!(salvaged.value("left out").starts_with("5 to 6: intact"), "{salvaged:?}");
    assert!(salvaged.stdout.contains(&format!("1, 3, from {}", stores.sled)), "{salvaged:?}");

    fs::remove_dir_all(stores.path("target")).unwrap();
    let salvaged = stores.salvage(&["--accept-gaps"]).exits_with(3);
    assert_eq!(
        salvaged.stderr,
        format!("petstore: incomplete: {target} lacks these positions of {from}: 4\n")
    );
    assert!(salvaged.stdout.contains("\ntaken "), "{salvaged:?}");
    let names = |commits: &[serde_json::Value]| -> Vec<_> {
        commits.iter().map(|commit| commit["events"][0]["pet"]["id"].as_u64().unwrap()).collect()
    };
    assert_eq!(names(&original), [1, 2, 3, 4, 5, 6]);
    assert_eq!(names(&commits(&stores.target())), [1, 2, 3, 5, 6]);
}

#[test]
fn stores_with_different_histories_are_named_and_a_head_hash_chooses() {
    let stores = Stores::new();
    // The histories have the first three commits in common.
    let fork = format!("sqlite:{}", stores.path("fork").display());
    petstore(["log", "copy", "--from", &stores.sled, "--to", &fork, "--until", "3"]).exits_with(0);
    let mut app = App::on(&fork);
    for _ in 0..2 {
        assert_eq!(app.post(REX).status, 201);
    }
    assert!(app.terminate().success());
    let (of_sled, of_fork) = (head_hash(&stores.sled), head_hash(&fork));
    damage(&stores.path("log/sled/db"), &[2]);

    let target = stores.target();
    let salvage = |flags: &[&str]| {
        let sources = ["log", "salvage", "--from", &stores.sled, "--also", &fork, "--to", &target];
        petstore([&sources, flags].concat())
    };
    let rejected = salvage(&[]).exits_with(1).says("different histories: at position 4, ");
    assert_eq!(rejected.sentences(), 1);
    assert!(!stores.path("target").exists(), "nothing is created");
    let heads: Vec<_> = rejected.stderr.split("--head ").skip(1).filter_map(|rest| rest.get(..64)).collect();
    assert_eq!(heads, [of_sled, of_fork]);
    let wrong = "0".repeat(64);
    salvage(&["--head", &wrong]).exits_with(1).says("no history in these stores has the head hash");
    for (head, last) in heads.into_iter().zip(["6", "5"]) {
        let salvaged = salvage(&["--head", head]).exits_with(0);
        assert_eq!(salvaged.value("head hash"), head);
        assert_eq!((salvaged.value("position"), salvaged.value("unreadable")), (last, "nothing"));
        fs::remove_dir_all(stores.path("target")).unwrap();
    }
}

#[test]
fn a_store_is_named_once_and_a_running_service_is_a_copy_too() {
    let stores = Stores::new();
    let (sled, sqlite, target) = (&*stores.sled, &*stores.sqlite, &*stores.target());
    std::os::unix::fs::symlink(stores.path("log"), stores.path("link")).unwrap();
    let link = format!("sled:{}", stores.path("link").display());
    for (arguments, words) in [
        (vec!["--also", sled], "is named twice"),
        (vec!["--also", &link], "is named twice"),
        (vec!["--also", sqlite, "--also", sqlite], "is named twice"),
        (vec!["--also", target], "--also and --to are the same log"),
        (vec!["--also", "sled:/no/such/store"], "no/such/store"),
    ] {
        let command = ["log", "salvage", "--from", sled, "--to", target];
        let rejected = petstore([&command[..], &arguments].concat()).exits_with(1).says(words);
        assert_eq!(rejected.sentences(), 1);
        assert!(!stores.path("target").exists());
    }
    let export = stores.path("backup.jsonl");
    fs::write(&export, petstore(["log", "export", "--store", sqlite]).stdout).unwrap();
    petstore(["log", "salvage", "--from", sled, "--to", target, "--also", export.to_str().unwrap()])
        .exits_with(2)
        .says("import an exported file into an empty store first (petstore log import)");
    petstore(["log", "salvage", "--from", sled, "--to", target, "--head", &"0".repeat(64)])
        .exits_with(2)
        .says("--also");

    let original = head_hash(sled);
    damage(&stores.path("log/sled/db"), &[1, 4]);
    let app = App::on_with(sqlite, &["--admin-listen", "127.0.0.1:0"]);
    let (service, key) = (format!("http://{}", app.admin()), key_file(app.directory(), &app.log_key()));
    let key = key.to_str().unwrap();
    let flags = ["--from", sled, "--also", &service, "--to", target, "--api-key-file", key];
    let salvaged = petstore([&["log", "salvage"][..], &flags].concat()).exits_with(0);
    assert_eq!(salvaged.value("head hash"), original);
}

#[tokio::test(flavor = "multi_thread")]
async fn most_commits_of_a_truncated_sqlite_file_are_salvaged() {
    const COMMITS: u64 = 2_000;
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("log");
    let log = open_embedded("sqlite", &path);
    contract::fill(&*log, Version::START, COMMITS).await;
    close_embedded(&*log, &path).await;
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    let length = file.metadata().unwrap().len() * 3 / 4;
    file.set_len(length).unwrap();

    let store = format!("sqlite:{}", path.display());
    for (name, is_marked) in [("marked", true), ("unmarked", false)] {
        if !is_marked {
            fs::remove_file(directory.path().join("log.mark")).unwrap();
        }
        let target = format!("sled:{}", directory.path().join(name).display());
        let salvaged = petstore(["log", "salvage", "--from", &store, "--to", &target]).exits_with(3);
        assert!(!salvaged.stdout.contains("Invalid type"), "{salvaged:?}");
        let salvaged: u64 = salvaged.value("position").parse().unwrap();
        println!(
            "{name}: {salvaged} of {COMMITS} commits were salvaged from three quarters of a SQLite file"
        );
        assert!(salvaged > COMMITS * 70 / 100, "{name}: {salvaged}");
        assert_eq!(path.metadata().unwrap().len(), length, "the damaged file is unchanged");
    }
}

/// A log whose records at some positions are missing.
pub(super) struct WithHoles {
    pub(super) records: Vec<StoredRecord>,
    pub(super) is_lost: Vec<bool>,
}

#[async_trait]
impl LogSource for WithHoles {
    async fn read(&self, after: Position, bound: ReadBound) -> Result<Vec<StoredRecord>, LogError> {
        let first = usize::try_from(after.0).unwrap();
        let held = |(_, is_lost): &(&StoredRecord, &bool)| !**is_lost;
        let records: Vec<_> = self.records.iter().zip(&self.is_lost).skip(first).take_while(held).collect();
        if records.is_empty() && first < self.records.len() {
            return Err(Fault::Damaged.error("lost"));
        }
        Ok(records.into_iter().take(bound.records).map(|(record, _)| record.clone()).collect())
    }

    async fn head(&self) -> Result<Position, LogError> {
        Ok(Position(self.records.len() as u64))
    }

    fn durability(&self) -> Durability {
        MemoryLog::default().durability()
    }
}

const LENGTH: usize = 10;

async fn records() -> Vec<StoredRecord> {
    let log = MemoryLog::default();
    contract::fill(&log, Version::START, LENGTH as u64).await;
    log.read(Position::START, ReadBound::BATCH).await.unwrap()
}

proptest! {
    #[test]
    fn a_merged_log_holds_exactly_the_positions_that_a_copy_holds(
        losses in vec(vec(any::<bool>(), LENGTH), 1..4),
    ) {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let records = records().await;
            let copies: Vec<_> = losses
                .iter()
                .map(|is_lost| SalvagedLog {
                    log: Arc::new(WithHoles { records: records.clone(), is_lost: is_lost.clone() }),
                    last_known: Position(LENGTH as u64),
                    end_is_known: true,
                })
                .collect();
            let merged = transfer::merge(&copies, None, |_| {}).await.unwrap();
            for (index, record) in records.iter().enumerate() {
                let is_held = losses.iter().any(|is_lost| !is_lost[index]);
                let found = merged.read(Position(index as u64), ReadBound::ONE).await;
                prop_assert_eq!(found.as_ref().is_ok_and(|found| found[..] == [record.clone()]), is_held);
                prop_assert_eq!(found.is_err_and(|error| error.fault == Fault::Damaged), !is_held);
            }
            Ok(())
        })?;
    }
}
