//! The API under `/v1`: handlers, their extractors, and the encoding of pets.

pub(crate) mod conditional;
mod field;
mod idempotency;
mod json_body;
mod list_query;
pub(crate) mod log_position;
mod new_pet;
pub(crate) mod number;
pub(crate) mod openapi;
mod pet_json;
pub(crate) mod pets;
