//! The use cases of the pet store, and the ports that they need.
//!
//! Reading order: [`PetStore`] (the use cases), [`ports`] (the interfaces to adapters), `node/writer` (how a pet gets
//! into the log), `node/decision` (how requests become a commit), `node/state` (the only place where state changes),
//! `node/follower` (how a node reads the log), `node/replay` (fast startup), [`log::codec`] (the record format),
//! [`log::contract`] (the rules that every log must follow).

mod backoff;
mod commands;
pub mod log;
mod node;
mod page;
mod pet_store;
pub mod ports;
mod statistics;
pub mod transfer;

pub use backoff::Backoff;
pub use commands::{CreatePet, Created, WriteError};
pub use log::{
    commit::{OwnerId, RequestKey},
    digest::Digest,
    position::{HASH_PREFIX, LogPosition},
};
pub use node::{applied::NotCaughtUp, health::Health};
pub use page::{Limit, ListPets, Page};
pub use pet_store::{LogAccess, Options, PetStore};
pub use ports::Version;
pub use statistics::{Histogram, Statistics};
