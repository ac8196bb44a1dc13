//! Reads JSON, with the place of every value. It is strict: it accepts what RFC 8259 allows, and nothing more.

use std::collections::HashSet;

use serde_json::Number;

use super::super::diagnostic::{Sink, Span, quote_text};
use super::super::tree::{SpannedKey, SpannedValue, ValueKind};
use ostler_model::limits::JOB_NESTING_MAX;

/// The problem that ended the reading, with its place.
struct JsonError {
    at: usize,
    message: String,
}

struct JsonReader<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
    /// Names that are given twice in one object. RFC 8259 leaves open what that means.
    repeated: Vec<SpannedKey>,
}

/// Read a text that is one value. `None` means that a problem was reported.
pub(super) fn read(text: &str, sink: &mut Sink) -> Option<SpannedValue> {
    let mut reader = JsonReader { text, at: 0, depth: 0, repeated: Vec::new() };
    let result = reader.value().and_then(|value| {
        reader.blanks();
        match reader.peek() {
            None => Ok(value),
            Some(_) => Err(reader.error_here("nothing may follow the closing }")),
        }
    });
    for key in reader.repeated {
        sink.error(key.span, format!("{} is given twice", quote_text(&key.name)));
    }
    match result {
        Ok(value) => Some(value),
        Err(stop) => sink.refuse(Span::new(stop.at, stop.at + 1), stop.message),
    }
}

impl JsonReader<'_> {
    fn error_here(&self, message: impl Into<String>) -> JsonError {
        JsonError { at: self.at, message: message.into() }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn value(&mut self) -> Result<SpannedValue, JsonError> {
        self.blanks();
        let start = self.at;
        let kind = match self.peek() {
            Some(b'{') => self.read_nested(Self::object)?,
            Some(b'[') => self.read_nested(Self::list)?,
            Some(b'"') => ValueKind::Text(self.string()?),
            Some(b'-' | b'0'..=b'9') => self.number()?,
            Some(b'a'..=b'z') => self.word()?,
            Some(_) => return Err(self.error_here("a value is expected here")),
            None => return Err(self.error_here("the file ends too early: a value is expected")),
        };
        Ok(SpannedValue { kind, span: Span::new(start, self.at) })
    }

    fn read_nested(
        &mut self,
        inner: impl Fn(&mut Self) -> Result<ValueKind, JsonError>,
    ) -> Result<ValueKind, JsonError> {
        if self.depth >= JOB_NESTING_MAX {
            let message =
                format!("nested too deeply; at most {JOB_NESTING_MAX} levels are allowed");
            return Err(self.error_here(message));
        }
        self.depth += 1;
        self.at += 1;
        let kind = inner(self)?;
        self.depth -= 1;
        Ok(kind)
    }

    /// Read what follows an element. `true` means that another element follows.
    fn take_separator(&mut self, closing: u8) -> Result<bool, JsonError> {
        self.blanks();
        match self.peek() {
            Some(b',') => {
                self.at += 1;
                Ok(true)
            }
            Some(byte) if byte == closing => {
                self.at += 1;
                Ok(false)
            }
            Some(_) => {
                Err(self.error_here(format!("a comma or {} is expected here", char::from(closing))))
            }
            None => Err(self.error_here(format!(
                "the file ends too early: {} is missing",
                char::from(closing)
            ))),
        }
    }

    fn list(&mut self) -> Result<ValueKind, JsonError> {
        let mut items = Vec::new();
        self.blanks();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(ValueKind::List(items));
        }
        loop {
            items.push(self.value()?);
            if !self.take_separator(b']')? {
                return Ok(ValueKind::List(items));
            }
        }
    }

    fn object(&mut self) -> Result<ValueKind, JsonError> {
        let mut members = Vec::new();
        let mut names = HashSet::new();
        self.blanks();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(ValueKind::Object(members));
        }
        loop {
            self.blanks();
            let start = self.at;
            if self.peek() != Some(b'"') {
                return Err(self.error_here("a name in quotes is expected here"));
            }
            let name = self.string()?;
            let key = SpannedKey::new(name, Span::new(start, self.at));
            self.blanks();
            if self.peek() != Some(b':') {
                return Err(self.error_here("a colon is expected here"));
            }
            self.at += 1;
            let value = self.value()?;
            if names.insert(key.name.clone()) {
                members.push((key, value));
            } else {
                self.repeated.push(key);
            }
            if !self.take_separator(b'}')? {
                return Ok(ValueKind::Object(members));
            }
        }
    }

    /// Read a text. `serde_json` decodes the escapes.
    fn string(&mut self) -> Result<String, JsonError> {
        let start = self.at;
        self.at += 1;
        loop {
            match self.peek() {
                Some(b'"') => break,
                Some(b'\\') => self.at += 2,
                Some(byte) if byte < 0x20 => {
                    return Err(self.error_here(
                        "a text must not contain line breaks or control characters; write \\n",
                    ));
                }
                Some(_) => self.at += 1,
                None => {
                    return Err(JsonError {
                        at: start,
                        message: "this text is never closed; add a \"".to_owned(),
                    });
                }
            }
        }
        self.at += 1;
        let quoted = self.text.get(start..self.at).unwrap_or_default();
        serde_json::from_str(quoted).map_err(|_| JsonError {
            at: start,
            message: "this text has an escape that JSON does not know".to_owned(),
        })
    }

    fn number(&mut self) -> Result<ValueKind, JsonError> {
        let start = self.at;
        while matches!(self.peek(), Some(b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9')) {
            self.at += 1;
        }
        let text = self.text.get(start..self.at).unwrap_or_default();
        let number: Result<Number, _> = serde_json::from_str(text);
        number
            .map(ValueKind::Number)
            .map_err(|_| JsonError { at: start, message: "this is not a number".to_owned() })
    }

    fn word(&mut self) -> Result<ValueKind, JsonError> {
        let start = self.at;
        while matches!(self.peek(), Some(b'a'..=b'z' | b'A'..=b'Z')) {
            self.at += 1;
        }
        match self.text.get(start..self.at) {
            Some("null") => Ok(ValueKind::Null),
            Some("true") => Ok(ValueKind::Bool(true)),
            Some("false") => Ok(ValueKind::Bool(false)),
            _ => {
                let message = "a value is expected here; a text needs quotes".to_owned();
                Err(JsonError { at: start, message })
            }
        }
    }
}
