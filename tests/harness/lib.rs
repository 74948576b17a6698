//! The real program on a real socket and a real disk, for every test that needs one.

mod http;
mod program;

pub use http::{Answer, Call, raw};
pub use program::{App, Finished, petstore, program, release_program};
