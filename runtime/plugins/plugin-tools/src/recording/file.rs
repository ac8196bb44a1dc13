//! The file of a recording: magic, version, length, body, checksum. Its content is untrusted.

use serde::Deserialize as _;
use xxhash_rust::xxh3::xxh3_64;

use super::Recording;
use ostler_model::limits::PLUGIN_RECORDING_BYTES_MAX;

/// The first bytes of every recording.
const MAGIC: &[u8; 8] = b"ostlerec";
/// The version of the body's format. Another format gets another number.
const VERSION: u32 = 1;
const HEAD: usize = MAGIC.len() + 4 + 8;

/// Why a file is no usable recording.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    /// The file begins with other bytes.
    #[error("not a recording: it does not begin with \"ostlerec\"")]
    NotOne,
    /// The file is of an older or newer agent.
    #[error("a recording of form {found}; this program reads form {VERSION}")]
    Version {
        /// The version of the format in the file.
        found: u32,
    },
    /// The file is larger than any recording.
    #[error("{size} bytes; a recording has at most {PLUGIN_RECORDING_BYTES_MAX}")]
    TooLarge {
        /// The size of the file in bytes.
        size: u64,
    },
    /// The file ends early.
    #[error("cut short: {found} bytes are there, {expected} were written; copy it again")]
    Truncated {
        /// The number of bytes that are there.
        found: u64,
        /// The number of bytes that were written.
        expected: u64,
    },
    /// The file has more bytes than were written.
    #[error("damaged: {extra} bytes follow its end")]
    Longer {
        /// The number of bytes too many.
        extra: u64,
    },
    /// The file has changed since it was written.
    #[error("damaged: its checksum does not fit; copy it again")]
    Checksum,
    /// The checksum fits but the content does not, so no agent wrote the file.
    #[error("damaged: its content cannot be read ({0})")]
    Body(String),
    /// The recording holds no call.
    #[error("a recording without a call")]
    Empty,
}

/// Encode a recording.
///
/// # Errors
/// [`FileError::TooLarge`] when it is larger than what is read again.
pub fn encode(recording: &Recording) -> Result<Vec<u8>, FileError> {
    let body =
        postcard::to_stdvec(recording).map_err(|error| FileError::Body(error.to_string()))?;
    let mut bytes = Vec::with_capacity(HEAD + body.len() + 8);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&(body.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&body);
    bytes.extend_from_slice(&xxh3_64(&bytes).to_le_bytes());
    let size = bytes.len() as u64;
    if size > PLUGIN_RECORDING_BYTES_MAX { Err(FileError::TooLarge { size }) } else { Ok(bytes) }
}

/// Decode a recording from untrusted bytes.
///
/// # Errors
/// [`FileError`]; nothing of it is used then.
pub fn decode(bytes: &[u8]) -> Result<Recording, FileError> {
    let size = bytes.len() as u64;
    if size > PLUGIN_RECORDING_BYTES_MAX {
        return Err(FileError::TooLarge { size });
    }
    let rest = bytes.strip_prefix(MAGIC).ok_or(FileError::NotOne)?;
    let short = FileError::Truncated { found: size, expected: HEAD as u64 + 8 };
    let (version, rest) = rest.split_first_chunk::<4>().ok_or_else(|| short.clone())?;
    let found = u32::from_le_bytes(*version);
    if found != VERSION {
        return Err(FileError::Version { found });
    }
    let (len, rest) = rest.split_first_chunk::<8>().ok_or(short)?;
    let expected = u64::from_le_bytes(*len).saturating_add(HEAD as u64 + 8);
    if size < expected {
        return Err(FileError::Truncated { found: size, expected });
    }
    if size > expected {
        return Err(FileError::Longer { extra: size - expected });
    }
    let (body, checksum) = rest.split_last_chunk::<8>().ok_or(FileError::Checksum)?;
    let sealed = bytes.get(..bytes.len() - 8).unwrap_or_default();
    if xxh3_64(sealed) != u64::from_le_bytes(*checksum) {
        return Err(FileError::Checksum);
    }
    read(body)
}

fn read(body: &[u8]) -> Result<Recording, FileError> {
    let wrong = |error: postcard::Error| FileError::Body(error.to_string());
    let mut deserializer = postcard::Deserializer::from_bytes(body);
    let recording = Recording::deserialize(&mut deserializer).map_err(wrong)?;
    let rest = deserializer.finalize().map_err(wrong)?;
    if !rest.is_empty() {
        return Err(FileError::Body(format!("{} bytes too many", rest.len())));
    }
    if recording.calls.is_empty() { Err(FileError::Empty) } else { Ok(recording) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use proptest::prelude::*;

    use super::super::{CallOutcome, RecordedCall};
    use super::*;

    fn recording() -> Recording {
        let call = RecordedCall {
            function: "fingerprint".to_owned(),
            input: vec![1, 2, 3],
            trace: vec![4; 100],
            outcome: CallOutcome::new_broken("no".to_owned()),
            ..RecordedCall::default()
        };
        Recording { plugin: "mine".to_owned(), calls: vec![call], ..Recording::default() }
    }

    #[test]
    fn what_is_written_is_read() {
        let written = recording();
        assert_eq!(decode(&encode(&written).unwrap()).unwrap(), written);
    }

    #[test]
    fn files_that_cannot_be_used_say_why() {
        let bytes = encode(&recording()).unwrap();
        let error = |bytes: &[u8]| decode(bytes).unwrap_err().to_string();
        assert!(error(b"").contains("not a recording"));
        assert!(error(b"\0asm....").contains("not a recording"));
        for len in 8..bytes.len() {
            let text = error(bytes.get(..len).unwrap());
            assert!(text.contains("cut short"), "{len}: {text}");
        }
        assert!(error(&[&bytes[..], b"x"].concat()).contains("1 bytes follow"));
        let mut newer = bytes.clone();
        newer[8] = 9;
        assert!(error(&newer).contains("form 9"));
        let mut huge = bytes.clone();
        huge[12..20].fill(0xff);
        assert!(error(&huge).contains("cut short"));
        let large = vec![0; usize::try_from(PLUGIN_RECORDING_BYTES_MAX).unwrap() + 1];
        assert!(error(&large).contains("at most"));
    }

    /// The bytes of a file with this body and a checksum that fits.
    fn sealed(body: &[u8]) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend((body.len() as u64).to_le_bytes());
        bytes.extend(body);
        bytes.extend(xxh3_64(&bytes).to_le_bytes());
        bytes
    }

    #[test]
    fn a_recording_without_a_call_is_refused() {
        let empty = encode(&Recording::default()).unwrap();
        assert_eq!(decode(&empty), Err(FileError::Empty));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_refused_and_never_panic(bytes: Vec<u8>) {
            prop_assert!(decode(&bytes).is_err());
        }

        #[test]
        fn any_changed_byte_is_noticed(place in any::<prop::sample::Index>(), flip in 1_u8..) {
            let mut bytes = encode(&recording()).unwrap();
            let place = place.index(bytes.len());
            bytes[place] ^= flip;
            prop_assert!(decode(&bytes).is_err());
        }

        #[test]
        fn a_body_with_a_fitting_checksum_is_refused_or_read_as_it_would_be_written(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            tail in prop::collection::vec(any::<u8>(), 0..3),
        ) {
            let mut body = postcard::to_stdvec(&recording()).unwrap();
            for (place, byte) in changes {
                let place = place.index(body.len());
                body[place] = byte;
            }
            body.extend(tail);
            match decode(&sealed(&body)) {
                Ok(read) => {
                    prop_assert!(!read.calls.is_empty());
                    prop_assert_eq!(decode(&encode(&read).unwrap()), Ok(read));
                }
                Err(error) => {
                    prop_assert!(matches!(error, FileError::Body(_) | FileError::Empty), "{}", error);
                }
            }
        }
    }
}
