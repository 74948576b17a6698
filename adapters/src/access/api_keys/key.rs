//! The secret: generation, recognition and hashing. Only this file interprets the text of a key; to compare and store
//! keys, all other code uses the hash.

use std::{fmt, sync::LazyLock};

use application::KeyId;
use data_encoding::{Encoding, HEXLOWER, Specification};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// A new API key in clear text. It is shown once, and only the first key is also written to a file.
pub struct ApiKey(String);

/// The SHA-256 of a key's text: enough to recognise the key, but not to forge it. Comparison takes constant time.
#[derive(Debug, Clone, Copy, Eq)]
pub struct KeyHash([u8; 32]);

/// The size of an id: twelve hex digits, short enough to type, long enough that two of ten thousand keys hardly ever
/// share an id.
pub(super) const ID_BYTES: usize = 6;

/// The prefix of every key, by which people and secret scanners recognise it. A double click selects the underscore and
/// the digits together.
const PREFIX: &str = "petstore_";
/// 168 random bits. With the checksum they fill exactly 40 digits, and the whole key fits into one SHA-256 block.
const RANDOM_BYTES: usize = 21;
const CHECKSUM_BYTES: usize = 4;
const PAYLOAD_BYTES: usize = RANDOM_BYTES + CHECKSUM_BYTES;
/// The number of digits, at five bits each.
const DIGITS: usize = PAYLOAD_BYTES * 8 / 5;
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

    /// The text of the key, to be shown only to its owner.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// The hash that is stored instead of the key.
    pub fn hash(&self) -> KeyHash {
        KeyHash::of_text(&self.0)
    }

    fn from_random(random: [u8; RANDOM_BYTES]) -> Self {
        let mut payload = [0; PAYLOAD_BYTES];
        payload[..RANDOM_BYTES].copy_from_slice(&random);
        payload[RANDOM_BYTES..].copy_from_slice(&checksum(&random));
        Self(format!("{PREFIX}{}", BASE_32.encode(&payload)))
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "ApiKey({}, secret hidden)", self.hash().id())
    }
}

impl KeyHash {
    /// The hash of a presented key, or `None` if its prefix, length, digits or checksum are wrong. Nothing is compared
    /// with a stored secret, so returning early reveals nothing.
    pub fn of_presented(text: &str) -> Option<Self> {
        let digits = text.strip_prefix(PREFIX).filter(|digits| digits.len() == DIGITS)?;
        let mut payload = [0; PAYLOAD_BYTES];
        BASE_32.decode_mut(digits.as_bytes(), &mut payload).ok()?;
        let (random, found) = payload.split_at(RANDOM_BYTES);
        (checksum(random) == found).then(|| Self::of_text(text))
    }

    /// The id of the key with this hash.
    pub fn id(&self) -> KeyId {
        KeyId(HEXLOWER.encode(&self.id_bytes()).into())
    }

    pub(super) fn id_bytes(&self) -> [u8; ID_BYTES] {
        let mut id = [0; ID_BYTES];
        id.copy_from_slice(&self.0[..ID_BYTES]);
        id
    }

    pub(super) fn of_text(text: &str) -> Self {
        Self(Sha256::digest(text).into())
    }

    /// Parses the text of a hash: 64 lower-case hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        HEXLOWER.decode(text.as_bytes()).ok()?.try_into().ok().map(Self)
    }
}

impl PartialEq for KeyHash {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
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

/// The CRC-32C of the random bytes, low byte first. CRC-32C processes low bits first, and only in the matching byte order
/// does it detect every error within 32 consecutive bits, and therefore any single wrong digit.
fn checksum(random: &[u8]) -> [u8; CHECKSUM_BYTES] {
    crc32c::crc32c(random).to_le_bytes()
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
        fn every_key_is_recognised_by_its_hash(key in any_key()) {
            prop_assert_eq!(KeyHash::of_presented(key.reveal()), Some(key.hash()));
        }

        #[test]
        fn a_double_click_selects_the_whole_key(key in any_key()) {
            prop_assert!(key.reveal().bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_'));
        }

        #[test]
        fn one_changed_character_is_always_detected(key in any_key(), at in 0..PREFIX.len() + DIGITS, to: char) {
            let mut characters: Vec<char> = key.reveal().chars().collect();
            prop_assume!(characters[at] != to);
            characters[at] = to;
            let changed: String = characters.into_iter().collect();
            prop_assert_eq!(KeyHash::of_presented(&changed), None);
        }

        #[test]
        fn a_truncated_or_extended_key_is_detected(key in any_key(), keep in 0..PREFIX.len() + DIGITS, tail in "[0-9a-z ]{1,3}") {
            prop_assert_eq!(KeyHash::of_presented(&key.reveal()[..keep]), None);
            prop_assert_eq!(KeyHash::of_presented(&format!("{}{tail}", key.reveal())), None);
        }

        #[test]
        fn no_text_makes_recognition_panic(text in any::<String>()) {
            prop_assert_eq!(KeyHash::of_presented(&text), None);
        }

        #[test]
        fn a_hash_is_read_back_from_its_text(key in any_key()) {
            prop_assert_eq!(KeyHash::parse(&key.hash().to_string()), Some(key.hash()));
        }
    }

    #[test]
    fn every_wrong_digit_at_every_place_is_detected() {
        let key = ApiKey::from_random(*b"twenty-one bytes long");
        for at in PREFIX.len()..key.reveal().len() {
            for digit in ALPHABET.chars() {
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
    fn debug_output_shows_which_key_it_is_and_not_the_secret() {
        let key = ApiKey::from_random(*b"twenty-one bytes long");
        assert_eq!(format!("{key:?}"), "ApiKey(571aa35373f7, secret hidden)");
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
}
