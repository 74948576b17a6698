//! What can happen to a pet.

use crate::Pet;

/// A fact about the inventory. Facts are never changed or taken back; the log of them is the only durable
/// state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PetEvent {
    /// A pet was added to the inventory.
    Added(Pet),
}
