//! Who asks: the identity behind an API key and what it may do.

use std::{fmt, sync::Arc};

/// Identifies an API key without telling it. Derived from the key's hash, so it is the same on every node.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyId(pub Arc<str>);

impl fmt::Display for KeyId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// An authenticated caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// The key that was used.
    pub id: KeyId,
    /// What the operator called it.
    pub name: String,
    /// What it may do.
    pub scopes: Scopes,
}

/// What a key may do. A key without any scope cannot exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scopes {
    /// List and get.
    Read,
    /// Create.
    Write,
    /// Everything.
    ReadWrite,
}

/// One thing a key may be allowed to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// List and get.
    Read,
    /// Create.
    Write,
}

impl Scopes {
    /// Whether `scope` is among them.
    pub fn allow(self, scope: Scope) -> bool {
        match (self, scope) {
            (Self::ReadWrite, Scope::Read | Scope::Write)
            | (Self::Read, Scope::Read)
            | (Self::Write, Scope::Write) => true,
            (Self::Read, Scope::Write) | (Self::Write, Scope::Read) => false,
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
        })
    }
}
