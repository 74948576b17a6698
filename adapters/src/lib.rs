//! What connects the application to the world. The modules know the application, never each other.

pub mod api_keys;
