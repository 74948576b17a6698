//! What the log really held: everything that clients saw is checked against it.

use std::collections::{HashMap, HashSet};

use application::{Digest, Version, ports::Position};
use domain::Pet;

use super::{checks::ensure, engine::Stored, history, journal::Tick};

/// What the log held in the end, and when each part of it became durable.
pub(crate) struct Truth {
    pub(crate) commits: Vec<Stored>,
    /// Every pet in log order.
    pub(crate) pets: Vec<Pet>,
    /// How many pets there are up to each position.
    counts: Vec<usize>,
    /// Where each pet stands in the log, and since when, by its name. Clients give every pet a unique name.
    places: HashMap<String, (Position, Tick)>,
}

impl Truth {
    /// Reads the log, and checks that it is sound.
    pub(crate) fn of(commits: Vec<Stored>) -> Result<Self, String> {
        let mut truth = Self { commits, pets: vec![], counts: vec![0], places: HashMap::new() };
        let mut ids = HashSet::new();
        let mut keys = HashSet::new();
        for (stored, position) in truth.commits.iter().zip(1..) {
            let commit = &stored.commit;
            let is_next = commit.position == Position(position);
            ensure(is_next, || format!("the commit at {position} says it is at {}", commit.position))?;
            ensure(ids.insert(commit.id), || format!("the commit at {position} is there twice"))?;
            for (entry, pet) in history::pets(commit) {
                let rises = truth.pets.last().is_none_or(|last| last.id < pet.id);
                ensure(rises, || format!("ids do not rise at position {position}: {pet:?}"))?;
                let place = (commit.position, stored.at);
                let known = truth.places.insert(pet.details.name.as_str().to_owned(), place);
                ensure(known.is_none(), || format!("{:?} is there twice", pet.details.name))?;
                let caller = entry.request_key.clone().map(|key| (entry.by.clone(), key));
                let is_new = caller.is_none_or(|caller| keys.insert(caller));
                ensure(is_new, || format!("a key made two pets: {entry:?}"))?;
                truth.pets.push(pet.clone());
            }
            truth.counts.push(truth.pets.len());
        }
        truth.check_chain()?;
        Ok(truth)
    }

    /// Every commit names the record before it: the nodes agree on the whole history, not only on its length.
    fn check_chain(&self) -> Result<(), String> {
        let mut head_hash = Digest::of(b"");
        for Stored { commit, record, .. } in &self.commits {
            let chained = commit.previous == head_hash;
            ensure(chained, || format!("the commit at {} does not name the one before it", commit.position))?;
            head_hash = Digest::of(&record.bytes);
        }
        Ok(())
    }

    /// The pets that a reader of this version sees.
    pub(crate) fn at(&self, version: Version) -> Result<&[Pet], String> {
        let index = usize::try_from(version.position.0).expect("tests are small");
        let commit = index.checked_sub(1).and_then(|last| self.commits.get(last));
        let count =
            self.counts.get(index).filter(|_| commit.map(|stored| stored.commit.id) == version.commit);
        count.map(|count| &self.pets[..*count]).ok_or_else(|| format!("{version:?} was never in the log"))
    }

    pub(crate) fn head(&self) -> Position {
        Position(self.commits.len() as u64)
    }

    pub(crate) fn place(&self, pet: &Pet) -> Option<(Position, Tick)> {
        self.places.get(pet.details.name.as_str()).copied()
    }
}
