//! Turns a batch of requests into one commit and a reply to each caller. A decision is pure: the time and the commit id
//! are passed in.

use std::collections::HashMap;

use chrono::{DateTime, SubsecRound as _, Utc};
use domain::{NewPet, Pet};
use tokio::sync::oneshot;

use crate::{
    codec,
    commands::{Command, CreatePet, Created, Reply, WriteError},
    commit::{Commit, CommitId, Entry, NodeId},
    idempotency::ScopedKey,
    node_state::State,
    ports::Fault,
};

/// The most events in one commit.
pub(crate) const EVENTS_MAX: usize = 1_024;
/// The most bytes of events in one commit.
pub(crate) const BYTES_MAX: usize = 512 * 1024;

/// A command, and the channel to the caller that waits for its reply.
pub(crate) struct Request {
    pub(crate) command: Command,
    pub(crate) reply: oneshot::Sender<Reply>,
}

impl Request {
    /// Whether the caller no longer waits.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.reply.is_closed()
    }

    /// Replies. If the caller no longer waits, the outcome is the same.
    pub(crate) fn answer(self, reply: Reply) {
        let _ = self.reply.send(reply);
    }

    /// Replies that nothing was written.
    pub(crate) fn reject(self, fault: Fault) {
        self.answer(Err(WriteError::Unavailable(fault)));
    }
}

/// A commit that is not stored yet, and what each of the first requests will be told once it is.
#[derive(Debug)]
pub(crate) struct Draft {
    pub(crate) commit: Commit,
    answers: Vec<Answer>,
}

#[derive(Debug)]
enum Answer {
    /// This entry of the commit, decided for this request.
    Decided(usize),
    /// The pet of this entry of the commit, added for an earlier request with the same key.
    AddedInThisCommit(usize),
    /// Needs nothing from the commit.
    Settled(Reply),
}

impl Draft {
    /// How many requests the commit covers: all, unless it would grow too large.
    pub(crate) fn covered(&self) -> usize {
        self.answers.len()
    }

    /// What to tell each covered request, in order, now that the commit is durable.
    pub(crate) fn into_answers(self) -> impl Iterator<Item = Reply> {
        let Self { commit, answers } = self;
        answers.into_iter().map(move |answer| match answer {
            Answer::Decided(entry) => {
                Ok(Created { pet: pet_of(&commit.entries[entry]).clone(), replayed: false })
            }
            Answer::AddedInThisCommit(entry) => {
                Ok(Created { pet: pet_of(&commit.entries[entry]).clone(), replayed: true })
            }
            Answer::Settled(reply) => reply,
        })
    }
}

/// What a decision needs beside the state and the commands.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Circumstances {
    /// What the clock of this node says.
    pub(crate) now: DateTime<Utc>,
    /// The id of the commit.
    pub(crate) id: CommitId,
    pub(crate) node: NodeId,
    /// The largest record that the log takes.
    pub(crate) record_limit: usize,
    /// How many more pets may be added.
    pub(crate) room: usize,
}

/// Decides as many of the commands as fit into one commit, each on the state that the ones before it leave.
pub(crate) fn decide<'a>(
    state: &State,
    commands: impl Iterator<Item = &'a Command>,
    circumstances: Circumstances,
) -> Draft {
    let Circumstances { id, node, .. } = circumstances;
    let position = state.history.version.position.next();
    // The log keeps microseconds.
    let time = circumstances.now.trunc_subsecs(6);
    let mut inventory = state.history.inventory.clone();
    let mut keys: HashMap<ScopedKey, usize> = HashMap::new();
    let mut entries: Vec<Entry> = Vec::new();
    let mut answers = Vec::new();
    let bytes_max = circumstances.record_limit.saturating_sub(codec::ENVELOPE_SIZE_BOUND).min(BYTES_MAX);
    let (mut bytes, mut room) = (0, circumstances.room);
    for command in commands {
        let (decided, by, key) = match command {
            Command::Create(CreatePet { pet, by, request_key }) => {
                let key = request_key.clone().map(|key| ScopedKey { owner: by.clone(), key });
                let again = key.as_ref().and_then(|key| answer_again(state, key, pet, &keys, &entries));
                let decided = match again {
                    Some(answer) => Err(answer),
                    None if room == 0 => Err(Answer::Settled(Err(WriteError::Full))),
                    None => inventory.create(pet.clone()).map_err(|error| Answer::Settled(Err(error.into()))),
                };
                (decided, by, key)
            }
        };
        let event = match decided {
            Ok(event) => event,
            Err(answer) => {
                answers.push(answer);
                continue;
            }
        };
        let request_key = key.as_ref().map(|scoped| scoped.key.clone());
        let entry = Entry { event, by: by.clone(), request_key };
        bytes += codec::entry_size_bound(&entry);
        // An event that may not fit goes alone: the log takes it or refuses it, and no other with it.
        if entries.len() == EVENTS_MAX || (bytes > bytes_max && !entries.is_empty()) {
            break;
        }
        inventory.apply(&entry.event).expect("a decision never contradicts the state it was made on");
        if let Some(key) = key {
            keys.insert(key, entries.len());
        }
        room -= usize::from(entry.event.added().is_some());
        answers.push(Answer::Decided(entries.len()));
        entries.push(entry);
    }
    Draft { commit: Commit { position, id, previous: state.history.head_hash, node, time, entries }, answers }
}

/// The answer to a request whose key was used before, in the log or earlier in this batch.
fn answer_again(
    state: &State,
    key: &ScopedKey,
    pet: &NewPet,
    keys: &HashMap<ScopedKey, usize>,
    entries: &[Entry],
) -> Option<Answer> {
    let reused = Answer::Settled(Err(WriteError::RequestKeyReused));
    if let Some(&entry) = keys.get(key) {
        let same = pet_of(&entries[entry]).details == *pet;
        return Some(if same { Answer::AddedInThisCommit(entry) } else { reused });
    }
    let first = state.idempotency.find(key)?;
    let again = Answer::Settled(Ok(Created { pet: first.clone(), replayed: true }));
    Some(if first.details == *pet { again } else { reused })
}

fn pet_of(entry: &Entry) -> &Pet {
    entry.event.added().expect("a create adds a pet")
}

#[cfg(test)]
mod tests {
    use domain::{CategoryId, PetName};
    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;
    use crate::{Digest, KeyId, RequestKey, idempotency::IdempotencyCache};

    fn request(name: &str, key: Option<&str>) -> Command {
        request_by("k", name, key)
    }

    fn request_by(owner: &str, name: &str, key: Option<&str>) -> Command {
        Command::Create(CreatePet {
            pet: NewPet { name: PetName::new(name).unwrap(), category_id: CategoryId(1), status: None },
            by: KeyId(owner.into()),
            request_key: key.map(|key| RequestKey::new(key).unwrap()),
        })
    }

    fn decided(requests: &[Command]) -> Draft {
        decide(&State::default(), requests.iter(), at(DateTime::UNIX_EPOCH))
    }

    fn at(now: DateTime<Utc>) -> Circumstances {
        let id = CommitId(Uuid::nil());
        Circumstances { now, id, node: NodeId(1), record_limit: usize::MAX, room: usize::MAX }
    }

    fn told(draft: Draft) -> Vec<Result<(i64, bool), WriteError>> {
        draft
            .into_answers()
            .map(|answer| answer.map(|created| (created.pet.id.get(), created.replayed)))
            .collect()
    }

    #[test]
    fn each_request_gets_its_own_pet() {
        assert_eq!(
            told(decided(&[request("a", None), request("a", None)])),
            [Ok((1, false)), Ok((2, false))]
        );
    }

    #[test]
    fn one_key_twice_in_one_batch_adds_one_pet() {
        let draft = decided(&[request("a", Some("x")), request("b", None), request("a", Some("x"))]);
        assert_eq!(draft.commit.entries.len(), 2);
        assert_eq!(told(draft), [Ok((1, false)), Ok((2, false)), Ok((1, true))]);
    }

    #[test]
    fn one_key_for_two_pets_in_one_batch_is_refused() {
        let draft = decided(&[request("a", Some("x")), request("b", Some("x"))]);
        assert_eq!(told(draft), [Ok((1, false)), Err(WriteError::RequestKeyReused)]);
    }

    #[test]
    fn only_so_many_pets_are_added_as_there_is_room_for() {
        let requests = [request("a", Some("x")), request("b", None), request("a", Some("x"))];
        let circumstances = Circumstances { room: 1, ..at(DateTime::UNIX_EPOCH) };
        let draft = decide(&State::default(), requests.iter(), circumstances);
        assert_eq!(told(draft), [Ok((1, false)), Err(WriteError::Full), Ok((1, true))]);
    }

    #[test]
    fn a_commit_holds_no_more_than_its_bounds() {
        let many = vec![request("a", None); EVENTS_MAX + 1];
        assert_eq!(decided(&many).covered(), EVENTS_MAX);
        let large = vec![request(&"\"".repeat(200), None); EVENTS_MAX];
        let draft = decided(&large);
        assert!(draft.covered() < EVENTS_MAX && draft.covered() > 0);
        assert!(codec::encode(&draft.commit).bytes.len() <= BYTES_MAX + codec::ENVELOPE_SIZE_BOUND);
    }

    #[test]
    fn a_commit_fits_into_what_the_log_takes_and_an_event_that_does_not_goes_alone() {
        let (small, large) = (request("a", None), request(&"x".repeat(200), None));
        let requests = [small.clone(), small.clone(), small.clone(), large, small];
        let record_limit = codec::ENVELOPE_SIZE_BOUND + 600;
        let mut state = State::default();
        let mut covered = vec![];
        while let done @ 0..5 = covered.iter().sum() {
            let circumstances = Circumstances { record_limit, ..at(DateTime::UNIX_EPOCH) };
            let draft = decide(&state, requests[done..].iter(), circumstances);
            let record = codec::encode(&draft.commit);
            assert!(record.bytes.len() <= record_limit || draft.covered() == 1, "{draft:?}");
            state.history.add(&draft.commit, Digest::of(&record.bytes)).unwrap();
            covered.push(draft.covered());
        }
        assert_eq!(covered, [2, 1, 1, 1]);
    }

    #[test]
    fn the_time_of_a_commit_is_that_of_the_clock_even_if_an_earlier_commit_has_a_later_time() {
        let (early, late) = (DateTime::UNIX_EPOCH, DateTime::UNIX_EPOCH + chrono::TimeDelta::hours(1));
        let mut state = State::default();
        let commit = decide(&state, [].into_iter(), at(late)).commit;
        state.history.add(&commit, Digest::of(&codec::encode(&commit).bytes)).unwrap();
        assert_eq!(decide(&state, [].into_iter(), at(early)).commit.time, early);
    }

    /// Replays a log from its start.
    fn replayed(log: &[Vec<u8>], capacity: usize) -> State {
        let mut state = with_capacity(capacity);
        for record in log {
            let commit = codec::decode(record).unwrap();
            state.apply(&commit, Digest::of(record)).unwrap();
        }
        state
    }

    fn with_capacity(capacity: usize) -> State {
        State { idempotency: IdempotencyCache::with_capacity(capacity), ..State::default() }
    }

    proptest! {
        #[test]
        fn two_nodes_and_a_replay_agree_on_the_remembered_keys(
            capacity in 1..6_usize,
            batches in prop::collection::vec(
                (any::<bool>(), -40..40_i64, prop::collection::vec((0..3_usize, 0..8_u8, 0..2_usize), 1..6)),
                1..20,
            ),
        ) {
            let mut nodes = [with_capacity(capacity), with_capacity(capacity)];
            let mut log = Vec::new();
            for (first_decides, days, requests) in batches {
                let requests: Vec<_> = requests
                    .into_iter()
                    .map(|(owner, key, pet)| {
                        request_by(["a", "b", "c"][owner], ["Rex", "Max"][pet], Some(&key.to_string()))
                    })
                    .collect();
                let now = at(DateTime::from_timestamp(4_000_000 + days * 86_400, 0).unwrap());
                let drafts = nodes.each_ref().map(|node| decide(node, requests.iter(), now));
                let record = codec::encode(&drafts[usize::from(first_decides)].commit).bytes.to_vec();
                let [one, other] = drafts.map(told);
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
