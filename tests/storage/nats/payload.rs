//! Servers that take only small messages: commits are cut to what they take.

use std::fs;

use adapters::event_log::sled::SledLog;
use application::{
    Digest,
    log::{codec, commit::Entry, contract},
    ports::{EventLog as _, LogSource as _, Position, Record, Version},
};
use domain::{Pet, PetEvent, PetId};
use harness::{App, NatsCluster, NatsSync, close_embedded, petstore, succeed};

use super::open_log;

const CREATES: usize = 254;

#[tokio::test(flavor = "multi_thread")]
async fn creates_that_arrive_together_share_commits_that_the_server_takes() {
    let cluster = NatsCluster::start_with(1, NatsSync::Default, "max_payload: 65536").await;
    let app = App::on(&cluster.url("PETS"));
    let output = succeed(
        app.curl()
            .args(["--parallel", "--parallel-immediate", "--parallel-max", &CREATES.to_string()])
            .args(["--output", "/dev/null"])
            .args(["--write-out", "%{http_code} %{http_version}\n"])
            .args(["--header", "Content-Type: application/json"])
            .args(["--data", &format!(r#"{{"name":"{}","categoryId":7}}"#, "x".repeat(200))])
            .arg(format!("http://{}/v1/pets#[1-{CREATES}]", app.address())),
    );
    assert_eq!(output.lines().filter(|line| *line == "201 2").count(), CREATES, "{output}");
    assert_eq!(app.all_pets().len(), CREATES);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_history_is_copied_up_to_a_record_that_the_server_does_not_take() {
    let cluster = NatsCluster::start_with(1, NatsSync::Default, "max_payload: 65536").await;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    let log = SledLog::open(&path).unwrap();
    let head = contract::fill(&log, Version::START, 3).await;
    let previous = contract::head_hash(&log, head.position).await;
    log.append(head, &[large_record(previous, 4)]).await.unwrap();
    close_embedded(&log, &path).await;
    let (from, to) = (format!("sled:{}", path.display()), cluster.url("COPY"));
    let file = directory.path().join("export.jsonl");
    fs::write(&file, petstore(["log", "export", "--store", &from]).stdout).unwrap();

    for arguments in [
        vec!["log", "copy", "--from", &from, "--to", &to],
        vec!["log", "import", file.to_str().unwrap(), "--store", &to],
    ] {
        petstore(&arguments)
            .exits_with(1)
            .says("is over the limit of 65408; choose another engine, or raise");
        assert_eq!(open_log(&to).await.head().await, Ok(Position(3)), "{arguments:?}");
    }
}

/// A commit of many pets.
fn large_record(previous: Digest, position: u64) -> Record {
    let mut commit = codec::decode(&contract::record_after(previous, position).bytes).unwrap();
    let pet = commit.entries[0].event.added().unwrap().clone();
    for id in pet.id.get() + 1..pet.id.get() + 1_000 {
        let event = PetEvent::Added(Pet { id: PetId::new(id).unwrap(), ..pet.clone() });
        commit.entries.push(Entry { event, ..commit.entries[0].clone() });
    }
    codec::encode(&commit)
}
