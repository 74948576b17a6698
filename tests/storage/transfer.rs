//! Moving histories: a copy resumes onto the same history and never mixes two.

use std::{
    error::Error,
    io::{self, BufReader},
};

use adapters::event_log::memory::MemoryLog;
use application::{
    log::{codec, contract},
    ports::{
        EventLog, Fault, LogError, LogSource, Position, RECORD_MAX, ReadBound, Record, StoredRecord, Version,
    },
    transfer::{self, CopyError, Cut, Tally},
};
use chrono::DateTime;
use harness::{FaultyLog, LogFault};
use serde_json::Value;

async fn history(commits: u64) -> MemoryLog {
    let log = MemoryLog::default();
    add(&log, 0, commits).await;
    log
}

async fn add(log: &dyn EventLog, from: u64, to: u64) {
    let head = contract::version(log).await;
    assert_eq!(head.position, Position(from));
    contract::fill(log, head, to - from).await;
}

async fn tally(log: &dyn EventLog) -> Tally {
    let mut tally = Tally::default();
    transfer::walk::<LogError>(log, &mut tally, async |_, _| Ok(())).await.unwrap();
    tally
}

async fn copied(from: &dyn EventLog, to: &dyn EventLog) -> Result<Tally, CopyError> {
    let mut tally = Tally::default();
    transfer::copy(from, to, &mut tally, |_| {}).await.map(|()| tally)
}

async fn imported(file: &[u8], to: &dyn EventLog) -> Result<Tally, CopyError> {
    let mut tally = Tally::default();
    transfer::import(file, to, &mut Cut::default(), &mut tally, |_| {}).await.map(|()| tally)
}

async fn exported(log: &dyn EventLog) -> Vec<u8> {
    let mut file = Vec::new();
    transfer::export::<Box<dyn Error>>(log, &mut file, Tally::default(), DateTime::UNIX_EPOCH, |_| {})
        .await
        .unwrap();
    file
}

#[tokio::test]
async fn two_histories_are_never_mixed_when_the_source_is_replaced_during_a_copy() {
    let from = FaultyLog::with(LogFault::ReplacedBetweenReads);
    contract::fill(&*from, Version::START, 3).await;
    let to = MemoryLog::default();
    let mut intact = Tally::default();
    let ended = transfer::copy(&*from, &to, &mut intact, |_| {}).await;
    assert!(matches!(&ended, Err(CopyError::Source(error)) if error.fault == Fault::Diverged), "{ended:?}");
    assert_eq!((intact.position(), to.head().await), (Position(1), Ok(Position(1))));
}

#[tokio::test]
async fn a_target_with_another_history_is_left_unchanged() {
    let from = history(20).await;
    let other = history(5).await;
    let before = tally(&other).await.head_hash();
    let rejected = copied(&from, &other).await;
    assert!(matches!(rejected, Err(CopyError::AnotherHistory(Position(5)))), "{rejected:?}");
    let short = history(1).await;
    let rejected = copied(&short, &other).await;
    assert!(matches!(rejected, Err(CopyError::AnotherHistory(Position(1)))), "{rejected:?}");
    let rejected = imported(&exported(&short).await[..], &other).await;
    assert!(matches!(rejected, Err(CopyError::AnotherHistory(Position(1)))), "{rejected:?}");
    assert_eq!(tally(&other).await.head_hash(), before);
}

#[tokio::test]
async fn a_target_that_continues_the_history_is_left_unchanged() {
    let from = history(20).await;
    let longer = MemoryLog::default();
    copied(&from, &longer).await.unwrap();
    add(&longer, 20, 25).await;
    let before = tally(&longer).await.head_hash();
    let copied = copied(&from, &longer).await.unwrap();
    let imported = imported(&exported(&from).await[..], &longer).await.unwrap();
    assert_eq!((copied.position(), imported.position()), (Position(20), Position(20)));
    assert_eq!(tally(&longer).await.head_hash(), before);
    let open = async || Ok::<(&dyn LogSource, &dyn EventLog), _>((&from, &longer));
    let rejected = transfer::follow(open, |_| {}).await;
    let CopyError::SourceBehind { source_head, target_head } = rejected else { panic!("{rejected:?}") };
    assert_eq!((source_head, target_head), (Position(20), Position(25)));
}

/// The records of `log`, with one byte changed in the one at `damaged`.
async fn with_damage(log: &MemoryLog, damaged: u64) -> MemoryLog {
    let copy = MemoryLog::default();
    let mut head = Version::START;
    for StoredRecord { position, bytes, .. } in log.read(Position::START, ReadBound::BATCH).await.unwrap() {
        let id = codec::decode(&bytes).unwrap().id;
        let mut bytes = bytes.to_vec();
        if position == Position(damaged) {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
        }
        copy.append(head, &[Record { id, bytes: bytes.into() }]).await.unwrap();
        head = Version::at(position, id);
    }
    copy
}

#[tokio::test]
async fn a_copy_resumes_onto_a_target_with_a_damaged_middle_and_verify_finds_the_damage() {
    let from = history(20).await;
    let to = with_damage(&from, 7).await;
    add(&from, 20, 30).await;
    copied(&from, &to).await.unwrap();
    assert_eq!(to.head().await, Ok(Position(30)));
    let mut intact = Tally::default();
    let error = transfer::walk::<LogError>(&to, &mut intact, async |_, _| Ok(())).await.unwrap_err();
    assert_eq!((error.fault, intact.position()), (Fault::Damaged, Position(6)), "{error}");
}

#[tokio::test]
async fn a_copy_of_a_damaged_log_holds_every_commit_before_the_damage() {
    let from = with_damage(&history(20).await, 7).await;
    let (mut intact, to) = (Tally::default(), MemoryLog::default());
    let ended = transfer::copy(&from, &to, &mut intact, |_| {}).await;
    assert!(matches!(&ended, Err(CopyError::Source(error)) if error.fault == Fault::Damaged), "{ended:?}");
    assert_eq!((intact.position(), to.head().await), (Position(6), Ok(Position(6))));
}

#[tokio::test]
async fn a_history_of_many_batches_is_copied_and_imported_whole() {
    let from = history(2 * ReadBound::APPEND.records as u64 + 1).await;
    let (copy, restored) = (MemoryLog::default(), MemoryLog::default());
    copied(&from, &copy).await.unwrap();
    imported(&exported(&from).await[..], &restored).await.unwrap();
    let head = tally(&from).await.head_hash();
    assert_eq!((tally(&copy).await.head_hash(), tally(&restored).await.head_hash()), (head, head));
}

#[tokio::test]
async fn a_target_whose_last_record_is_damaged_is_rejected() {
    let from = history(20).await;
    let to = with_damage(&from, 20).await;
    add(&from, 20, 30).await;
    let rejected = copied(&from, &to).await.unwrap_err();
    assert!(matches!(&rejected, CopyError::Target(error) if error.fault == Fault::Damaged), "{rejected}");
    assert_eq!(to.head().await, Ok(Position(20)));
}

#[tokio::test]
async fn an_export_restores_exactly_the_same_log() {
    let from = history(30).await;
    let file = exported(&from).await;
    let to = MemoryLog::default();
    let restored = imported(&file[..], &to).await.unwrap();
    assert_eq!(restored.head_hash(), tally(&from).await.head_hash());
    assert_eq!(exported(&to).await, file);
    imported(&file[..], &to).await.expect("importing again changes nothing");
}

#[tokio::test]
async fn an_incomplete_export_is_rejected_at_the_line_where_it_breaks() {
    let file = exported(&history(10).await).await;
    let text = String::from_utf8(file).unwrap();
    let lines: Vec<_> = text.lines().collect();
    let without = |line: usize| {
        let kept: Vec<_> =
            lines.iter().enumerate().filter(|(nth, _)| *nth != line).map(|(_, text)| *text).collect();
        kept.join("\n") + "\n"
    };
    let manifest: Value = serde_json::from_str(lines[10]).unwrap();
    let manifests = ["first", "last", "head"].map(|field| {
        let mut changed = manifest.clone();
        let value = &mut changed["manifest"][field];
        *value = value.as_u64().map_or("0".into(), |number| (number + 1).into());
        (format!("{}\n{changed}\n", lines[..10].join("\n")), 11)
    });
    for (broken, at) in [
        (without(10), 11),
        (without(9), 10),
        (without(4), 5),
        (text.replacen("pet 3", "pet X", 1), 3),
        (text[..text.len() / 2].to_owned(), text[..text.len() / 2].matches('\n').count() as u64 + 1),
        (String::new(), 1),
        (text.clone() + &text, 11),
    ]
    .into_iter()
    .chain(manifests)
    {
        let (mut intact, to, mut cut) = (Tally::default(), MemoryLog::default(), Cut::default());
        let rejected = transfer::import(broken.as_bytes(), &to, &mut cut, &mut intact, |_| {}).await;
        let Err(CopyError::Source(error)) = rejected else { panic!("{rejected:?}") };
        assert!(error.detail.starts_with(&format!("line {at} ")), "{error}");
        assert_eq!(intact.position(), Position(at - 1));
        assert_eq!(to.head().await, Ok(intact.position()), "the lines before it are imported");
    }
}

#[tokio::test]
async fn an_export_of_an_empty_log_has_its_manifest() {
    let empty = String::from_utf8(exported(&MemoryLog::default()).await).unwrap();
    transfer::check_export(empty.as_bytes(), &mut Cut::default()).await.expect("it has no records");
    let wrong = empty.replace(r#""last":0"#, r#""last":7"#);
    let rejected = transfer::check_export(wrong.as_bytes(), &mut Cut::default()).await.unwrap_err();
    assert!(rejected.detail.starts_with("line 1 is a manifest that does not match"), "{rejected}");
}

#[tokio::test]
async fn a_line_of_an_export_is_read_only_up_to_the_largest_record() {
    let endless = BufReader::new(io::repeat(b'x'));
    let rejected = transfer::check_export(endless, &mut Cut::default()).await.unwrap_err().to_string();
    assert!(rejected.starts_with("line 1 is longer than any record (1048576 bytes)"), "{rejected}");
    let longest = "x".repeat(RECORD_MAX) + "\n";
    let rejected =
        transfer::check_export(longest.as_bytes(), &mut Cut::default()).await.unwrap_err().to_string();
    assert!(rejected.starts_with("line 1 cannot be used: "), "{rejected}");
}
