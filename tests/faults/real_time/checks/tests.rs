//! For each rule, a history that breaks it, made from one that breaks none.

use std::time::Duration;

use super::{
    super::history::{History, Operation, Outcome, Pet, Position, Request},
    violations,
};

/// Rex is added on node 0, Bella on node 1 under a key and once more after a lost response; every node lists both.
fn sound() -> History {
    let bella = |replayed| Outcome::Created { pet: pet(2, "Bella"), replayed, position: at(2) };
    let with_key = || create("Bella", Some("key"));
    History {
        operations: vec![
            operation(0, 0..10, create("Rex", None), created(1, "Rex", 1)),
            operation(0, 11..12, list(0), page(&["Rex"], 1)),
            operation(1, 20..30, with_key(), Outcome::Lost),
            operation(1, 31..40, with_key(), bella(true)),
            operation(2, 41..50, with_key(), bella(false)),
            Operation { asked: Some(at(2)), ..operation(2, 51..60, list(0), page(&["Rex", "Bella"], 2)) },
            operation(0, 61..62, list(0), page(&["Rex"], 1)),
            operation(1, 63..64, create("Max", None), rejected(503)),
        ],
        pets: vec![pet(1, "Rex"), pet(2, "Bella")],
    }
}

fn operation(node: usize, time: std::ops::Range<u64>, request: Request, outcome: Outcome) -> Operation {
    let [sent, ended] = [time.start, time.end].map(Duration::from_millis);
    Operation { node, sent, ended, asked: None, request, outcome }
}

fn create(name: &str, key: Option<&str>) -> Request {
    Request::Create { name: name.into(), key: key.map(str::to_owned) }
}

fn created(id: u64, name: &str, position: u64) -> Outcome {
    Outcome::Created { pet: pet(id, name), replayed: false, position: at(position) }
}

fn rejected(status: u16) -> Outcome {
    Outcome::Rejected(status, "unavailable".into())
}

fn list(after: u64) -> Request {
    Request::List { after, limit: 2 }
}

/// The last page, from the first pet.
fn page(names: &[&str], position: u64) -> Outcome {
    let pets = names.iter().zip(1..).map(|(name, id)| pet(id, name)).collect();
    Outcome::Page { pets, next: None, position: at(position) }
}

fn pet(id: u64, name: &str) -> Pet {
    Pet { id, name: name.into() }
}

fn at(number: u64) -> Position {
    Position { number, hash: format!("hash {number}") }
}

#[test]
fn a_sound_history_breaks_no_rule() {
    assert_eq!(violations(&sound()), Vec::<String>::new());
    assert_eq!(violations(&History::default()), Vec::<String>::new());
}

/// Rex is the second pet, although Rex was acknowledged before Bella was requested.
fn swap(history: &mut History) {
    history.pets = vec![pet(1, "Bella"), pet(2, "Rex")];
    history.operations[0].outcome = created(2, "Rex", 2);
    history.operations[1].outcome = page(&["Bella", "Rex"], 2);
    history.operations[4].outcome = created(1, "Bella", 1);
}

/// What is wrong with a history, and a change that makes the sound one wrong.
type Broken = (&'static str, fn(&mut History));

#[test]
fn every_broken_rule_is_reported() {
    let broken: [Broken; 20] = [
        ("a gap after the run", |history| history.pets[1].id = 3),
        ("added twice", |history| history.pets.push(pet(3, "Bella"))),
        ("never sent", |history| history.pets.push(pet(3, "Luna"))),
        ("shown before it was sent", |history| history.operations[1].outcome = page(&["Rex", "Bella"], 2)),
        ("missing after the run", |history| history.pets.truncate(1)),
        ("missing after the run", |history| history.pets.swap(0, 1)),
        ("a response to another request", |history| history.operations[4].outcome = created(1, "Rex", 2)),
        ("two first responses", |history| {
            history.operations[3].outcome = history.operations[4].outcome.clone();
        }),
        ("replayed without a key", |history| {
            history.operations[4].request = create("Bella", None);
            history.operations[4].outcome = history.operations[3].outcome.clone();
        }),
        ("out of order", swap),
        // Also if the later request got no response, and if only a page shows the earlier pet.
        ("out of order", |history| {
            swap(history);
            history.operations[0].outcome = Outcome::Lost;
            history.operations.truncate(3);
            let pets = vec![pet(2, "Rex")];
            history.operations[1].outcome = Outcome::Page { pets, next: None, position: at(2) };
        }),
        ("two histories", |history| {
            let Outcome::Page { position, .. } = &mut history.operations[5].outcome else { panic!("a page") };
            position.hash = "another".into();
        }),
        ("before the requested position", |history| history.operations[5].asked = Some(at(3))),
        ("another version", |history| history.operations[6].outcome = page(&["Rex"], 2)),
        ("another version", |history| history.operations[6].outcome = page(&["Rex"], 3)),
        // Even if the node claims the position.
        ("without the requested writes", |history| history.operations[5].outcome = page(&["Rex"], 2)),
        ("went back", |history| history.operations[6].node = 2),
        ("went back", |history| history.operations[6].outcome = page(&[], 0)),
        // A create that the node has acknowledged counts too.
        ("went back", |history| {
            history.operations[6].node = 1;
            history.operations.remove(5);
        }),
        ("rejected without a reason", |history| history.operations[7].outcome = rejected(500)),
    ];
    for (words, change) in broken {
        assert_violation(words, change);
    }
}

/// Asserts that a change of the sound history is reported with these words.
fn assert_violation(words: &str, change: impl FnOnce(&mut History)) {
    let mut history = sound();
    change(&mut history);
    let found = violations(&history);
    assert!(found.iter().any(|violation| violation.starts_with(words)), "{words:?} is not in {found:#?}");
}

#[test]
fn a_create_that_overlaps_another_one_may_have_any_id() {
    let mut history = sound();
    history.operations.truncate(1);
    history.operations.push(operation(1, 5..15, create("Bella", None), created(2, "Bella", 2)));
    history.operations[0].outcome = created(2, "Rex", 2);
    history.operations[1].outcome = created(1, "Bella", 1);
    history.pets = vec![pet(1, "Bella"), pet(2, "Rex")];
    assert_eq!(violations(&history), Vec::<String>::new());
}

#[test]
fn a_page_with_a_gap_is_reported() {
    let page = |pets: &[Pet], next| Outcome::Page { pets: pets.to_vec(), next, position: at(2) };
    let (rex, bella) = (pet(1, "Rex"), pet(2, "Bella"));
    for outcome in [
        page(std::slice::from_ref(&bella), None),
        page(&[bella.clone(), rex.clone()], None),
        page(&[rex.clone(), rex.clone()], None),
        // A next page, although this one has room, or with another begin.
        page(std::slice::from_ref(&rex), Some(1)),
        page(&[rex.clone(), bella.clone()], Some(1)),
        page(&[rex, bella, pet(3, "Max")], None),
    ] {
        assert_violation("a page with gaps", |history| history.operations[5].outcome = outcome);
    }
}
