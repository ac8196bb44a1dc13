//! One problem as text for a terminal.

use std::fmt::Write as _;

use super::{FileDiagnostic, Severity};
use ostler_model::printable::is_hidden_char;

/// The longest source line that is shown in full, in characters. Of a longer line, the part around the
/// problem is shown.
const LINE_CHARS_MAX: usize = 160;

/// Write one problem: its position and message, the source line, the carets and the suggestion.
pub(super) fn render_diagnostic(
    out: &mut String,
    diagnostic: &FileDiagnostic,
    lines: &[&str],
    colour: bool,
) {
    let (bold, accent, faint, reset) = match (colour, diagnostic.severity) {
        (false, _) => ("", "", "", ""),
        (true, Severity::Error) => ("\x1b[1m", "\x1b[31m", "\x1b[2m", "\x1b[0m"),
        (true, Severity::Warning) => ("\x1b[1m", "\x1b[33m", "\x1b[2m", "\x1b[0m"),
    };
    let FileDiagnostic { file, line, column, .. } = diagnostic;
    let (severity, message) =
        (diagnostic.severity.as_str(), printable(&diagnostic.message_with_path()));
    // JSON that a program wrote has one line: its keys say where a problem is, and its columns do not help.
    let is_line =
        diagnostic.path.is_some() && lines.iter().filter(|line| !line.is_empty()).count() <= 1;
    let place = match (is_line, file.is_empty()) {
        (true, true) => String::new(),
        (true, false) => format!("{}: ", printable(file)),
        (false, _) => format!("{}:{line}:{column}: ", printable(file)),
    };
    let place = place.trim_end();
    let blank = if place.is_empty() { "" } else { " " };
    let _ = writeln!(out, "{bold}{place}{reset}{blank}{accent}{severity}:{reset} {message}");
    let text = usize::try_from(*line).ok().and_then(|n| lines.get(n.saturating_sub(1)));
    if let Some(text) = text.filter(|_| !is_line) {
        let (shown, before, length) = excerpt(text, *column, diagnostic.length);
        let number = line.to_string();
        let blank = " ".repeat(number.len());
        let _ = writeln!(out, "{faint}{number} |{reset} {shown}");
        let caret = "^".repeat(length);
        let _ = writeln!(out, "{faint}{blank} |{reset} {before}{accent}{caret}{reset}");
    }
    if let Some(suggestion) = &diagnostic.suggestion {
        let _ = writeln!(out, "  did you mean {bold}{}{reset}?", printable(suggestion));
    }
}

/// The part of a line to show, the blanks before the carets, and the number of carets.
fn excerpt(line: &str, column: u32, length: u32) -> (String, String, usize) {
    let column = usize::try_from(column.saturating_sub(1)).unwrap_or(0);
    let line = line.trim_end_matches('\r');
    let skip = if line.chars().count() > LINE_CHARS_MAX { column.saturating_sub(40) } else { 0 };
    let shown: String = line.chars().skip(skip).take(LINE_CHARS_MAX).collect();
    // Tabs stay tabs on both lines, so that the caret stands under its place.
    let before = line
        .chars()
        .skip(skip)
        .take(column.saturating_sub(skip))
        .map(|c| if c == '\t' { '\t' } else { ' ' })
        .collect();
    let room = shown.chars().count().saturating_sub(column.saturating_sub(skip)).max(1);
    let length = usize::try_from(length).unwrap_or(1).clamp(1, room);
    (printable(&shown), before, length)
}

fn printable(text: &str) -> String {
    text.chars().map(|c| if is_hidden_char(c) && c != '\t' { '\u{fffd}' } else { c }).collect()
}
