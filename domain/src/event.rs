//! The events of the inventory.

use crate::Pet;

/// An event. Events are never changed or removed; the log of events is the only durable state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PetEvent {
    /// A pet was added to the inventory.
    Added(Pet),
}

impl PetEvent {
    /// The pet that the event added, if it added one.
    pub fn added(&self) -> Option<&Pet> {
        match self {
            Self::Added(pet) => Some(pet),
        }
    }
}
