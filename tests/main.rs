//! Everything a user can see, tested on the real program or on the crates' public interfaces.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod architecture;
mod authentication;
mod create_pet;
mod errors;
mod get_pet;
mod idempotency;
mod list_pets;
mod program;
mod restart;
mod simulation;
mod state_machine;
mod trouble;
mod writer;
