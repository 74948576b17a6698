//! Logs with gaps at the start, in the middle or at the end: `log salvage --accept-gaps` adds every readable commit to a new
//! log on any engine, with the same pets, ids, times, owners and idempotency keys.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt as _,
    path::Path,
    sync::Arc,
};

use adapters::event_log::memory::MemoryLog;
use application::{
    log::{codec, contract},
    ports::{LogSource, Position, ReadBound, Record},
    transfer::{self, Rechained, SalvagedLog, Tally},
};
use async_nats::{HeaderMap, jetstream::stream::Config};
use domain::test_values::numbered;
use harness::{
    App, NatsCluster, NatsSync, PostgresServer, added, close_embedded, exported, history, json_of,
    open_embedded, petstore,
};
use serde_json::Value;
use tempfile::TempDir;
use tokio::task::{self, LocalSet};

use super::salvage_copies::WithHoles;

/// One pet per commit, so that ids are positions.
pub(super) const PETS: u64 = 6;

/// Which positions are lost.
const GAPS: [(&str, &[u64]); 3] = [("start", &[1]), ("middle", &[3, 4]), ("end", &[6])];

pub(super) fn fill(store: &str) -> App {
    let app = App::on(store);
    for number in 1..=PETS {
        let create = app.call("POST", "/v1/pets").header("Idempotency-Key", &format!("key-{number}"));
        assert_eq!(create.json(json_of(&numbered(number)).to_string()).send().status, 201);
    }
    app
}

/// Damages every copy of these commits in a file.
pub(super) fn damage(file: &Path, positions: &[u64]) {
    let mut bytes = fs::read(file).unwrap();
    for position in positions {
        let mark = format!(r#""position":{position},"id":""#).into_bytes();
        let found: Vec<_> =
            (0..bytes.len() - mark.len()).filter(|at| bytes[*at..].starts_with(&mark)).collect();
        assert!(!found.is_empty(), "the commit {position} is in the file");
        for at in found {
            bytes[at + mark.len()] ^= 1;
        }
    }
    fs::write(file, bytes).unwrap();
}

/// The commits of a store.
pub(super) fn commits(store: &str) -> Vec<Value> {
    exported(store).iter().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Salvages the store, which held the `original` commits, into the new log `target` and serves it.
fn check(store: &str, (kind, lost): (&str, &[u64]), original: &[Value], target: &str) {
    let case = format!("{store}, gap at the {kind}");
    let kept: Vec<_> = (1..=PETS).filter(|position| !lost.contains(position)).collect();
    let salvage = || petstore(["log", "salvage", "--accept-gaps", "--from", store, "--to", target]);
    let salvaged = salvage().exits_with(3);
    let gap = salvaged.stdout.lines().find(|line| line.starts_with("unreadable")).unwrap_or_default();
    let range = match lost {
        [only] => only.to_string(),
        [first, .., end] => format!("{first} to {end}"),
        [] => unreachable!("every case loses a commit"),
    };
    assert!(gap.ends_with(&format!(" {range}")), "{case}: {}", salvaged.stdout);
    let held = exported(target);
    assert_eq!(salvage().exits_with(3).stdout, salvaged.stdout, "{case}");
    assert_eq!(exported(target), held, "{case}: the same salvage again changes nothing");

    petstore(["log", "verify", "--store", target]).exits_with(0);
    let content = |commit: &Value| (commit["time"].clone(), commit["events"].clone());
    let held = original.iter().filter(|commit| kept.contains(&commit["position"].as_u64().unwrap()));
    assert_eq!(
        commits(target).iter().map(content).collect::<Vec<_>>(),
        held.map(content).collect::<Vec<_>>(),
        "{case}: the same times, pets, owners and idempotency keys"
    );
    let app = App::on(target);
    let ids: Vec<_> = app.all_pets().iter().filter_map(|pet| pet["id"].as_u64()).collect();
    assert_eq!(ids, kept, "{case}: the same pets under the same ids, served from {target}");
    assert_eq!(app.add("New").json()["id"].as_u64(), kept.last().map(|last| last + 1), "{case}");
}

/// A log with these records, without those at the `lost` positions.
async fn with_gaps(records: &[Record], lost: &[u64]) -> SalvagedLog {
    let log = MemoryLog::default();
    contract::append_all(&log, records.iter().cloned()).await;
    let is_lost = (1..=records.len() as u64).map(|position| lost.contains(&position)).collect();
    let records = log.read(Position::START, ReadBound::BATCH).await.unwrap();
    SalvagedLog::new(Arc::new(WithHoles { records, is_lost })).await.unwrap()
}

/// The records of the log, read at most so many at a time.
async fn bytes(log: &dyn LogSource, records: usize) -> Vec<Vec<u8>> {
    let (mut bytes, mut after) = (vec![], Position::START);
    loop {
        let read = log.read(after, ReadBound { records, ..ReadBound::BATCH }).await.unwrap();
        let Some(last) = read.last() else { return bytes };
        after = last.position;
        bytes.extend(read.into_iter().map(|record| record.bytes.to_vec()));
    }
}

#[tokio::test]
async fn salvages_around_the_same_gaps_have_the_same_bytes() {
    let original: Vec<_> = history(PETS, 1, |id| added(id, "Rex")).collect();
    let rechained = async |lost| Rechained::open(&with_gaps(&original, lost).await).await.unwrap();
    let one = rechained(&[3]).await;
    assert_eq!((&one.gaps[..], one.head().await), (&[(Position(3), Position(3))][..], Ok(Position(5))));
    let salvaged = bytes(&one, 2).await;
    assert_eq!(salvaged[..2], original[..2].iter().map(|record| record.bytes.to_vec()).collect::<Vec<_>>());
    assert_eq!(salvaged, bytes(&one, 3).await, "read again");
    assert_eq!(salvaged, bytes(&rechained(&[3]).await, 100).await, "salvaged again");
    let ids = |bytes: &[Vec<u8>]| -> Vec<_> {
        bytes.iter().map(|record| codec::decode(record).unwrap().id).collect()
    };
    let (same, others) = (ids(&salvaged), ids(&bytes(&rechained(&[3, 4]).await, 100).await));
    let originals: Vec<_> = original.iter().map(|record| record.id).collect();
    assert!(same[2..].iter().all(|id| !originals.contains(id) && !others.contains(id)), "new commits");
    assert_eq!(
        (&same[2].0.as_bytes()[..6], same[2].0.get_version_num()),
        (&originals[3].0.as_bytes()[..6], 7)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_salvage_around_gaps_resumes() {
    // More than one batch: the first one is stored when the run is interrupted.
    let batch = ReadBound::APPEND.records as u64;
    let original: Vec<_> = history(batch + PETS, 1, |id| added(id, "Rex")).collect();
    let source = with_gaps(&original, &[3]).await;
    for engine in ["sled", "sqlite"] {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("target");
        let target = open_embedded(engine, &path);
        let salvage = async |interrupted_at: Position| {
            let (rechained, to) = (Rechained::open(&source).await.unwrap(), target.clone());
            let run = async move {
                transfer::copy(&rechained, &*to, &mut Tally::default(), |commit| {
                    assert!(commit.position < interrupted_at, "interrupted");
                })
                .await
            };
            LocalSet::new().run_until(async { task::spawn_local(run).await }).await
        };
        assert!(salvage(Position(10)).await.is_err_and(|error| error.is_panic()));
        assert_eq!(target.head().await, Ok(Position(batch)), "{engine}");
        salvage(Position::MAX).await.unwrap().unwrap();
        let whole = Rechained::open(&source).await.unwrap();
        assert_eq!(bytes(&*target, 1_000).await, bytes(&whole, 1_000).await, "{engine}");
        close_embedded(&*target, &path).await;
    }
}

fn check_files(engine: &str, records: &str, target: &str) {
    for gap in GAPS {
        let directory = TempDir::new().unwrap();
        let store = format!("{engine}:{}", directory.path().join("log").display());
        assert!(fill(&store).terminate().success());
        let original = commits(&store);
        damage(&directory.path().join(records), gap.1);
        let target = format!("{target}:{}", directory.path().join("target").display());
        check(&store, gap, &original, &target);
    }
}

#[test]
fn only_the_damaged_commit_is_called_unreadable() {
    for (engine, records) in [("sled", "log/sled/db"), ("sqlite", "log")] {
        let directory = TempDir::new().unwrap();
        let store = format!("{engine}:{}", directory.path().join("log").display());
        assert!(fill(&store).terminate().success());
        damage(&directory.path().join(records), &[3]);
        let verified = petstore(["log", "verify", "--store", &store]).exits_with(1);
        assert_eq!(verified.value("unreadable"), "3", "{engine}");
        assert!(verified.value("left out").starts_with("4 to 6: intact"), "{engine}: {}", verified.stdout);
    }
}

#[test]
fn a_sled_store_with_a_gap() {
    check_files("sled", "log/sled/db", "sqlite");
}

#[test]
fn a_sqlite_store_with_a_gap() {
    check_files("sqlite", "log", "sled");
}

#[test]
fn a_damaged_page_of_postgres_costs_only_its_rows() {
    let mut server = PostgresServer::start();
    let [database, target] = [(); 2].map(|()| server.create_database());
    let store = server.url_with_long_timeout(&database);
    let app = fill(&store);
    for _ in PETS..100 {
        assert_eq!(app.add("Rex").status, 201);
    }
    drop(app);
    let page = "(ctid::text::point)[0] = 1";
    let lost = format!("SELECT min(position) || ' to ' || max(position) FROM petstore_commits WHERE {page}");
    let lost = server.sql(&database, &lost);
    let count = format!("SELECT count(*) FROM petstore_commits WHERE NOT {page}");
    let kept = server.sql(&database, &count);
    let path = "SELECT current_setting('data_directory') || '/' || pg_relation_filepath('petstore_commits')";
    let path = server.sql(&database, path);
    server.stop();
    let file = File::options().write(true).open(path).unwrap();
    file.write_all_at(&[0xFF; 32], 8192).unwrap();
    server.start_again();

    let salvage =
        ["log", "salvage", "--accept-gaps", "--from", &store, "--to", &server.url_with_long_timeout(&target)];
    let salvaged = petstore(salvage).exits_with(3).says(&lost);
    assert_eq!((salvaged.value("position"), salvaged.value("unreadable")), (&*kept, &*lost));
}

#[test]
fn a_row_at_a_huge_position_does_not_delay_a_salvage() {
    let mut server = PostgresServer::start();
    let database = server.create_database();
    let store = server.url_with_long_timeout(&database);
    assert!(fill(&store).terminate().success());
    server.sql(&database, "UPDATE petstore_commits SET position = 9000000000000000000 WHERE position = 6");
    let target = server.create_database();
    let salvage =
        ["log", "salvage", "--accept-gaps", "--from", &store, "--to", &server.url_with_long_timeout(&target)];
    let salvaged = petstore(salvage).exits_with(3);
    assert_eq!((salvaged.value("position"), salvaged.value("unreadable")), ("5", "6 to 9000000000000000000"));
}

#[tokio::test(flavor = "multi_thread")]
async fn commits_on_both_sides_of_a_break_in_the_hash_chain_are_never_mixed() {
    let directory = TempDir::new().unwrap();
    let path = |name: &str| directory.path().join(name);
    let url = |name: &str| format!("sqlite:{}", path(name).display());
    let [one, other] = ["Rex", "Max"].map(|name| history(PETS, 1, |id| added(id, name)).collect::<Vec<_>>());
    let broken = [&one[..3], &other[3..]].concat();
    for (name, records) in [("broken", broken), ("original", other)] {
        let log = open_embedded("sqlite", &path(name));
        contract::append_all(&*log, records).await;
        close_embedded(&*log, &path(name)).await;
    }
    let (from, original) = (url("broken"), url("original"));
    let salvage = |target: &str, flags: &[&str]| {
        petstore([&["log", "salvage", "--from", &from, "--to", &url(target)], flags].concat())
    };
    let is_rejected = || {
        salvage("rejected", &["--accept-gaps"])
            .exits_with(1)
            .says("the commit at position 4 does not match the hash of the commit before it")
            .says("take them from another copy with --also and --head");
        assert!(!path("rejected").exists(), "nothing is created");
    };
    is_rejected();
    let verified = petstore(["log", "verify", "--store", &from]).exits_with(1);
    for output in [verified, salvage("beginning", &[]).exits_with(3)] {
        assert_eq!((output.value("position"), output.value("left out")), ("3", "4 to 6"));
    }
    let whole = petstore(["log", "verify", "--store", &original]).exits_with(0);
    let chosen = salvage("chosen", &["--also", &original, "--head", whole.value("head hash")]).exits_with(0);
    assert_eq!(chosen.value("head hash"), whole.value("head hash"));

    // A gap elsewhere changes nothing, nor does a copy with the same break.
    fs::copy(path("broken"), path("same")).unwrap();
    fs::copy(path("broken.mark"), path("same.mark")).unwrap();
    salvage("merged", &["--also", &url("same")]).exits_with(3).prints("part of the log was replaced");
    damage(&path("broken"), &[2]);
    is_rejected();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_with_a_gap() {
    let directory = TempDir::new().unwrap();
    let whole = format!("sled:{}", directory.path().join("log").display());
    assert!(fill(&whole).terminate().success());
    let records = exported(&whole);
    let cluster = NatsCluster::start(1, NatsSync::Always).await;
    let jetstream = cluster.jetstream().await;
    for gap in GAPS {
        let name = format!("GAP_{}", gap.0.to_uppercase());
        let subject = format!("petstore.{name}.commits");
        // A stream as petstore makes them rejects to delete messages.
        let config = Config {
            name: name.clone(),
            subjects: vec![subject.clone()],
            allow_direct: true,
            ..Config::default()
        };
        let stream = jetstream.create_stream(config).await.unwrap();
        for record in &records {
            // As petstore publishes them.
            let commit: Value = serde_json::from_str(record).unwrap();
            let mut headers = HeaderMap::new();
            headers.insert("Petstore-Commit-Id", commit["id"].as_str().unwrap());
            let published = jetstream.publish_with_headers(subject.clone(), headers, record.clone().into());
            published.await.unwrap().await.unwrap();
        }
        for position in gap.1 {
            stream.delete_message(*position).await.unwrap();
        }
        check(&cluster.url(&name), gap, &commits(&whole), &cluster.url(&format!("NEW_{name}")));
    }
}
