//! The adapters: HTTP, storage engines, read model, API keys, clock. The modules never use each other; `bin` connects
//! them.

pub mod api_keys;
pub mod event_log;
pub mod http;
pub mod read_model;
pub mod system;
