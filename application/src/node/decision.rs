//! Turns a batch of requests into one commit and a reply to each client. A decision is pure: the time and the commit id
//! are passed in.

use std::collections::HashMap;

use chrono::{DateTime, SubsecRound as _, Utc};
use domain::Pet;

use crate::{
    commands::{CreatePet, Created, WriteError},
    log::{
        codec,
        commit::{Commit, CommitId, Entry, NodeId, OwnerId, RequestKey},
    },
    node::state::DecisionState,
};

/// The limits of one commit: its events, and their bytes.
pub(crate) const EVENTS_MAX: usize = 1_024;
pub(crate) const BYTES_MAX: usize = 512 * 1024;

/// A commit that is not stored yet, and the replies to send once it is.
#[derive(Debug)]
pub(crate) struct PendingCommit {
    pub(crate) commit: Commit,
    /// One per request that the commit covers: all requests, unless the commit would be too large.
    pub(crate) replies: Vec<Result<Created, WriteError>>,
}

/// The inputs of a decision besides the state and the requests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CommitContext {
    pub(crate) now: DateTime<Utc>,
    pub(crate) id: CommitId,
    pub(crate) node: NodeId,
    pub(crate) remaining_capacity: usize,
}

/// Decides as many requests as fit into one commit, each on the state after the previous ones.
pub(crate) fn decide<'a>(
    state: &DecisionState,
    requests: impl Iterator<Item = &'a CreatePet>,
    context: CommitContext,
) -> PendingCommit {
    let CommitContext { id, node, mut remaining_capacity, .. } = context;
    let position = state.history.version.position.next();
    // The log keeps microseconds.
    let time = context.now.trunc_subsecs(6);
    let mut inventory = state.history.inventory.clone();
    let mut keys: HashMap<(&OwnerId, &RequestKey), Pet> = HashMap::new();
    let (mut entries, mut replies, mut bytes) = (Vec::new(), Vec::new(), 0);
    for CreatePet { pet, by, request_key } in requests {
        let key = request_key.as_ref().map(|key| (by, key));
        let earlier = key.and_then(|key| keys.get(&key).or_else(|| state.idempotency.find(by, key.1)));
        let reply = match earlier {
            Some(first) if first.details == *pet => Ok(Created { pet: first.clone(), replayed: true }),
            Some(_) => Err(WriteError::RequestKeyReused),
            None if remaining_capacity == 0 => Err(WriteError::PetLimitReached),
            None => match inventory.create(pet.clone()) {
                Ok(event) => {
                    let entry = Entry { event, by: by.clone(), request_key: request_key.clone() };
                    bytes += codec::entry_size_bound(&entry);
                    if entries.len() == EVENTS_MAX || bytes > BYTES_MAX {
                        break;
                    }
                    inventory
                        .apply(&entry.event)
                        .expect("a decision never contradicts the state it was made on");
                    let pet = entry.event.added().expect("a create adds a pet").clone();
                    if let Some(key) = key {
                        keys.insert(key, pet.clone());
                    }
                    remaining_capacity -= 1;
                    entries.push(entry);
                    Ok(Created { pet, replayed: false })
                }
                Err(error) => Err(error.into()),
            },
        };
        replies.push(reply);
    }
    let commit = Commit { position, id, previous: state.history.head_hash, node, time, entries };
    PendingCommit { commit, replies }
}

#[cfg(test)]
mod tests {
    use domain::{
        NewPet,
        test_values::{largest, named, numbered},
    };
    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;
    use crate::{Digest, node::idempotency::IdempotencyCache};

    fn request(name: &str, key: Option<&str>) -> CreatePet {
        request_by("k", named(name), key)
    }

    fn request_by(owner: &str, pet: NewPet, key: Option<&str>) -> CreatePet {
        CreatePet {
            pet,
            by: OwnerId(owner.into()),
            request_key: key.map(|key| RequestKey::new(key).unwrap()),
        }
    }

    fn decided(requests: &[CreatePet]) -> PendingCommit {
        decide(&DecisionState::default(), requests.iter(), at(DateTime::UNIX_EPOCH))
    }

    fn at(now: DateTime<Utc>) -> CommitContext {
        let id = CommitId(Uuid::nil());
        CommitContext { now, id, node: NodeId(1), remaining_capacity: usize::MAX }
    }

    fn replies(pending: PendingCommit) -> Vec<Result<(i64, bool), WriteError>> {
        let reply = |created: Created| (created.pet.id.get(), created.replayed);
        pending.replies.into_iter().map(|replied| replied.map(reply)).collect()
    }

    #[test]
    fn one_key_twice_in_one_batch_adds_one_pet() {
        let pending = decided(&[request("a", Some("x")), request("b", None), request("a", Some("x"))]);
        assert_eq!(pending.commit.entries.len(), 2);
        assert_eq!(replies(pending), [Ok((1, false)), Ok((2, false)), Ok((1, true))]);
    }

    #[test]
    fn one_key_for_two_pets_in_one_batch_is_rejected() {
        let pending = decided(&[request("a", Some("x")), request("b", Some("x"))]);
        assert_eq!(replies(pending), [Ok((1, false)), Err(WriteError::RequestKeyReused)]);
    }

    #[test]
    fn no_more_pets_are_added_than_the_limit_allows() {
        let requests = [request("a", Some("x")), request("b", None), request("a", Some("x"))];
        let context = CommitContext { remaining_capacity: 1, ..at(DateTime::UNIX_EPOCH) };
        let pending = decide(&DecisionState::default(), requests.iter(), context);
        assert_eq!(replies(pending), [Ok((1, false)), Err(WriteError::PetLimitReached), Ok((1, true))]);
    }

    #[test]
    fn a_commit_holds_no_more_than_its_bounds() {
        let many = vec![request("a", None); EVENTS_MAX + 1];
        assert_eq!(decided(&many).replies.len(), EVENTS_MAX);
        let large = vec![request_by("k", largest(), None); EVENTS_MAX];
        let pending = decided(&large);
        assert!(pending.replies.len() < EVENTS_MAX && !pending.replies.is_empty());
        assert!(codec::encode(&pending.commit).bytes.len() <= BYTES_MAX + codec::ENVELOPE_SIZE_BOUND);
    }

    #[test]
    fn the_time_of_a_commit_is_that_of_the_clock_even_if_an_earlier_commit_has_a_later_time() {
        let (early, late) = (DateTime::UNIX_EPOCH, DateTime::UNIX_EPOCH + chrono::TimeDelta::hours(1));
        let mut state = DecisionState::default();
        let commit = decide(&state, [].into_iter(), at(late)).commit;
        state.history.add(&commit, Digest::of(&codec::encode(&commit).bytes)).unwrap();
        assert_eq!(decide(&state, [].into_iter(), at(early)).commit.time, early);
    }

    /// Replays a log from its start.
    fn replayed(log: &[Vec<u8>], capacity: usize) -> DecisionState {
        let mut state = with_capacity(capacity);
        for record in log {
            let commit = codec::decode(record).unwrap();
            state.apply(&commit, Digest::of(record)).unwrap();
        }
        state
    }

    fn with_capacity(capacity: usize) -> DecisionState {
        DecisionState { idempotency: IdempotencyCache::with_capacity(capacity), ..DecisionState::default() }
    }

    proptest! {
        #[test]
        fn two_nodes_and_a_replay_agree_on_the_remembered_keys(
            capacity in 1..6_usize,
            batches in prop::collection::vec(
                (any::<bool>(), -40..40_i64, prop::collection::vec((0..3_usize, 0..8_u8, 0..2_u64), 1..6)),
                1..20,
            ),
        ) {
            let mut nodes = [with_capacity(capacity), with_capacity(capacity)];
            let mut log = Vec::new();
            for (first_decides, days, requests) in batches {
                let requests: Vec<_> = requests
                    .into_iter()
                    .map(|(owner, key, pet)| {
                        request_by(["a", "b", "c"][owner], numbered(pet), Some(&key.to_string()))
                    })
                    .collect();
                let now = at(DateTime::from_timestamp(4_000_000 + days * 86_400, 0).unwrap());
                let pendings = nodes.each_ref().map(|node| decide(node, requests.iter(), now));
                let record = codec::encode(&pendings[usize::from(first_decides)].commit).bytes.to_vec();
                let [one, other] = pendings.map(replies);
                prop_assert_eq!(one, other, "both nodes respond alike");
                let commit = codec::decode(&record).unwrap();
                for node in &mut nodes {
                    node.apply(&commit, Digest::of(&record)).unwrap();
                }
                log.push(record);
            }
            let replayed = replayed(&log, capacity);
            for node in &nodes {
                prop_assert_eq!(&node.idempotency, &replayed.idempotency);
            }
        }
    }
}
