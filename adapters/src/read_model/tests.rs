//! Compares the read model with a plain list of pets.

use application::{
    Digest, Limit, OwnerId,
    log::commit::{Commit, Entry, NodeId},
    ports::{CommitId, Position},
};
use chrono::DateTime;
use domain::{CategoryId, NewPet, PetName};
use proptest::prelude::*;

use super::*;

fn pet(id: i64, status: Option<PetStatus>) -> Pet {
    let name = PetName::new(format!("Rex {id}")).unwrap();
    let details = NewPet { name, category_id: CategoryId(50 - id), status };
    Pet { id: PetId::new(id).unwrap(), details }
}

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
    let status = prop::option::of(prop::sample::select(PetStatus::ALL.to_vec()));
    prop::collection::vec((prop_oneof![Just(1_i64), 1_i64..5], status), 0..60).prop_map(|steps| {
        let mut id = 0;
        steps
            .into_iter()
            .map(|(step, status)| {
                id += step;
                pet(id, status)
            })
            .collect()
    })
}

proptest! {
    #[test]
    fn a_page_is_the_first_matching_pets_after_an_id(
        pets in any_pets(),
        limit in 1..=100_usize,
        status in prop::option::of(prop::sample::select(PetStatus::ALL.to_vec())),
        after in prop::option::of(1..200_i64),
    ) {
        let matching: Vec<_> = pets.iter()
            .filter(|pet| after.is_none_or(|after| pet.id.get() > after))
            .filter(|pet| status.is_none() || pet.details.status == status)
            .cloned()
            .collect();
        let all = ListPets { limit: Limit::new(limit).unwrap(), ..Default::default() };
        let query = ListPets { status, after: after.map(|id| PetId::new(id).unwrap()), ..all };
        let (shown, next) = holding(&pets).list(&query);
        let expected = &matching[..limit.min(matching.len())];
        prop_assert_eq!(&shown, expected);
        let more = matching.len() > limit;
        prop_assert_eq!(next, expected.last().filter(|_| more).map(|pet| pet.id));
    }

    #[test]
    fn a_pet_is_found_by_its_id_alone(pets in any_pets(), id in 1..200_i64) {
        let id = PetId::new(id).unwrap();
        let expected = pets.iter().find(|pet| pet.id == id).cloned();
        prop_assert_eq!(holding(&pets).get(id), expected);
    }
}

#[test]
fn a_rare_status_is_found_however_far_away_it_is() {
    let rare = |id| if id == 1 || id == 19_999 { Some(PetStatus::Sold) } else { None };
    let pets: Vec<_> = (1..=20_000).map(|id| pet(id, rare(id))).collect();
    let query = ListPets { status: Some(PetStatus::Sold), ..Default::default() };
    let (shown, next) = holding(&pets).list(&query);
    assert_eq!((shown, next), (vec![pets[0].clone(), pets[19_998].clone()], None));
}

#[test]
fn pages_reach_across_chunks() {
    let pets: Vec<_> = (1..=10_000)
        .zip(PetStatus::ALL.map(Some).into_iter().chain([None]).cycle())
        .map(|(id, status)| pet(id, status))
        .collect();
    let model = holding(&pets);
    for status in [None, Some(PetStatus::Available), Some(PetStatus::Pending), Some(PetStatus::Sold)] {
        let expected: Vec<_> =
            pets.iter().filter(|pet| status.is_none() || pet.details.status == status).cloned().collect();
        let mut walked = Vec::new();
        let mut query = ListPets { limit: Limit::new(100).unwrap(), status, ..Default::default() };
        loop {
            let (shown, next) = model.list(&query);
            walked.extend(shown);
            query.after = next;
            if next.is_none() {
                break;
            }
        }
        assert_eq!(walked, expected, "{status:?}");
        // Chunks hold 4,096 pets.
        for after in [4_095, 4_096, 4_097, 8_192, 9_999, 10_000, i64::MAX] {
            query.after = Some(PetId::new(after).unwrap());
            let rest = expected.iter().filter(|pet| pet.id.get() > after);
            let shown: Vec<_> = rest.clone().take(100).cloned().collect();
            let next = shown.last().map(|pet| pet.id).filter(|_| rest.count() > 100);
            assert_eq!(model.list(&query), (shown, next), "{status:?} after {after}");
        }
    }
}
