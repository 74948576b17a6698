//! The use cases of the pet store and what they need from the world.
//!
//! Reading order: [`PetStore`] (what can be asked), [`ports`] (what is needed), `writer` (how a pet gets into
//! the log), `decision` (what it becomes there), `projection` (the one place where state changes), `replica`
//! (how the log gets into a node), [`codec`] (the language of the log), [`contract`] (what every log must do).

mod clock_watch;
pub mod codec;
pub mod commit;
#[cfg(feature = "contract")]
pub mod contract;
mod create;
mod decision;
mod digest;
mod health;
mod history;
mod idempotency;
mod log_clock;
mod options;
mod page;
mod pet_store;
pub mod ports;
mod principal;
mod projection;
mod rate_limit;
mod replica;
pub mod transfer;
mod turns;
mod writer;

pub use create::{CreateError, CreatePet, Created};
pub use decision::WriteFormat;
pub use digest::{Digest, InvalidDigest};
pub use health::Health;
pub use idempotency::{InvalidRequestKey, RequestKey};
pub use options::Options;
pub use page::{Limit, LimitOutOfRange, ListPets, Page};
pub use pet_store::{NotCaughtUp, PetStore};
pub use ports::Version;
pub use principal::{KeyId, Principal, RefusedKey, Scope, Scopes};
pub use rate_limit::{InvalidRateLimit, RateLimit};
pub use turns::Sharing;
