//! SHA-256 digests of files.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};

/// Prefix of a digest in text that names its kind.
pub const PREFIX: &str = "sha256:";

/// The SHA-256 of some bytes. As text it is 64 hexadecimal digits; [`Digest::to_tagged`] puts
/// `sha256:` before them, and reading takes both.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

/// Text that is no SHA-256.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a digest is {PREFIX} and 64 hexadecimal digits, as `sha256sum FILE` prints them")]
pub struct NoDigest;

impl Digest {
    /// The digest of `bytes`.
    #[must_use]
    pub fn compute(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// The digest with these 32 bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The 32 bytes of the digest.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The digest as text with its prefix: `sha256:` and 64 digits.
    #[must_use]
    pub fn to_tagged(&self) -> String {
        format!("{PREFIX}{self}")
    }
}

impl FromStr for Digest {
    type Err = NoDigest;

    fn from_str(text: &str) -> Result<Self, NoDigest> {
        let digits = text.strip_prefix(PREFIX).unwrap_or(text);
        if digits.len() != 64 {
            return Err(NoDigest);
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks(2)) {
            let mut value = 0;
            for digit in pair {
                let digit = char::from(*digit).to_digit(16).ok_or(NoDigest)?;
                value = value * 16 + digit;
            }
            *byte = u8::try_from(value).map_err(|_| NoDigest)?;
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.to_tagged())
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn a_digest_is_read_as_it_is_written_with_its_kind_or_without() {
        let digest = Digest::compute(b"");
        let text = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(digest.to_string(), text);
        assert_eq!(text.parse(), Ok(digest));
        assert_eq!(digest.to_tagged().parse(), Ok(digest));
        assert_eq!(text.to_uppercase().parse(), Ok(digest));
    }

    #[test]
    fn what_is_no_digest_is_refused() {
        let text = Digest::compute(b"").to_string();
        let wrong = [
            String::new(),
            text.chars().skip(1).collect(),
            format!("{text}0"),
            format!("sha512:{text}"),
            text.replace('e', "g"),
            text.replace("e3", "\u{e9}"),
            text.replace('e', "+"),
        ];
        for text in wrong {
            assert_eq!(text.parse::<Digest>(), Err(NoDigest), "{text}");
        }
    }
}
