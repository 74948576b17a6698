//! Everything a user can see, tested on the real program or on the crates' public interfaces.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod architecture;
mod authentication;
mod caching;
mod cors;
mod create_pet;
mod docs_page;
mod errors;
mod get_pet;
mod idempotency;
mod list_pets;
mod metrics;
mod openapi;
mod program;
mod restart;
mod state_machine;
mod transfer;
mod writer;
