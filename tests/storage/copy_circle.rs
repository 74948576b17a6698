//! One history through every engine and back: the same head hash everywhere, the same bytes at the end.
//!
//! `TEST_CIRCLE_PETS=100000 tests/run copy_circle -- --nocapture` takes a larger history and shows the head hashes.

use std::time::Instant;

use domain::test_values::varied;
use harness::{App, Gateway, NatsCluster, NatsSync, PostgresServer, json_of, number};

/// The default number of pets, and the number of clients that add them.
const PETS: usize = 2_000;
const CLIENTS: usize = 32;

fn scheme(store: &str) -> &str {
    store.split(':').next().unwrap()
}

#[test]
fn a_history_copied_through_every_engine_comes_back_byte_for_byte() {
    let pets = number("TEST_CIRCLE_PETS").unwrap_or(PETS);
    let mut postgres = PostgresServer::start();
    let database = postgres.create_database();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let cluster = runtime.block_on(NatsCluster::start(3, NatsSync::Always));
    let gateway = Gateway::shared();
    let petstore = |arguments: &[&str]| gateway.petstore(arguments).exits_with(0);
    let head_hash =
        |store: &str| petstore(&["log", "verify", "--store", store]).value("head hash").to_owned();
    let exported = |store: &str| petstore(&["log", "export", "--store", store]).stdout;
    // Without the manifest, which has the time of the export.
    let records = |store: &str| {
        let lines = exported(store);
        lines.trim_end().rsplit_once('\n').expect("records and a manifest").0.to_owned()
    };
    let directory = tempfile::tempdir().unwrap();
    let file = |scheme: &str, name: &str| format!("{scheme}:{}", directory.path().join(name).display());

    let mut app = App::on(&file("sled", "first"));
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let app = &app;
            scope.spawn(move || {
                for pet in 0..pets.div_ceil(CLIENTS) {
                    let pet = json_of(&varied(format!("pet {client}-{pet} 🐈"), pet as u64));
                    assert_eq!(app.post(&pet.to_string()).status, 201);
                }
            });
        }
    });
    app.terminate();

    let circle = [
        file("sled", "first"),
        file("sqlite", "second.db"),
        postgres.url(&database),
        cluster.url("PETS"),
        gateway.url(),
        file("sled", "last"),
    ];
    let first = head_hash(&circle[0]);
    println!("copy circle: {pets} pets, head hash in {:<8} {first}", scheme(&circle[0]));
    for step in circle.windows(2) {
        let copy = || {
            let copied = petstore(&["log", "copy", "--from", &step[0], "--to", &step[1]]);
            copied.value("head hash").to_owned()
        };
        let begun = Instant::now();
        let copied = copy();
        let seconds = begun.elapsed().as_secs_f64();
        let verified = head_hash(&step[1]);
        println!("copy circle: copied in {seconds:>6.1} s, head hash in {:<8} {verified}", scheme(&step[1]));
        assert_eq!((&copied, &verified), (&first, &first), "{} to {}", step[0], step[1]);
        assert_eq!(copy(), first, "a copy that is complete changes nothing");
    }
    assert!(records(&circle[0]) == records(&circle[5]), "byte for byte");

    let file_name = directory.path().join("export.jsonl");
    std::fs::write(&file_name, exported(&circle[4])).unwrap();
    let restored = file("sqlite", "restored.db");
    let imported = petstore(&["log", "import", file_name.to_str().unwrap(), "--store", &restored]);
    assert_eq!(imported.value("head hash"), first, "an export restores the history into any engine");
}
