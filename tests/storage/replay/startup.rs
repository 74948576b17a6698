//! Startup of the service: it replays and verifies the whole log before `/v1` serves anything.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use application::{
    RequestKey,
    log::{commit::Entry, contract},
};
use harness::{
    App, Call, added, close_embedded, eventually, history, open_embedded, petstore, program,
    wait_until_unlocked,
};

const ENGINES: [&str; 2] = ["sled", "sqlite"];
/// Full commits: a replay of them takes seconds in a test build.
const COMMITS: u64 = 150;
const PETS_PER_COMMIT: i64 = 1_000;
/// How often a long replay logs its progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);

#[test]
fn v1_is_503_throughout_replay_and_the_probes_show_its_progress() {
    for engine in ENGINES {
        let mut app = stopped(engine, COMMITS, PETS_PER_COMMIT);
        let begun = Instant::now();
        app.begin();
        assert!(app.wait_until_listening().is_ok());
        let admin = app.admin();
        let mut seen = vec![];
        eventually("the service is ready", || {
            // The pets are asked for first: what they show was shown before the probe called the service ready.
            let pets = app.get("/v1/pets?limit=1");
            let create = app.post(r#"{"name":"Rex","categoryId":"not a number"}"#);
            let public = app.probe("/readyz");
            let with_key = app.get("/readyz");
            let admin = Call::new(admin, "GET", "/readyz").send();
            if admin.status == 200 {
                return Some(());
            }
            if public.status != 200 {
                assert_eq!((pets.status, create.status), (503, 503), "{engine}");
                assert_eq!(public.json()["status"], "starting");
                assert!(public.json().get("position").is_none() && public.json().get("head").is_none());
            }
            for report in [with_key, admin].iter().filter(|report| report.json()["status"] == "starting") {
                let number = |name: &str| report.json()[name].as_u64().expect("a position");
                seen.push((number("position"), number("head")));
            }
            None
        });
        let logged = app.printed().1.contains("replaying the log position=");
        assert!(logged || begun.elapsed() < 2 * PROGRESS_INTERVAL, "{engine}: {}", app.printed().1);
        assert!(seen.is_sorted_by_key(|(position, _)| *position), "{engine}: {seen:?}");
        let midway = |(position, head): &(u64, u64)| (1..COMMITS).contains(position) && *head == COMMITS;
        assert!(seen.iter().any(midway), "{engine}: {seen:?}");
        assert_eq!(app.get(&format!("/v1/pets/{}", COMMITS.cast_signed() * PETS_PER_COMMIT)).status, 200);
    }
}

#[test]
fn a_flipped_bit_in_the_first_middle_or_last_record_rejects_the_start() {
    const RECORDS: u64 = 41;
    for engine in ENGINES {
        for position in [1, RECORDS / 2, RECORDS] {
            let mut app = stopped(engine, RECORDS, 1);
            let log = app.directory().join("log");
            flip(engine, &log, position);
            let before = records(engine, &log);
            let rejected =
                app.try_start_again().expect_err("a damaged record is found by the replay").exits_with(1);
            let named = format!("position {position} ");
            assert!(rejected.stderr.contains(&named), "{engine}, {position}: {}", rejected.stderr);
            let verified = petstore(["log", "verify", "--store", app.store()]);
            assert_eq!(verified.value("first bad"), position.to_string(), "{engine}: {verified:?}");
            assert!(records(engine, &log) == before, "{engine}, {position}: nothing is changed");
        }
    }
}

/// A service that has not been started yet, on a new log.
fn stopped(engine: &str, commits: u64, pets: i64) -> App {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    let store = format!("{engine}:{}", path.display());
    let log = open_embedded(engine, &path);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        contract::append_all(&*log, history(commits, pets, entry)).await;
        close_embedded(&*log, &path).await;
    });
    App::stopped_on(program(), &store, directory, &["--admin-listen", "127.0.0.1:0"])
}

fn entry(id: i64) -> Entry {
    Entry { request_key: RequestKey::new(format!("key-{id}")).ok(), ..added(id, &format!("pet {id} ")) }
}

/// Flips one bit of the name in this record, so that only the checksum of the record tells.
fn flip(engine: &str, log: &Path, position: u64) {
    let name = format!("pet {position} ");
    let place =
        |bytes: &[u8]| bytes.windows(name.len()).position(|window| window == name.as_bytes()).unwrap();
    if engine == "sled" {
        const CHECKSUM: std::ops::Range<usize> = 36..40;
        let database = sled::open(log.join("sled")).unwrap();
        let (key, value) = database.range(position.to_be_bytes()..).next().unwrap().unwrap();
        let mut chunk = value.to_vec();
        let place = place(&chunk);
        chunk[place] ^= 1;
        let checksum =
            crc32c::crc32c_append(crc32c::crc32c(&chunk[..CHECKSUM.start]), &chunk[CHECKSUM.end..]);
        chunk[CHECKSUM].copy_from_slice(&checksum.to_be_bytes());
        database.insert(key, chunk).unwrap();
        database.flush().unwrap();
        drop(database);
        wait_until_unlocked(log);
    } else {
        let mut bytes = fs::read(log).unwrap();
        // SQLite leaves old copies of records in unused parts of its pages.
        while bytes.windows(name.len()).any(|window| window == name.as_bytes()) {
            let place = place(&bytes);
            bytes[place] ^= 1;
        }
        fs::write(log, bytes).unwrap();
    }
}

/// The file that holds the records.
fn records(engine: &str, log: &Path) -> Vec<u8> {
    fs::read(if engine == "sled" { log.join("sled/db") } else { log.to_owned() }).unwrap()
}
