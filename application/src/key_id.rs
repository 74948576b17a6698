//! The id of an API key, which an event records as its owner. Everything else about keys is the adapters' concern.

use std::{fmt, sync::Arc};

/// Identifies an API key without revealing it. Derived from the key's hash, so it is the same on every node.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyId(pub Arc<str>);

impl fmt::Display for KeyId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}
