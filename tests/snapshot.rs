//! The snapshot: the next start takes the state from it and replays only what came after. Whatever happens to it costs time,
//! and nothing else.

mod check;
mod concurrency;
mod unusable;

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, symlink},
    path::{Path, PathBuf},
};

use harness::{App, eventually, petstore, program};
use serde_json::Value;

/// Flags for a snapshot after every commit.
const EVERY_COMMIT: &[&str] = &["--snapshot-every", "1"];
/// Flags for no snapshots at all, and for one at the end only.
const NEVER: &[&str] = &["--snapshot-every", "0"];
const AT_THE_END: &[&str] = &["--snapshot-every", "1000000"];

/// The embedded engines, and where the snapshot is, seen from the folder of the service.
const ENGINES: [(&str, &str, &str); 2] =
    [("sled", "log", "log/snapshot"), ("sqlite", "pets", "pets.snapshot")];

/// A service on a store of its own.
pub(crate) struct Shop {
    pub(crate) app: App,
    /// A second owner of request keys.
    other: String,
    snapshot: PathBuf,
}

/// Everything that a caller can see.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    pets: Vec<Value>,
    by_status: Vec<Value>,
    position: Option<String>,
    etag: Option<String>,
    /// The answers to repeated requests.
    repeated: Vec<(String, Option<String>)>,
}

impl Shop {
    pub(crate) fn new((scheme, path, snapshot): (&str, &str, &str), flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = format!("{scheme}:{}", folder.path().join(path).display());
        let snapshot = folder.path().join(snapshot);
        let mut app = App::stopped_on(program(), &store, folder, flags);
        let other = app.issue_key(&["--name", "other"]);
        app.start_again();
        Self { app, other, snapshot }
    }

    /// Adds pets with and without request keys, of two owners, one commit each.
    pub(crate) fn fill(&self, numbers: std::ops::Range<u32>) {
        for number in numbers {
            let status = [r#","status":"sold""#, "", r#","status":"pending""#][(number % 3) as usize];
            let body = format!(r#"{{"name":"pet {number} 🐕","categoryId":{number}{status}}}"#);
            let key = if number.is_multiple_of(2) { &self.app.key } else { &self.other };
            let call =
                self.app.anonymous("POST", "/v1/pets").header("Authorization", &format!("Bearer {key}"));
            let call = if number.is_multiple_of(5) {
                call
            } else {
                call.header("Idempotency-Key", &format!("key-{number}"))
            };
            let answer = call.json(body).send();
            assert_eq!(answer.status, 201, "{}", answer.text());
        }
    }

    /// What is shown after so many pets were added. Repeating their requests changes nothing.
    pub(crate) fn shown(&self, pets: u32) -> Shown {
        let before = self.app.get("/v1/pets?limit=3");
        let shown = Shown {
            pets: self.app.all_pets(),
            by_status: self.app.walk("/v1/pets?limit=100&status=sold"),
            position: before.header("log-position").map(str::to_owned),
            etag: before.header("etag").map(str::to_owned),
            repeated: (0..pets)
                .filter(|number| !number.is_multiple_of(5))
                .map(|number| self.repeat(number))
                .collect(),
        };
        assert_eq!(shown.pets.len(), pets as usize, "{:?}", self.app.printed());
        let replayed = |(_, replayed): &(String, Option<String>)| replayed.as_deref() == Some("true");
        assert!(shown.repeated.iter().all(replayed), "a repeated request adds nothing: {:?}", shown.repeated);
        let after = self.app.get("/v1/pets?limit=3");
        assert_eq!(after.header("log-position").map(str::to_owned), shown.position);
        shown
    }

    fn repeat(&self, number: u32) -> (String, Option<String>) {
        let status = [r#","status":"sold""#, "", r#","status":"pending""#][(number % 3) as usize];
        let body = format!(r#"{{"name":"pet {number} 🐕","categoryId":{number}{status}}}"#);
        let key = if number.is_multiple_of(2) { &self.app.key } else { &self.other };
        let call = self.app.anonymous("POST", "/v1/pets").header("Authorization", &format!("Bearer {key}"));
        let answer = call.header("Idempotency-Key", &format!("key-{number}")).json(body).send();
        (answer.text().to_owned(), answer.header("idempotency-replayed").map(str::to_owned))
    }

    /// Starts again, and returns the position of the snapshot that the start has used, if it has used one.
    pub(crate) fn start(&mut self) -> Option<u64> {
        self.app.start_again();
        self.used_snapshot()
    }

    fn used_snapshot(&self) -> Option<u64> {
        let used = "started from the snapshot at position ";
        // What is logged appears in the background; the line that comes last is on standard output, so wait for either.
        eventually("the start is reported", || {
            let (_, stderr) = self.app.printed();
            if stderr.contains(" is not used, and the whole log is replayed instead") {
                return Some(None);
            }
            let position = stderr.split(used).nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok());
            position.map(Some)
        })
    }

    /// The same for a start that may find damage before it is ready.
    pub(crate) fn start_ready_or_not(&mut self) -> Option<u64> {
        self.app.try_start_again().unwrap();
        self.used_snapshot()
    }

    /// Ends the service in order.
    pub(crate) fn stop(&mut self) {
        assert_eq!(self.app.terminate().code(), Some(0));
    }

    pub(crate) fn verify(&self) -> harness::Finished {
        petstore(["log", "verify", "--store", self.app.store()])
    }
}

#[test]
fn a_start_from_a_snapshot_shows_exactly_what_a_replay_shows() {
    for engine in ENGINES {
        let mut shop = Shop::new(engine, AT_THE_END);
        shop.fill(0..120);
        shop.stop();
        // A clean end has left a snapshot of everything.
        assert_eq!(shop.start(), Some(120), "{engine:?}");
        let from_snapshot = shop.shown(120);
        // A tail that no snapshot holds.
        shop.fill(120..140);
        shop.app.kill();
        assert_eq!(shop.start(), Some(120), "{engine:?}");
        let with_tail = shop.shown(140);
        assert_ne!(from_snapshot, with_tail);
        shop.app.kill();
        let verified = shop.verify();
        assert!(
            verified.stdout.contains("snapshot    at position 120, the same as a replay gives"),
            "{verified:?}"
        );
        shop.app.use_flags(NEVER);
        shop.app.start_again();
        assert_eq!(shop.shown(140), with_tail, "{engine:?}: a replay shows the same");
        shop.fill(140..145);
        assert_eq!(shop.shown(145).pets[144]["id"], 145, "ids go on");
    }
}

#[test]
fn a_snapshot_is_written_after_so_many_commits_in_a_private_file() {
    let mut shop = Shop::new(ENGINES[0], &["--snapshot-every", "10", "--ops-listen", "127.0.0.1:0"]);
    shop.fill(0..9);
    assert_eq!(metric(&shop.app, "petstore_snapshot_position"), None, "none yet");
    assert_eq!(
        metric(&shop.app, "petstore_log_checked_position"),
        Some(9),
        "it was read or written by this process"
    );
    shop.fill(9..12);
    let position = eventually("a snapshot is written", || metric(&shop.app, "petstore_snapshot_position"));
    assert!((10..=12).contains(&position), "{position}");
    assert!(metric(&shop.app, "petstore_snapshot_age_seconds").is_some_and(|age| age < 60));
    let about = fs::metadata(&shop.snapshot).unwrap();
    assert_eq!(about.mode() & 0o777, 0o600);
    shop.app.kill();
    assert_eq!(shop.start(), Some(position));
    shop.shown(12);
}

/// The value of a metric without labels.
fn metric(app: &App, name: &str) -> Option<u64> {
    let metrics = harness::Call::new(app.operators(), "GET", "/metrics").send();
    let sample = metrics.text().lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    sample.map(|value| value.parse().unwrap())
}

#[test]
fn without_snapshots_none_is_written_or_read() {
    let mut shop = Shop::new(ENGINES[0], NEVER);
    shop.fill(0..110);
    shop.stop();
    assert!(!shop.snapshot.exists());
    shop.app.use_flags(EVERY_COMMIT);
    shop.app.start_again();
    shop.fill(110..111);
    shop.stop();
    // One that would be refused is not even opened.
    fs::write(&shop.snapshot, "nonsense").unwrap();
    shop.app.use_flags(NEVER);
    shop.app.start_again();
    shop.shown(111);
    assert!(!shop.app.printed().1.contains("the snapshot"), "{:?}", shop.app.printed());
}

#[test]
fn a_short_log_is_replayed_and_checked_by_every_start() {
    let mut shop = Shop::new(ENGINES[0], &[]);
    shop.fill(0..20);
    shop.stop();
    assert!(!shop.snapshot.exists(), "it would spare nobody anything");
}

#[test]
fn log_tools_neither_use_nor_change_a_snapshot() {
    let mut shop = Shop::new(ENGINES[0], EVERY_COMMIT);
    shop.fill(0..30);
    shop.stop();
    let before = fs::read(&shop.snapshot).unwrap();
    let with = petstore(["log", "export", "--store", shop.app.store()]).stdout;
    let copy = shop.app.folder().join("copy");
    let to = format!("sled:{}", copy.display());
    assert_eq!(petstore(["log", "copy", "--from", shop.app.store(), "--to", &to]).code, Some(0));
    assert!(!copy.join("snapshot").exists(), "a copy is a log and nothing else");
    assert_eq!(fs::read(&shop.snapshot).unwrap(), before);
    fs::remove_file(&shop.snapshot).unwrap();
    let without = petstore(["log", "export", "--store", shop.app.store()]).stdout;
    let commits = |export: &str| export.lines().filter(|line| line.starts_with("{\"v\"")).count();
    assert_eq!((commits(&with), commits(&without)), (30, 30));
}

#[test]
fn a_link_in_the_place_of_a_snapshot_is_neither_followed_nor_in_the_way() {
    let mut shop = Shop::new(ENGINES[0], EVERY_COMMIT);
    shop.fill(0..5);
    shop.stop();
    let elsewhere = shop.app.folder().join("elsewhere");
    fs::rename(&shop.snapshot, &elsewhere).unwrap();
    symlink(&elsewhere, &shop.snapshot).unwrap();
    let before = fs::read(&elsewhere).unwrap();
    assert_eq!(shop.start(), None, "a link is not followed");
    shop.shown(5);
    shop.fill(5..8);
    shop.stop();
    assert_eq!(fs::read(&elsewhere).unwrap(), before, "nothing was written through the link");
    assert!(fs::symlink_metadata(&shop.snapshot).unwrap().is_file(), "a new snapshot has taken its place");
    assert_eq!(shop.start(), Some(8));
}

/// Copies a folder.
fn copy(from: &Path, to: &Path) {
    let copied = std::process::Command::new("cp").arg("-r").args([from, to]).status();
    assert!(copied.unwrap().success());
}
