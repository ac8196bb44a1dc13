//! Keeps the end of what a guest wrote to its standard error. The message of a panic is there
//! and nowhere else.

use std::fmt;
use std::io;
use std::sync::{Mutex, PoisonError};

use super::output::GuestSink;
use ostler_model::limits::GUEST_STDERR_TAIL_BYTES;
use ostler_model::printable::printable_line;

/// Keeps the last [`GUEST_STDERR_TAIL_BYTES`] that are written to it. It allocates nothing before
/// the first byte.
#[derive(Debug, Default)]
pub struct StderrTail(Mutex<Vec<u8>>);

impl StderrTail {
    /// Append bytes. This never fails.
    pub fn push(&self, bytes: &[u8]) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let from = bytes.len().saturating_sub(GUEST_STDERR_TAIL_BYTES);
        kept.extend_from_slice(bytes.get(from..).unwrap_or_default());
        let excess = kept.len().saturating_sub(GUEST_STDERR_TAIL_BYTES);
        // The beginning is removed once for many short lines.
        if excess >= GUEST_STDERR_TAIL_BYTES || bytes.len() >= GUEST_STDERR_TAIL_BYTES {
            kept.drain(..excess);
        }
    }

    /// The text that was written last.
    #[must_use]
    pub fn last_words(&self) -> LastWords {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let from = kept.len().saturating_sub(GUEST_STDERR_TAIL_BYTES);
        LastWords(String::from_utf8_lossy(kept.get(from..).unwrap_or_default()).trim().to_owned())
    }
}

impl GuestSink for StderrTail {
    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        self.push(bytes);
        Ok(())
    }
}

/// The last text of a guest, shown after the error that ended it. It is shown on one line, and
/// without anything that a terminal or a reader of logs would obey.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LastWords(String);

impl LastWords {
    /// The text itself, so that secrets can be removed from it. Its beginning may be cut.
    #[must_use]
    pub const fn text(&mut self) -> &mut String {
        &mut self.0
    }

    /// The text as it is shown, in at most `max` bytes. Of a longer text the end is shown.
    #[must_use]
    pub fn short_text(&self, max: usize) -> String {
        let shown = self.to_string();
        let Some(excess) = shown.len().checked_sub(max).filter(|excess| *excess > 0) else {
            return shown;
        };
        // The introduction stays, and the mark takes three bytes.
        let from = shown.ceil_char_boundary((LEAD.len() + excess + 3).min(shown.len()));
        format!("{LEAD}…{}", shown.get(from..).unwrap_or_default())
    }
}

/// A text without the last words of a guest. What is left is the same wherever the guest runs.
#[must_use]
pub fn without_last_words(text: &str) -> &str {
    text.split_once(LEAD).map_or(text, |(before, _)| before)
}

/// Introduces the last words of a guest in the text of an error.
const LEAD: &str = "; it wrote to standard error: ";

impl fmt::Display for LastWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return Ok(());
        }
        write!(f, "{LEAD}{}", printable_line(self.0.as_str(), usize::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_bytes_are_kept_however_they_came() {
        let tail = StderrTail::default();
        assert_eq!(tail.last_words().to_string(), "");
        for number in 0..2_000 {
            tail.push(format!("line {number}\n").as_bytes());
        }
        let said = tail.last_words().0;
        assert!(said.ends_with("line 1998\nline 1999"), "{said}");
        assert!((GUEST_STDERR_TAIL_BYTES - 16..=GUEST_STDERR_TAIL_BYTES).contains(&said.len()));
        assert!(tail.0.lock().is_ok_and(|kept| kept.len() <= 2 * GUEST_STDERR_TAIL_BYTES));
        tail.push(&vec![b'x'; 3 * GUEST_STDERR_TAIL_BYTES]);
        assert_eq!(tail.last_words().0, "x".repeat(GUEST_STDERR_TAIL_BYTES));
    }

    #[test]
    fn of_what_does_not_fit_the_end_is_shown() {
        let tail = StderrTail::default();
        tail.push("a first line\nthe last line".as_bytes());
        assert_eq!(tail.last_words().short_text(1_000), tail.last_words().to_string());
        let cut = tail.last_words().short_text(46);
        assert_eq!(cut, "; it wrote to standard error: …the last line");
    }

    #[test]
    fn what_was_said_is_one_line_that_no_terminal_obeys() {
        let tail = StderrTail::default();
        tail.push("thread 'main' panicked:\nboom \u{1b}[2J\u{202e}\u{fffd}\n".as_bytes());
        let shown = tail.last_words().to_string();
        let text = "; it wrote to standard error: thread 'main' panicked:\\nboom \\u{1b}[2J\\u{202e}\u{fffd}";
        assert_eq!(shown, text);
        assert_eq!(without_last_words(&format!("it trapped{shown}")), "it trapped");
        assert_eq!(without_last_words("it trapped"), "it trapped");
    }
}
