//! Pets and their rules: values that are valid by construction, events that record changes, and the inventory that
//! makes decisions. Pure: no I/O, no clock, no serialisation.
//!
//! Reading order: [`pet`](Pet) (the values), [`event`](PetEvent) (what can happen), [`inventory`](Inventory)
//! (the decisions).

mod event;
mod inventory;
mod pet;
#[cfg(any(test, feature = "test-values"))]
pub mod test_values;

pub use event::PetEvent;
pub use inventory::{Contradiction, IdsExhausted, Inventory};
pub use pet::{CategoryId, NewPet, Pet, PetId, PetName, PetStatus};
