//! The rules that every event log must follow, as functions that an adapter's tests call with fresh logs.
//!
//! [`check_all`] runs every rule that one open log can show; [`check_writers`] is for engines that nodes share, and
//! [`a_reopened_log_holds_everything`] for those whose data outlives the process. A broken rule panics with its own message.

use std::{
    ops::AsyncFn,
    slice,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use chrono::DateTime;
use domain::test_values::{added, numbered};
use tokio::{sync::Barrier, task::JoinSet, time::timeout};
use uuid::Uuid;

use crate::{
    log::{
        codec,
        commit::{Commit, Entry, NodeId, OwnerId},
        digest::Digest,
    },
    ports::{
        AppendError, CommitId, EventLog, Position, ReadBound, Record, StoredRecord, Version, wait_for_records,
    },
};

/// Longer than any working log needs for one call, even on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Runs every rule, each on a fresh empty log from `fresh`.
pub async fn check_all(fresh: impl AsyncFn() -> Arc<dyn EventLog>) {
    an_empty_log_is_at_position_zero(&*fresh().await).await;
    records_come_back_byte_for_byte_and_in_order(&*fresh().await).await;
    large_records_come_back_whole(&*fresh().await).await;
    an_append_after_anything_but_the_head_conflicts_and_stores_nothing(&*fresh().await).await;
    the_same_records_are_not_stored_twice(&*fresh().await).await;
    a_prefix_is_stored_and_its_end_returned(&*fresh().await).await;
    repeated_ids_are_stored_like_others(&*fresh().await).await;
    check_writers(async || vec![fresh().await]).await;
    a_read_stays_within_its_bounds_and_leaves_nothing_out(&*fresh().await).await;
    readers_see_a_growing_history_without_gaps_during_writes(fresh().await).await;
    a_record_ends_a_wait(fresh().await).await;
    the_durability_is_described_in_words(&*fresh().await);
}

/// Runs the rules for several writers. An engine that nodes share gets several instances of a fresh empty log, as
/// several nodes would open it.
pub async fn check_writers(fresh: impl AsyncFn() -> Vec<Arc<dyn EventLog>>) {
    exactly_one_of_many_appends_at_one_position_succeeds(&fresh().await).await;
    concurrent_writers_store_every_acknowledged_record_once(&fresh().await).await;
}

async fn an_empty_log_is_at_position_zero(log: &dyn EventLog) {
    assert_eq!(log.head().await, Ok(Position::START), "the head of an empty log is 0");
    assert_eq!(read_all(log).await, Vec::<Bytes>::new(), "an empty log has no records");
}

async fn records_come_back_byte_for_byte_and_in_order(log: &dyn EventLog) {
    // A record is a line, so it holds every byte but the one that ends it.
    let every_byte: Vec<u8> = (0..=u8::MAX).filter(|byte| *byte != b'\n').collect();
    let mut records = vec![Record { id: CommitId(Uuid::now_v7()), bytes: Bytes::from(every_byte) }];
    records.extend((2..=20).map(record));
    let mut head = Version::START;
    for record in &records {
        let next = head.position.next();
        let appended = log.append(head, slice::from_ref(record)).await;
        assert_eq!(appended, Ok(next), "an append at the head gets the next position");
        assert_eq!(log.head().await, Ok(next), "the head is the last append");
        head = Version::at(next, record.id);
    }
    assert_eq!(read_all(log).await, records.into_iter().map(|record| record.bytes).collect::<Vec<_>>());
}

async fn large_records_come_back_whole(log: &dyn EventLog) {
    let sizes = [1, 6 * 1024 - 1, 6 * 1024, 6 * 1024 + 1, 100_000, 600 * 1024, 5];
    let records = sizes.map(sized);
    append_all(log, records.clone()).await;
    let is_whole = read_all(log).await.into_iter().eq(records.into_iter().map(|record| record.bytes));
    assert!(is_whole, "large records come back whole");
}

/// The position of the head with the id of another commit conflicts too: a decision on that commit was made on a history
/// that this log does not hold.
async fn an_append_after_anything_but_the_head_conflicts_and_stores_nothing(log: &dyn EventLog) {
    let conflicts = async |expected: Version| {
        let others: Vec<_> = (expected.position.0..).take(3).map(|at| record(at + 1)).collect();
        for count in [1, 3] {
            let rejected = log.append(expected, &others[..count]).await;
            assert_eq!(rejected, Err(AppendError::Conflict), "an append of {count} after {expected:?}");
        }
    };
    let another = Some(CommitId(Uuid::now_v7()));
    for commit in [another, Some(CommitId(Uuid::nil()))] {
        conflicts(Version { commit, ..Version::START }).await;
    }
    conflicts(Version { position: Position(1), commit: another }).await;
    let records = [1, 2, 3].map(record);
    let head = append_all(log, records.clone()).await;
    let commits = [None].into_iter().chain(records.iter().map(|record| Some(record.id)));
    let behind = commits.zip(0..).map(|(commit, position)| Version { position: Position(position), commit });
    let ahead = [4, 5, 1_000].map(|position| Version { position: Position(position), ..head });
    let other_ids = [another, Some(records[1].id), None].map(|commit| Version { commit, ..head });
    for expected in behind.take(3).chain(ahead).chain(other_ids) {
        conflicts(expected).await;
    }
    assert_eq!(log.head().await, Ok(head.position), "a conflict moves nothing");
    assert_eq!(read_all(log).await, bytes(&records), "a conflict stores nothing");
    let next = head.position.next();
    let stored = log.append(head, &[record(next.0)]).await;
    assert_eq!(stored, Ok(next), "after conflicts the log accepts the next record");
}

/// Sending records again at their old place is a conflict like any other: they are never acknowledged twice.
async fn the_same_records_are_not_stored_twice(log: &dyn EventLog) {
    // The last record of the longest attempt is new.
    let records = [1, 2, 3].map(record);
    append_all(log, records[..2].to_vec()).await;
    for count in 1..=3 {
        let again = log.append(Version::START, &records[..count]).await;
        assert_eq!(again, Err(AppendError::Conflict), "the same records again");
    }
    assert_eq!(read_all(log).await, bytes(&records[..2]));
}

/// After each call, the log holds exactly the records up to the returned position.
async fn a_prefix_is_stored_and_its_end_returned(log: &dyn EventLog) {
    let small = (1..=300).map(record);
    let large = [1, 6 * 1024, 6 * 1024 + 1, 100_000, 400 * 1024, 5].map(sized);
    let records: Vec<_> = small.chain(large).chain([record(307)]).collect();
    let (mut head, mut stored) = (Version::START, 0);
    while stored < records.len() {
        stored += append_prefix(log, &mut head, &records[stored..]).await;
        assert_eq!(log.head().await, Ok(head.position), "the head is the last record of the prefix");
        assert!(read_all(log).await == bytes(&records[..stored]), "exactly the prefix is stored");
    }
    let next = log.append(head, &[record(308)]).await;
    assert_eq!(next, Ok(head.position.next()), "a single record follows the last of many");
}

async fn repeated_ids_are_stored_like_others(log: &dyn EventLog) {
    let once = record(1);
    let records = [once.clone(), Record { bytes: sized(50).bytes, ..once.clone() }, once.clone(), once];
    let (mut head, mut stored) = (Version::START, 0);
    while stored < records.len() {
        stored += append_prefix(log, &mut head, &records[stored..]).await;
    }
    assert!(read_all(log).await == bytes(&records), "records with the same id");
}

/// Of many appends at one position, exactly one is acknowledged, and that one is stored. An engine that checks the head
/// and writes in two steps acknowledges two of them sooner or later. Every second rival appends several records: the log
/// must never hold a later record of a rival that has lost.
async fn exactly_one_of_many_appends_at_one_position_succeeds(instances: &[Arc<dyn EventLog>]) {
    const RACES: u64 = 200;
    const RIVALS: usize = 32;
    let mut expected = Version::START;
    let mut stored = Vec::new();
    for race in 1..=RACES {
        let start = Arc::new(Barrier::new(RIVALS));
        let mut rivals = JoinSet::new();
        for (number, log) in instances.iter().cycle().take(RIVALS).enumerate() {
            let (log, start) = (log.clone(), start.clone());
            let position = expected.position.0;
            let records: Vec<_> = (position..).take(1 + 2 * (number % 2)).map(|at| record(at + 1)).collect();
            rivals.spawn(async move {
                start.wait().await;
                (append_some(&*log, expected, &records).await, records)
            });
        }
        let mut winners = Vec::new();
        for (outcome, records) in rivals.join_all().await {
            match outcome {
                Ok(position) => winners.push((position, records)),
                Err(error) => assert_eq!(error, AppendError::Conflict, "a late append conflicts"),
            }
        }
        let [(position, winner)] = &winners[..] else {
            panic!("exactly one rival wins race {race}, not {}", winners.len())
        };
        let count = stored_between(expected.position, *position);
        assert!((1..=winner.len()).contains(&count), "the winner gets the next positions");
        expected = Version::at(*position, winner[count - 1].id);
        stored.extend(winner[..count].iter().map(|record| record.bytes.clone()));
    }
    for log in instances {
        assert!(read_all(&**log).await == stored, "every instance shows the winners and nothing else");
    }
}

/// Writers that append as soon as they can, each on its instance: every acknowledged record is stored once, at the
/// position of its acknowledgement, and nothing else is stored.
async fn concurrent_writers_store_every_acknowledged_record_once(instances: &[Arc<dyn EventLog>]) {
    const WRITERS: usize = 4;
    const COMMITS: usize = 25;
    let mut writers = JoinSet::new();
    for (number, log) in instances.iter().cycle().take(WRITERS).enumerate() {
        let log = log.clone();
        writers.spawn(async move {
            let mut acknowledged = Vec::new();
            while acknowledged.len() < COMMITS {
                let head = version(&*log).await;
                let next = head.position.0 + 1;
                let records: Vec<_> = (next..).take(1 + 2 * (number % 2)).map(record).collect();
                match append_some(&*log, head, &records).await {
                    Ok(last) => {
                        let positions = (next..=last.0).map(Position);
                        acknowledged.extend(positions.zip(records.into_iter().map(|record| record.bytes)));
                    }
                    Err(error) => assert_eq!(error, AppendError::Conflict, "a late append conflicts"),
                }
            }
            assert!(
                acknowledged.is_sorted_by_key(|(position, _)| *position),
                "the writes of a writer are in order"
            );
            acknowledged
        });
    }
    let mut acknowledged =
        timeout(TIMEOUT, writers.join_all()).await.expect("every writer is served").concat();
    acknowledged.sort_unstable_by_key(|(position, _)| *position);
    let positions: Vec<_> = acknowledged.iter().map(|(position, _)| position.0).collect();
    assert_eq!(positions, (1..=positions.len() as u64).collect::<Vec<_>>(), "every position is given once");
    let stored: Vec<_> = acknowledged.into_iter().map(|(_, bytes)| bytes).collect();
    for log in instances {
        assert!(read_all(&**log).await == stored, "every instance shows what was acknowledged");
    }
}

/// Appends one record alone, and several together. An unclear outcome is resolved by reading, as a writer does: an engine
/// on a busy server may be unable to tell a lost race from a lost reply.
async fn append_some(
    log: &dyn EventLog,
    expected: Version,
    records: &[Record],
) -> Result<Position, AppendError> {
    let begun = Instant::now();
    let mut is_unclear = false;
    loop {
        match log.append(expected, records).await {
            Err(AppendError::Unclear(_)) => is_unclear = true,
            // An earlier attempt may have been stored.
            Err(AppendError::Conflict) if is_unclear => {}
            outcome => return outcome,
        }
        let found = log.read(expected.position, ReadBound::APPEND).await.expect("the log reads");
        let ours = found.iter().zip(records).take_while(|(found, record)| found.bytes == record.bytes);
        match ours.last() {
            Some((last, _)) => return Ok(last.position),
            None if found.is_empty() && begun.elapsed() < TIMEOUT => {}
            None => return Err(AppendError::Conflict),
        }
    }
}

async fn a_read_stays_within_its_bounds_and_leaves_nothing_out(log: &dyn EventLog) {
    append_all(log, (0..25).map(|_| sized(1_000))).await;
    for (bound, most) in [
        (ReadBound { records: 7, bytes: usize::MAX }, 7),
        (ReadBound { records: 100, bytes: 2_500 }, 3),
        (ReadBound { records: 100, bytes: 1 }, 1),
    ] {
        let mut last = Position::START;
        loop {
            let records = log.read(last, bound).await.expect("the log reads");
            assert!(records.len() <= most, "{bound:?} gave {} records", records.len());
            for record in &records {
                assert_eq!(record.position, last.next(), "records are contiguous");
                last = record.position;
            }
            if records.is_empty() {
                break;
            }
        }
        assert_eq!(last, Position(25), "reading on with {bound:?} reaches the head");
    }
    assert_eq!(log.read(Position(25), ReadBound::BATCH).await, Ok(vec![]), "nothing beyond the head");
    assert_eq!(log.read(Position(1_000), ReadBound::BATCH).await, Ok(vec![]), "nothing far beyond the head");
}

async fn readers_see_a_growing_history_without_gaps_during_writes(log: Arc<dyn EventLog>) {
    const COMMITS: u64 = 50;
    let mut readers = JoinSet::new();
    for _ in 0..3 {
        let log = log.clone();
        readers.spawn(async move {
            let mut seen = Position::START;
            while seen < Position(COMMITS) {
                for record in log.read(seen, ReadBound::BATCH).await.expect("the log reads") {
                    assert_eq!(record.position, seen.next(), "no gap while another task writes");
                    seen = record.position;
                }
                let head = log.head().await.expect("the log has a head");
                assert!(head >= seen, "the head is never behind a read");
                wait_for_records(&*log, seen, Duration::from_millis(100)).await;
            }
        });
    }
    let mut head = fill(&*log, Version::START, COMMITS / 2).await;
    let records: Vec<_> = (head.position.0..COMMITS).map(|at| record(at + 1)).collect();
    let mut stored = 0;
    while stored < records.len() {
        stored += append_prefix(&*log, &mut head, &records[stored..]).await;
    }
    timeout(TIMEOUT, readers.join_all()).await.expect("every reader sees everything in the end");
}

/// Waiting beyond the head ends when a record is appended; waiting for a record that is already there returns at once.
async fn a_record_ends_a_wait(log: Arc<dyn EventLog>) {
    let waiting = log.clone();
    let waiter = tokio::spawn(async move {
        while waiting.read(Position::START, ReadBound::ONE).await.expect("the log reads").is_empty() {
            wait_for_records(&*waiting, Position::START, TIMEOUT).await;
        }
    });
    tokio::task::yield_now().await;
    fill(&*log, Version::START, 1).await;
    let woken = timeout(TIMEOUT / 2, waiter).await.expect("an append wakes the waiting task");
    woken.expect("the waiter is sound");
    let no_wait = timeout(TIMEOUT / 2, wait_for_records(&*log, Position::START, TIMEOUT)).await;
    no_wait.expect("no waiting for a record that is there");
}

fn the_durability_is_described_in_words(log: &dyn EventLog) {
    let durability = log.durability();
    assert!(!durability.engine.is_empty(), "the engine has a name");
    let promise = durability.promise;
    assert!(promise.split_whitespace().count() > 3, "the promise is a sentence");
    // The public probes show it. Addresses and paths belong to the settings.
    let ports =
        promise.split(':').skip(1).filter(|rest| rest.starts_with(|digit: char| digit.is_ascii_digit()));
    assert!(!promise.contains('/') && ports.count() == 0, "the promise names no host and no path: {promise}");
}

/// Opens the same log again and again with `open`: each time it holds everything and accepts more.
pub async fn a_reopened_log_holds_everything(open: impl AsyncFn() -> Arc<dyn EventLog>) {
    let mut expected = Vec::new();
    let mut head = Version::START;
    for _ in 0..4 {
        let log = open().await;
        assert_eq!(log.head().await, Ok(head.position), "the head survives");
        assert_eq!(read_all(&*log).await, expected, "every record survives");
        let unknown = Version { commit: Some(CommitId(Uuid::now_v7())), ..head };
        let rejected = log.append(unknown, &[record(head.position.0 + 1)]).await;
        assert_eq!(rejected, Err(AppendError::Conflict), "a reopened log knows its last commit");
        head = fill(&*log, head, 5).await;
        let records: Vec<_> = (head.position.0..).take(5).map(|at| record(at + 1)).collect();
        append_prefix(&*log, &mut head, &records).await;
        expected = read_all(&*log).await;
        assert_eq!(expected.len() as u64, head.position.0, "a reopened log accepts more");
        log.close().await;
    }
}

/// A commit for this position, with one pet. It is not chained to any other: logs do not check the chain.
pub fn record(position: u64) -> Record {
    record_after(Digest::of(b""), position)
}

/// A commit like [`record`], for the log with this head hash.
pub fn record_after(previous: Digest, position: u64) -> Record {
    codec::encode(&Commit {
        position: Position(position),
        id: CommitId(Uuid::now_v7()),
        previous,
        node: NodeId(1),
        time: DateTime::UNIX_EPOCH,
        entries: vec![Entry {
            event: added(position.cast_signed(), numbered(position)),
            by: OwnerId("contract".into()),
            request_key: None,
        }],
    })
}

/// A record of this size. Records of the same size differ, and so do their parts.
fn sized(bytes: usize) -> Record {
    let id = Uuid::now_v7();
    let text: Vec<u8> =
        (0..).flat_map(|part: u64| format!("{part} {id} ").into_bytes()).take(bytes).collect();
    Record { id: CommitId(id), bytes: Bytes::from(text) }
}

/// Appends so many chained commits to a log at `head`, and returns the version that it has then.
pub async fn fill(log: &dyn EventLog, mut head: Version, count: u64) -> Version {
    let mut previous = head_hash(log, head.position).await;
    for _ in 0..count {
        let record = record_after(previous, head.position.0 + 1);
        let position = log.append(head, slice::from_ref(&record)).await.expect("an append at the head");
        previous = Digest::of(&record.bytes);
        head = Version::at(position, record.id);
    }
    head
}

/// The head hash of a log up to this position.
pub async fn head_hash(log: &dyn EventLog, position: Position) -> Digest {
    if position == Position::START {
        return Digest::of(b"");
    }
    let last = log.read(position.before(), ReadBound::ONE).await.expect("the log reads");
    Digest::of(&last[0].bytes)
}

/// The version of a log that holds commits of ours.
pub async fn version(log: &dyn EventLog) -> Version {
    let head = log.head().await.expect("the log has a head");
    let last = log.read(head.before(), ReadBound::ONE).await.expect("the log reads");
    let id = |last: &StoredRecord| codec::decode(&last.bytes).expect("a commit of ours").id;
    Version { position: head, commit: last.first().map(id) }
}

/// Appends the records to an empty log, and returns the version that it has then.
pub async fn append_all(log: &dyn EventLog, records: impl IntoIterator<Item = Record>) -> Version {
    let mut head = Version::START;
    for record in records {
        let position = log.append(head, slice::from_ref(&record)).await.expect("an append at the head");
        head = Version::at(position, record.id);
    }
    head
}

/// Appends a prefix of `records` at `head`, which it moves to the last one stored. Returns the number of records stored.
async fn append_prefix(log: &dyn EventLog, head: &mut Version, records: &[Record]) -> usize {
    let before = head.position;
    let last = log.append(*head, records).await.expect("an append of many at the head");
    let stored = stored_between(before, last);
    assert!(
        (1..=records.len()).contains(&stored),
        "a prefix with the first record is stored: {before} to {last}"
    );
    *head = Version::at(last, records[stored - 1].id);
    stored
}

fn stored_between(before: Position, last: Position) -> usize {
    usize::try_from(last.0.saturating_sub(before.0)).expect("a few records")
}

fn bytes(records: &[Record]) -> Vec<Bytes> {
    records.iter().map(|record| record.bytes.clone()).collect()
}

async fn read_all(log: &dyn EventLog) -> Vec<Bytes> {
    let mut all = Vec::new();
    loop {
        let last = Position(all.len() as u64);
        let records = log.read(last, ReadBound::BATCH).await.expect("the log reads");
        if records.is_empty() {
            return all;
        }
        for record in records {
            assert_eq!(record.position, Position(all.len() as u64 + 1), "records are contiguous");
            all.push(record.bytes);
        }
    }
}
