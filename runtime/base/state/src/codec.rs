//! The envelope around every value.
//!
//! ```text
//! "OS" (2) │ schema u16 LE (2) │ kind u8 (1) │ body: postcard │ xxh3-64 LE of all before (8)
//! ```
//!
//! The envelope itself never changes, so that a record of any schema can be checked for damage
//! before it is read. Bodies are not self-describing: a changed type needs a new schema number and
//! a migration.

use serde::Serialize;
use serde::de::DeserializeOwned;
use xxhash_rust::xxh3::xxh3_64;

use super::keys::{KeyError, RecordKind};
use ostler_model::limits::STATE_VALUE_BYTES_MAX;

/// The oldest schema that is read; nothing of an older one was ever released.
pub const OLDEST: u16 = 4;
/// The schema of the bodies that this agent writes.
///
/// There is no older schema to read. To keep the migration code tested, this crate's own tests have
/// one schema more, and a step to it (`migrate/tests/before.rs`).
pub const SCHEMA: u16 = if cfg!(test) { OLDEST + 1 } else { OLDEST };

const MAGIC: [u8; 2] = *b"OS";
const HEADER: usize = 5;
const CHECKSUM: usize = 8;
/// The largest size of a record without its checksum, in bytes.
const RECORD_MAX: usize = STATE_VALUE_BYTES_MAX - CHECKSUM;

/// Why a record could not be written or read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// The record is shorter than an envelope.
    #[error("record is cut off: {len} bytes")]
    Truncated {
        /// The number of bytes that there are.
        len: usize,
    },
    /// The record is larger than any record may be.
    #[error("record is larger than {STATE_VALUE_BYTES_MAX} bytes")]
    TooLarge,
    /// The bytes do not begin like a record.
    #[error("not a record")]
    Magic,
    /// The bytes changed after they were written.
    #[error("checksum does not match: stored {stored:016x}, computed {computed:016x}")]
    Checksum {
        /// The checksum in the record.
        stored: u64,
        /// The checksum computed from the record.
        computed: u64,
    },
    /// The record was written by another version of the agent.
    #[error("record has schema {found}, this agent reads {SCHEMA}")]
    Schema {
        /// The schema in the record.
        found: u16,
    },
    /// The record belongs under another key.
    #[error("record is of kind {found}, its key asks for {expected:?}")]
    Kind {
        /// The kind in the record.
        found: u8,
        /// The kind that the key demands.
        expected: RecordKind,
    },
    /// The body is not a value of the type.
    #[error("record body does not decode")]
    Body(#[source] postcard::Error),
    /// The body is longer than the value.
    #[error("record body has {len} bytes after its value")]
    Trailing {
        /// The number of bytes left over.
        len: usize,
    },
    /// The value cannot be serialised.
    #[error("value does not serialise")]
    Value(#[source] postcard::Error),
    /// The key of the record is no valid key.
    #[error("record has an unreadable key")]
    Key(#[source] KeyError),
}

/// Replace `out` by the record of `value`. This allocates only if `out` must grow.
///
/// # Errors
/// When the value is too large or cannot be serialised; `out` is useless then.
pub fn encode<T: Serialize + ?Sized>(
    kind: RecordKind,
    value: &T,
    out: &mut Vec<u8>,
) -> Result<(), CodecError> {
    encode_unsealed(kind, value, out)?;
    seal(out);
    Ok(())
}

/// The same as [`encode`] without the checksum, which an unchanged record never needs. [`seal`]
/// completes the record.
///
/// # Errors
/// As [`encode`].
pub fn encode_unsealed<T: Serialize + ?Sized>(
    kind: RecordKind,
    value: &T,
    out: &mut Vec<u8>,
) -> Result<(), CodecError> {
    write_header(kind, out);
    postcard::serialize_with_flavor(value, RecordBuffer { out }).map_err(|error| match error {
        postcard::Error::SerializeBufferFull => CodecError::TooLarge,
        other => CodecError::Value(other),
    })
}

/// Replace `out` by the header of a record.
fn write_header(kind: RecordKind, out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&SCHEMA.to_le_bytes());
    out.push(kind as u8);
}

/// Append the checksum that [`encode_unsealed`] left out.
pub fn seal(record: &mut Vec<u8>) {
    let checksum = xxh3_64(record);
    record.extend_from_slice(&checksum.to_le_bytes());
}

/// A record without its checksum, which is what its digest covers.
#[must_use]
pub fn strip_checksum(record: &[u8]) -> &[u8] {
    record.split_last_chunk::<CHECKSUM>().map_or(record, |(unsealed, _)| unsealed)
}

/// A record whose checksum is right, of any schema and kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope<'a> {
    /// Schema of the body.
    pub schema: u16,
    /// The kind that the record names: a [`Kind`] of that schema.
    pub kind: u8,
    /// The value, as postcard.
    pub body: &'a [u8],
}

impl<'a> Envelope<'a> {
    /// Check a record of any schema for damage and take it apart.
    ///
    /// # Errors
    /// When it is too large, cut off, changed or no record.
    pub fn open(record: &'a [u8]) -> Result<Self, CodecError> {
        let len = record.len();
        if len > STATE_VALUE_BYTES_MAX {
            return Err(CodecError::TooLarge);
        }
        let truncated = CodecError::Truncated { len };
        let (covered, checksum) =
            record.split_last_chunk::<CHECKSUM>().ok_or_else(|| truncated.clone())?;
        let (header, body) = covered.split_first_chunk::<HEADER>().ok_or(truncated)?;
        let [m0, m1, s0, s1, kind] = *header;
        if [m0, m1] != MAGIC {
            return Err(CodecError::Magic);
        }
        let (stored, computed) = (u64::from_le_bytes(*checksum), xxh3_64(covered));
        if stored != computed {
            return Err(CodecError::Checksum { stored, computed });
        }
        Ok(Self { schema: u16::from_le_bytes([s0, s1]), kind, body })
    }

    /// The body, if the record is of the kind that its key demands.
    ///
    /// # Errors
    /// When it is of another kind.
    pub fn body_of(&self, expected: RecordKind) -> Result<&'a [u8], CodecError> {
        if self.kind == expected as u8 {
            Ok(self.body)
        } else {
            Err(CodecError::Kind { found: self.kind, expected })
        }
    }
}

/// Check a record without reading its body, and return the body.
///
/// # Errors
/// When the record is damaged, of another schema, or of another kind.
pub fn check(kind: RecordKind, record: &[u8]) -> Result<&[u8], CodecError> {
    let envelope = Envelope::open(record)?;
    if envelope.schema != SCHEMA {
        return Err(CodecError::Schema { found: envelope.schema });
    }
    envelope.body_of(kind)
}

/// Check a record and read its value.
///
/// # Errors
/// As [`check`], and when the body is not exactly one value of the type.
pub fn decode<T: DeserializeOwned>(kind: RecordKind, record: &[u8]) -> Result<T, CodecError> {
    decode_body(check(kind, record)?)
}

/// Read the value of a body.
///
/// # Errors
/// When it is not exactly one value of the type.
pub fn decode_body<T: DeserializeOwned>(body: &[u8]) -> Result<T, CodecError> {
    let (value, rest) = postcard::take_from_bytes(body).map_err(CodecError::Body)?;
    if rest.is_empty() { Ok(value) } else { Err(CodecError::Trailing { len: rest.len() }) }
}

/// Replace `out` by the record of a body that is encoded already.
///
/// # Errors
/// When it would be larger than a record may be.
pub fn wrap(kind: RecordKind, body: &[u8], out: &mut Vec<u8>) -> Result<(), CodecError> {
    if body.len() > STATE_VALUE_BYTES_MAX - HEADER - CHECKSUM {
        return Err(CodecError::TooLarge);
    }
    write_header(kind, out);
    out.extend_from_slice(body);
    seal(out);
    Ok(())
}

/// A buffer that grows up to the largest record. It is called for each field of a value, so the
/// common case is one comparison and a copy.
struct RecordBuffer<'a> {
    out: &'a mut Vec<u8>,
}

impl RecordBuffer<'_> {
    /// Make room for `more` bytes, unless the record would be too large.
    #[cold]
    #[inline(never)]
    fn grow(&mut self, more: usize) -> postcard::Result<()> {
        let needed = self.out.len().saturating_add(more);
        if needed > RECORD_MAX {
            return Err(postcard::Error::SerializeBufferFull);
        }
        let doubled = self.out.capacity().saturating_mul(2).min(RECORD_MAX);
        self.out.reserve_exact(doubled.max(needed).saturating_sub(self.out.len()));
        Ok(())
    }
}

impl postcard::ser_flavors::Flavor for RecordBuffer<'_> {
    type Output = ();

    #[inline]
    fn try_extend(&mut self, data: &[u8]) -> postcard::Result<()> {
        if data.len() > self.out.capacity() - self.out.len() {
            self.grow(data.len())?;
        }
        self.out.extend_from_slice(data);
        Ok(())
    }

    #[inline]
    fn try_push(&mut self, data: u8) -> postcard::Result<()> {
        if self.out.len() == self.out.capacity() {
            self.grow(1)?;
        }
        self.out.push(data);
        Ok(())
    }

    /// A buffer that already had room beyond the limit is checked here.
    fn finalize(self) -> postcard::Result<()> {
        if self.out.len() > RECORD_MAX { Err(postcard::Error::SerializeBufferFull) } else { Ok(()) }
    }
}

#[cfg(test)]
#[path = "codec_tests.rs"]
mod tests;
