//! What a pet is and what may happen to it: values that are valid by construction, the events that
//! record what happened, and the inventory that decides. Pure: no I/O, no clock, no serialisation.
//!
//! Reading order: [`pet`](Pet) (the values), [`event`](PetEvent) (what can happen), [`inventory`](Inventory)
//! (who decides).

mod event;
mod inventory;
mod pet;

pub use event::PetEvent;
pub use inventory::{Contradiction, IdsExhausted, Inventory};
pub use pet::{
    CategoryId, InvalidPetId, InvalidPetName, NewPet, Pet, PetId, PetName, PetStatus, UnknownPetStatus,
};
