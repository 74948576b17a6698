//! The caller: the identity behind an API key, and what it may do.

use std::{
    fmt,
    sync::{Arc, atomic::AtomicU64},
};

use application::KeyId;
use serde::{Deserialize, Serialize};

use super::allowance::Allowance;

/// An authenticated caller.
#[derive(Debug, Clone)]
pub struct Principal {
    /// The key that was used.
    pub id: KeyId,
    /// Who uses it: the id of the first key that this owner was issued. A key that replaces another keeps its
    /// owner, so events and remembered requests belong to the owner and not to the key.
    pub owner: KeyId,
    /// What the operator called it.
    pub name: String,
    /// What it may do.
    pub scopes: Scopes,
    /// How many requests it may still send, if that is limited.
    pub allowance: Option<Arc<Allowance>>,
    /// What it has done so far.
    pub usage: Arc<KeyUsage>,
}

/// How a key was used since the service started.
#[derive(Debug, Default)]
pub struct KeyUsage {
    /// Requests that came with it.
    pub requests: AtomicU64,
    /// Those of them that were one too many.
    pub limited: AtomicU64,
}

/// Why a key is refused, with its id and name if it was ever issued. The log of the service says it; the caller learns only
/// that the key is not valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RejectedKey {
    /// No such key was ever issued.
    Unknown,
    /// It has expired, or another key has replaced it.
    Expired(KeyId, String),
    /// It was revoked.
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

/// What a key may do. The set is never empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scopes(u8);

/// One thing a key may be allowed to do.
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
    /// List, get and create pets: what a key may do unless somebody says otherwise.
    pub const READ_WRITE: Self = Self(Scope::Read.bit() | Scope::Write.bit());

    /// The set of these scopes, or `None` if there are none.
    pub fn new(scopes: impl IntoIterator<Item = Scope>) -> Option<Self> {
        let bits = scopes.into_iter().fold(0, |bits, scope| bits | scope.bit());
        (bits != 0).then_some(Self(bits))
    }

    /// Whether `scope` is among them.
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
        self.iter().enumerate().try_for_each(|(index, scope)| {
            let comma = if index == 0 { "" } else { "," };
            write!(formatter, "{comma}{scope}")
        })
    }
}

impl Scope {
    /// Every scope there is.
    pub const ALL: [Self; 4] = [Self::Read, Self::Write, Self::Log, Self::Metrics];

    const fn bit(self) -> u8 {
        match self {
            Self::Read => 1,
            Self::Write => 2,
            Self::Log => 4,
            Self::Metrics => 8,
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Log => "log",
            Self::Metrics => "metrics",
        })
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
    fn a_refused_key_is_named_if_it_was_ever_issued() {
        let id = KeyId("3f9a1c04b7de".into());
        let [unknown, expired, revoked] = [
            RejectedKey::Unknown,
            RejectedKey::Expired(id.clone(), "shop".into()),
            RejectedKey::Revoked(id.clone(), "shop".into()),
        ];
        assert_eq!((unknown.reason(), unknown.key()), ("unknown", None));
        assert_eq!((expired.reason(), expired.key()), ("expired", Some((&id, "shop"))));
        assert_eq!((revoked.reason(), revoked.key()), ("revoked", Some((&id, "shop"))));
    }

    #[test]
    fn the_id_of_a_key_is_written_as_it_is() {
        assert_eq!(KeyId("3f9a1c04b7de".into()).to_string(), "3f9a1c04b7de");
    }

    #[test]
    fn a_set_is_written_with_commas() {
        assert_eq!(Scopes::READ_WRITE.to_string(), "read,write");
        assert_eq!(Scopes::from(Scope::Write).to_string(), "write");
    }
}
