//! What connects the application to the world. The modules never use each other, except for the leaf
//! `private_files`; `bin` wires them together.

pub mod api_keys;
pub mod event_log;
pub mod http;
mod private_files;
pub mod read_model;
pub mod system;
