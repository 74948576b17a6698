//! The aggregate: decides which event a command causes, and keeps only the state that decisions need.

use thiserror::Error;

use crate::{NewPet, Pet, PetEvent, PetId};

/// All pets as one consistency boundary. It keeps only the assigned ids; the pets themselves are in the read model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inventory {
    last_id: Option<PetId>,
}

/// The error for a new pet when all ids are assigned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("all pet ids have been assigned")]
pub struct IdsExhausted;

/// An event that contradicts the previous ones: the history is incomplete, or petstore did not write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Contradiction {
    /// The id of an added pet is not greater than all previous ids.
    #[error("pet {added} was added, but ids up to {last} are already taken", added = added.get(), last = last.get())]
    IdTaken {
        /// The id that was added.
        added: PetId,
        /// The last id before it.
        last: PetId,
    },
}

impl Inventory {
    /// Returns the event that adds this pet, with the next id. Does not change the state.
    pub fn create(&self, details: NewPet) -> Result<PetEvent, IdsExhausted> {
        let id = match self.last_id {
            None => PetId::FIRST,
            Some(last) => last.next().ok_or(IdsExhausted)?,
        };
        Ok(PetEvent::Added(Pet { id, details }))
    }

    /// Applies an event. An event that contradicts the previous ones is an error and changes nothing.
    pub fn apply(&mut self, event: &PetEvent) -> Result<(), Contradiction> {
        match event {
            PetEvent::Added(Pet { id, .. }) => match self.last_id {
                Some(last) if *id <= last => Err(Contradiction::IdTaken { added: *id, last }),
                Some(_) | None => {
                    self.last_id = Some(*id);
                    Ok(())
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::test_values::{self, any_new_pet, named};

    fn rex() -> NewPet {
        named("Rex")
    }

    fn added(id: i64) -> PetEvent {
        test_values::added(id, rex())
    }

    /// An inventory to which pets with these ids were added.
    fn given(ids: impl IntoIterator<Item = i64>) -> Inventory {
        let mut inventory = Inventory::default();
        for id in ids {
            inventory.apply(&added(id)).unwrap();
        }
        inventory
    }

    #[test]
    fn ids_count_up_from_the_last_one_until_they_run_out() {
        assert_eq!(given([]).create(rex()), Ok(added(1)));
        assert_eq!(given([1, 7]).create(rex()), Ok(added(8)));
        assert_eq!(given([i64::MAX]).create(rex()), Err(IdsExhausted));
    }

    #[test]
    fn an_id_that_is_taken_contradicts_the_history() {
        let mut inventory = given([1, 7]);
        let before = inventory.clone();
        for id in [1, 6, 7] {
            let contradiction =
                Contradiction::IdTaken { added: PetId::new(id).unwrap(), last: PetId::new(7).unwrap() };
            assert_eq!(inventory.apply(&added(id)), Err(contradiction), "id {id}");
        }
        assert_eq!(inventory, before, "a rejected event changes nothing");
    }

    /// Adds the pets one after another: decides on each and applies the event.
    fn live(pets: Vec<NewPet>) -> (Inventory, Vec<PetEvent>) {
        let mut inventory = Inventory::default();
        let mut history = Vec::new();
        for details in pets {
            let event = inventory.create(details).unwrap();
            inventory.apply(&event).expect("a decision never contradicts the state it was made on");
            history.push(event);
        }
        (inventory, history)
    }

    proptest! {
        #[test]
        fn ids_rise_and_a_replay_gives_the_same_state(pets in prop::collection::vec(any_new_pet(), 0..50)) {
            let (lived, history) = live(pets);
            let ids: Vec<_> = history.iter().filter_map(PetEvent::added).map(|pet| pet.id).collect();
            prop_assert!(ids.is_sorted_by(|earlier, later| earlier < later), "no id is used twice");
            let mut replayed = Inventory::default();
            for event in &history {
                replayed.apply(event).unwrap();
            }
            prop_assert_eq!(replayed, lived);
        }

        #[test]
        fn a_decision_never_contradicts_any_possible_history(
            mut taken in prop::collection::btree_set(1..i64::MAX, 0..20),
            pet in any_new_pet(),
        ) {
            let mut inventory = given(taken.iter().copied());
            let event = inventory.create(pet.clone()).unwrap();
            prop_assert_eq!(inventory.apply(&event), Ok(()));
            let decided = event.added().unwrap();
            prop_assert!(taken.insert(decided.id.get()), "the id was free");
            prop_assert_eq!(&decided.details, &pet, "the pet is what was asked for");
        }
    }
}
