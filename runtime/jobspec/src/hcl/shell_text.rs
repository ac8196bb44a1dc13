//! `${X:-2}` and the like in a text: meant for a shell, and no expression. Of a text in lines the parser says
//! only that something is wrong in it, and `${x##*/}` is one in which a comment begins.

use super::super::diagnostic::{Span, shown};
use super::scan::AS_TEXT;

/// Most parts of a file that are looked at.
pub(super) const LOOKED_AT_MAX: usize = 1_024;
/// Longest part that is looked at, bytes: a shell's are short.
const PART_BYTES_MAX: usize = 4 * 1024;

/// Of the `${` at these places the first that begins no expression, and what is said of it.
pub(super) fn found(text: &str, starts: &[usize]) -> Option<(Span, String)> {
    let parts = starts.iter().filter_map(|start| part(text, *start));
    let mut wrong = parts.filter(|part| !is_expression(written(text, *part)));
    let mut found = wrong.next()?;
    // What is wrong in an inner one is wrong in the one around it.
    while let Some(inner) = wrong.next().filter(|inner| inner.end <= found.end) {
        found = inner;
    }
    let written = shown(written(text, found));
    Some((found, format!("{written} is no expression; {AS_TEXT}, as a shell has it")))
}

fn written(text: &str, part: Span) -> &str {
    text.get(part.start..part.end).unwrap_or_default()
}

/// From a `${` to its `}`.
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
