//! Everything a user can see, tested on the real program or on the crates' public interfaces.

mod engines_nats;
mod writer;
