//! The real program on a real socket and a real disk, for every test that needs one.

mod browser;
mod http;
mod program;
mod tools;

pub use browser::Browser;
pub use http::{Answer, Call, raw};
pub use program::{App, Finished, eventually, petstore, program, release_program};
pub use tools::{python_tool, root, succeed};
