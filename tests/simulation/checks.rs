//! The promises, each as a rule that the history of a run is held against.

use std::collections::{HashMap, HashSet};

use application::{CreateError, PetStore, Version, ports::Position};
use domain::Pet;

use super::{
    engine::Stored,
    history::{self, Operations, Outcome, Read, Shown},
    journal::Tick,
    plan::Plan,
};

/// What the log held in the end, and when each part of it became durable.
pub(crate) struct Truth {
    log: Vec<Stored>,
    /// Every pet in log order.
    pets: Vec<Pet>,
    /// How many pets there are up to each position.
    counts: Vec<usize>,
    /// Where each pet stands in the log, and since when, by its name. Clients give every pet a name of its own.
    places: HashMap<String, (Position, Tick)>,
}

/// Says what is wrong.
type Verdict = Result<(), String>;

impl Truth {
    /// Reads the log, and checks that it is sound by itself.
    pub(crate) fn of(log: Vec<Stored>) -> Result<Self, String> {
        let mut truth = Self { log, pets: vec![], counts: vec![0], places: HashMap::new() };
        let mut commits = HashSet::new();
        for (stored, position) in truth.log.iter().zip(1..) {
            let commit = &stored.commit;
            let is_next = commit.position == Position(position);
            ensure(is_next, || format!("the commit at {position} says it is at {}", commit.position))?;
            ensure(commits.insert(commit.id), || format!("the commit at {position} is there twice"))?;
            for pet in history::pets(commit) {
                let rises = truth.pets.last().is_none_or(|last| last.id < pet.id);
                ensure(rises, || format!("ids do not rise at position {position}: {pet:?}"))?;
                let place = (commit.position, stored.at);
                let known = truth.places.insert(pet.details.name.as_str().to_owned(), place);
                ensure(known.is_none(), || format!("{:?} is there twice", pet.details.name))?;
                truth.pets.push(pet.clone());
            }
            truth.counts.push(truth.pets.len());
        }
        let times = truth.log.iter().map(|stored| stored.commit.time);
        ensure(times.is_sorted(), || "commit times go back".into())?;
        Ok(truth)
    }

    /// The pets that a reader of this version sees.
    pub(crate) fn at(&self, version: Version) -> Result<&[Pet], String> {
        let index = usize::try_from(version.position.0).expect("tests are small");
        let count = self.counts.get(index).ok_or_else(|| format!("{version:?} is beyond the log"))?;
        let commit = index.checked_sub(1).map(|last| self.log[last].commit.id);
        ensure(version.commit == commit, || format!("{version:?} is not in the log"))?;
        Ok(&self.pets[..*count])
    }

    pub(crate) fn head(&self) -> Position {
        Position(self.log.len() as u64)
    }

    fn place(&self, pet: &Pet) -> Option<(Position, Tick)> {
        self.places.get(pet.details.name.as_str()).copied()
    }
}

/// Holds everything that clients did and saw against the log.
pub(crate) fn check(plan: &Plan, truth: &Truth, operations: &Operations) -> Verdict {
    nothing_is_there_that_nobody_sent(truth, operations)?;
    what_was_answered_is_there_and_was_durable_before(truth, operations)?;
    a_key_makes_one_pet(truth, operations)?;
    creates_are_in_real_time_order(truth, operations)?;
    refusals_have_a_reason(plan, truth, operations)?;
    nobody_waits_too_long(operations)?;
    reads_show_the_durable_log(truth, operations)?;
    reads_show_what_was_answered_before(truth, operations)?;
    reads_never_go_back(operations)
}

fn nothing_is_there_that_nobody_sent(truth: &Truth, operations: &Operations) -> Verdict {
    for stored in &truth.log {
        for (entry, pet) in stored.commit.entries.iter().zip(history::pets(&stored.commit)) {
            let sent = operations.creates.iter().any(|create| {
                let request = &create.request;
                create.sent.tick < stored.at
                    && (&request.pet, &request.by, &request.request_key)
                        == (&pet.details, &entry.by, &entry.request_key)
            });
            ensure(sent, || format!("nobody sent {entry:?}"))?;
        }
    }
    Ok(())
}

fn what_was_answered_is_there_and_was_durable_before(truth: &Truth, operations: &Operations) -> Verdict {
    for create in &operations.creates {
        let Outcome::Answered(created) = &create.outcome else { continue };
        let same = created.pet.details == create.request.pet;
        ensure(same, || format!("{:?} was answered with {created:?}", create.request))?;
        let (_, durable) =
            truth.place(&created.pet).ok_or_else(|| format!("lost although answered: {created:?}"))?;
        ensure(truth.pets.contains(&created.pet), || format!("not as it was answered: {created:?}"))?;
        ensure(durable < create.ended.tick, || format!("answered before it was durable: {created:?}"))?;
    }
    Ok(())
}

fn a_key_makes_one_pet(truth: &Truth, operations: &Operations) -> Verdict {
    let mut used = HashSet::new();
    for entry in truth.log.iter().flat_map(|stored| &stored.commit.entries) {
        if let Some(key) = &entry.request_key {
            ensure(used.insert((&entry.by, key)), || format!("a key made two pets: {entry:?}"))?;
        }
    }
    let mut first_answers = HashSet::new();
    for create in &operations.creates {
        let Outcome::Answered(created) = &create.outcome else { continue };
        let caller = create.request.request_key.as_ref().map(|key| (&create.request.by, key));
        match caller {
            Some(caller) if !created.replayed => {
                ensure(first_answers.insert(caller), || format!("two first answers to {caller:?}"))?;
            }
            Some(_) => {}
            None => ensure(!created.replayed, || format!("replayed without a key: {created:?}"))?,
        }
    }
    Ok(())
}

fn creates_are_in_real_time_order(truth: &Truth, operations: &Operations) -> Verdict {
    for later in &operations.creates {
        let Outcome::Answered(created) = &later.outcome else { continue };
        if created.replayed {
            continue;
        }
        for earlier in operations.creates.iter().filter(|earlier| earlier.ended.tick < later.sent.tick) {
            let Outcome::Answered(before) = &earlier.outcome else { continue };
            let in_order = truth.place(&before.pet) < truth.place(&created.pet);
            ensure(in_order, || format!("{before:?} was answered before {created:?} was asked for"))?;
        }
    }
    Ok(())
}

fn refusals_have_a_reason(plan: &Plan, truth: &Truth, operations: &Operations) -> Verdict {
    for create in &operations.creates {
        let Outcome::Refused(error) = &create.outcome else { continue };
        let request = &create.request;
        match error {
            CreateError::RequestKeyReused => {
                let used_for_another =
                    truth.log.iter().filter(|stored| stored.at < create.ended.tick).any(|stored| {
                        stored.commit.entries.iter().zip(history::pets(&stored.commit)).any(|(entry, pet)| {
                            (&entry.by, &entry.request_key) == (&request.by, &request.request_key)
                                && pet.details != request.pet
                        })
                    });
                ensure(used_for_another, || format!("no other pet has the key of {request:?}"))?;
            }
            CreateError::Unavailable(_) => {
                ensure(!plan.is_calm(), || format!("{request:?} was refused without need: {error}"))?;
            }
            CreateError::Busy | CreateError::IdsExhausted(_) => {
                return Err(format!("{request:?} was refused with {error}"));
            }
        }
    }
    Ok(())
}

fn nobody_waits_too_long(operations: &Operations) -> Verdict {
    let patience = PetStore::WRITE_PATIENCE.as_millis();
    for create in &operations.creates {
        let waited = u128::from(create.ended.millis - create.sent.millis);
        // The clock of the simulation counts whole milliseconds.
        ensure(waited <= patience + 1, || format!("{:?} waited {waited} ms", create.request))?;
    }
    Ok(())
}

fn reads_show_the_durable_log(truth: &Truth, operations: &Operations) -> Verdict {
    for Read { node, at, version, shown, .. } in &operations.reads {
        let pets = truth.at(*version)?;
        if let Some(last) = pets.last() {
            let durable = truth.place(last).is_some_and(|(_, durable)| durable < *at);
            ensure(durable, || format!("node {node} showed {last:?} before it was durable"))?;
        }
        match shown {
            Shown::Page(query, page) => {
                let mut matching = pets.iter().filter(|pet| {
                    Some(pet.id) > query.after
                        && (query.status.is_none() || pet.details.status == query.status)
                });
                let expected: Vec<_> = matching.by_ref().take(query.limit.get()).cloned().collect();
                let next = matching.next().and(expected.last()).map(|pet| pet.id);
                let same = (&expected, next, *version) == (&page.pets, page.next, page.version);
                ensure(same, || format!("node {node} at {version:?} answered {query:?} with {page:?}"))?;
            }
            Shown::Pet(id, pet) => {
                let expected = pets.iter().find(|pet| pet.id == *id);
                ensure(expected == pet.as_ref(), || {
                    format!("node {node} at {version:?} showed {pet:?} for {id:?}")
                })?;
            }
            Shown::Nothing(fault) => return Err(format!("node {node} refused a read: {fault}")),
        }
    }
    Ok(())
}

fn reads_show_what_was_answered_before(truth: &Truth, operations: &Operations) -> Verdict {
    for read in &operations.reads {
        let before = operations.creates.iter().filter(|create| {
            // What another life of the node answered was there to be read when this one began, or it was not.
            let by = if create.life == read.life { read.at } else { read.begun };
            create.node == read.node && create.ended.tick < by
        });
        for create in before {
            let Outcome::Answered(created) = &create.outcome else { continue };
            let seen =
                truth.place(&created.pet).is_some_and(|(position, _)| position <= read.version.position);
            ensure(seen, || format!("node {} answered {created:?} and then did not show it", read.node))?;
        }
    }
    Ok(())
}

fn reads_never_go_back(operations: &Operations) -> Verdict {
    let mut last = HashMap::new();
    for Read { node, life, version, .. } in &operations.reads {
        let before = last.insert((node, life), version.position);
        ensure(before <= Some(version.position), || {
            format!("node {node} went back from {before:?} to {version:?}")
        })?;
    }
    Ok(())
}

fn ensure(holds: bool, complaint: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(complaint()) }
}
