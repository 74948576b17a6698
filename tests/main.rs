//! Everything a user can see, tested on the real program or on the crates' public interfaces.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod architecture;
mod authentication;
mod caching;
mod clients;
mod copy_circle;
mod cors;
mod crash;
mod create_pet;
mod docs_page;
mod engines;
mod engines_nats;
mod engines_sql;
mod errors;
mod file_engine;
mod file_log;
mod fuzzing;
mod get_pet;
mod http2;
mod idempotency;
mod inventory_page;
mod key_rotation;
mod list_pets;
mod metrics;
mod nodes;
mod openapi;
mod planted_bugs;
mod planted_links;
mod program;
mod raw;
mod restart;
mod simulation;
mod state_machine;
mod transfer;
mod trouble;
mod writer;
