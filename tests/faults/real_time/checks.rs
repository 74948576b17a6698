//! The rules that the history of every run must meet. They follow from the responses alone: nothing here
//! reads the log.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};

use super::history::{History, Moment, Operation, Outcome, Pet, Position, Request};

/// Says what is wrong.
type Verdict = Result<(), String>;

/// Returns the first violation of each rule that the history breaks.
pub(crate) fn violations(history: &History) -> Vec<String> {
    let rules = [
        every_pet_exists_once,
        only_sent_pets_are_shown,
        acknowledged_pets_exist,
        a_key_has_one_first_response,
        later_creates_have_larger_ids,
        pages_have_no_gaps,
        a_position_has_one_history,
        responses_reach_the_requested_position,
        pages_show_their_version_and_the_requested_one,
        no_node_goes_back,
        rejections_are_temporary,
    ];
    rules.iter().filter_map(|rule| rule(history).err()).collect()
}

/// After the run, the ids are 1, 2, 3, …, and no request has added two pets.
fn every_pet_exists_once(history: &History) -> Verdict {
    let mut names = HashSet::new();
    for (pet, expected) in history.pets.iter().zip(1..) {
        ensure(pet.id == expected, || format!("a gap after the run: {pet:?} instead of id {expected}"))?;
        ensure(names.insert(&pet.name), || format!("added twice: {pet:?}"))?;
    }
    Ok(())
}

fn only_sent_pets_are_shown(history: &History) -> Verdict {
    let sent = first_sent(history);
    for operation in &history.operations {
        for pet in operation.shown() {
            let was_sent = sent.get(pet.name.as_str()).is_some_and(|sent| *sent < operation.ended);
            ensure(was_sent, || format!("shown before it was sent: {pet:?} in {operation:?}"))?;
        }
    }
    let never_sent = history.pets.iter().find(|pet| !sent.contains_key(pet.name.as_str()));
    never_sent.map_or(Ok(()), |pet| Err(format!("never sent: {pet:?}")))
}

/// A pet that a client got in a 201 or on a page is there after the run, under the same id.
fn acknowledged_pets_exist(history: &History) -> Verdict {
    for operation in &history.operations {
        for pet in operation.shown() {
            let is_there = history.at(pet.id) == Some(pet);
            ensure(is_there, || format!("missing after the run: {pet:?} of {operation:?}"))?;
        }
        if let (Request::Create { name, .. }, Outcome::Created { pet, .. }) =
            (&operation.request, &operation.outcome)
        {
            ensure(pet.name == *name, || format!("a response to another request: {operation:?}"))?;
        }
    }
    Ok(())
}

fn a_key_has_one_first_response(history: &History) -> Verdict {
    let mut first_responses = HashSet::new();
    for operation in &history.operations {
        let (Request::Create { key, .. }, Outcome::Created { replayed, .. }) =
            (&operation.request, &operation.outcome)
        else {
            continue;
        };
        match key {
            Some(key) if !replayed => {
                ensure(first_responses.insert(key), || format!("two first responses: {operation:?}"))?;
            }
            Some(_) => {}
            None => ensure(!replayed, || format!("replayed without a key: {operation:?}"))?,
        }
    }
    Ok(())
}

/// A pet whose first request was sent after a response has a larger id than every pet in that response, on
/// whichever nodes.
fn later_creates_have_larger_ids(history: &History) -> Verdict {
    let sent = first_sent(history);
    let begin = |pet: &Pet| sent.get(pet.name.as_str()).copied();
    let mut pets: Vec<_> = history.pets.iter().filter_map(|pet| Some((begin(pet)?, pet))).collect();
    pets.sort_by_key(|(begin, _)| *begin);
    let mut responses = in_order_of(history.operations.iter(), |operation| operation.ended).peekable();
    let mut newest: Option<&Operation> = None;
    for (begin, pet) in pets {
        while let Some(response) = responses.next_if(|response| response.ended < begin) {
            newest = newest.filter(|newest| newest.at_least() >= response.at_least()).or(Some(response));
        }
        if let Some(newest) = newest {
            let in_order = newest.at_least() < pet.id;
            ensure(in_order, || format!("out of order: {pet:?}, first sent at {begin:?}, after {newest:?}"))?;
        }
    }
    Ok(())
}

/// An unfiltered page has the ids directly after its begin. It is full if there is a next page.
fn pages_have_no_gaps(history: &History) -> Verdict {
    for operation in &history.operations {
        let (Request::List { after, limit }, Outcome::Page { pets, next, .. }) =
            (&operation.request, &operation.outcome)
        else {
            continue;
        };
        let dense = pets.iter().zip(after + 1..).all(|(pet, expected)| pet.id == expected);
        let is_full = pets.len() == *limit && *next == pets.last().map(|pet| pet.id);
        let complete = pets.len() <= *limit && (next.is_none() || is_full);
        ensure(dense && complete, || format!("a page with gaps: {operation:?}"))?;
    }
    Ok(())
}

/// The same position never comes with two hashes.
fn a_position_has_one_history(history: &History) -> Verdict {
    let mut known = HashMap::new();
    for operation in &history.operations {
        let Some(Position { number, hash }) = operation.position() else { continue };
        let first = *known.entry(number).or_insert(hash);
        ensure(first == hash, || format!("two histories: {operation:?} instead of {first}"))?;
    }
    Ok(())
}

fn responses_reach_the_requested_position(history: &History) -> Verdict {
    for operation in &history.operations {
        if let (Some(asked), Some(position)) = (&operation.asked, operation.position()) {
            let reached = asked.number <= position.number;
            ensure(reached, || format!("before the requested position: {operation:?}"))?;
        }
    }
    Ok(())
}

/// A response shows the pets of all responses, from whichever nodes, with the same `Log-Position` or an earlier one; and so
/// it does with the `Log-Position` of its request.
fn pages_show_their_version_and_the_requested_one(history: &History) -> Verdict {
    let visible = Visible::by_position(history);
    for operation in &history.operations {
        for (position, complaint) in [
            (operation.asked.as_ref(), "without the requested writes"),
            (operation.position(), "another version"),
        ] {
            position.map_or(Ok(()), |position| visible.ensure_shown_by(operation, position, complaint))?;
        }
    }
    Ok(())
}

/// A node shows everything that it has shown or acknowledged in an earlier response, even before a restart.
fn no_node_goes_back(history: &History) -> Verdict {
    let nodes: HashSet<_> = history.operations.iter().map(|operation| operation.node).collect();
    for node in nodes {
        let of_node = || history.operations.iter().filter(|operation| operation.node == node);
        let mut earlier = in_order_of(of_node(), |operation| operation.ended).peekable();
        let (mut count, mut newest) = (0, 0);
        for operation in in_order_of(of_node(), |operation| operation.sent) {
            while let Some(response) = earlier.next_if(|earlier| earlier.ended < operation.sent) {
                count = count.max(response.at_least());
                newest = newest.max(response.position().map_or(0, |position| position.number));
            }
            let shows_all = operation.at_most().is_none_or(|most| count <= most);
            let is_newest = operation.position().is_none_or(|position| newest <= position.number);
            ensure(shows_all && is_newest, || {
                format!("went back from position {newest} and {count} pets: {operation:?}")
            })?;
        }
    }
    Ok(())
}

fn rejections_are_temporary(history: &History) -> Verdict {
    for operation in &history.operations {
        if let Outcome::Rejected(status, _) = &operation.outcome {
            ensure(*status == 503, || format!("rejected without a reason: {operation:?}"))?;
        }
    }
    Ok(())
}

/// How many pets exist at each position at least, as the responses with that or an earlier position show.
struct Visible(BTreeMap<u64, u64>);

impl Visible {
    fn by_position(history: &History) -> Self {
        let mut counts = BTreeMap::<u64, u64>::new();
        for operation in &history.operations {
            if let Some(position) = operation.position() {
                let count = counts.entry(position.number).or_default();
                *count = operation.at_least().max(*count);
            }
        }
        let mut most = 0;
        for count in counts.values_mut() {
            most = most.max(*count);
            *count = most;
        }
        Self(counts)
    }

    fn ensure_shown_by(&self, operation: &Operation, position: &Position, complaint: &str) -> Verdict {
        let count = self.0.range(..=position.number).next_back().map_or(0, |(_, count)| *count);
        let shows_all = operation.at_most().is_none_or(|most| count <= most);
        ensure(shows_all, || format!("{complaint}: {count} pets exist, but {operation:?}"))
    }
}

impl History {
    /// The pet with this id after the run.
    fn at(&self, id: u64) -> Option<&Pet> {
        self.pets.get(usize::try_from(id.checked_sub(1)?).ok()?)
    }
}

/// When each pet was first requested, by its name.
fn first_sent(history: &History) -> HashMap<&str, Moment> {
    let mut sent = HashMap::new();
    for operation in &history.operations {
        if let Request::Create { name, .. } = &operation.request {
            let first = sent.entry(name.as_str()).or_insert(operation.sent);
            *first = operation.sent.min(*first);
        }
    }
    sent
}

fn in_order_of<'a>(
    operations: impl Iterator<Item = &'a Operation>,
    time: impl Fn(&Operation) -> Moment,
) -> impl Iterator<Item = &'a Operation> {
    let mut operations: Vec<_> = operations.collect();
    operations.sort_by_key(|operation| time(operation));
    operations.into_iter()
}

fn ensure(holds: bool, complaint: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(complaint()) }
}
