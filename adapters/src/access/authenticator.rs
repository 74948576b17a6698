//! What the HTTP adapter needs to know about API keys.

use std::sync::Arc;

use application::KeyId;

use super::principal::{Principal, RejectedKey};

/// Authenticates API keys.
pub trait Authenticator: Send + Sync + 'static {
    /// Returns the owner of this key if it is valid now: known, not revoked, not expired. Takes the same time for every
    /// unknown key.
    fn authenticate(&self, key: &str) -> Result<Arc<Principal>, RejectedKey>;

    /// Rejects a key that is no longer valid, by its id. Asked again before a write and during long responses.
    fn check(&self, id: &KeyId) -> Result<(), RejectedKey>;

    /// The owners of all keys, for operators.
    fn principals(&self) -> Vec<Arc<Principal>> {
        vec![]
    }

    /// How often the keys were read again since the start.
    fn reloads(&self) -> KeyReloads {
        KeyReloads::default()
    }
}

/// The number of changed key files that were read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeyReloads {
    /// Files that are active.
    pub loaded: u64,
    /// Files that could not be used.
    pub failed: u64,
}
