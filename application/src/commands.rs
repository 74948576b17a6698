//! The request to add a pet, and its outcome.

use domain::{IdsExhausted, NewPet, Pet};
use thiserror::Error;

use crate::{idempotency::RequestKey, key_id::KeyId, ports::Fault};

/// Asks for a pet to be added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreatePet {
    /// The pet to add.
    pub pet: NewPet,
    /// The API key that asks.
    pub by: KeyId,
    /// Makes the request safe to repeat.
    pub request_key: Option<RequestKey>,
}

/// A pet that was added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Created {
    /// The pet with its id.
    pub pet: Pet,
    /// Whether an earlier request with the same key added it.
    pub replayed: bool,
}

/// Why a pet was not added, named by what the caller does next.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CreateError {
    /// Too many wait already: come back in a moment.
    #[error("too many requests are waiting")]
    Busy,
    /// Nothing can be written for now. The pet may still appear if the answer of the log was lost.
    #[error("{0}")]
    Unavailable(Fault),
    /// The request key was used for another pet: choose a new one.
    #[error("the key was used for another pet")]
    RequestKeyReused,
    /// There are as many pets as the operator allows: remove the limit, or go elsewhere.
    #[error("the pet limit has been reached; contact the operator")]
    Full,
    /// No more pets fit into this inventory.
    #[error(transparent)]
    IdsExhausted(#[from] IdsExhausted),
}
