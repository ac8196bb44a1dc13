//! What is wrong with a job file, and where.
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

use super::{json, suggest};
use ostler_model::limits::JOB_DIAGNOSTICS_MAX;

/// Longest text of the user repeated in a message, characters.
const SHOWN_CHARS_MAX: usize = 64;

/// A range of bytes in a job file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Span {
    /// First byte.
    pub start: usize,
    /// One past the last byte.
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
    /// How bad it is.
    pub severity: Severity,
    /// The file as it was named by the user.
    pub file: String,
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
    /// Characters concerned, within the line; at least 1.
    pub length: u32,
    /// What is wrong, and the next step where it is not obvious.
    pub message: String,
    /// What may have been meant instead of the text at the position.
    pub suggestion: Option<String>,
    /// In JSON, the keys that lead there: `TaskGroups[0] ("web") > Count`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

impl FileDiagnostic {
    /// The message alone, for whoever does not have the file; in JSON with the keys that lead there.
    #[must_use]
    pub fn in_words(&self) -> String {
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
    /// The problems.
    pub diagnostics: Vec<FileDiagnostic>,
    /// Problems found beyond the bound, further down in the file.
    pub omitted: usize,
}

impl Diagnostics {
    /// Problems kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.diagnostics.len()
    }

    /// No problem.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.diagnostics.is_empty()
    }

    /// How many were found, those beyond the bound included.
    #[must_use]
    pub fn found(&self) -> usize {
        self.diagnostics.len().saturating_add(self.omitted)
    }

    /// The problems, sorted by position.
    pub fn iter(&self) -> std::slice::Iter<'_, FileDiagnostic> {
        self.diagnostics.iter()
    }

    /// Text for a terminal: position, message, the line of `source` and a caret under the place.
    /// Control characters of the source are replaced, so that a file cannot steer the terminal.
    #[must_use]
    pub fn render(&self, source: &str, colour: bool) -> String {
        let lines: Vec<&str> = source.split('\n').collect();
        let mut out = String::new();
        for diagnostic in &self.diagnostics {
            render::one(&mut out, diagnostic, &lines, colour);
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

/// The user's own text in quotes, cut and escaped, for a message.
pub(super) fn shown(text: &str) -> String {
    let cut: String = text.chars().take(SHOWN_CHARS_MAX).collect();
    if cut.len() < text.len() { format!("{cut:?}…") } else { format!("{cut:?}") }
}

/// Collects problems while a file is read. Bounded: of many, those furthest up are kept.
#[derive(Debug, Default)]
pub(super) struct Sink {
    found: BTreeMap<(usize, usize), (Span, String, Option<String>)>,
    count: usize,
    /// What the job can do without, each said once. They do not make a job unusable.
    warnings: Vec<(Span, String)>,
    /// The text is JSON: places are said in words too.
    json: bool,
}

impl Sink {
    /// Say places in words too: the text is JSON.
    pub(super) fn is_json(&mut self) {
        self.json = true;
    }

    /// Report a problem.
    pub(super) fn error(&mut self, at: Span, message: impl Into<String>) {
        self.push(at, message.into(), None);
    }

    /// Report a problem of what cannot be used then.
    pub(super) fn refuse<T>(&mut self, at: Span, message: impl Into<String>) -> Option<T> {
        self.error(at, message);
        None
    }

    /// Report a problem and what may have been meant.
    pub(super) fn suggest(&mut self, at: Span, message: impl Into<String>, instead: Option<&str>) {
        self.push(at, message.into(), instead.map(str::to_owned));
    }

    /// Report what will not be as it is written; the job can be used. Said once: where the first
    /// one stands, of several with the same words.
    pub(super) fn warn(&mut self, at: Span, message: impl Into<String>) {
        let message = message.into();
        let known = self.warnings.iter().any(|(_, said)| *said == message);
        if !known && self.warnings.len() < JOB_DIAGNOSTICS_MAX {
            self.warnings.push((at, message));
        }
    }

    /// The valid name nearest to a mistyped one. None once there are far more problems than are
    /// shown: a file of unknown names would cost seconds.
    pub(super) fn nearest<'a>(
        &self,
        given: &str,
        valid: impl IntoIterator<Item = &'a str>,
    ) -> Option<&'a str> {
        if self.count > 4 * JOB_DIAGNOSTICS_MAX {
            return None;
        }
        suggest::nearest(given, valid)
    }

    /// The errors, with their places; without what may have been meant.
    pub(super) fn messages(self) -> Vec<(Span, String)> {
        let text = |(at, message, instead): (Span, String, Option<String>)| match instead {
            Some(instead) => (at, format!("{message} (did you mean {instead}?)")),
            None => (at, message),
        };
        self.found.into_values().map(text).collect()
    }

    /// The errors of another text than the file, each with the name, line and column in its words.
    pub(super) fn located(self, text: &str, name: &str) -> Vec<String> {
        self.finish(text, name).iter().map(ToString::to_string).collect()
    }

    /// No error was reported.
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// How many errors were reported.
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

    /// Lines and columns in `text` for all errors, or where there is none for the warnings.
    pub(super) fn finish(self, text: &str, file: &str) -> Diagnostics {
        let omitted = self.count.saturating_sub(self.found.len());
        let mut lines = LineCursor::new(text);
        // A file that cannot be used has to be changed first: what else is in it is told then.
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

/// Walks a text once while positions are asked for in rising order.
struct LineCursor<'a> {
    text: &'a str,
    line: u32,
    line_start: usize,
}

impl<'a> LineCursor<'a> {
    fn new(text: &'a str) -> Self {
        Self { text, line: 1, line_start: 0 }
    }

    /// Line, column and length of `at`, moved back into the text when it points past its end.
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
