//! The interface between the HTTP adapter and the API keys.

use std::sync::Arc;

use application::KeyId;

use super::principal::{Principal, RejectedKey, Scopes};

/// Authenticates API keys.
pub trait Authenticator: Send + Sync + 'static {
    /// Returns the principal of this key if it is valid now: known, not revoked, not expired. Takes the same time for
    /// every unknown key.
    fn authenticate(&self, key: &str) -> Result<Arc<Principal>, RejectedKey>;

    /// Returns the scopes that a key has now, by its id, or rejects it if it is no longer valid. Called again before a write
    /// and during long responses.
    fn check(&self, id: &KeyId) -> Result<Scopes, RejectedKey>;

    /// The principals of all keys, for metrics.
    fn principals(&self) -> Vec<Arc<Principal>> {
        vec![]
    }

    /// How often the keys were reloaded since startup.
    fn reloads(&self) -> KeyReloads {
        KeyReloads::default()
    }
}

/// The number of reloads of changed key files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeyReloads {
    /// Successful reloads.
    pub loaded: u64,
    /// Failed reloads.
    pub failed: u64,
}
