//! SHA-256 digests, which identify records and whole histories.

use std::{fmt, str::FromStr};

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use ring::digest;

/// A SHA-256 digest, written as 64 lower-case hex digits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// The digest of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let sha256 = digest::digest(&digest::SHA256, bytes);
        Self(sha256.as_ref().try_into().expect("a SHA-256 digest has 32 bytes"))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        HEXLOWER.encode_display(&self.0).fmt(formatter)
    }
}

impl FromStr for Digest {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bytes = HEXLOWER_PERMISSIVE.decode(text.as_bytes()).ok().and_then(|bytes| bytes.try_into().ok());
        bytes.map(Self).ok_or("must be 64 hex digits")
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
            assert_eq!(wrong.parse::<Digest>(), Err("must be 64 hex digits"), "{wrong}");
        }
    }
}
