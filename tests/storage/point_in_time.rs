//! `--until`: a copy, an export or an import ends at a position or a time, whatever the clocks of the nodes said.

use std::{
    error::Error,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use adapters::event_log::memory::MemoryLog;
use application::{
    Digest, OwnerId,
    log::{
        codec,
        commit::{Commit, Entry, NodeId},
    },
    ports::{CommitId, EventLog as _, Position, Version},
    transfer::{self, Tally},
};
use chrono::{DateTime, TimeDelta};
use domain::test_values::{added, numbered};
use harness::{App, Finished, finished, key_file, petstore, program, root};
use serde_json::Value;
use tempfile::TempDir;
use uuid::Uuid;

/// Seconds after 2026-11-18T01:00:00Z of each commit: the clocks of two nodes differ by 15 seconds.
const TIMES: [i64; 7] = [10, 20, 30, 25, 40, 35, 50];

/// An export with a commit for each of [`TIMES`].
async fn export_in(directory: &Path) -> PathBuf {
    let log = MemoryLog::default();
    let (mut before, mut previous) = (Version::START, Digest::of(b""));
    for (number, seconds) in (1..).zip(TIMES) {
        let commit = Commit {
            position: Position(number),
            id: CommitId(Uuid::now_v7()),
            previous,
            node: NodeId(7),
            time: "2026-11-18T01:00:00Z".parse::<DateTime<_>>().unwrap() + TimeDelta::seconds(seconds),
            entries: vec![Entry {
                event: added(i64::try_from(number).unwrap(), numbered(number)),
                by: OwnerId("owner".into()),
                request_key: None,
            }],
        };
        let record = codec::encode(&commit);
        before = Version::at(log.append(before, std::slice::from_ref(&record)).await.unwrap(), record.id);
        previous = Digest::of(&record.bytes);
    }
    let file = directory.join("backup.jsonl");
    let mut bytes = Vec::new();
    transfer::export::<Box<dyn Error>>(&log, &mut bytes, Tally::default(), DateTime::UNIX_EPOCH, |_| {})
        .await
        .unwrap();
    fs::write(&file, bytes).unwrap();
    file
}

/// A directory with an export and a store that holds the same history.
struct Backup {
    directory: TempDir,
    file: PathBuf,
    store: String,
}

impl Backup {
    fn new() -> Self {
        let directory = TempDir::new().unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let file = runtime.block_on(export_in(directory.path()));
        let store = format!("sqlite:{}", directory.path().join("log").display());
        petstore(["log", "import", file.to_str().unwrap(), "--store", &store]).exits_with(0);
        Self { directory, file, store }
    }

    fn target(&self, name: &str) -> String {
        format!("sled:{}", self.directory.path().join(name).display())
    }

    fn copy(&self, until: &str, target: &str) -> Finished {
        petstore(["log", "copy", "--from", &self.store, "--to", target, "--until", until])
    }

    fn export(&self, until: &str) -> Finished {
        petstore(["log", "export", "--store", &self.store, "--until", until])
    }

    fn import(&self, until: &str, target: &str) -> Finished {
        petstore(["log", "import", self.file.to_str().unwrap(), "--store", target, "--until", until])
    }

    fn import_from_pipe(&self, until: &str, target: &str) -> Finished {
        let mut import = Command::new("sh");
        import.args(["-c", r#"cat "$0" | "$@""#]).arg(&self.file).arg(program());
        finished(import.args(["log", "import", "--store", target, "--until", until]))
    }
}

#[test]
fn a_copy_an_export_and_an_import_end_at_the_same_commit() {
    let backup = Backup::new();
    let stopped = "stopped before position 5, whose time is 2026-11-18T01:00:40Z; ";
    let in_order = format!("{stopped}the last position with an earlier time is 4");
    let set_back = format!(
        "{stopped}clocks differ: the last position with an earlier time is 6, and --until 6 includes it"
    );
    for (number, (until, last, sentence)) in [
        ("4", 4, None),
        ("7", 7, None),
        ("2026-11-18T01:00:30Z", 4, Some(&*in_order)),
        ("2026-11-18T02:00:35.5+01:00", 4, Some(&set_back)),
        (
            "2026-11-18T01:00:50Z",
            7,
            Some("no commit is later than 2026-11-18T01:00:50Z: the history is complete"),
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let exported = backup.export(until).exits_with(0);
        assert_eq!(exported.stdout.lines().count(), last + 1, "{until}");
        let original = fs::read_to_string(&backup.file).unwrap();
        assert!(original.lines().zip(exported.stdout.lines()).take(last).all(|(one, other)| one == other));
        let target = |name: &str| backup.target(&format!("{name}{number}"));
        let [copy, file, pipe] = ["copy", "file", "pipe"].map(target);
        let outcomes =
            [backup.copy(until, &copy), backup.import(until, &file), backup.import_from_pipe(until, &pipe)];
        for (outcome, target) in outcomes.into_iter().zip([copy, file, pipe]) {
            let outcome = outcome.exits_with(0);
            assert_eq!(outcome.value("position"), last.to_string());
            assert_eq!(outcome.stdout.contains("until  "), sentence.is_some(), "{outcome:?}");
            if let Some(sentence) = sentence {
                assert_eq!(outcome.value("until"), sentence);
                assert_eq!(exported.stderr, format!("petstore: {sentence}\n"));
            }
            let verified = petstore(["log", "verify", "--store", &target]).exits_with(0);
            assert_eq!(verified.value("position"), last.to_string());
            // A partial export is a complete file.
            let partial = backup.directory.path().join("partial.jsonl");
            fs::write(&partial, &exported.stdout).unwrap();
            let again = petstore(["log", "import", partial.to_str().unwrap(), "--store", &target]);
            assert_eq!(again.exits_with(0).value("head hash"), verified.value("head hash"));
        }
    }
}

#[test]
fn an_end_that_the_history_does_not_have_is_rejected_before_anything_is_created() {
    let backup = Backup::new();
    let target = backup.target("none");
    for (until, words) in [
        ("8", "the history ends at position 7, before position 8: choose an earlier position"),
        ("18446744073709551615", "the history ends at position 7"),
        ("2026-11-18T01:00:09Z", "which is later than 2026-11-18T01:00:09Z: choose a later time"),
        ("2026-11-18", "which is later than 2026-11-18T00:00:00Z: choose a later time"),
        ("36500d", "choose a later time"),
    ] {
        let outcomes = [backup.copy(until, &target), backup.export(until), backup.import(until, &target)];
        for outcome in outcomes {
            let outcome = outcome.exits_with(1).says(words);
            assert_eq!((outcome.sentences(), &*outcome.stdout), (1, ""), "{outcome:?}");
        }
        assert!(!backup.directory.path().join("none").exists(), "{until}");
    }
    for until in ["0", "+4", "1.5", "18446744073709551616", "2026-11-18T01:00:00", "yesterday", ""] {
        let rejected = backup.export(until).exits_with(2);
        rejected
            .says("expected a position from 1 upwards, a time with its offset such as 2026-11-15T08:00:00Z,");
    }
    let follow = ["log", "copy", "--from", &backup.store, "--to", &target, "--until", "4", "--follow"];
    petstore(follow).exits_with(2).says("cannot be used with");

    // The end of a pipe is not known before it is read.
    let late = backup.target("late");
    let outcome = backup.import_from_pipe("8", &late).exits_with(1);
    outcome.says("before position 8").says("now holds the history up to position 7");
    let early = backup.import_from_pipe("2026-11-18T01:00:09Z", &backup.target("early"));
    early.exits_with(1).says("choose a later time; nothing was imported");
}

#[test]
fn a_time_in_the_future_is_accepted_with_a_warning() {
    let backup = Backup::new();
    let (until, warning) =
        ("2126-11-18T01:00:00Z", "petstore: warning: --until 2126-11-18T01:00:00Z is in the future");
    let outcomes = [
        backup.export(until),
        backup.copy(until, &backup.target("copy")),
        backup.import(until, &backup.target("file")),
    ];
    for outcome in outcomes {
        assert!(outcome.exits_with(0).stderr.starts_with(warning));
    }
    assert!(!backup.export("7").stderr.contains("warning"), "a position");
}

#[test]
fn a_target_with_later_commits_is_rejected_and_an_interrupted_copy_is_resumed() {
    let backup = Backup::new();
    let target = backup.target("copy");
    backup.copy("2", &target).exits_with(0);
    backup.copy("4", &target).exits_with(0);
    backup.copy("4", &target).exits_with(0).prints("already holds everything up to position 4");
    for outcome in
        [backup.copy("3", &target), backup.import("3", &target), backup.import_from_pipe("3", &target)]
    {
        outcome.exits_with(1).says("already ends at position 4, after position 3: choose an empty target");
    }
    let other = Backup::new();
    let outcome = other.copy("4", &target).exits_with(1);
    outcome.says("the target has a different history at position 4");
}

#[test]
fn the_good_pets_after_a_mistake_are_added_to_the_restored_log_as_documented() {
    let mut app = App::on_engine("sled", &[]);
    let importer = app.issue_active_key(&["--name", "importer"]);
    app.add("Rex");
    let wrong = r#"{"name":"Wrong","categoryId":1}"#;
    assert_eq!(app.anonymous("POST", "/v1/pets").key(&importer).json(wrong).send().status, 201);
    // A number that a float cannot hold, and a name that a shell would change.
    assert_eq!(
        app.post(r#"{"name":"Tom \\ $1 '\"","categoryId":9007199254740993,"status":"sold"}"#).status,
        201
    );
    app.add("Ada");
    let good: Vec<_> = app.all_pets().into_iter().filter(|pet| pet["name"] != "Wrong").collect();
    assert!(app.terminate().success());
    let old = app.store().to_owned();
    let restored = format!("sled:{}", app.directory().join("restored").display());
    petstore(["log", "copy", "--from", &old, "--to", &restored, "--until", "1"]).exits_with(0);
    let mistake = petstore(["log", "find", "--json", "--pet", "2", "--store", &old]).exits_with(0).stdout;
    let mistake: Value = serde_json::from_str(&mistake).unwrap();
    app.use_store(&restored);
    app.start_again();

    let page = fs::read_to_string(root().join("docs/backup.md")).unwrap();
    let block =
        page.split("\n6. Add the good pets").nth(1).and_then(|rest| rest.split("```sh\n").nth(1)).unwrap();
    let block =
        block.split("   ```").next().unwrap().lines().map(|line| line.strip_prefix("   ").unwrap_or(line));
    let mut script = block.collect::<Vec<_>>().join("\n");
    let key = key_file(app.directory(), &app.key);
    for (documented, here) in [
        ("sudo -u petstore env TMPDIR=/var/tmp petstore", program().to_str().unwrap()),
        ("2026-11-18T09:15:00Z", mistake["time"].as_str().unwrap()),
        ("sled:/var/lib/petstore/log.old", &old),
        ("/var/lib/petstore/first-key", key.to_str().unwrap()),
        ("3f9a1c04b7de", mistake["by"].as_str().unwrap()),
        ("127.0.0.1:8080", &app.address().to_string()),
    ] {
        assert!(script.contains(documented), "{documented} in {script}");
        script = script.replace(documented, here);
    }
    for _ in 0..2 {
        finished(Command::new("bash").args(["-euo", "pipefail", "-c", &script])).exits_with(0);
    }
    let without_id = |pets: Vec<Value>| -> Vec<Value> {
        pets.into_iter()
            .map(|mut pet| {
                pet.as_object_mut().unwrap().remove("id");
                pet
            })
            .collect()
    };
    assert_eq!(without_id(app.all_pets()), without_id(good));
}
