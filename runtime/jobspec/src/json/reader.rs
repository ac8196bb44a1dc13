//! JSON with the place of every value. Strict: what RFC 8259 has and nothing more.

use std::collections::HashSet;

use serde_json::Number;

use super::super::diagnostic::{Sink, Span, shown};
use super::super::tree::{Key, Value, ValueKind};
use ostler_model::limits::JOB_NESTING_MAX;

/// Why reading stopped.
struct Stop {
    at: usize,
    message: String,
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
    /// Names given twice in one object. RFC 8259 leaves open what that means.
    repeated: Vec<Key>,
}

/// Read one value and nothing after it; `None` after a problem was reported.
pub(super) fn read(text: &str, sink: &mut Sink) -> Option<Value> {
    let mut reader = Reader { text, at: 0, depth: 0, repeated: Vec::new() };
    let result = reader.value().and_then(|value| {
        reader.blanks();
        match reader.peek() {
            None => Ok(value),
            Some(_) => Err(reader.stop("nothing may follow the closing }")),
        }
    });
    for key in reader.repeated {
        sink.error(key.span, format!("{} is given twice", shown(&key.name)));
    }
    match result {
        Ok(value) => Some(value),
        Err(stop) => sink.refuse(Span::new(stop.at, stop.at + 1), stop.message),
    }
}

impl Reader<'_> {
    fn stop(&self, message: impl Into<String>) -> Stop {
        Stop { at: self.at, message: message.into() }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn value(&mut self) -> Result<Value, Stop> {
        self.blanks();
        let start = self.at;
        let kind = match self.peek() {
            Some(b'{') => self.nested(Self::object)?,
            Some(b'[') => self.nested(Self::list)?,
            Some(b'"') => ValueKind::Text(self.string()?),
            Some(b'-' | b'0'..=b'9') => self.number()?,
            Some(b'a'..=b'z') => self.word()?,
            Some(_) => return Err(self.stop("a value is expected here")),
            None => return Err(self.stop("the file ends too early: a value is expected")),
        };
        Ok(Value { kind, span: Span::new(start, self.at) })
    }

    fn nested(
        &mut self,
        inner: impl Fn(&mut Self) -> Result<ValueKind, Stop>,
    ) -> Result<ValueKind, Stop> {
        if self.depth >= JOB_NESTING_MAX {
            let message =
                format!("nested too deeply; at most {JOB_NESTING_MAX} levels are allowed");
            return Err(self.stop(message));
        }
        self.depth += 1;
        self.at += 1;
        let kind = inner(self)?;
        self.depth -= 1;
        Ok(kind)
    }

    /// After an element: `true` when another follows.
    fn more(&mut self, closing: u8) -> Result<bool, Stop> {
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
                Err(self.stop(format!("a comma or {} is expected here", char::from(closing))))
            }
            None => {
                Err(self
                    .stop(format!("the file ends too early: {} is missing", char::from(closing))))
            }
        }
    }

    fn list(&mut self) -> Result<ValueKind, Stop> {
        let mut items = Vec::new();
        self.blanks();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(ValueKind::List(items));
        }
        loop {
            items.push(self.value()?);
            if !self.more(b']')? {
                return Ok(ValueKind::List(items));
            }
        }
    }

    fn object(&mut self) -> Result<ValueKind, Stop> {
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
                return Err(self.stop("a name in quotes is expected here"));
            }
            let name = self.string()?;
            let key = Key::new(name, Span::new(start, self.at));
            self.blanks();
            if self.peek() != Some(b':') {
                return Err(self.stop("a colon is expected here"));
            }
            self.at += 1;
            let value = self.value()?;
            if names.insert(key.name.clone()) {
                members.push((key, value));
            } else {
                self.repeated.push(key);
            }
            if !self.more(b'}')? {
                return Ok(ValueKind::Object(members));
            }
        }
    }

    /// A text with its escapes; serde_json knows them.
    fn string(&mut self) -> Result<String, Stop> {
        let start = self.at;
        self.at += 1;
        loop {
            match self.peek() {
                Some(b'"') => break,
                Some(b'\\') => self.at += 2,
                Some(byte) if byte < 0x20 => {
                    return Err(self.stop(
                        "a text must not contain line breaks or control characters; write \\n",
                    ));
                }
                Some(_) => self.at += 1,
                None => {
                    return Err(Stop {
                        at: start,
                        message: "this text is never closed; add a \"".to_owned(),
                    });
                }
            }
        }
        self.at += 1;
        let quoted = self.text.get(start..self.at).unwrap_or_default();
        serde_json::from_str(quoted).map_err(|_| Stop {
            at: start,
            message: "this text has an escape that JSON does not know".to_owned(),
        })
    }

    fn number(&mut self) -> Result<ValueKind, Stop> {
        let start = self.at;
        while matches!(self.peek(), Some(b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9')) {
            self.at += 1;
        }
        let text = self.text.get(start..self.at).unwrap_or_default();
        let number: Result<Number, _> = serde_json::from_str(text);
        number
            .map(ValueKind::Number)
            .map_err(|_| Stop { at: start, message: "this is no number".to_owned() })
    }

    fn word(&mut self) -> Result<ValueKind, Stop> {
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
                Err(Stop { at: start, message })
            }
        }
    }
}
