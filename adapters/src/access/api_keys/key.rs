//! An API key: the secret, its hash, and its entry in the key file. Only this file interprets the text of a key; to
//! compare and store keys, all other code uses the hash.

use std::{fmt, str::FromStr, sync::LazyLock};

use application::{Digest, OwnerId};
use chrono::{DateTime, Utc};
use data_encoding::{Encoding, HEXLOWER, Specification};
use serde::Serialize;

use crate::access::{KeyId, RateLimit, Scopes};

/// A new API key in clear text. It is shown once, and only the first key is also written to a file.
pub struct ApiKey(String);

/// The SHA-256 of a key's text: enough to recognise the key, but not to forge it. Comparison need not take constant
/// time: timing could reveal at most a hash, and a key cannot be computed from its hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyHash([u8; 32]);

/// The size of an id: twelve hex digits, short enough to type, long enough that two of ten thousand keys hardly ever
/// share an id.
const ID_BYTES: usize = 6;

/// The prefix of every key, by which people and secret scanners recognise it. A double click selects the underscore and
/// the digits together.
pub(crate) const KEY_PREFIX: &str = "petstore_";
/// 200 random bits. They fill exactly 40 digits, and the whole key fits into one SHA-256 block.
const RANDOM_BYTES: usize = 25;
/// Crockford's base 32 in lower case: without `i`, `l`, `o` and `u`, no two digits look alike.
const ALPHABET: &str = "0123456789abcdefghjkmnpqrstvwxyz";
static BASE_32: LazyLock<Encoding> = LazyLock::new(|| {
    let mut digits = Specification::new();
    digits.symbols.push_str(ALPHABET);
    digits.encoding().expect("the alphabet has 32 different digits")
});

impl ApiKey {
    /// Generates a random key.
    pub fn generate() -> Result<Self, getrandom::Error> {
        let mut random = [0; RANDOM_BYTES];
        getrandom::fill(&mut random)?;
        Ok(Self::from_random(random))
    }

    /// Whether the text contains a key.
    pub fn is_in(text: &str) -> bool {
        text.split(KEY_PREFIX).skip(1).any(|rest| {
            let digits = rest.bytes().take_while(u8::is_ascii_alphanumeric).count();
            digits >= BASE_32.encode_len(RANDOM_BYTES)
        })
    }

    /// The text of the key, to be shown only to its owner.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// The hash that is stored instead of the key.
    pub fn hash(&self) -> KeyHash {
        KeyHash::of_text(&self.0)
    }

    fn from_random(random: [u8; RANDOM_BYTES]) -> Self {
        Self(format!("{KEY_PREFIX}{}", BASE_32.encode(&random)))
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "ApiKey({}, secret hidden)", self.hash().id())
    }
}

impl KeyHash {
    /// The hash of a key, or `None` if the text does not begin like one.
    pub fn of_presented(text: &str) -> Option<Self> {
        text.starts_with(KEY_PREFIX).then(|| Self::of_text(text))
    }

    /// The id of the key with this hash.
    pub fn id(&self) -> KeyId {
        KeyId(HEXLOWER.encode(&self.0[..ID_BYTES]).into())
    }

    pub(super) fn of_text(text: &str) -> Self {
        Self(Digest::of(text.as_bytes()).0)
    }

    /// Parses the text of a hash: 64 lower-case hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        HEXLOWER.decode(text.as_bytes()).ok()?.try_into().ok().map(Self)
    }
}

impl fmt::Display for KeyHash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        HEXLOWER.encode_display(&self.0).fmt(formatter)
    }
}

pub(super) fn is_id(text: &str) -> bool {
    HEXLOWER.decode(text.as_bytes()).is_ok_and(|id| id.len() == ID_BYTES)
}

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
    use chrono::TimeDelta;
    use proptest::prelude::*;

    use super::*;
    use crate::access::Scope;

    fn any_key() -> impl Strategy<Value = ApiKey> {
        any::<[u8; RANDOM_BYTES]>().prop_map(ApiKey::from_random)
    }

    proptest! {
        #[test]
        fn every_key_is_recognised_by_its_prefix(key in any_key()) {
            prop_assert_eq!(KeyHash::of_presented(key.reveal()), Some(key.hash()));
            prop_assert_eq!(KeyHash::of_presented(&key.hash().id().0), None);
        }

        #[test]
        fn a_double_click_selects_the_whole_key(key in any_key()) {
            prop_assert!(key.reveal().bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_'));
        }

        #[test]
        fn a_hash_is_read_back_from_its_text(key in any_key()) {
            prop_assert_eq!(KeyHash::parse(&key.hash().to_string()), Some(key.hash()));
        }
    }

    #[test]
    fn the_format_of_keys_never_changes() {
        let key = ApiKey::from_random(*b"twenty-five bytes, random");
        assert_eq!(key.reveal(), "petstore_ehvpavkmf4ppctbpcmg64ybmcnsjr83jc5q68vvd");
        assert_eq!(&*key.hash().id().0, "14dcc5f5438a");
        let with_checksum = "petstore_ehvpavkmf4ppyvk541h7jx35ecg6rvvecwsgn6sh";
        assert_eq!(&*KeyHash::of_text(with_checksum).id().0, "571aa35373f7");
    }

    #[test]
    fn two_keys_are_never_the_same() {
        assert_ne!(ApiKey::generate().unwrap().reveal(), ApiKey::generate().unwrap().reveal());
    }

    #[test]
    fn debug_output_shows_which_key_it_is_and_not_the_secret() {
        let key = ApiKey::from_random(*b"twenty-five bytes, random");
        assert_eq!(format!("{key:?}"), "ApiKey(14dcc5f5438a, secret hidden)");
    }

    #[test]
    fn only_twelve_lower_case_digits_are_an_id() {
        assert!(is_id("571aa35373f7"));
        for text in ["", "571aa35373f", "571aa35373", "571aa35373f700", "571AA35373F7", "571aa35373g7"] {
            assert!(!is_id(text), "{text:?}");
        }
    }

    #[test]
    fn only_64_lower_case_digits_are_a_hash() {
        for text in
            ["", "0", &"0".repeat(63), &"0".repeat(65), &"A".repeat(64), &"g".repeat(64), &"é".repeat(32)]
        {
            assert_eq!(KeyHash::parse(text), None, "{text:?}");
        }
    }

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
