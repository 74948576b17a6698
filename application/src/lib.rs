//! The use cases of the pet store, and the ports that they need.
//!
//! Reading order: [`PetStore`] (the use cases), [`ports`] (the interfaces to adapters), `writer` (how a pet gets into
//! the log), `decision` (how requests become a commit), `node_state` (the only place where state changes), `replica`
//! (how a node reads the log), `replay` (fast startup), [`codec`] (the record format), [`contract`] (the rules that
//! every log must follow).

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
pub use digest::Digest;
pub use health::Health;
pub use idempotency::{InvalidRequestKey, RequestKey};
pub use log_position::{HASH_PREFIX, LogPosition};
pub use page::{Limit, LimitOutOfRange, ListPets, Page};
pub use pet_store::{LogAccess, NotCaughtUp, Options, PetStore};
pub use ports::Version;
pub use replay::ReplayProgress;
pub use statistics::{Histogram, Statistics};
