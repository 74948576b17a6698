//! The versions that `petstore --version` prints: the binary, and the formats that `docs/versioning.md` covers.

use std::sync::LazyLock;

use adapters::{access::api_keys::KEY_FILE_VERSION, http::API_VERSION};
use application::codec;

/// The version, and one line for each format.
pub(crate) static LONG: LazyLock<String> = LazyLock::new(|| {
    let (version, format) = (env!("CARGO_PKG_VERSION"), codec::FORMAT);
    format!("{version}\nAPI {API_VERSION}\nrecord format {format}\nkey file {KEY_FILE_VERSION}")
});
