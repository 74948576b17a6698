//! What connects the application to the world. The modules never use each other; `bin` wires them together.

pub mod api_keys;
pub mod event_log;
pub mod http;
pub mod read_model;
pub mod system;
