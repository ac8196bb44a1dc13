//! The problems of a job file, and their places.
//!
//! ```text
//! reader, decoder ─ Sink::error(span, message) ─► Sink ─ finish ─► Diagnostics (sorted, bounded)
//!                                                                    ├─ render: text with carets
//!                                                                    └─ Serialize: for `--json`
//! ```
//!
//! Positions are byte ranges ([`Span`]) until the end, then lines and columns.

#[path = "diagnostic_render.rs"]
mod render;

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use serde::{Deserialize, Serialize};

use super::json;
use ostler_model::limits::JOB_DIAGNOSTICS_MAX;
use ostler_text::suggest::nearest;

/// The longest text of the user that is repeated in a message, in characters.
const SHOWN_CHARS_MAX: usize = 64;

/// A range of bytes in a job file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Span {
    /// The first byte of the range.
    pub start: usize,
    /// One more than the last byte of the range.
    pub end: usize,
}

impl Span {
    pub(super) fn new(start: usize, end: usize) -> Self {
        Self { start, end: end.max(start) }
    }
}

impl From<std::ops::Range<usize>> for Span {
    fn from(range: std::ops::Range<usize>) -> Self {
        Self::new(range.start, range.end)
    }
}

/// How bad a problem is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The job cannot be used.
    Error,
    /// The job can be used, but probably not as meant.
    Warning,
}

impl Severity {
    fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }
}

/// One problem of a job file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileDiagnostic {
    /// How bad the problem is.
    pub severity: Severity,
    /// The file, as the user named it.
    pub file: String,
    /// The line, counted from 1.
    pub line: u32,
    /// The column in characters, counted from 1.
    pub column: u32,
    /// The number of characters that are concerned, within the line; at least 1.
    pub length: u32,
    /// What is wrong, and the next step where it is not obvious.
    pub message: String,
    /// What may have been meant instead of the text at the position.
    pub suggestion: Option<String>,
    /// In JSON, the keys that lead to the place: `TaskGroups[0] ("web") > Count`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

impl FileDiagnostic {
    /// The message for a reader who does not have the file: without line and column, and in JSON with the keys
    /// that lead to the place.
    #[must_use]
    pub fn message_with_path(&self) -> String {
        match &self.path {
            Some(path) => format!("{path}: {}", self.message),
            None => self.message.clone(),
        }
    }
}

impl fmt::Display for FileDiagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: {}", self.file, self.line, self.column, self.message)?;
        match &self.suggestion {
            Some(suggestion) => write!(f, " (did you mean {suggestion}?)"),
            None => Ok(()),
        }?;
        match &self.path {
            Some(path) => write!(f, " (in {path})"),
            None => Ok(()),
        }
    }
}

/// Every problem found in one job file, sorted by position; at most [`JOB_DIAGNOSTICS_MAX`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Diagnostics {
    /// The problems that were kept, sorted by position.
    pub diagnostics: Vec<FileDiagnostic>,
    /// The number of problems beyond the bound; they stand further down in the file.
    pub omitted: usize,
}

impl Diagnostics {
    /// The number of problems that were kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.diagnostics.len()
    }

    /// Whether there is no problem.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.diagnostics.is_empty()
    }

    /// The number of problems that were found, with those beyond the bound.
    #[must_use]
    pub fn total_count(&self) -> usize {
        self.diagnostics.len().saturating_add(self.omitted)
    }

    /// The problems, sorted by position.
    pub fn iter(&self) -> std::slice::Iter<'_, FileDiagnostic> {
        self.diagnostics.iter()
    }

    /// The problems as text for a terminal: position, message, the line of `source`, and a caret under the place.
    /// Control characters of the source are replaced, so that a file cannot steer the terminal.
    #[must_use]
    pub fn render(&self, source: &str, colour: bool) -> String {
        let lines: Vec<&str> = source.split('\n').collect();
        let mut out = String::new();
        for diagnostic in &self.diagnostics {
            render::render_diagnostic(&mut out, diagnostic, &lines, colour);
        }
        if self.omitted > 0 {
            let _ = writeln!(out, "and {} more", self.omitted);
        }
        out
    }
}

impl<'a> IntoIterator for &'a Diagnostics {
    type Item = &'a FileDiagnostic;
    type IntoIter = std::slice::Iter<'a, FileDiagnostic>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, diagnostic) in self.diagnostics.iter().enumerate() {
            if index > 0 {
                f.write_char('\n')?;
            }
            diagnostic.fmt(f)?;
        }
        if self.omitted > 0 {
            write!(f, "\nand {} more", self.omitted)?;
        }
        Ok(())
    }
}

impl std::error::Error for Diagnostics {}

/// A text of the user for a message: in quotes, cut and escaped.
pub(super) fn quote_text(text: &str) -> String {
    let cut: String = text.chars().take(SHOWN_CHARS_MAX).collect();
    if cut.len() < text.len() { format!("{cut:?}…") } else { format!("{cut:?}") }
}

/// Collects problems while a file is read. The number is bounded: of many problems, those furthest up in the
/// file are kept.
#[derive(Debug, Default)]
pub(super) struct Sink {
    found: BTreeMap<(usize, usize), (Span, String, Option<String>)>,
    count: usize,
    /// Warnings, each one once. They do not make a job unusable.
    warnings: Vec<(Span, String)>,
    /// The text is JSON: a problem also has the keys that lead to its place.
    json: bool,
}

impl Sink {
    /// Note that the text is JSON, so that problems also have the keys that lead to their places.
    pub(super) fn set_json(&mut self) {
        self.json = true;
    }

    /// Report a problem.
    pub(super) fn error(&mut self, at: Span, message: impl Into<String>) {
        self.push(at, message.into(), None);
    }

    /// Report a problem of a value that cannot be used, and return `None` for the value.
    pub(super) fn refuse<T>(&mut self, at: Span, message: impl Into<String>) -> Option<T> {
        self.error(at, message);
        None
    }

    /// Report a problem, and what may have been meant instead.
    pub(super) fn suggest(&mut self, at: Span, message: impl Into<String>, instead: Option<&str>) {
        self.push(at, message.into(), instead.map(str::to_owned));
    }

    /// Report a warning: something will not be done as it is written, and the job can be used. Of several
    /// warnings with the same words, the first one is kept.
    pub(super) fn warn(&mut self, at: Span, message: impl Into<String>) {
        let message = message.into();
        let known = self.warnings.iter().any(|(_, said)| *said == message);
        if !known && self.warnings.len() < JOB_DIAGNOSTICS_MAX {
            self.warnings.push((at, message));
        }
    }

    /// The valid name nearest to a mistyped one. There is none once there are far more problems than are shown,
    /// because a file full of unknown names would cost seconds.
    pub(super) fn nearest<'a>(
        &self,
        given: &str,
        valid: impl IntoIterator<Item = &'a str>,
    ) -> Option<&'a str> {
        if self.count > 4 * JOB_DIAGNOSTICS_MAX {
            return None;
        }
        nearest(given, valid)
    }

    /// The messages of the errors, with their places. What may have been meant is part of the message.
    pub(super) fn messages(self) -> Vec<(Span, String)> {
        let text = |(at, message, instead): (Span, String, Option<String>)| match instead {
            Some(instead) => (at, format!("{message} (did you mean {instead}?)")),
            None => (at, message),
        };
        self.found.into_values().map(text).collect()
    }

    /// The errors of another text than the job file, as messages that begin with name, line and column.
    pub(super) fn located_messages(self, text: &str, name: &str) -> Vec<String> {
        self.finish(text, name).iter().map(ToString::to_string).collect()
    }

    /// Whether no error was reported.
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The number of errors that were reported.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    fn push(&mut self, at: Span, message: String, suggestion: Option<String>) {
        self.found.insert((at.start, self.count), (at, message, suggestion));
        self.count += 1;
        if self.found.len() > JOB_DIAGNOSTICS_MAX {
            self.found.pop_last();
        }
    }

    /// The errors with lines and columns in `text`; or, where there is no error, the warnings.
    pub(super) fn finish(self, text: &str, file: &str) -> Diagnostics {
        let omitted = self.count.saturating_sub(self.found.len());
        let mut lines = LineCursor::new(text);
        // A file with errors has to be changed first: its warnings are reported after that.
        let warnings = if self.count == 0 { self.warnings } else { Vec::new() }.into_iter();
        let mut found: Vec<_> = warnings
            .map(|(at, message)| (at, Severity::Warning, message, None))
            .chain(self.found.into_values().map(|(at, text, instead)| {
                let severity = Severity::Error;
                (at, severity, text, instead)
            }))
            .collect();
        found.sort_by_key(|(at, ..)| at.start);
        let places: Vec<Span> = found.iter().map(|(at, ..)| *at).collect();
        let paths =
            if self.json && !places.is_empty() { json::paths(text, &places) } else { Vec::new() };
        let mut paths = paths.into_iter();
        let diagnostics = found
            .into_iter()
            .map(|(at, severity, message, suggestion)| {
                let (line, column, length) = lines.locate(at);
                FileDiagnostic {
                    severity,
                    file: file.to_owned(),
                    line,
                    column,
                    length,
                    message,
                    suggestion,
                    path: paths.next().flatten(),
                }
            })
            .collect();
        Diagnostics { diagnostics, omitted }
    }
}

/// Turns positions into lines and columns. It walks the text once, so positions are asked for in rising order.
struct LineCursor<'a> {
    text: &'a str,
    line: u32,
    line_start: usize,
}

impl<'a> LineCursor<'a> {
    fn new(text: &'a str) -> Self {
        Self { text, line: 1, line_start: 0 }
    }

    /// The line, column and length of a range. A range past the end is moved back into the text.
    fn locate(&mut self, at: Span) -> (u32, u32, u32) {
        // The end of a file that ends with a line break belongs to its last line.
        let last = self.text.trim_end_matches(['\n', '\r']).len();
        let mut start = at.start.min(last);
        while !self.text.is_char_boundary(start) {
            start -= 1;
        }
        while let Some(offset) =
            self.text.get(self.line_start..start).and_then(|passed| passed.find('\n'))
        {
            self.line += 1;
            self.line_start += offset + 1;
        }
        let before = self.text.get(self.line_start..start).unwrap_or_default();
        let mut end = at.end.clamp(start, self.text.len());
        while !self.text.is_char_boundary(end) {
            end -= 1;
        }
        let inside = self.text.get(start..end).unwrap_or_default();
        let inside = inside.split(['\n', '\r']).next().unwrap_or_default();
        (self.line, clamp(before.chars().count() + 1), clamp(inside.chars().count().max(1)))
    }
}

fn clamp(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    #![allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        reason = "tests"
    )]

    use super::*;

    fn one(text: &str, start: usize, end: usize) -> Diagnostics {
        let mut sink = Sink::default();
        sink.suggest(Span::new(start, end), "unknown key", Some("driver"));
        sink.finish(text, "a.hcl")
    }

    #[test]
    fn a_caret_stands_under_the_place() {
        let text = "job \"é\" {\n\tdrivr = 1\n}\n";
        let at = text.find("drivr").unwrap();
        let found = one(text, at, at + 5);
        assert_eq!(
            found.render(text, false),
            "a.hcl:2:2: error: unknown key\n2 | \tdrivr = 1\n  | \t^^^^^\n  did you mean driver?\n"
        );
        assert!(found.render(text, true).contains("\x1b[31m"));
    }

    #[test]
    fn columns_count_characters_not_bytes() {
        let text = "é = ü";
        let found = one(text, text.find('ü').unwrap(), text.len());
        assert_eq!((found.diagnostics[0].line, found.diagnostics[0].column), (1, 5));
    }

    #[test]
    fn a_position_past_the_end_is_moved_into_the_last_line() {
        let found = one("a\nbc\n", 99, 120);
        assert_eq!((found.diagnostics[0].line, found.diagnostics[0].column), (2, 3));
        let found = one("", 5, 6);
        assert_eq!((found.diagnostics[0].line, found.diagnostics[0].column), (1, 1));
    }

    #[test]
    fn of_too_many_problems_the_first_in_the_file_are_kept() {
        let text = "x".repeat(1_000);
        let mut sink = Sink::default();
        for at in (0..1_000).rev() {
            sink.error(Span::new(at, at + 1), "bad");
        }
        let found = sink.finish(&text, "f");
        assert_eq!(found.len(), JOB_DIAGNOSTICS_MAX);
        assert_eq!(found.omitted, 1_000 - JOB_DIAGNOSTICS_MAX);
        assert_eq!(found.diagnostics[0].column, 1);
        assert!(found.iter().is_sorted_by_key(|d| d.column));
    }

    #[test]
    fn control_characters_of_the_file_do_not_reach_the_terminal() {
        let text = "a = \x1b[2J";
        assert!(!one(text, 4, 5).render(text, false).contains('\x1b'));
    }

    #[test]
    fn a_long_line_is_cut_around_the_problem() {
        let text = format!("{}bad{}", "a".repeat(10_000), "b".repeat(10_000));
        let rendered = one(&text, 10_000, 10_003).render(&text, false);
        assert!(rendered.len() < 600 && rendered.contains("bad"), "{rendered}");
    }
}
