//! Compares the read model with a plain list of pets.

use application::{
    Digest, Limit, OwnerId,
    log::commit::{Commit, Entry, NodeId},
    ports::{CommitId, Position},
};
use chrono::DateTime;
use domain::{
    NewPet,
    test_values::{any_new_pet, named, numbered, pet},
};
use proptest::prelude::*;

use super::*;

fn holding(pets: &[Pet]) -> MemoryReadModel {
    let mut model = MemoryReadModel::default();
    model.apply(&commit(1, pets.iter().cloned().map(PetEvent::Added)));
    model
}

fn commit(position: u64, events: impl IntoIterator<Item = PetEvent>) -> Commit {
    let entry = |event| Entry { event, by: OwnerId("k".into()), request_key: None };
    Commit {
        position: Position(position),
        id: CommitId("0192f0c1-2b3c-7def-8123-456789abcdef".parse().unwrap()),
        previous: Digest::of(b""),
        node: NodeId(1),
        time: DateTime::UNIX_EPOCH,
        entries: events.into_iter().map(entry).collect(),
    }
}

/// Pets in id order, with and without gaps between the ids.
fn any_pets() -> impl Strategy<Value = Vec<Pet>> {
    let step = prop_oneof![Just(1_i64), 1_i64..5];
    prop::collection::vec((step, any_new_pet()), 0..60).prop_map(|steps| {
        let ids = steps.iter().scan(0, |id, (step, _)| {
            *id += step;
            Some(*id)
        });
        ids.zip(&steps).map(|(id, (_, details))| pet(id, details.clone())).collect()
    })
}

proptest! {
    #[test]
    fn a_page_is_the_first_matching_pets_after_an_id(
        pets in any_pets(),
        limit in 1..=100_usize,
        filter in prop::sample::select(ListPets::every_filter()),
        after in prop::option::of(1..200_i64),
    ) {
        let after = after.map(|id| PetId::new(id).unwrap());
        let query = ListPets { limit: Limit::new(limit).unwrap(), after, ..filter };
        let model = holding(&pets);
        prop_assert_eq!(model.list(&query), query.page_of(&pets));
        let all = ListPets { after: None, ..query };
        let total = pets.iter().filter(|pet| all.selects(pet)).count();
        prop_assert_eq!(model.count(query.status), total);
    }

    #[test]
    fn a_pet_is_found_by_its_id_alone(pets in any_pets(), id in 1..200_i64) {
        let id = PetId::new(id).unwrap();
        let expected = pets.iter().find(|pet| pet.id == id).cloned();
        prop_assert_eq!(holding(&pets).get(id), expected);
    }
}

#[test]
fn ids_at_the_end_of_their_range_are_found() {
    let pets = [i64::MAX - 3, i64::MAX - 1, i64::MAX].map(|id| pet(id, named("Rex")));
    let model = holding(&pets);
    for id in (0..6).map(|back| PetId::new(i64::MAX - back).unwrap()) {
        assert_eq!(model.get(id), pets.iter().find(|pet| pet.id == id).cloned());
        let query = ListPets { after: Some(id), ..Default::default() };
        assert_eq!(model.list(&query), query.page_of(&pets));
    }
}

#[test]
fn a_rare_status_is_found_however_far_away_it_is() {
    let rare = |id| if id == 1 || id == 19_999 { Some(PetStatus::Sold) } else { None };
    let pets: Vec<_> = (1..=20_000).map(|id| pet(id, NewPet { status: rare(id), ..named("Rex") })).collect();
    let query = ListPets { status: Some(PetStatus::Sold), ..Default::default() };
    let (shown, next) = holding(&pets).list(&query);
    assert_eq!((shown, next), (vec![pets[0].clone(), pets[19_998].clone()], None));
}

#[test]
fn pages_reach_across_chunks() {
    let pets: Vec<_> = (1..=10_000).map(|id| pet(id, numbered(id.cast_unsigned()))).collect();
    let model = holding(&pets);
    for filter in ListPets::every_filter() {
        let mut query = ListPets { limit: Limit::new(100).unwrap(), ..filter };
        let mut walked = Vec::new();
        loop {
            let (shown, next) = model.list(&query);
            walked.extend(shown);
            query.after = next;
            if next.is_none() {
                break;
            }
        }
        let expected: Vec<_> = pets.iter().filter(|pet| filter.selects(pet)).cloned().collect();
        assert_eq!(walked, expected, "{filter:?}");
        // Chunks hold 1,024 pets.
        for after in [1_023, 1_024, 1_025, 8_192, 9_999, 10_000, i64::MAX] {
            query.after = Some(PetId::new(after).unwrap());
            assert_eq!(model.list(&query), query.page_of(&pets), "{query:?}");
        }
    }
}
