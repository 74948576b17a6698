//! The commands and their outcomes.

use domain::{IdsExhausted, NewPet, Pet};
use thiserror::Error;

use crate::{
    log::commit::{OwnerId, RequestKey},
    ports::Fault,
};

/// A request to add a pet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreatePet {
    /// The pet to add.
    pub pet: NewPet,
    /// The owner of the API key.
    pub by: OwnerId,
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

/// An error of a command, named by what the caller does next.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum WriteError {
    /// Too many requests are waiting: retry.
    #[error("too many requests are waiting")]
    Busy,
    /// Nothing can be written now. The change may still be stored if the reply of the log was lost.
    #[error("{0}")]
    Unavailable(Fault),
    /// The request key was used for another pet: choose a new one.
    #[error("the key was used for another pet")]
    RequestKeyReused,
    /// The pet limit has been reached.
    #[error("the pet limit has been reached; contact the operator")]
    PetLimitReached,
    /// All ids are assigned.
    #[error(transparent)]
    IdsExhausted(#[from] IdsExhausted),
}
