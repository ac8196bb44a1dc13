//! Messages as stock Nomad wrote them: the files of `runtime/faces/cluster/fixtures/`, which
//! `runtime/tests/it/wire/recording.rs` makes.
//!
//! ```text
//! method: Node.Register          what is called; `connection` for the first bytes of one
//! case: tty                      which of the forms of this call; none most often
//! part: request                  request, answer, or refusal: an answer that is an error
//! from: client                   who wrote it
//! of: Nomad 1.0.18
//!
//! BYTES                          as they were on the stream, header and body
//! ```

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rmpv::Value;

/// Who wrote a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// The node.
    Client,
    /// A server.
    Server,
}

/// What a message is of its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// What is asked. Of a streaming call: its header, its request and what the asker said later.
    Request,
    /// What is answered. Of a streaming call: that it is taken, and every piece.
    Answer,
    /// An answer that is an error.
    Refusal,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Client => "client",
            Self::Server => "server",
        })
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Request => "request",
            Self::Answer => "answer",
            Self::Refusal => "refusal",
        })
    }
}

impl FromStr for Side {
    type Err = io::Error;

    fn from_str(text: &str) -> io::Result<Self> {
        let known = [Self::Client, Self::Server];
        known.into_iter().find(|side| side.to_string() == text).ok_or_else(|| wrong("from"))
    }
}

impl FromStr for Part {
    type Err = io::Error;

    fn from_str(text: &str) -> io::Result<Self> {
        let known = [Self::Request, Self::Answer, Self::Refusal];
        known.into_iter().find(|part| part.to_string() == text).ok_or_else(|| wrong("part"))
    }
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("a recorded message without its {what}"))
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordedMessage {
    /// What is called.
    pub method: String,
    /// Which of its forms this is; none most often.
    pub case: String,
    /// What it is of the call.
    pub part: Part,
    /// Who wrote it.
    pub from: Side,
    /// The program that wrote it.
    pub of: String,
    /// What it wrote.
    pub bytes: Vec<u8>,
}

impl RecordedMessage {
    /// The name of its file.
    #[must_use]
    pub fn file(&self) -> String {
        format!("{}.wire", name(&self.method, &self.case, self.part))
    }

    /// As its file has it.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let Self { method, case, part, from, of, bytes } = self;
        let case = if case.is_empty() { String::new() } else { format!("case: {case}\n") };
        let head = format!("method: {method}\n{case}part: {part}\nfrom: {from}\nof: {of}\n\n");
        [head.as_bytes(), bytes].concat()
    }

    /// What a file has.
    ///
    /// # Errors
    /// When it is no such file.
    pub fn of_bytes(bytes: &[u8]) -> io::Result<Self> {
        let end = bytes.windows(2).position(|two| two == b"\n\n").ok_or_else(|| wrong("head"))?;
        let (head, rest) = bytes.split_at(end);
        let head = std::str::from_utf8(head).map_err(|_| wrong("head"))?;
        let line = |name: &str| {
            let mut lines = head.lines().filter_map(|line| line.split_once(": "));
            lines.find(|(key, _)| *key == name).map(|(_, value)| value).ok_or_else(|| wrong(name))
        };
        Ok(Self {
            method: line("method")?.to_owned(),
            case: line("case").unwrap_or_default().to_owned(),
            part: line("part")?.parse()?,
            from: line("from")?.parse()?,
            of: line("of")?.to_owned(),
            bytes: rest.get(2..).unwrap_or_default().to_vec(),
        })
    }
}

/// What stands for a method in the first bytes of a connection.
pub const CONNECTION: &str = "connection";

fn name(method: &str, case: &str, part: Part) -> String {
    if case.is_empty() { format!("{method}.{part}") } else { format!("{method}.{case}.{part}") }
}

/// Where the files are.
#[must_use]
pub fn dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../faces/cluster/fixtures")
}

/// Every recorded message, by the names of the files.
///
/// # Errors
/// When a file cannot be read.
pub fn all() -> io::Result<Vec<RecordedMessage>> {
    let mut files: Vec<_> = fs::read_dir(dir())?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|kind| kind == "wire"))
        .collect();
    files.sort();
    files.iter().map(|file| RecordedMessage::of_bytes(&fs::read(file)?)).collect()
}

/// What was recorded of a method; `case` is empty most often.
///
/// # Errors
/// When nothing was.
pub fn of(method: &str, case: &str, part: Part) -> io::Result<RecordedMessage> {
    let name = name(method, case, part);
    let bytes = fs::read(dir().join(format!("{name}.wire")));
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{name}: {error}"));
    RecordedMessage::of_bytes(&bytes.map_err(named)?)
}

/// The values of a message: header, body, pieces.
#[must_use]
pub fn values(message: &RecordedMessage) -> Vec<Value> {
    let (mut rest, mut all) = (message.bytes.as_slice(), Vec::new());
    while let Ok(value) = rmpv::decode::read_value(&mut rest) {
        all.push(value);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_read_as_it_was_written() -> io::Result<()> {
        let message = RecordedMessage {
            method: "Allocations.Exec".to_owned(),
            case: "tty".to_owned(),
            part: Part::Answer,
            from: Side::Server,
            of: "Nomad 1.0.18".to_owned(),
            bytes: b"\x81\n\n\xa1".to_vec(),
        };
        assert_eq!(RecordedMessage::of_bytes(&message.to_bytes())?, message);
        assert_eq!(message.file(), "Allocations.Exec.tty.answer.wire");
        assert!(RecordedMessage::of_bytes(b"method: x\n\n").is_err());
        Ok(())
    }
}
