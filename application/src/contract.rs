//! What every event log must do, as functions that an adapter's tests call with fresh logs.
//!
//! [`check_all`] runs every rule that one open log can show; [`a_reopened_log_holds_everything`] is for engines
//! that outlive their process. A rule that is broken panics with its own words.

use std::{collections::HashSet, ops::AsyncFn, sync::Arc, time::Duration};

use bytes::Bytes;
use chrono::DateTime;
use domain::{CategoryId, NewPet, Pet, PetEvent, PetId, PetName};
use tokio::{task::JoinSet, time::timeout};
use uuid::Uuid;

use crate::{
    codec::{self, Commit, Entry},
    ports::{AppendError, CommitId, EventLog, Position, ReadBound, Record},
    principal::KeyId,
};

/// Longer than any sound log needs for one call, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs every rule, each on a fresh empty log from `fresh`.
pub async fn check_all(fresh: impl AsyncFn() -> Arc<dyn EventLog>) {
    an_empty_log_is_at_position_zero(&*fresh().await).await;
    records_come_back_byte_for_byte_and_in_order(&*fresh().await).await;
    large_records_come_back_whole(&*fresh().await).await;
    an_append_anywhere_but_at_the_head_conflicts_and_stores_nothing(&*fresh().await).await;
    the_same_record_is_not_stored_twice(&*fresh().await).await;
    of_rivals_for_one_position_exactly_one_wins(fresh().await).await;
    a_read_keeps_its_bounds_and_leaves_nothing_out(&*fresh().await).await;
    readers_beside_a_writer_see_a_growing_history_without_gaps(fresh().await).await;
    waiting_ends_when_something_is_there(fresh().await).await;
    waiting_in_vain_ends_with_patience(&*fresh().await).await;
    the_durability_is_told_in_words(&*fresh().await);
}

/// Nothing was appended: head is 0 and there is nothing to read.
pub async fn an_empty_log_is_at_position_zero(log: &dyn EventLog) {
    assert_eq!(log.head().await, Ok(Position::START), "the head of an empty log is 0");
    assert_eq!(read_all(log).await, Vec::<Bytes>::new(), "an empty log has no records");
}

/// Whatever bytes were appended come back as they were, under the positions 1, 2, 3 …
pub async fn records_come_back_byte_for_byte_and_in_order(log: &dyn EventLog) {
    let every_byte: Vec<u8> = (0..=u8::MAX).collect();
    let mut records = vec![Record { id: CommitId(Uuid::now_v7()), bytes: Bytes::from(every_byte) }];
    records.extend((2..=20).map(record));
    for (record, before) in records.iter().zip(0..) {
        let position = log.append(Position(before), record).await;
        assert_eq!(position, Ok(Position(before + 1)), "an append at the head gets the next position");
        assert_eq!(log.head().await, Ok(Position(before + 1)), "the head is the last append");
    }
    assert_eq!(read_all(log).await, records.into_iter().map(|record| record.bytes).collect::<Vec<_>>());
}

/// A record of the largest size the writer makes, and one more, with everything around it.
pub async fn large_records_come_back_whole(log: &dyn EventLog) {
    let sizes = [1, 6 * 1024 - 1, 6 * 1024, 6 * 1024 + 1, 100_000, 600 * 1024, 5];
    for (size, position) in sizes.into_iter().zip(0..) {
        log.append(Position(position), &sized(size)).await.expect("a large record is stored");
    }
    let read: Vec<_> = read_all(log).await.iter().map(Bytes::len).collect();
    assert_eq!(read, sizes, "large records come back whole");
}

/// `expected` behind or ahead of the head: Conflict, and nothing changes.
pub async fn an_append_anywhere_but_at_the_head_conflicts_and_stores_nothing(log: &dyn EventLog) {
    assert_eq!(
        log.append(Position(1), &record(2)).await,
        Err(AppendError::Conflict),
        "ahead of an empty log"
    );
    fill(log, 3).await;
    let before = read_all(log).await;
    for expected in [0, 1, 2, 4, 5, 1_000] {
        let refused = log.append(Position(expected), &record(expected + 1)).await;
        assert_eq!(refused, Err(AppendError::Conflict), "an append after {expected} when the head is 3");
    }
    assert_eq!(log.head().await, Ok(Position(3)), "a conflict moves nothing");
    assert_eq!(read_all(log).await, before, "a conflict stores nothing");
    assert_eq!(log.append(Position(3), &record(4)).await, Ok(Position(4)), "after conflicts the log goes on");
}

/// Sending a record again at its old place is a conflict like any other: it is never acknowledged twice.
pub async fn the_same_record_is_not_stored_twice(log: &dyn EventLog) {
    let record = record(1);
    assert_eq!(log.append(Position(0), &record).await, Ok(Position(1)));
    assert_eq!(log.append(Position(0), &record).await, Err(AppendError::Conflict), "the same record again");
    assert_eq!(read_all(log).await, [record.bytes]);
}

/// Sixteen appends for one position at once: one is stored, fifteen conflict, round after round.
pub async fn of_rivals_for_one_position_exactly_one_wins(log: Arc<dyn EventLog>) {
    for expected in 0..10 {
        let mut rivals = JoinSet::new();
        for _ in 0..16 {
            let log = log.clone();
            rivals.spawn(async move {
                let record = record(expected + 1);
                (log.append(Position(expected), &record).await, record)
            });
        }
        let mut winners = Vec::new();
        for (outcome, record) in rivals.join_all().await {
            match outcome {
                Ok(position) => winners.push((position, record.bytes)),
                Err(error) => assert_eq!(error, AppendError::Conflict, "who comes too late has a conflict"),
            }
        }
        assert_eq!(winners.len(), 1, "exactly one rival wins position {}", expected + 1);
        let stored = log.read(Position(expected), ReadBound::ONE).await.expect("the log reads");
        assert_eq!((stored[0].position, stored[0].bytes.clone()), winners[0], "the winner is what is stored");
    }
}

/// Bounds hold in count and bytes, at least one record comes, and reading on reaches everything.
pub async fn a_read_keeps_its_bounds_and_leaves_nothing_out(log: &dyn EventLog) {
    for position in 0..25 {
        log.append(Position(position), &sized(1_000)).await.expect("an append at the head");
    }
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

/// A reader that follows a writer never sees a gap, never sees less than before, and sees all in the end.
pub async fn readers_beside_a_writer_see_a_growing_history_without_gaps(log: Arc<dyn EventLog>) {
    const COMMITS: u64 = 50;
    let mut readers = JoinSet::new();
    for _ in 0..3 {
        let log = log.clone();
        readers.spawn(async move {
            let mut seen = Position::START;
            while seen < Position(COMMITS) {
                for record in log.read(seen, ReadBound::BATCH).await.expect("the log reads") {
                    assert_eq!(record.position, seen.next(), "a reader beside a writer sees no gap");
                    seen = record.position;
                }
                assert!(
                    log.head().await.expect("the log has a head") >= seen,
                    "the head is never behind a read"
                );
                log.wait_beyond(seen, Duration::from_millis(100)).await.expect("the log can be waited for");
            }
        });
    }
    fill(&*log, COMMITS).await;
    timeout(PATIENCE, readers.join_all()).await.expect("every reader sees everything in the end");
}

/// Who waits beyond the head wakes up when something is appended; what is there already needs no waiting.
pub async fn waiting_ends_when_something_is_there(log: Arc<dyn EventLog>) {
    let waiting = log.clone();
    let waiter = tokio::spawn(async move {
        while waiting.read(Position::START, ReadBound::ONE).await.expect("the log reads").is_empty() {
            waiting.wait_beyond(Position::START, PATIENCE).await.expect("the log can be waited for");
        }
    });
    tokio::task::yield_now().await;
    fill(&*log, 1).await;
    timeout(PATIENCE / 2, waiter).await.expect("an append wakes who waits").expect("the waiter is sound");
    let no_wait = log.wait_beyond(Position::START, PATIENCE);
    timeout(PATIENCE / 2, no_wait)
        .await
        .expect("no waiting for what is there")
        .expect("the log can be waited for");
}

/// Nothing comes: waiting ends all the same, without an error.
pub async fn waiting_in_vain_ends_with_patience(log: &dyn EventLog) {
    let waited = timeout(PATIENCE, log.wait_beyond(Position::START, Duration::from_millis(20))).await;
    assert_eq!(waited, Ok(Ok(())), "waiting ends with its patience");
}

/// Operators can read what the engine promises.
pub fn the_durability_is_told_in_words(log: &dyn EventLog) {
    let durability = log.durability();
    assert!(!durability.engine.is_empty(), "the engine has a name");
    assert!(durability.promise.split_whitespace().count() > 3, "the promise is a sentence");
}

/// Opens the same log again and again with `open`: each time everything is there, and it goes on.
pub async fn a_reopened_log_holds_everything(open: impl AsyncFn() -> Arc<dyn EventLog>) {
    let mut expected = Vec::new();
    for round in 0..4_u64 {
        let log = open().await;
        assert_eq!(log.head().await, Ok(Position(round * 5)), "the head survives");
        assert_eq!(read_all(&*log).await, expected, "every record survives");
        for position in round * 5..round * 5 + 5 {
            let record = record(position + 1);
            assert_eq!(log.append(Position(position), &record).await, Ok(Position(position + 1)));
            expected.push(record.bytes);
        }
    }
}

/// A real commit for this position, with one pet.
pub fn record(position: u64) -> Record {
    let id = PetId::new(i64::try_from(position).expect("positions of tests are small"))
        .expect("positions start at 1");
    let name = PetName::new(format!("pet {position}")).expect("a plain name");
    let details = NewPet { name, category_id: CategoryId(1), status: None };
    codec::encode(&Commit {
        position: Position(position),
        id: CommitId(Uuid::now_v7()),
        time: DateTime::UNIX_EPOCH,
        entries: vec![Entry {
            event: PetEvent::Added(Pet { id, details }),
            by: KeyId("contract".into()),
            request_key: None,
        }],
    })
}

fn sized(bytes: usize) -> Record {
    Record { id: CommitId(Uuid::now_v7()), bytes: Bytes::from(vec![b'x'; bytes]) }
}

async fn fill(log: &dyn EventLog, count: u64) {
    for position in 0..count {
        log.append(Position(position), &record(position + 1)).await.expect("an append at the head");
    }
}

async fn read_all(log: &dyn EventLog) -> Vec<Bytes> {
    let mut all = Vec::new();
    let mut positions = HashSet::new();
    loop {
        let last = Position(all.len() as u64);
        let records = log.read(last, ReadBound::BATCH).await.expect("the log reads");
        if records.is_empty() {
            return all;
        }
        for record in records {
            assert!(positions.insert(record.position), "position {} comes once", record.position);
            assert_eq!(record.position, Position(all.len() as u64 + 1), "records are contiguous");
            all.push(record.bytes);
        }
    }
}
