//! The real program on a real socket and a real disk, for every test that needs one.

mod app;
mod http;
mod program;

pub use app::App;
pub use http::{Answer, Call, raw};
pub use program::{Finished, eventually, petstore, program, release_program};
