//! The use cases of the pet store, and what they need from outside.
//!
//! Reading order: [`PetStore`] (the use cases), [`ports`] (what they need), `writer` (how a pet gets into the
//! log), `decision` (how requests become a commit), `node_state` (the only place where state changes),
//! `replica` (how a node reads the log), `replay` (how it applies much of it fast), [`codec`] (the record format), [`contract`] (what every log must do).

mod backoff;
pub mod codec;
mod commands;
pub mod commit;
#[cfg(feature = "contract")]
pub mod contract;
mod decision;
mod digest;
mod health;
mod history;
mod idempotency;
mod log_position;
mod node_state;
mod page;
mod pet_store;
pub mod ports;
mod replay;
mod replica;
mod statistics;
pub mod transfer;
mod write_fairness;
mod writer;

pub use backoff::Backoff;
pub use commands::{CreatePet, Created, WriteError};
pub use commit::KeyId;
pub use digest::{Digest, InvalidDigest};
pub use health::Health;
pub use idempotency::{InvalidRequestKey, RequestKey};
pub use log_position::{HASH_PREFIX, LogPosition};
pub use page::{Limit, LimitOutOfRange, ListPets, PageEnd, PetView};
pub use pet_store::{LogAccess, NotCaughtUp, Options, PetStore};
pub use ports::Version;
pub use replay::ReplayProgress;
pub use statistics::{Histogram, Statistics};
