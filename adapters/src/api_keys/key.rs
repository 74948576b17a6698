//! The secret itself: how it is made, recognised and hashed. The text of a key exists only here and with its
//! owner; everything else knows its hash.

use std::{fmt, str::FromStr};

use application::KeyId;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use thiserror::Error;

/// An API key in clear, fresh from the source of randomness. Shown once, stored never.
pub struct ApiKey(String);

/// The SHA-256 of a key's text: enough to recognise the key, useless to forge it. Comparison takes the same time
/// for every pair.
#[derive(Clone, Copy, Eq)]
pub struct KeyHash([u8; 32]);

/// A text that is not a hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("must be 64 lower-case hexadecimal digits")]
pub struct InvalidKeyHash;

/// Twelve digits: short enough to type, long enough that two of ten thousand keys hardly ever share an id.
pub(super) const ID_BYTES: usize = 6;

/// What every key starts with, so that people and secret scanners know what they see. The underscore and the
/// digits after it are one word for a double click.
const PREFIX: &str = "petstore_";
/// 168 random bits: with the checksum they fill 40 digits exactly, and the whole key fits one SHA-256 block.
const RANDOM_BYTES: usize = 21;
const CHECKSUM_BYTES: usize = 4;
const PAYLOAD_BYTES: usize = RANDOM_BYTES + CHECKSUM_BYTES;
/// Five bits each.
const DIGITS: usize = PAYLOAD_BYTES * 8 / 5;
/// Crockford's base 32 in lower case: without `i`, `l`, `o` and `u` nothing looks like something else.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const NO_DIGIT: u8 = u8::MAX;
const DIGIT_VALUES: [u8; 256] = digit_values();
/// Five bytes are eight digits.
const GROUP_BYTES: usize = 5;
const GROUP_DIGITS: usize = 8;

impl ApiKey {
    /// Makes a key that nobody can guess.
    pub fn generate() -> Result<Self, getrandom::Error> {
        let mut random = [0; RANDOM_BYTES];
        getrandom::fill(&mut random)?;
        Ok(Self::from_random(random))
    }

    /// The text of the key, to be handed to its owner and nobody else.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// What is stored instead of the key.
    pub fn hash(&self) -> KeyHash {
        KeyHash::of_text(&self.0)
    }

    fn from_random(random: [u8; RANDOM_BYTES]) -> Self {
        let mut payload = [0; PAYLOAD_BYTES];
        payload[..RANDOM_BYTES].copy_from_slice(&random);
        payload[RANDOM_BYTES..].copy_from_slice(&checksum(&random));
        let mut text = String::with_capacity(PREFIX.len() + DIGITS);
        text.push_str(PREFIX);
        for group in payload.chunks_exact(GROUP_BYTES) {
            let bits = group.iter().fold(0_u64, |bits, byte| bits << 8 | u64::from(*byte));
            for digit in (0..GROUP_DIGITS).rev() {
                let value = (bits >> (5 * digit)).to_le_bytes()[0] & 31;
                text.push(char::from(ALPHABET[usize::from(value)]));
            }
        }
        Self(text)
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "ApiKey({}, secret hidden)", self.hash().id())
    }
}

impl KeyHash {
    /// The hash of a presented key; `None` if the text cannot be one of our keys, whoever knows it.
    pub fn of_presented(text: &str) -> Option<Self> {
        is_well_formed(text).then(|| Self::of_text(text))
    }

    /// The identity that this hash stands for.
    pub fn id(&self) -> KeyId {
        KeyId(self.to_string()[..2 * ID_BYTES].into())
    }

    /// The part of the hash that the id spells out.
    pub(super) fn id_bytes(&self) -> [u8; ID_BYTES] {
        let mut id = [0; ID_BYTES];
        id.copy_from_slice(&self.0[..ID_BYTES]);
        id
    }

    fn of_text(text: &str) -> Self {
        Self(Sha256::digest(text).into())
    }
}

impl PartialEq for KeyHash {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl fmt::Display for KeyHash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "KeyHash({self})")
    }
}

impl FromStr for KeyHash {
    type Err = InvalidKeyHash;

    fn from_str(text: &str) -> Result<Self, InvalidKeyHash> {
        let mut hash = [0; 32];
        if text.len() != 2 * hash.len() || !text.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(InvalidKeyHash);
        }
        for (i, byte) in hash.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).map_err(|_| InvalidKeyHash)?;
        }
        Ok(Self(hash))
    }
}

/// Whether prefix, length, digits and checksum are right. No secret is involved, so it may stop early.
fn is_well_formed(text: &str) -> bool {
    let Some(digits) = text.strip_prefix(PREFIX).filter(|digits| digits.len() == DIGITS) else {
        return false;
    };
    let mut payload = [0; PAYLOAD_BYTES];
    let groups = digits.as_bytes().chunks_exact(GROUP_DIGITS);
    for (group, bytes) in groups.zip(payload.chunks_exact_mut(GROUP_BYTES)) {
        let mut bits = 0_u64;
        for digit in group {
            let value = DIGIT_VALUES[usize::from(*digit)];
            if value == NO_DIGIT {
                return false;
            }
            bits = bits << 5 | u64::from(value);
        }
        bytes.copy_from_slice(&bits.to_be_bytes()[8 - GROUP_BYTES..]);
    }
    let (random, found) = payload.split_at(RANDOM_BYTES);
    checksum(random) == found
}

/// Low byte first, the order in which the CRC itself would send its bits: so every error within 32 bits in a row,
/// and any one wrong digit is one, is certain to be noticed.
fn checksum(random: &[u8]) -> [u8; CHECKSUM_BYTES] {
    crc32c::crc32c(random).to_le_bytes()
}

const fn digit_values() -> [u8; 256] {
    let mut values = [NO_DIGIT; 256];
    let mut value = 0_u8;
    while (value as usize) < ALPHABET.len() {
        values[ALPHABET[value as usize] as usize] = value;
        value += 1;
    }
    values
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_key() -> impl Strategy<Value = ApiKey> {
        any::<[u8; RANDOM_BYTES]>().prop_map(ApiKey::from_random)
    }

    proptest! {
        #[test]
        fn every_key_is_recognised_by_the_hash_it_was_made_with(key in any_key()) {
            prop_assert_eq!(KeyHash::of_presented(key.reveal()), Some(key.hash()));
        }

        #[test]
        fn a_double_click_selects_the_whole_key(key in any_key()) {
            prop_assert!(key.reveal().bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_'));
        }

        #[test]
        fn one_changed_character_is_always_noticed(key in any_key(), at in 0..PREFIX.len() + DIGITS, to: char) {
            let mut characters: Vec<char> = key.reveal().chars().collect();
            prop_assume!(characters[at] != to);
            characters[at] = to;
            let changed: String = characters.into_iter().collect();
            prop_assert_eq!(KeyHash::of_presented(&changed), None);
        }

        #[test]
        fn a_key_cut_short_or_with_something_added_is_noticed(key in any_key(), keep in 0..PREFIX.len() + DIGITS, tail in "[0-9a-z ]{1,3}") {
            prop_assert_eq!(KeyHash::of_presented(&key.reveal()[..keep]), None);
            prop_assert_eq!(KeyHash::of_presented(&format!("{}{tail}", key.reveal())), None);
        }

        #[test]
        fn no_text_makes_recognition_panic(text in any::<String>()) {
            prop_assert_eq!(KeyHash::of_presented(&text), None);
        }

        #[test]
        fn a_hash_survives_the_way_through_its_text(key in any_key()) {
            prop_assert_eq!(key.hash().to_string().parse(), Ok(key.hash()));
        }
    }

    #[test]
    fn every_wrong_digit_at_every_place_is_noticed() {
        let key = ApiKey::from_random(*b"twenty-one bytes long");
        for at in PREFIX.len()..key.reveal().len() {
            for digit in ALPHABET.iter().map(|digit| char::from(*digit)) {
                let mut text = key.reveal().to_owned();
                text.replace_range(at..=at, &digit.to_string());
                assert_eq!(KeyHash::of_presented(&text).is_some(), text == key.reveal(), "{digit} at {at}");
            }
        }
    }

    #[test]
    fn the_format_of_keys_never_changes() {
        let key = ApiKey::from_random(*b"twenty-one bytes long");
        assert_eq!(key.reveal(), "petstore_ehvpavkmf4ppyvk541h7jx35ecg6rvvecwsgn6sh");
        assert_eq!(&*key.hash().id().0, "571aa35373f7");
    }

    #[test]
    fn two_keys_are_never_the_same() {
        assert_ne!(ApiKey::generate().unwrap().reveal(), ApiKey::generate().unwrap().reveal());
    }

    #[test]
    fn debug_output_does_not_tell_the_secret() {
        let key = ApiKey::generate().unwrap();
        let secret = &key.reveal()[PREFIX.len()..];
        assert!(!format!("{key:?}").contains(secret));
    }

    #[test]
    fn only_64_lower_case_digits_are_a_hash() {
        for text in
            ["", "0", &"0".repeat(63), &"0".repeat(65), &"A".repeat(64), &"g".repeat(64), &"é".repeat(32)]
        {
            assert_eq!(text.parse::<KeyHash>(), Err(InvalidKeyHash), "{text:?}");
        }
    }
}
