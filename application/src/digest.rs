//! SHA-256 digests, which identify records and whole histories.

use std::{fmt, str::FromStr};

use sha2::{Digest as _, Sha256};
use thiserror::Error;

/// A SHA-256 digest, written as 64 lower-case hex digits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Digest(pub [u8; 32]);

/// A text that is not a digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("must be {} hex digits", 2 * size_of::<Digest>())]
pub struct InvalidDigest;

impl Digest {
    /// The digest of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut digits = Vec::with_capacity(2 * self.0.len());
        push_hex(&mut digits, &self.0);
        formatter.write_str(str::from_utf8(&digits).expect("hex digits are ASCII"))
    }
}

impl FromStr for Digest {
    type Err = InvalidDigest;

    fn from_str(text: &str) -> Result<Self, InvalidDigest> {
        let mut digest = Self::default();
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        if !rest.is_empty() || pairs.len() != digest.0.len() {
            return Err(InvalidDigest);
        }
        for (byte, [high, low]) in digest.0.iter_mut().zip(pairs) {
            *byte = hex_digit(*high)? << 4 | hex_digit(*low)?;
        }
        Ok(digest)
    }
}

/// Two lower-case digits for each byte.
pub(crate) fn push_hex(out: &mut Vec<u8>, bytes: &[u8]) {
    let digit = |value: u8| b"0123456789abcdef"[usize::from(value)];
    out.extend(bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 0xf)]));
}

fn hex_digit(digit: u8) -> Result<u8, InvalidDigest> {
    match digit {
        b'0'..=b'9' => Ok(digit - b'0'),
        b'a'..=b'f' => Ok(digit - b'a' + 10),
        b'A'..=b'F' => Ok(digit - b'A' + 10),
        _ => Err(InvalidDigest),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_read_as_it_is_written_and_nothing_else_is() {
        let text = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Digest::of(b"").to_string(), text);
        assert_eq!(text.parse(), Ok(Digest::of(b"")));
        assert_eq!(text.to_uppercase().parse(), Ok(Digest::of(b"")));
        let long = format!("{text}00");
        let foreign = text.replace('e', "ä");
        for wrong in ["", &text[1..], &long, &foreign, &text.replace('e', "g")] {
            assert_eq!(wrong.parse::<Digest>(), Err(InvalidDigest), "{wrong}");
        }
    }
}
