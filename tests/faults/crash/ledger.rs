//! The ledger, kept outside the service: the requests, the responses, and what the service must show as a
//! result.

use std::{
    collections::{BTreeMap, HashSet},
    fmt,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Mutex,
};

use domain::test_values::varied;
use harness::{App, json_of};
use serde_json::{Value, json};

use super::scenario::Tally;

/// The book of one store.
#[derive(Debug, Default)]
pub(crate) struct Ledger(Mutex<Book>);

#[derive(Debug, Default)]
struct Book {
    /// Every pet that was ever asked for. A pet without a response, or with 503, may still be in the store.
    asked: HashSet<String>,
    /// Every pet that was acknowledged with 201 or shown to a reader: it must exist permanently, under this id.
    owed: BTreeMap<i64, String>,
    acknowledged: u64,
    findings: Findings,
}

/// What must never be found, in words.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// Acknowledged or shown, and lost.
    pub(crate) lost: Vec<String>,
    /// There, but never requested, or different from its request, or there twice.
    pub(crate) phantom: Vec<String>,
    /// Ids that were skipped.
    pub(crate) gaps: Vec<String>,
    /// One id, two pets.
    pub(crate) reused: Vec<String>,
}

/// The pet with this name: everything else about it follows from the name.
pub(crate) fn pet(name: &str) -> Value {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    json_of(&varied(name, hasher.finish()))
}

impl Ledger {
    /// Notes that this pet is about to be asked for.
    pub(crate) fn ask(&self, name: &str) {
        assert!(self.book().asked.insert(name.to_owned()), "{name} is asked for once");
    }

    /// Notes a 201.
    pub(crate) fn acknowledge(&self, name: &str, response: &Value) {
        let mut book = self.book();
        book.acknowledged += 1;
        book.owe(response);
        if response["name"] != name {
            book.findings.phantom.push(format!("{name} was requested, and the response was {response}"));
        }
    }

    /// Notes what a reader was shown while others wrote.
    pub(crate) fn show(&self, pets: &[Value]) {
        let mut book = self.book();
        for pet in pets {
            book.owe(pet);
        }
    }

    /// The last id that is known to be taken.
    pub(crate) fn last_id(&self) -> i64 {
        self.book().owed.last_key_value().map_or(0, |(id, _)| *id)
    }

    /// Starts the service, which must work, and settles.
    pub(crate) fn start_and_settle(&self, app: &mut App, tally: &mut Tally) {
        match app.try_start_again() {
            Ok(()) => self.settle(app, tally),
            Err(rejection) => tally.rejected_opens.push(rejection.stderr),
        }
    }

    /// Compares everything that the service shows with everything that it owes, and adds to the tally.
    pub(crate) fn settle(&self, app: &App, tally: &mut Tally) {
        let pets = app.all_pets();
        let mut book = self.book();
        let mut names = HashSet::new();
        for (pet, expected) in pets.iter().zip(1_i64..) {
            if pet["id"] != expected {
                book.findings.gaps.push(format!("{pet} stands where id {expected} belongs"));
            }
            if !names.insert(pet["name"].as_str().expect("names are text")) {
                book.findings.phantom.push(format!("{pet} is there twice"));
            }
            book.owe(pet);
        }
        let lost: Vec<_> =
            book.owed.values().filter(|name| !names.contains(name.as_str())).cloned().collect();
        book.findings.lost.extend(lost);
        tally.acknowledged += std::mem::take(&mut book.acknowledged);
        tally.findings.join(std::mem::take(&mut book.findings));
    }

    fn book(&self) -> std::sync::MutexGuard<'_, Book> {
        self.0.lock().expect("no writer panics")
    }
}

impl Book {
    /// From now on this pet must be there.
    fn owe(&mut self, shown: &Value) {
        let name = shown["name"].as_str().expect("names are text");
        let id = shown["id"].as_i64().expect("ids are integers");
        let mut asked_for = pet(name);
        asked_for["id"] = json!(id);
        if !self.asked.contains(name) || *shown != asked_for {
            self.findings.phantom.push(format!("{shown}, which was never requested"));
        }
        match self.owed.insert(id, name.to_owned()) {
            Some(earlier) if earlier != name => {
                self.findings.reused.push(format!("id {id} for {earlier} and for {name}"));
            }
            Some(_) | None => {}
        }
    }
}

impl Findings {
    pub(crate) fn is_clean(&self) -> bool {
        [&self.lost, &self.phantom, &self.gaps, &self.reused].iter().all(|findings| findings.is_empty())
    }

    pub(crate) fn join(&mut self, other: Self) {
        self.lost.extend(other.lost);
        self.phantom.extend(other.phantom);
        self.gaps.extend(other.gaps);
        self.reused.extend(other.reused);
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lost, phantom, gaps, reused } = self;
        write!(formatter, "{} lost, {} phantom, {} gaps", lost.len(), phantom.len(), gaps.len())?;
        write!(formatter, ", {} reused ids", reused.len())
    }
}
