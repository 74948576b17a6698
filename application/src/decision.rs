//! Turns a batch of requests into one commit and a reply to each caller. Pure: the time and the commit id are
//! passed in.

use std::collections::HashMap;

use chrono::{DateTime, SubsecRound as _, Utc};
use domain::{Pet, PetEvent};

use crate::{
    codec,
    commit::{Commit, CommitId, Entry, Format, NodeId, Version},
    create::{CreateError, CreatePet, Created},
    idempotency::Caller,
    projection::State,
};

/// The most events in one commit.
pub(crate) const EVENTS_MAX: usize = 1_024;
/// The most bytes of events in one commit.
pub(crate) const BYTES_MAX: usize = 512 * 1024;

/// Which version of the format new commits are written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteFormat {
    /// The version of the last commit, and version 2 in a new log.
    LikeTheLog,
    /// Version 2, also in a log that holds version 1: every node that shares the log has to know it.
    Version2,
}

/// A commit that is not stored yet, and what each of the first requests will be told once it is.
#[derive(Debug)]
pub(crate) struct Draft {
    pub(crate) commit: Commit,
    answers: Vec<Answer>,
}

#[derive(Debug)]
enum Answer {
    /// The pet of this entry of the commit, added for this request.
    Added(usize),
    /// The pet of this entry of the commit, added for an earlier request with the same key.
    AddedInThisCommit(usize),
    /// Needs nothing from the commit.
    Settled(Result<Created, CreateError>),
}

impl Draft {
    /// How many requests the commit covers: all, unless it would grow too large.
    pub(crate) fn covered(&self) -> usize {
        self.answers.len()
    }

    /// What to tell each covered request, in order, now that the commit is durable.
    pub(crate) fn into_answers(self) -> impl Iterator<Item = Result<Created, CreateError>> {
        let Self { commit, answers } = self;
        answers.into_iter().map(move |answer| match answer {
            Answer::Added(entry) => {
                Ok(Created { pet: pet_of(&commit.entries[entry]).clone(), replayed: false })
            }
            Answer::AddedInThisCommit(entry) => {
                Ok(Created { pet: pet_of(&commit.entries[entry]).clone(), replayed: true })
            }
            Answer::Settled(answer) => answer,
        })
    }
}

/// What a decision needs beside the state and the requests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Circumstances {
    /// What the clock of this node says.
    pub(crate) now: DateTime<Utc>,
    /// The id of the commit.
    pub(crate) id: CommitId,
    pub(crate) node: NodeId,
    pub(crate) write_format: WriteFormat,
    /// The largest record that the log takes.
    pub(crate) record_limit: usize,
    /// How many more pets may be added.
    pub(crate) room: usize,
}

/// Decides as many of the requests as fit into one commit, each on the state that the ones before it leave.
pub(crate) fn decide<'a>(
    state: &State,
    requests: impl Iterator<Item = &'a CreatePet>,
    circumstances: Circumstances,
) -> Draft {
    let (position, format) = (state.history.version.position.next(), format(state, circumstances));
    // The log keeps microseconds; a decision and its replay must see the same time.
    let now = circumstances.now.trunc_subsecs(6);
    let time = match format {
        Format::V1 => now.max(state.history.clock.newest()),
        Format::V2 { .. } => now,
    };
    let log_time = state.history.clock.after(position, format.node(), time);
    let mut inventory = state.history.inventory.clone();
    let mut keys: HashMap<Caller, usize> = HashMap::new();
    let mut entries: Vec<Entry> = Vec::new();
    let mut answers = Vec::new();
    let bytes_max = circumstances.record_limit.saturating_sub(codec::ENVELOPE_SIZE_BOUND).min(BYTES_MAX);
    let mut bytes = 0;
    for request in requests {
        let caller = request.request_key.clone().map(|key| (request.by.clone(), key));
        if let Some(answer) =
            caller.as_ref().and_then(|caller| answer_again(state, caller, request, log_time, &keys, &entries))
        {
            answers.push(answer);
            continue;
        }
        if entries.len() >= circumstances.room {
            answers.push(Answer::Settled(Err(CreateError::Full)));
            continue;
        }
        let event = match inventory.create(request.pet.clone()) {
            Ok(event) => event,
            Err(exhausted) => {
                answers.push(Answer::Settled(Err(exhausted.into())));
                continue;
            }
        };
        let entry = Entry { event, by: request.by.clone(), request_key: request.request_key.clone() };
        bytes += codec::entry_size_bound(&entry);
        // An event that may not fit goes alone: the log takes it or refuses it, and no other with it.
        if entries.len() == EVENTS_MAX || (bytes > bytes_max && !entries.is_empty()) {
            break;
        }
        inventory.apply(&entry.event).expect("a decision never contradicts the state it was made on");
        if let Some(caller) = caller {
            keys.insert(caller, entries.len());
        }
        answers.push(Answer::Added(entries.len()));
        entries.push(entry);
    }
    Draft { commit: Commit { format, position, id: circumstances.id, time, entries }, answers }
}

/// The format to write: version 2, unless the log holds version 1 and nobody asked for more. Other nodes that share it
/// may not know version 2 yet.
fn format(state: &State, circumstances: Circumstances) -> Format {
    let old = state.history.version != Version::START && !state.history.is_chained();
    match circumstances.write_format {
        WriteFormat::LikeTheLog if old => Format::V1,
        WriteFormat::LikeTheLog | WriteFormat::Version2 => {
            Format::V2 { previous: state.history.head_hash(), node: circumstances.node }
        }
    }
}

/// The answer to a request whose key was used before, in the log or earlier in this batch.
fn answer_again(
    state: &State,
    caller: &Caller,
    request: &CreatePet,
    log_time: DateTime<Utc>,
    keys: &HashMap<Caller, usize>,
    entries: &[Entry],
) -> Option<Answer> {
    let reused = Answer::Settled(Err(CreateError::RequestKeyReused));
    if let Some(&entry) = keys.get(caller) {
        let same = pet_of(&entries[entry]).details == request.pet;
        return Some(if same { Answer::AddedInThisCommit(entry) } else { reused });
    }
    let pet = state.answered.find(caller, log_time)?;
    let again = Answer::Settled(Ok(Created { pet: pet.clone(), replayed: true }));
    Some(if pet.details == request.pet { again } else { reused })
}

fn pet_of(entry: &Entry) -> &Pet {
    let PetEvent::Added(pet) = &entry.event;
    pet
}

#[cfg(test)]
mod tests {
    use domain::{CategoryId, NewPet, PetName};
    use uuid::Uuid;

    use super::*;
    use crate::{Digest, KeyId, RequestKey, commit::Position};

    fn request(name: &str, key: Option<&str>) -> CreatePet {
        CreatePet {
            pet: NewPet { name: PetName::new(name).unwrap(), category_id: CategoryId(1), status: None },
            by: KeyId("k".into()),
            request_key: key.map(|key| RequestKey::new(key).unwrap()),
        }
    }

    fn decided(requests: &[CreatePet]) -> Draft {
        decide(&State::default(), requests.iter(), at(DateTime::UNIX_EPOCH))
    }

    fn at(now: DateTime<Utc>) -> Circumstances {
        let id = CommitId(Uuid::nil());
        let write_format = WriteFormat::LikeTheLog;
        Circumstances { now, id, node: NodeId(1), write_format, record_limit: usize::MAX, room: usize::MAX }
    }

    /// The state of a log that holds one commit, made at this time.
    fn state_at(time: DateTime<Utc>, format: Format) -> State {
        let mut state = State::default();
        let commit =
            Commit { format, position: Position(1), id: CommitId(Uuid::nil()), time, entries: vec![] };
        state.history.add(&commit, &codec::encode(&commit).bytes).unwrap();
        state
    }

    fn v2() -> Format {
        Format::V2 { previous: Digest::of(b""), node: NodeId(1) }
    }

    fn told(draft: Draft) -> Vec<Result<(i64, bool), CreateError>> {
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
        assert_eq!(told(draft), [Ok((1, false)), Err(CreateError::RequestKeyReused)]);
    }

    #[test]
    fn only_so_many_pets_are_added_as_there_is_room_for() {
        let requests = [request("a", Some("x")), request("b", None), request("a", Some("x"))];
        let circumstances = Circumstances { room: 1, ..at(DateTime::UNIX_EPOCH) };
        let draft = decide(&State::default(), requests.iter(), circumstances);
        assert_eq!(told(draft), [Ok((1, false)), Err(CreateError::Full), Ok((1, true))]);
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
            state.history.add(&draft.commit, &record.bytes).unwrap();
            covered.push(draft.covered());
        }
        assert_eq!(covered, [2, 1, 1, 1]);
    }

    #[test]
    fn in_version_1_commit_times_never_go_back_and_in_version_2_they_are_what_the_clock_says() {
        let (early, late) = (DateTime::UNIX_EPOCH, DateTime::UNIX_EPOCH + chrono::TimeDelta::hours(1));
        for (format, time) in [(Format::V1, late), (v2(), early)] {
            let state = state_at(late, format);
            assert_eq!(decide(&state, [].into_iter(), at(early)).commit.time, time, "{format:?}");
        }
    }

    #[test]
    fn a_log_stays_in_its_version_until_told_otherwise() {
        let version_2 = Circumstances { write_format: WriteFormat::Version2, ..at(DateTime::UNIX_EPOCH) };
        let like_the_log = at(DateTime::UNIX_EPOCH);
        let (empty, old) = (State::default(), state_at(DateTime::UNIX_EPOCH, Format::V1));
        let new = state_at(DateTime::UNIX_EPOCH, v2());
        for (state, circumstances, is_old) in [
            (&empty, like_the_log, false),
            (&old, like_the_log, true),
            (&old, version_2, false),
            (&new, like_the_log, false),
        ] {
            let format = decide(state, [].into_iter(), circumstances).commit.format;
            assert_eq!(format == Format::V1, is_old, "{circumstances:?} on {:?}", state.history.version);
        }
    }
}
