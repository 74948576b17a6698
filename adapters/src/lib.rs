//! The adapters: HTTP, storage engines, read model, API keys, clock. The modules never use each other,
//! except for the leaves `private_files` and `service_client`; `bin` connects them.

pub mod api_keys;
pub mod event_log;
pub mod first_commit;
pub mod http;
mod private_files;
pub mod read_model;
pub mod service_client;
pub mod system;
