//! The adapters: HTTP, storage engines, read model, access control, clock. The modules do not use each other, except
//! for the leaves `access`, `log_once`, `loopback`, `private_files`, `root_certificates` and `service_client`; `bin` connects them.

pub mod access;
pub mod event_log;
pub mod http;
pub mod log_once;
mod loopback;
mod private_files;
pub mod read_model;
mod root_certificates;
pub mod service_client;
pub mod state_file;
pub mod system;
