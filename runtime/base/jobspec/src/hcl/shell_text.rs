//! Finds parts of a text such as `${X:-2}`, which are meant for a shell and are no expressions. The parser's own
//! message does not help there: of a text in lines it only reports that something is wrong, and in `${x##*/}` it sees
//! the begin of a comment.

use super::scan::AS_TEXT;
use crate::diagnostic::{Span, quote_text};

/// The largest number of parts of a file that are examined.
pub(super) const LOOKED_AT_MAX: usize = 1_024;
/// The longest part that is examined, in bytes: those for a shell are short.
const PART_BYTES_MAX: usize = 4 * 1024;

/// The first `${` of these places that begins no expression, with the message about it.
pub(super) fn first_non_expression(text: &str, starts: &[usize]) -> Option<(Span, String)> {
    let parts = starts.iter().filter_map(|start| part(text, *start));
    let mut wrong = parts.filter(|part| !is_expression(part_text(text, *part)));
    let mut found = wrong.next()?;
    // A problem of an inner part is also one of the part around it: report the innermost.
    while let Some(inner) = wrong.next().filter(|inner| inner.end <= found.end) {
        found = inner;
    }
    let written = quote_text(part_text(text, found));
    Some((found, format!("{written} is not an expression; {AS_TEXT}, as a shell has it")))
}

fn part_text(text: &str, part: Span) -> &str {
    text.get(part.start..part.end).unwrap_or_default()
}

/// The part from a `${` to its `}`.
fn part(text: &str, start: usize) -> Option<Span> {
    let (mut open, mut quoted) = (0_usize, false);
    for (at, byte) in text.as_bytes().get(start..)?.iter().enumerate().take(PART_BYTES_MAX) {
        match byte {
            b'"' => quoted = !quoted,
            b'{' if !quoted => open += 1,
            b'}' if !quoted && open <= 1 => return Some(Span::new(start, start + at + 1)),
            b'}' if !quoted => open -= 1,
            _ => {}
        }
    }
    None
}

fn is_expression(part: &str) -> bool {
    hcl_edit::parser::parse_body(&format!("x = \"{part}\"\n")).is_ok()
}
