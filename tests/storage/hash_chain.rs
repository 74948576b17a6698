//! The hash chain: every record identifies the history before it.

use std::{error::Error, fs, process::Command};

use adapters::event_log::memory::MemoryLog;
use application::{
    Digest, OwnerId,
    log::{codec, commit::Commit, contract},
    ports::{EventLog, LogError, Position, ReadBound},
    transfer::{self, Tally},
};
use chrono::DateTime;
use harness::added;

/// A log with so many commits.
async fn history(commits: u64) -> MemoryLog {
    let log = MemoryLog::default();
    contract::append_all(&log, harness::history(commits, 1, |id| added(id, "Rex"))).await;
    log
}

async fn walk(log: &dyn EventLog) -> Result<Tally, LogError> {
    let mut tally = Tally::default();
    transfer::walk(log, &mut tally, async |_, _| Ok::<_, LogError>(())).await.map(|()| tally)
}

async fn commits(log: &dyn EventLog) -> Vec<Commit> {
    let records = log.read(Position::START, ReadBound::BATCH).await.unwrap();
    records.iter().map(|record| codec::decode(&record.bytes).unwrap()).collect()
}

/// The same log with another owner of the pet at `position`, and every checksum and hash right.
async fn rewritten(log: &dyn EventLog, position: u64) -> MemoryLog {
    let mut head = Digest::of(b"");
    let mut records = Vec::new();
    for mut commit in commits(log).await {
        if commit.position == Position(position) {
            commit.entries[0].by = OwnerId("another".into());
        }
        commit.previous = head;
        let record = codec::encode(&commit);
        head = Digest::of(&record.bytes);
        records.push(record);
    }
    let other = MemoryLog::default();
    contract::append_all(&other, records).await;
    other
}

#[tokio::test]
async fn a_completely_rewritten_history_has_a_different_head_hash() {
    let log = history(5).await;
    let kept = walk(&log).await.unwrap().head_hash().unwrap();
    let forged = rewritten(&log, 2).await;
    let consistent = walk(&forged).await.unwrap();
    assert_ne!(consistent.head_hash().unwrap(), kept);
}

#[tokio::test]
async fn the_script_in_the_docs_detects_what_verify_detects() {
    let script = include_str!("../../docs/check-export.py");
    let intact = history(5).await;
    let (lines, head) = (exported(&intact).await, walk(&intact).await.unwrap().head_hash().unwrap());
    assert_eq!(checked(script, &lines), format!("verified: {head}"));
    let forged = String::from_utf8(lines).unwrap().replacen("Rex", "Max", 1);
    assert_eq!(checked(script, forged.as_bytes()), "position 2 does not follow the records before it");
}

async fn exported(log: &dyn EventLog) -> Vec<u8> {
    let mut file = Vec::new();
    transfer::export::<Box<dyn Error>>(log, &mut file, Tally::default(), DateTime::UNIX_EPOCH, |_| {})
        .await
        .unwrap();
    file
}

/// What the script says about an export.
fn checked(script: &str, export: &[u8]) -> String {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("export");
    fs::write(&file, export).unwrap();
    let python = Command::new("python3").args(["-c", script]).arg(&file).output().unwrap();
    let said = if python.status.success() { python.stdout } else { python.stderr };
    String::from_utf8(said).unwrap().lines().next().unwrap_or_default().to_owned()
}
