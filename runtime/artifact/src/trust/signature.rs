//! Minisign signatures: text → parts, and parts against keys and bytes.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use ostler_model::limits::SIGNATURE_FILE_BYTES_MAX;
use ostler_model::trust::{KeyId, TrustFile, TrustedKey};

/// How the line that the signer vouches for begins.
const COMMENT: &str = "trusted comment: ";

/// Why text is no signature.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// More than a signature ever has.
    #[error("it has {size} bytes; at most {SIGNATURE_FILE_BYTES_MAX} are read")]
    TooLarge {
        /// Bytes found.
        size: u64,
    },
    /// Bytes that are no text.
    #[error("it is no text")]
    NotText,
    /// Not the four lines of a signature.
    #[error("it has {found} lines; a minisign signature has 4")]
    Lines {
        /// Lines found.
        found: usize,
    },
    /// A line that does not hold what it should.
    #[error("line {line} is not {wanted}")]
    Line {
        /// The line, from 1.
        line: u8,
        /// What should stand there.
        wanted: &'static str,
    },
    /// The file is there and cannot be read.
    #[error("it cannot be read: {reason}")]
    Unread {
        /// The system's words.
        reason: String,
    },
}

/// A signature as it was read; nothing is checked yet.
#[derive(Clone)]
pub struct Signature {
    key: KeyId,
    comment: String,
    parts: minisign_verify::Signature,
}

impl Signature {
    /// Read the text of a `.minisig` file: the old form (whole file signed) and the new one (its
    /// hash signed).
    ///
    /// # Errors
    /// When it is not exactly one signature.
    pub fn parse(bytes: &[u8]) -> Result<Self, SignatureError> {
        let size = bytes.len() as u64;
        if size > SIGNATURE_FILE_BYTES_MAX {
            return Err(SignatureError::TooLarge { size });
        }
        let text = std::str::from_utf8(bytes).map_err(|_| SignatureError::NotText)?;
        let lines: Vec<&str> = text.trim_end_matches(['\r', '\n']).lines().collect();
        let [_, signed, comment, both] = lines.as_slice() else {
            return Err(SignatureError::Lines { found: lines.len() });
        };
        let key = key_of(signed)
            .ok_or(SignatureError::Line { line: 2, wanted: "an Ed25519 signature in base64" })?;
        let comment = comment
            .strip_prefix(COMMENT)
            .ok_or(SignatureError::Line { line: 3, wanted: "a trusted comment" })?;
        let wrong = SignatureError::Line { line: 4, wanted: "a signature of the trusted comment" };
        if STANDARD.decode(both).map_or(0, |bytes| bytes.len()) != 64 {
            return Err(wrong);
        }
        let parts = minisign_verify::Signature::decode(text).map_err(|_| wrong)?;
        Ok(Self { key, comment: comment.to_owned(), parts })
    }

    /// The key it says it is by.
    #[must_use]
    pub const fn key(&self) -> KeyId {
        self.key
    }

    /// What the signer wrote beside it. Not to be trusted before [`check`] says so.
    #[must_use]
    pub fn comment(&self) -> &str {
        &self.comment
    }
}

impl std::fmt::Debug for Signature {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Signature(by {})", self.key)
    }
}

/// The key's number in the second line: two bytes of algorithm, eight of number, 64 of signature.
fn key_of(line: &str) -> Option<KeyId> {
    let bytes = <[u8; 74]>::try_from(STANDARD.decode(line).ok()?).ok()?;
    let (head, _) = bytes.split_first_chunk::<10>()?;
    let (algorithm, number) = head.split_first_chunk::<2>()?;
    let number = <[u8; 8]>::try_from(number).ok()?;
    matches!(algorithm, b"Ed" | b"ED").then(|| KeyId::from_bytes(number))
}

/// What there is of a signature beside some bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Signed<'a> {
    /// None.
    Not,
    /// One that cannot be read.
    Unreadable(SignatureError),
    /// By a key that the trust file does not have.
    Unknown {
        /// The key's number.
        key: KeyId,
    },
    /// By this key, but of other bytes, or with another comment.
    Wrong {
        /// The key.
        key: &'a TrustedKey,
    },
    /// By this key, of these bytes.
    By {
        /// The key; it may be revoked.
        key: &'a TrustedKey,
        /// What the signer wrote beside it.
        comment: String,
    },
}

/// Check a signature of `bytes` against the keys of a trust file; without one no key is known.
#[must_use]
pub fn check<'a>(
    bytes: &[u8],
    signature: Option<&Result<Signature, SignatureError>>,
    trust: Option<&'a TrustFile>,
) -> Signed<'a> {
    let signature = match signature {
        None => return Signed::Not,
        Some(Err(error)) => return Signed::Unreadable(error.clone()),
        Some(Ok(signature)) => signature,
    };
    let mut keys = trust.into_iter().flat_map(|trust| &trust.keys);
    let Some(key) = keys.find(|key| key.key.id() == signature.key) else {
        return Signed::Unknown { key: signature.key };
    };
    match key.key.verifier().verify(bytes, &signature.parts, true) {
        Ok(()) => Signed::By { key, comment: signature.comment.clone() },
        Err(_) => Signed::Wrong { key },
    }
}
