//! The identity behind an API key, and its permissions.

use std::{
    fmt,
    str::FromStr,
    sync::{Arc, atomic::AtomicU64},
};

use application::OwnerId;
use serde::{Deserialize, Serialize};

use super::rate_limit::Allowance;

/// Identifies an API key without revealing it. Derived from its hash, so it is the same on every node.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyId(pub Arc<str>);

impl KeyId {
    /// The owner of a new key. A rotated key keeps the owner of its predecessor.
    pub fn as_owner(&self) -> OwnerId {
        OwnerId(self.0.clone())
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// An authenticated client.
#[derive(Debug, Clone)]
pub struct Principal {
    /// The key that was used.
    pub id: KeyId,
    /// The owner. Rotation passes the owner on to the new key, so events and idempotency keys belong to the owner, not to
    /// the key.
    pub owner: OwnerId,
    /// The name that the operator gave it.
    pub name: String,
    /// Its permissions.
    pub scopes: Scopes,
    /// The remaining requests, if it has a rate limit.
    pub allowance: Option<Arc<Allowance>>,
    /// Its usage so far.
    pub usage: Arc<KeyUsage>,
}

/// The usage of a key since startup.
#[derive(Debug, Default)]
pub struct KeyUsage {
    /// Requests with this key.
    pub requests: AtomicU64,
    /// Requests rejected by the rate limit.
    pub limited: AtomicU64,
    /// Calls of deprecated operations.
    pub deprecated: AtomicU64,
}

/// A rejected key, with its id and name if it was ever issued. Only the service log shows the reason; the client learns
/// only that the key is not valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RejectedKey {
    /// The key was never issued.
    Unknown,
    /// The key has expired, or the overlap after its rotation has ended.
    Expired(KeyId, String),
    /// The key was revoked.
    Revoked(KeyId, String),
}

impl RejectedKey {
    /// The reason in one word.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Expired(..) => "expired",
            Self::Revoked(..) => "revoked",
        }
    }

    /// The id and the name of the key, if it was ever issued.
    pub fn key(&self) -> Option<(&KeyId, &str)> {
        match self {
            Self::Unknown => None,
            Self::Expired(id, name) | Self::Revoked(id, name) => Some((id, name)),
        }
    }
}

/// The permissions of a key. The set is never empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scopes(u8);

/// One permission of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// List and get pets.
    Read,
    /// Create pets.
    Write,
    /// Read the stored records of the log.
    Log,
    /// Read the metrics.
    Metrics,
}

impl Scopes {
    /// The default: list, get and create pets.
    pub const READ_WRITE: Self = Self(Scope::Read.bit() | Scope::Write.bit());

    /// The set of these scopes, or `None` if there are none.
    pub fn new(scopes: impl IntoIterator<Item = Scope>) -> Option<Self> {
        let bits = scopes.into_iter().fold(0, |bits, scope| bits | scope.bit());
        (bits != 0).then_some(Self(bits))
    }

    /// Whether the set contains `scope`.
    pub fn allow(self, scope: Scope) -> bool {
        self.0 & scope.bit() != 0
    }

    /// The scopes, in the order of [`Scope::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Scope> {
        Scope::ALL.into_iter().filter(move |scope| self.allow(*scope))
    }
}

impl From<Scope> for Scopes {
    fn from(scope: Scope) -> Self {
        Self(scope.bit())
    }
}

impl fmt::Display for Scopes {
    /// Writes the scopes with commas between them.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.iter().map(|scope| scope.to_string()).collect();
        formatter.write_str(&names.join(","))
    }
}

impl Scope {
    /// All scopes.
    pub const ALL: [Self; 4] = [Self::Read, Self::Write, Self::Log, Self::Metrics];

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(formatter)
    }
}

impl FromStr for Scope {
    type Err = &'static str;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let named = Self::ALL.into_iter().find(|scope| scope.to_string() == name);
        named.ok_or("expected read, write, log or metrics")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_allows_exactly_the_scopes_that_were_put_into_it() {
        for chosen in 1..1_usize << Scope::ALL.len() {
            let chosen = |scope: &Scope| {
                let index = Scope::ALL.iter().position(|other| other == scope).unwrap();
                chosen & (1 << index) != 0
            };
            let wanted: Vec<Scope> = Scope::ALL.into_iter().filter(chosen).collect();
            let set = Scopes::new(wanted.iter().copied().rev()).unwrap();
            assert_eq!(set.iter().collect::<Vec<_>>(), wanted);
        }
        assert_eq!(Scopes::new([]), None);
    }

    #[test]
    fn a_scope_has_the_same_name_on_the_command_line_and_in_the_key_file() {
        for scope in Scope::ALL {
            let name = scope.to_string();
            assert_eq!(name.parse(), Ok(scope));
            assert_eq!(serde_json::to_value(scope).unwrap(), name);
        }
    }
}
