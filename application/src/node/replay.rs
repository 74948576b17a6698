//! Applies many records fast: all cores decode and hash them, and one task applies them in order.

use std::{collections::VecDeque, num::NonZero, thread};

use tokio::task;

use crate::{
    log::{
        codec,
        commit::{Commit, NodeId},
        digest::Digest,
    },
    node::state::NodeState,
    ports::{LogError, Position, StoredRecord},
};

/// The minimum size of a batch that is decoded on all cores.
const WORTH_SHARING: usize = 256 * 1024;
/// The number of shares for each core: many, so that all cores finish at about the same time.
const SHARES: usize = 16;

/// Applies the records, up to the first error. Returns the nodes that have written their commits, with the positions of
/// these.
pub(crate) async fn apply(
    state: &NodeState,
    records: &[StoredRecord],
) -> Result<Vec<(Position, NodeId)>, LogError> {
    let mut authors = Vec::with_capacity(records.len());
    let mut apply = |checked: Result<(Commit, Digest), LogError>| {
        let (commit, digest) = checked?;
        authors.push((commit.position, commit.node));
        state.apply(&commit, digest)
    };
    if records.iter().map(|record| record.bytes.len()).sum::<usize>() >= WORTH_SHARING {
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        let mut shares = records.chunks(records.len().div_ceil(SHARES * cores));
        let mut checking = VecDeque::new();
        loop {
            while checking.len() < 2 * cores
                && let Some(share) = shares.next()
            {
                let share = share.to_vec();
                let check_share = move || share.iter().map(check).collect::<Vec<_>>();
                checking.push_back(task::spawn_blocking(check_share));
            }
            let Some(share) = checking.pop_front() else { break };
            let checked = share.await.expect("a check does not panic, and is not cancelled");
            checked.into_iter().try_for_each(&mut apply)?;
        }
    } else {
        records.iter().map(check).try_for_each(apply)?;
        // A long replay must not block other tasks of this worker.
        task::yield_now().await;
    }
    Ok(authors)
}

/// Decodes and hashes a record. Whether it follows the previous one is checked later.
fn check(record: &StoredRecord) -> Result<(Commit, Digest), LogError> {
    Ok((codec::decode_stored(record)?, Digest::of(&record.bytes)))
}
