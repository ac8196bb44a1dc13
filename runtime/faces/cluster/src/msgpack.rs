//! MessagePack as Nomad's servers and clients write it: the form before strings and bytes were told
//! apart.
//!
//! Only `raw` values are written, never `str8` or `bin`; both forms are read. A struct is a map by
//! the names of its fields, and a time is the fifteen bytes of [`go_time`](ostler_wire::go_time).
//!
//! The types of the API become a [`Value`] by `rmp-serde` ([`message`](ostler_wire::message()), and
//! a part of an answer becomes one of these types again by `rmpv`. The rest is written and framed
//! here, for two reasons. `rmp-serde` writes text of 32 to 255 bytes as `str8` and bytes as `bin`,
//! and has no option for the old form. And a stream has no lengths before its messages, so
//! [`ValueReader`] finds the end of a value, and bounds its size and depth, before anything of it
//! is decoded.

use std::io;

use rmp::Marker;
use rmp::encode;
pub use rmpv::Value;

/// The deepest nesting of values.
const DEPTH_MAX: usize = 64;

/// Why bytes cannot be read as a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MsgpackError {
    /// MessagePack has no such marker.
    #[error("a byte {0:#04x} does not begin a value")]
    Marker(u8),
    /// The message is longer than the bound.
    #[error("a message of more than {0} bytes")]
    TooLong(usize),
    /// Values are nested too deeply.
    #[error("values more than {DEPTH_MAX} deep within each other")]
    TooDeep,
    /// The bytes are no value.
    #[error("a message that is not a value")]
    Malformed,
}

/// Add a value to `out`.
pub fn write(out: &mut Vec<u8>, value: &Value) {
    // Writing to memory does not fail.
    let _written = try_write(out, value);
}

fn try_write(out: &mut Vec<u8>, value: &Value) -> io::Result<()> {
    match value {
        Value::Nil => encode::write_nil(out)?,
        Value::Boolean(value) => encode::write_bool(out, *value)?,
        Value::Integer(number) => match (number.as_u64(), number.as_i64()) {
            (Some(number), _) => drop(encode::write_uint(out, number)?),
            (None, number) => drop(encode::write_sint(out, number.unwrap_or_default())?),
        },
        Value::F32(number) => encode::write_f64(out, f64::from(*number))?,
        Value::F64(number) => encode::write_f64(out, *number)?,
        Value::String(text) => raw(out, text.as_bytes())?,
        Value::Binary(bytes) | Value::Ext(_, bytes) => raw(out, bytes)?,
        Value::Array(values) => {
            encode::write_array_len(out, length(values.len()))?;
            values.iter().try_for_each(|value| try_write(out, value))?;
        }
        Value::Map(entries) => {
            encode::write_map_len(out, length(entries.len()))?;
            for (key, value) in entries {
                try_write(out, key)?;
                try_write(out, value)?;
            }
        }
    }
    Ok(())
}

fn length(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// Write bytes in the old form, which has three lengths and does not tell text from bytes.
fn raw(out: &mut Vec<u8>, bytes: &[u8]) -> io::Result<()> {
    let long = length(bytes.len());
    match u16::try_from(long) {
        Ok(short) if short < 32 => encode::write_str_len(out, long).map(drop)?,
        Ok(short) => {
            out.push(Marker::Str16.to_u8());
            out.extend(short.to_be_bytes());
        }
        Err(_) => {
            out.push(Marker::Str32.to_u8());
            out.extend(long.to_be_bytes());
        }
    }
    out.extend(bytes);
    Ok(())
}

/// Finds the end of a value in bytes that come piece by piece. It does not read a byte twice.
#[derive(Debug)]
struct ValueScanner {
    /// The number of bytes of the value that were scanned so far.
    at: usize,
    /// The number of values that are still to come.
    left: u64,
}

impl ValueScanner {
    const fn new() -> Self {
        Self { at: 0, left: 1 }
    }

    /// Whether the value at the beginning of `bytes` is complete.
    fn scan_value(&mut self, bytes: &[u8]) -> Result<bool, MsgpackError> {
        while self.left > 0 {
            let rest = bytes.get(self.at..).unwrap_or_default();
            let Some((marker, after)) = rest.split_first() else { return Ok(false) };
            let Some((head, body, inside)) = shape(*marker, after)? else { return Ok(false) };
            self.at = self.at.saturating_add(head).saturating_add(body);
            self.left = self.left.saturating_sub(1).saturating_add(inside);
        }
        Ok(bytes.len() >= self.at)
    }
}

/// The shape of one value without the values in it: the bytes of marker and length, the bytes of
/// its content, and the number of values in it. `None` while its length has not arrived.
fn shape(marker: u8, after: &[u8]) -> Result<Option<(usize, usize, u64)>, MsgpackError> {
    let number = |bytes: usize| -> Option<usize> {
        let read = after.get(..bytes)?;
        Some(read.iter().fold(0, |number, byte| (number << 8) | usize::from(*byte)))
    };
    let held = |bytes: usize, more: usize| {
        number(bytes).map(|length| (bytes + 1, length.saturating_add(more), 0))
    };
    let values = |bytes: usize, each: u64| {
        let count = |count| u64::try_from(count).unwrap_or(u64::MAX).saturating_mul(each);
        number(bytes).map(|length| (bytes + 1, 0, count(length)))
    };
    let plain = |bytes: usize| Some((1, bytes, 0));
    Ok(match Marker::from_u8(marker) {
        Marker::Null | Marker::True | Marker::False | Marker::FixPos(_) | Marker::FixNeg(_) => {
            plain(0)
        }
        Marker::U8 | Marker::I8 => plain(1),
        Marker::U16 | Marker::I16 => plain(2),
        Marker::U32 | Marker::I32 | Marker::F32 => plain(4),
        Marker::U64 | Marker::I64 | Marker::F64 => plain(8),
        Marker::FixStr(length) => plain(length.into()),
        Marker::Str8 | Marker::Bin8 => held(1, 0),
        Marker::Str16 | Marker::Bin16 => held(2, 0),
        Marker::Str32 | Marker::Bin32 => held(4, 0),
        Marker::FixExt1 => plain(2),
        Marker::FixExt2 => plain(3),
        Marker::FixExt4 => plain(5),
        Marker::FixExt8 => plain(9),
        Marker::FixExt16 => plain(17),
        Marker::Ext8 => held(1, 1),
        Marker::Ext16 => held(2, 1),
        Marker::Ext32 => held(4, 1),
        Marker::FixArray(length) => Some((1, 0, length.into())),
        Marker::Array16 => values(2, 1),
        Marker::Array32 => values(4, 1),
        Marker::FixMap(length) => Some((1, 0, u64::from(length) * 2)),
        Marker::Map16 => values(2, 2),
        Marker::Map32 => values(4, 2),
        Marker::Reserved => return Err(MsgpackError::Marker(marker)),
    })
}

/// Reads one value after another from bytes that come piece by piece.
#[derive(Debug)]
pub struct ValueReader {
    bytes: Vec<u8>,
    scanner: ValueScanner,
    /// The longest value that is accepted, bytes.
    longest: usize,
}

impl ValueReader {
    /// A reader that accepts values of at most `longest` bytes.
    #[must_use]
    pub const fn new(longest: usize) -> Self {
        Self { bytes: Vec::new(), scanner: ValueScanner::new(), longest }
    }

    /// Add bytes that have arrived.
    pub fn extend(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
    }

    /// Take the next value; `None` while it is incomplete.
    ///
    /// # Errors
    /// When the bytes are no value, or too long. Nothing after them can be read.
    pub fn take_next(&mut self) -> Result<Option<Value>, MsgpackError> {
        let whole = self.scanner.scan_value(&self.bytes)?;
        let least = u64::try_from(self.scanner.at).unwrap_or(u64::MAX);
        let longest = u64::try_from(self.longest).unwrap_or(u64::MAX);
        if least.saturating_add(self.scanner.left) > longest {
            return Err(MsgpackError::TooLong(self.longest));
        }
        if !whole {
            return Ok(None);
        }
        let end = std::mem::replace(&mut self.scanner, ValueScanner::new()).at;
        let mut of = self.bytes.get(..end).unwrap_or_default();
        // The library counts a container twice: as a value, and for its content.
        let value = rmpv::decode::read_value_with_max_depth(&mut of, DEPTH_MAX * 2);
        let value = value.map_err(|error| match error {
            rmpv::decode::Error::DepthLimitExceeded => MsgpackError::TooDeep,
            _ => MsgpackError::Malformed,
        })?;
        self.bytes.drain(..end);
        Ok(Some(value))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Nil),
            any::<bool>().prop_map(Value::Boolean),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<i32>().prop_map(|number| Value::F64(number.into())),
            "[a-z]{0,70}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 40, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..20).prop_map(Value::Array),
                prop::collection::vec((inner.clone(), inner), 0..20).prop_map(Value::Map),
            ]
        })
    }

    #[test]
    fn text_is_written_without_a_kind() {
        for (length, head) in
            [(31, &[0xbf][..]), (32, &[0xda, 0, 32]), (70_000, &[0xdb, 0, 1, 17, 112])]
        {
            let text = "x".repeat(length);
            for value in [Value::from(text.clone()), Value::Binary(text.into())] {
                let mut out = Vec::new();
                write(&mut out, &value);
                assert_eq!(out.get(..head.len()), Some(head));
                assert_eq!(out.len(), head.len() + length);
            }
        }
    }

    #[test]
    fn a_value_that_is_too_long_is_refused_before_it_has_come() {
        let mut reader = ValueReader::new(1_000);
        reader.extend(&[0xdb, 0, 0, 4, 0]);
        assert_eq!(reader.take_next(), Err(MsgpackError::TooLong(1_000)));
        let mut reader = ValueReader::new(1_000);
        reader.extend(&[0xdf, 255, 255, 255, 255]);
        assert_eq!(reader.take_next(), Err(MsgpackError::TooLong(1_000)), "more values than bytes");
        let mut reader = ValueReader::new(1_000);
        reader.extend(&[0xc1]);
        assert_eq!(reader.take_next(), Err(MsgpackError::Marker(0xc1)));
        let mut reader = ValueReader::new(1_000);
        reader.extend(&[0x91; 500]);
        reader.extend(&[0xc0]);
        assert_eq!(reader.take_next(), Err(MsgpackError::TooDeep));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_in_whatever_pieces(values in prop::collection::vec(value(), 1..4), piece in 1_usize..50) {
            let mut bytes = Vec::new();
            values.iter().for_each(|value| write(&mut bytes, value));
            let mut reader = ValueReader::new(1 << 20);
            let mut read = Vec::new();
            for piece in bytes.chunks(piece) {
                reader.extend(piece);
                while let Some(value) = reader.take_next().unwrap() {
                    read.push(value);
                }
            }
            prop_assert!(reader.bytes.is_empty());
            prop_assert_eq!(read, values);
        }

        #[test]
        fn whatever_comes_is_a_value_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let mut reader = ValueReader::new(300);
            reader.extend(&bytes);
            while let Ok(Some(_)) = reader.take_next() {}
        }
    }
}
