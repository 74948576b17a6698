//! The promises, each as a rule that the history of a run must meet.

use std::collections::{HashMap, HashSet};

use application::{Created, PetStore, WriteError};

use super::{
    history::{self, Create, Operations, Outcome, Read, Shown},
    plan::Plan,
    truth::Truth,
};

/// Says what is wrong.
type Verdict = Result<(), String>;

/// Holds everything that clients did and saw against the log.
pub(crate) fn check(plan: &Plan, truth: &Truth, operations: &Operations) -> Verdict {
    only_sent_requests_are_stored(truth, operations)?;
    what_was_acknowledged_is_stored_and_was_durable_before(truth, operations)?;
    nothing_is_added_to_a_log_that_was_called_damaged(operations)?;
    a_key_has_one_first_reply(operations)?;
    creates_are_in_real_time_order(truth, operations)?;
    rejections_have_a_reason(plan, truth, operations)?;
    no_client_waits_too_long(operations)?;
    reads_show_the_durable_log(truth, operations)?;
    reads_show_what_was_acknowledged_before(truth, operations)?;
    reads_never_go_back(operations)
}

fn only_sent_requests_are_stored(truth: &Truth, operations: &Operations) -> Verdict {
    for stored in &truth.commits {
        for (entry, pet) in history::pets(&stored.commit) {
            let sent = operations.creates.iter().any(|create| {
                let request = &create.request;
                create.sent.tick < stored.at
                    && (&request.pet, &request.by, &request.request_key)
                        == (&pet.details, &entry.by, &entry.request_key)
            });
            ensure(sent, || format!("never sent: {entry:?}"))?;
        }
    }
    Ok(())
}

fn what_was_acknowledged_is_stored_and_was_durable_before(truth: &Truth, operations: &Operations) -> Verdict {
    for (create, created) in acknowledged(operations) {
        let same = created.pet.details == create.request.pet;
        ensure(same, || format!("{:?} got the response {created:?}", create.request))?;
        let place = truth.place(&created.pet).filter(|_| truth.pets.contains(&created.pet));
        let (_, at) = place.ok_or_else(|| format!("acknowledged, and not stored: {created:?}"))?;
        let durable = at < create.ended.tick;
        ensure(durable, || format!("acknowledged before it was durable: {created:?}"))?;
    }
    Ok(())
}

fn nothing_is_added_to_a_log_that_was_called_damaged(operations: &Operations) -> Verdict {
    for (create, created) in acknowledged(operations) {
        ensure(!create.damaged, || {
            format!("node {} called its log damaged and added {created:?}", create.node)
        })?;
    }
    Ok(())
}

fn a_key_has_one_first_reply(operations: &Operations) -> Verdict {
    let mut first_answers = HashSet::new();
    for (create, created) in acknowledged(operations) {
        match create.request.request_key.as_ref().map(|key| (&create.request.by, key)) {
            Some(caller) if !created.replayed => {
                ensure(first_answers.insert(caller), || format!("two first responses to {caller:?}"))?;
            }
            Some(_) => {}
            None => ensure(!created.replayed, || format!("replayed without a key: {created:?}"))?,
        }
    }
    Ok(())
}

fn creates_are_in_real_time_order(truth: &Truth, operations: &Operations) -> Verdict {
    let place = |created: &Created| truth.place(&created.pet);
    for (later, created) in acknowledged(operations) {
        for (earlier, before) in acknowledged(operations) {
            let in_order =
                created.replayed || earlier.ended.tick > later.sent.tick || place(before) < place(created);
            ensure(in_order, || format!("{before:?} was acknowledged before {created:?} was requested"))?;
        }
    }
    Ok(())
}

fn rejections_have_a_reason(plan: &Plan, truth: &Truth, operations: &Operations) -> Verdict {
    for create in &operations.creates {
        let Outcome::Rejected(error) = &create.outcome else { continue };
        let request = &create.request;
        if *error == WriteError::RequestKeyReused {
            let used_for_another =
                truth.commits.iter().filter(|stored| stored.at < create.ended.tick).any(|stored| {
                    history::pets(&stored.commit).any(|(entry, pet)| {
                        (&entry.by, &entry.request_key) == (&request.by, &request.request_key)
                            && pet.details != request.pet
                    })
                });
            ensure(used_for_another, || format!("no other pet has the key of {request:?}"))?;
        } else if let WriteError::Unavailable(_) = error {
            ensure(!plan.is_calm(), || format!("{request:?} was rejected without need: {error}"))?;
        } else {
            return Err(format!("{request:?} was rejected with {error}"));
        }
    }
    Ok(())
}

fn no_client_waits_too_long(operations: &Operations) -> Verdict {
    let timeout = PetStore::WRITE_TIMEOUT.as_millis();
    for create in &operations.creates {
        let waited = u128::from(create.ended.millis - create.sent.millis);
        // The clock of the simulation counts whole milliseconds.
        ensure(waited <= timeout + 1, || format!("{:?} waited {waited} ms", create.request))?;
    }
    Ok(())
}

fn reads_show_the_durable_log(truth: &Truth, operations: &Operations) -> Verdict {
    for Read { node, at, version, shown, .. } in &operations.reads {
        let pets = truth.at(*version)?;
        let commit = truth.commits.iter().find(|stored| Some(stored.commit.id) == version.commit);
        let durable = commit.is_none_or(|commit| commit.at < *at);
        ensure(durable, || format!("node {node} showed {version:?} before it was durable"))?;
        match shown {
            Shown::Page(query, page) => {
                let (expected, next) = query.page_of(pets);
                let position = page.position.position;
                let same = (&expected, next, version.position) == (&page.pets, page.next, position);
                ensure(same, || format!("node {node} at {version:?} responded to {query:?} with {page:?}"))?;
            }
            Shown::Pet(id, pet) => {
                let expected = pets.iter().find(|pet| pet.id == *id);
                let same = expected == pet.as_ref();
                ensure(same, || format!("node {node} at {version:?} showed {pet:?} for {id:?}"))?;
            }
            Shown::Nothing(fault) => {
                return Err(format!("node {node} rejected a read: {fault}"));
            }
        }
    }
    Ok(())
}

fn reads_show_what_was_acknowledged_before(truth: &Truth, operations: &Operations) -> Verdict {
    let place = |created: &Created| truth.place(&created.pet);
    let held = acknowledged(operations);
    let held: Vec<_> =
        held.filter_map(|(create, created)| Some((create, created, place(created)?.0))).collect();
    for read in &operations.reads {
        for (create, created, position) in &held {
            // A create that the node acknowledged before this restart is visible after it.
            let by = if create.life == read.life { read.at } else { read.begun };
            let due = create.node == read.node && create.ended.tick < by;
            ensure(!due || *position <= read.version.position, || {
                format!("node {} acknowledged {created:?} and then did not show it", read.node)
            })?;
        }
    }
    Ok(())
}

fn reads_never_go_back(operations: &Operations) -> Verdict {
    let mut last = HashMap::new();
    for Read { node, life, version, .. } in &operations.reads {
        let before = last.insert((node, life), *version);
        let continues = before.is_none_or(|before| before.position <= version.position);
        ensure(continues, || format!("node {node} went back from {before:?} to {version:?}"))?;
    }
    Ok(())
}

fn acknowledged(operations: &Operations) -> impl Iterator<Item = (&Create, &Created)> {
    operations.creates.iter().filter_map(|create| match &create.outcome {
        Outcome::Acknowledged(created) => Some((create, created)),
        Outcome::Rejected(_) | Outcome::Lost => None,
    })
}

pub(crate) fn ensure(holds: bool, complaint: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(complaint()) }
}
