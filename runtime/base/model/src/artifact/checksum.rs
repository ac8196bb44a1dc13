//! Checksums as artifacts have them: `sha256:…`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The hash function of a checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ChecksumKind {
    /// MD5, 16 bytes. Two files with the same checksum can be made.
    Md5,
    /// SHA-1, 20 bytes. Two files with the same checksum can be made.
    Sha1,
    /// SHA-256, 32 bytes.
    Sha256,
    /// SHA-512, 64 bytes.
    Sha512,
}

const KINDS: [(&str, ChecksumKind, usize); 4] = [
    ("md5", ChecksumKind::Md5, 16),
    ("sha1", ChecksumKind::Sha1, 20),
    ("sha256", ChecksumKind::Sha256, 32),
    ("sha512", ChecksumKind::Sha512, 64),
];

impl ChecksumKind {
    fn entry(self) -> (&'static str, usize) {
        let entry = KINDS.iter().find(|(_, kind, _)| *kind == self);
        entry.map_or(("", 0), |(name, _, length)| (*name, *length))
    }

    /// Whether nobody can make another file with the same checksum.
    #[must_use]
    pub const fn is_strong(self) -> bool {
        matches!(self, Self::Sha256 | Self::Sha512)
    }
}

/// A checksum that a download must have.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Checksum {
    /// The hash function of the checksum.
    pub kind: ChecksumKind,
    /// Bytes of the checksum, as many as its kind has.
    pub value: Vec<u8>,
}

/// Text that is no checksum.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChecksumError {
    /// The text is empty.
    #[error("the checksum is empty; write for example sha256: and 64 hexadecimal digits")]
    Empty,
    /// The text names a file with checksums, which is not supported.
    #[error(
        "a file of checksums (file:…) is not supported; write the checksum itself, as in sha256:…"
    )]
    File,
    /// The text begins with an unknown kind.
    #[error("{0:?} is not a kind of checksum; write md5, sha1, sha256 or sha512 before the colon")]
    Kind(String),
    /// The part after the kind is not the right number of hexadecimal digits.
    #[error("a {kind} checksum has {digits} hexadecimal digits")]
    Digits {
        /// Name of the kind, as in `sha256`.
        kind: &'static str,
        /// Number of hexadecimal digits that a checksum of this kind has.
        digits: usize,
    },
    /// The digits stand without a kind, and their number belongs to no kind.
    #[error("write the kind of the checksum before it, as in sha256:…")]
    Bare,
}

impl FromStr for Checksum {
    type Err = ChecksumError;

    /// Reads `kind:digits`, or the digits alone, whose number tells the kind.
    fn from_str(text: &str) -> Result<Self, ChecksumError> {
        let text = text.trim();
        if text.is_empty() {
            return Err(ChecksumError::Empty);
        }
        let Some((name, digits)) = text.split_once(':') else {
            let of_length = KINDS.iter().find(|(_, _, length)| length * 2 == text.len());
            let (_, kind, _) = of_length.ok_or(ChecksumError::Bare)?;
            let value = bytes(text).ok_or(ChecksumError::Bare)?;
            return Ok(Self { kind: *kind, value });
        };
        if name == "file" {
            return Err(ChecksumError::File);
        }
        let known = KINDS.iter().find(|(known, _, _)| *known == name);
        let (name, kind, length) = known.ok_or_else(|| ChecksumError::Kind(name.to_owned()))?;
        let value = bytes(digits).filter(|value| value.len() == *length);
        let value = value.ok_or(ChecksumError::Digits { kind: name, digits: length * 2 })?;
        Ok(Self { kind: *kind, value })
    }
}

fn bytes(digits: &str) -> Option<Vec<u8>> {
    if !digits.len().is_multiple_of(2) || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let pairs = digits.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

impl Checksum {
    /// The digits alone.
    #[must_use]
    pub fn digits(&self) -> String {
        self.value.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind.entry().0, self.digits())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn a_checksum_is_read_with_its_kind_or_by_its_length() {
        let text = format!("sha256:{}", "aB".repeat(32));
        let sum: Checksum = text.parse().unwrap();
        assert_eq!((sum.kind, sum.value.len()), (ChecksumKind::Sha256, 32));
        assert_eq!(sum.to_string(), text.to_lowercase());
        let bare: Checksum = " b8a4f3f72ecab0510a6a31e997461c5f ".parse().unwrap();
        assert_eq!(bare.to_string(), "md5:b8a4f3f72ecab0510a6a31e997461c5f");
    }

    #[test]
    fn what_is_no_checksum_says_what_would_be_one() {
        let wrong = |text: &str| text.parse::<Checksum>().unwrap_err();
        assert_eq!(wrong(" "), ChecksumError::Empty);
        assert_eq!(wrong("file:https://x/y"), ChecksumError::File);
        assert_eq!(wrong("crc:00"), ChecksumError::Kind("crc".to_owned()));
        assert_eq!(wrong("sha1:00"), ChecksumError::Digits { kind: "sha1", digits: 40 });
        assert_eq!(
            wrong(&format!("md5:{}", "zz".repeat(16))).to_string(),
            "a md5 checksum has 32 hexadecimal digits"
        );
        assert_eq!(wrong("abc"), ChecksumError::Bare);
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in ".{0,140}") {
            if let Ok(sum) = text.parse::<Checksum>() {
                assert_eq!(sum.to_string().parse::<Checksum>().unwrap(), sum);
            }
        }
    }
}
