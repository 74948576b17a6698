//! The rules for appends of several records.

use std::{ops::AsyncFn, sync::Arc};

use bytes::Bytes;

use super::{append_all, read_all, record, sized};
use crate::ports::{AppendError, EventLog, Fault, Position, Record, Version};

/// Runs the rules for appends of several records that one log can show.
pub(super) async fn check(fresh: impl AsyncFn() -> Arc<dyn EventLog>) {
    a_prefix_is_stored_and_its_end_returned(&*fresh().await).await;
    no_records_change_nothing(&*fresh().await).await;
    many_records_after_anything_but_the_head_conflict(&*fresh().await).await;
    a_record_over_the_limit_ends_the_prefix_before_it(&*fresh().await).await;
    repeated_ids_are_stored_like_others(&*fresh().await).await;
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
    let next = log.append(head, &record(308)).await;
    assert_eq!(next, Ok(head.position.next()), "a single record follows the last of many");
}

async fn no_records_change_nothing(log: &dyn EventLog) {
    let head = append_all(log, [1, 2].map(record)).await;
    for expected in [head, Version::START, Version { position: Position(9), commit: None }] {
        let nothing = log.append_many(expected, &[]).await;
        assert_eq!(nothing, Ok(expected.position), "no records end where they begin");
    }
    assert_eq!(log.head().await, Ok(head.position), "no records store nothing");
}

async fn many_records_after_anything_but_the_head_conflict(log: &dyn EventLog) {
    let records: Vec<_> = (1..=4).map(record).collect();
    let others: Vec<_> = (1..=3).map(record).collect();
    let unknown = Version::at(Position(1), others[0].id);
    let rejected = log.append_many(unknown, &records).await;
    assert_eq!(rejected, Err(AppendError::Conflict), "many records beyond the end of an empty log");
    let head = append_all(log, records.clone()).await;
    let versions = records.iter().zip(1..).map(|(record, at)| Version::at(Position(at), record.id));
    let behind = [Version::START].into_iter().chain(versions.take(3));
    let other_ids = [Some(others[0].id), None].map(|commit| Version { commit, ..head });
    let ahead = Version { position: head.position.next(), ..head };
    for expected in behind.chain(other_ids).chain([ahead]) {
        let rejected = log.append_many(expected, &others).await;
        assert_eq!(rejected, Err(AppendError::Conflict), "many after {expected:?}, the head is {head:?}");
    }
    let again = log.append_many(Version::START, &records).await;
    assert_eq!(again, Err(AppendError::Conflict), "the same records again");
    // The next record is new, but the ones before it are stored already.
    let longer = [&records[..], &others].concat();
    let again = log.append_many(Version::START, &longer).await;
    assert_eq!(again, Err(AppendError::Conflict), "the same records again, with more after them");
    assert!(read_all(log).await == bytes(&records), "a conflict stores nothing");
}

async fn a_record_over_the_limit_ends_the_prefix_before_it(log: &dyn EventLog) {
    let records = [sized(10), sized(log.record_limit() + 1), sized(20)];
    let mut head = Version::START;
    let stored = append_prefix(log, &mut head, &records).await;
    assert_eq!(stored, 1, "the record before the large one is stored");
    for rest in [&records[1..], &records[1..2]] {
        let rejected = log.append_many(head, rest).await;
        let Err(AppendError::NotStored(error)) = rejected else { panic!("over the limit: {rejected:?}") };
        assert_eq!(error.fault, Fault::TooLarge, "a record over the limit");
    }
    append_prefix(log, &mut head, &records[2..]).await;
    let accepted = [records[0].clone(), records[2].clone()];
    assert!(read_all(log).await == bytes(&accepted), "after a rejected record the log accepts others");
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

/// Appends a prefix of `records` at `head`, which it moves to the last one stored. Returns the number of records stored.
pub(super) async fn append_prefix(log: &dyn EventLog, head: &mut Version, records: &[Record]) -> usize {
    let before = head.position;
    let last = log.append_many(*head, records).await.expect("an append of many at the head");
    let stored = stored_between(before, last);
    assert!(
        (1..=records.len()).contains(&stored),
        "a prefix with the first record is stored: {before} to {last}"
    );
    *head = Version::at(last, records[stored - 1].id);
    stored
}

pub(super) fn stored_between(before: Position, last: Position) -> usize {
    usize::try_from(last.0.saturating_sub(before.0)).expect("a few records")
}

fn bytes(records: &[Record]) -> Vec<Bytes> {
    records.iter().map(|record| record.bytes.clone()).collect()
}
