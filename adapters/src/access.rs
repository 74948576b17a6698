//! Access control: authenticates API keys, and limits what and how often they may use. The HTTP adapter calls it at
//! every request; the application knows only the owners of keys.
//!
//! Reading order: [`Authenticator`] (the interface), [`Principal`] (an authenticated key), [`RateLimit`] and
//! [`Allowance`], [`api_keys`] (the key file, the only implementation in production).

pub mod api_keys;
mod principal;
mod rate_limit;

use std::sync::Arc;

use chrono::{DateTime, Utc};

pub use self::{
    principal::{KeyId, KeyUsage, Principal, RejectedKey, Scope, Scopes},
    rate_limit::{Allowance, Balance, RateLimit},
};

/// Authenticates API keys.
pub trait Authenticator: Send + Sync + 'static {
    /// Returns the principal of this key if it is valid now: known, not revoked, not expired.
    fn authenticate(&self, key: &str) -> Result<Arc<Principal>, RejectedKey>;

    /// Returns the scopes that a key has now, by its id, or rejects it if it is no longer valid. Called again before a write
    /// and during long responses.
    fn check(&self, id: &KeyId) -> Result<Scopes, RejectedKey>;

    /// The principals of all keys, for metrics.
    fn principals(&self) -> Vec<Arc<Principal>> {
        vec![]
    }

    /// The next expiry of each key name, for metrics. Names without a key that expires are absent.
    fn expiries(&self) -> Vec<(String, DateTime<Utc>)> {
        vec![]
    }

    /// Whether the key file can be read, so that changes of it take effect, for metrics.
    fn is_usable(&self) -> bool {
        true
    }
}
