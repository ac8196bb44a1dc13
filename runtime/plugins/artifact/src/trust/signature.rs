//! Reads minisign signatures, and checks them against keys and bytes.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use ostler_model::limits::SIGNATURE_FILE_BYTES_MAX;
use ostler_model::trust::{KeyId, TrustFile, TrustedKey};

/// The beginning of the line that the signer vouches for.
const COMMENT: &str = "trusted comment: ";

/// Why a text is no signature.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// It is larger than any signature.
    #[error("it has {size} bytes; at most {SIGNATURE_FILE_BYTES_MAX} are read")]
    TooLarge {
        /// The number of bytes found.
        size: u64,
    },
    /// The bytes are no text.
    #[error("it is not text")]
    NotText,
    /// It does not have the four lines of a signature.
    #[error("it has {found} lines; a minisign signature has 4")]
    Lines {
        /// The number of lines found.
        found: usize,
    },
    /// A line does not hold what it should.
    #[error("line {line} is not {wanted}")]
    Line {
        /// The number of the line, from 1.
        line: u8,
        /// What should stand there.
        wanted: &'static str,
    },
    /// The file is there but cannot be read.
    #[error("it cannot be read: {reason}")]
    Unread {
        /// The message of the system.
        reason: String,
    },
}

/// A signature as it was read. Nothing is checked yet.
#[derive(Clone)]
pub struct Signature {
    key: KeyId,
    comment: String,
    parts: minisign_verify::Signature,
}

impl Signature {
    /// Read the text of a `.minisig` file, in the old form (the whole file is signed) or the new
    /// one (its hash is signed).
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
        let key = parse_key_id(signed)
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

    /// The id of the key that the signature names.
    #[must_use]
    pub const fn key(&self) -> KeyId {
        self.key
    }

    /// The comment of the signer. It is not to be trusted before [`check`] says so.
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

/// The id of the key in the second line, which has two bytes of algorithm, eight of id and 64
/// of signature.
fn parse_key_id(line: &str) -> Option<KeyId> {
    let bytes = <[u8; 74]>::try_from(STANDARD.decode(line).ok()?).ok()?;
    let (head, _) = bytes.split_first_chunk::<10>()?;
    let (algorithm, number) = head.split_first_chunk::<2>()?;
    let number = <[u8; 8]>::try_from(number).ok()?;
    matches!(algorithm, b"Ed" | b"ED").then(|| KeyId::from_bytes(number))
}

/// The result of checking the signature beside some bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SignatureCheck<'a> {
    /// There is no signature.
    Not,
    /// The signature cannot be read.
    Unreadable(SignatureError),
    /// The signature is by a key that the trust file does not have.
    Unknown {
        /// The id of that key.
        key: KeyId,
    },
    /// The signature is by this key, but of other bytes, or with another comment.
    Wrong {
        /// The key of the trust file.
        key: &'a TrustedKey,
    },
    /// The signature is by this key, and of these bytes.
    By {
        /// The key of the trust file, which may be revoked.
        key: &'a TrustedKey,
        /// What the signer wrote beside it.
        comment: String,
    },
}

/// Check a signature of `bytes` against the keys of a trust file. Without a trust file no key
/// is known.
#[must_use]
pub fn check<'a>(
    bytes: &[u8],
    signature: Option<&Result<Signature, SignatureError>>,
    trust: Option<&'a TrustFile>,
) -> SignatureCheck<'a> {
    let signature = match signature {
        None => return SignatureCheck::Not,
        Some(Err(error)) => return SignatureCheck::Unreadable(error.clone()),
        Some(Ok(signature)) => signature,
    };
    let mut keys = trust.into_iter().flat_map(|trust| &trust.keys);
    let Some(key) = keys.find(|key| key.key.id() == signature.key) else {
        return SignatureCheck::Unknown { key: signature.key };
    };
    match key.key.verifier().verify(bytes, &signature.parts, true) {
        Ok(()) => SignatureCheck::By { key, comment: signature.comment.clone() },
        Err(_) => SignatureCheck::Wrong { key },
    }
}
