//! Calls as Go's `net/rpc` makes them, in MessagePack: a header, then a body, one value each.
//!
//! ```text
//! caller ─► {ServiceMethod, Seq} ─► request ─────────► callee
//!        ◄─ {ServiceMethod, Seq, Error} ◄─ answer ◄───
//! ```
//! Both ends call each other, each on the streams that it opened. Pure.

use ostler_model::limits::CLUSTER_TEXT_BYTES_MAX;
use ostler_model::printable::printable_line;

use super::msgpack::{self, MsgpackError, Value, ValueReader};

/// The header before a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The service and the method, such as `Node.Register`.
    pub method: String,
    /// The number of the call on its stream.
    pub seq: u64,
    /// In an answer, the error of the call, if there is one.
    pub error: Option<String>,
}

/// Why a call could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RpcError {
    /// The bytes are not MessagePack.
    #[error(transparent)]
    Msgpack(#[from] MsgpackError),
    /// The value is no header.
    #[error("a header without {0}")]
    Header(&'static str),
}

/// The bytes of a request.
#[must_use]
pub fn request(method: &str, seq: u64, body: &Value) -> Vec<u8> {
    message([("ServiceMethod", method.into()), ("Seq", seq.into())], body)
}

/// The bytes of an answer. With an error the body is empty.
#[must_use]
pub fn answer(method: &str, seq: u64, body: Result<&Value, &str>) -> Vec<u8> {
    let head = [
        ("ServiceMethod", method.into()),
        ("Seq", seq.into()),
        ("Error", body.err().unwrap_or_default().into()),
    ];
    message(head, body.unwrap_or(&Value::Map(Vec::new())))
}

fn message<const N: usize>(head: [(&str, Value); N], body: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    msgpack::write(&mut out, &map(head));
    msgpack::write(&mut out, body);
    out
}

/// A map by the names of fields.
pub fn map<'a>(fields: impl IntoIterator<Item = (&'a str, Value)>) -> Value {
    Value::Map(fields.into_iter().map(|(name, value)| (name.into(), value)).collect())
}

/// A field of a map by its name.
#[must_use]
pub fn field<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    let mut fields = value.as_map()?.iter();
    fields.find(|(key, _)| text(key) == Some(name)).map(|(_, value)| value)
}

/// A text, in either form of writing.
#[must_use]
pub fn text(value: &Value) -> Option<&str> {
    match value {
        Value::String(text) => text.as_str(),
        Value::Binary(bytes) => std::str::from_utf8(bytes).ok(),
        _ => None,
    }
}

/// Bytes, in either form of writing.
#[must_use]
pub fn bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::String(text) => Some(text.as_bytes()),
        Value::Binary(bytes) => Some(bytes),
        _ => None,
    }
}

/// Reads the calls or the answers of a stream.
#[derive(Debug)]
pub struct Calls {
    reader: ValueReader,
    header: Option<Header>,
}

impl Calls {
    /// A reader that accepts headers and bodies of at most `longest` bytes each.
    #[must_use]
    pub const fn new(longest: usize) -> Self {
        Self { reader: ValueReader::new(longest), header: None }
    }

    /// Add bytes that have arrived.
    pub fn extend(&mut self, bytes: &[u8]) {
        self.reader.extend(bytes);
    }

    /// The header whose body has not arrived or cannot be read.
    #[must_use]
    pub const fn pending_header(&self) -> Option<&Header> {
        self.header.as_ref()
    }

    /// Take the next header with its body; `None` while it is incomplete.
    ///
    /// # Errors
    /// When the bytes are no header or body. Nothing after them can be read.
    pub fn take_next(&mut self) -> Result<Option<(Header, Value)>, RpcError> {
        if self.header.is_none() {
            let Some(value) = self.reader.take_next()? else { return Ok(None) };
            self.header = Some(header(&value)?);
        }
        let Some(body) = self.reader.take_next()? else { return Ok(None) };
        Ok(self.header.take().map(|header| (header, body)))
    }
}

fn header(value: &Value) -> Result<Header, RpcError> {
    let said = |name| field(value, name);
    let method = said("ServiceMethod").and_then(text).ok_or(RpcError::Header("ServiceMethod"))?;
    let seq = said("Seq").and_then(Value::as_u64).ok_or(RpcError::Header("Seq"))?;
    let error = said("Error").and_then(text).filter(|error| !error.is_empty());
    // The error is shown to people, in logs and by a command.
    let error = error.map(|error| printable_line(error, CLUSTER_TEXT_BYTES_MAX));
    Ok(Header { method: method.to_owned(), seq, error })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn calls_and_answers_are_read_as_they_were_written() {
        let body = map([("NodeID", "a".into()), ("Index", 7.into())]);
        let mut bytes = request("Node.UpdateStatus", 3, &body);
        bytes.extend(answer("Node.UpdateStatus", 3, Ok(&body)));
        bytes.extend(answer("Node.UpdateStatus", 4, Err("no leader")));
        let mut calls = Calls::new(1_000);
        let mut read = Vec::new();
        for byte in bytes {
            calls.extend(&[byte]);
            read.extend(calls.take_next().unwrap());
        }
        let head = |seq, error: Option<&str>| Header {
            method: "Node.UpdateStatus".to_owned(),
            seq,
            error: error.map(str::to_owned),
        };
        let none = Value::Map(Vec::new());
        let expected = [
            (head(3, None), body.clone()),
            (head(3, None), body),
            (head(4, Some("no leader")), none),
        ];
        assert_eq!(read, expected);
    }

    #[test]
    fn a_refusal_hides_nothing_from_who_reads_it_and_ends() {
        let text = format!("no\n12:00 INFO all is well\u{1b}[2J{}", "x".repeat(100_000));
        let mut calls = Calls::new(1 << 20);
        calls.extend(&answer("Node.Register", 1, Err(&text)));
        let (header, _) = calls.take_next().unwrap().unwrap();
        let error = header.error.unwrap();
        assert!(error.starts_with("no\\n12:00 INFO all is well\\u{1b}[2Jx"), "{error}");
        assert!(error.len() < 2 * CLUSTER_TEXT_BYTES_MAX, "{}", error.len());
    }

    #[test]
    fn a_header_must_name_the_call() {
        let mut calls = Calls::new(1_000);
        let mut bytes = Vec::new();
        msgpack::write(&mut bytes, &map([("Seq", 1.into())]));
        calls.extend(&bytes);
        assert_eq!(calls.take_next(), Err(RpcError::Header("ServiceMethod")));
    }
}
