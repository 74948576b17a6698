//! One entry of the key file, without the secret.

use std::{fmt, str::FromStr};

use application::OwnerId;
use chrono::{DateTime, Utc};
use serde::Serialize;

use super::key::KeyHash;
use crate::access::{KeyId, RateLimit, Scopes};

/// One entry of the key file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRecord {
    /// Identifies the key.
    pub hash: KeyHash,
    /// The owner: its own id, or the id of the first key in a chain of rotations.
    pub owner: OwnerId,
    /// The name that the operator gave it.
    pub name: KeyName,
    /// Its permissions.
    pub scopes: Scopes,
    /// Its rate limit, if it has one.
    pub rate_limit: Option<RateLimit>,
    /// When it was issued.
    pub created: DateTime<Utc>,
    /// When it expires, if it does.
    pub expires: Option<DateTime<Utc>>,
    /// The end of the overlap with the key that has replaced it.
    pub overlap_until: Option<DateTime<Utc>>,
    /// When it was revoked. A revoked key stays in the file, so that its id keeps its name.
    pub revoked: Option<DateTime<Utc>>,
}

/// Whether a key is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyState {
    /// It is accepted.
    Active,
    /// It has expired.
    Expired,
    /// It was revoked.
    Revoked,
}

/// The name of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyName(String);

impl KeyRecord {
    /// The id of the key, the same on every node.
    pub fn id(&self) -> KeyId {
        self.hash.id()
    }

    /// When the key stops being valid, unless it is revoked before: it expires, or its overlap ends. A revoked key has
    /// no overlap.
    pub fn end(&self) -> Option<DateTime<Utc>> {
        let overlap = self.overlap_until.filter(|_| self.revoked.is_none());
        self.expires.into_iter().chain(overlap).min()
    }

    /// The state of the key at the time `now`.
    pub fn state(&self, now: DateTime<Utc>) -> KeyState {
        if self.revoked.is_some() {
            KeyState::Revoked
        } else if self.end().is_some_and(|end| end <= now) {
            KeyState::Expired
        } else {
            KeyState::Active
        }
    }
}

impl fmt::Display for KeyState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(formatter)
    }
}

impl KeyName {
    /// The maximum length of a name, in Unicode scalar values.
    pub const MAX_CHARS: usize = 100;

    pub(super) fn of_the_first_key() -> Self {
        Self("first-key".to_owned())
    }

    /// The name as it was given.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for KeyName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.chars().all(char::is_whitespace) {
            Err("a name must contain at least one character that is not white space")
        } else if text.chars().nth(Self::MAX_CHARS).is_some() {
            Err("a name must have at most 100 characters")
        } else if text.chars().any(char::is_control) {
            Err("a name must not contain control characters")
        } else {
            Ok(Self(text.to_owned()))
        }
    }
}

impl fmt::Display for KeyName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

#[cfg(test)]
mod tests {
    use crate::access::Scope;
    use chrono::TimeDelta;

    use super::*;
    use crate::access::api_keys::key::ApiKey;

    #[test]
    fn names_of_1_to_100_visible_characters_are_accepted() {
        for text in ["a", "web shop", "Łódź 🐈", &"é".repeat(100)] {
            let name: KeyName = text.parse().unwrap();
            assert_eq!((name.as_str(), &*name.to_string()), (text, text));
        }
        for (text, why) in [
            ("", "white space"),
            (" \u{a0}", "white space"),
            (&*"é".repeat(101), "at most 100 characters"),
            ("a\nb", "control characters"),
            ("\u{1b}[31mred", "control characters"),
        ] {
            assert!(text.parse::<KeyName>().unwrap_err().ends_with(why), "{text:?}");
        }
    }

    #[test]
    fn a_key_is_active_until_it_expires_or_is_revoked() {
        let created = DateTime::UNIX_EPOCH;
        let end = created + TimeDelta::days(1);
        let hash = ApiKey::generate().unwrap().hash();
        let name = "shop".parse().unwrap();
        let mut key = KeyRecord {
            hash,
            owner: hash.id().as_owner(),
            name,
            scopes: Scope::Read.into(),
            rate_limit: None,
            created,
            expires: Some(end),
            overlap_until: None,
            revoked: None,
        };
        assert_eq!(key.state(end - TimeDelta::nanoseconds(1)), KeyState::Active);
        assert_eq!(key.state(end), KeyState::Expired);
        key.overlap_until = Some(created);
        assert_eq!(key.state(created), KeyState::Expired, "the key that replaced it is the only one");
        key.overlap_until = Some(end + TimeDelta::days(1));
        assert_eq!(key.state(end), KeyState::Expired, "no overlap makes a key last longer");
        key.revoked = Some(created);
        assert_eq!(key.state(created), KeyState::Revoked);
        assert_eq!(key.state(end), KeyState::Revoked);
    }
}
