//! Turns the bytes of a file into what the file says, or into all of its problems.

use std::path::Path;

use ostler_model::printable::printable_path;

use crate::diagnostic::{Diagnostics, Sink, Span};

/// Read a whole file of at most `max` bytes. Returns the result of `read` on its text, the text, and warnings.
///
/// # Errors
/// All problems of the text, with their places; never empty.
pub(crate) fn read_whole<'a, T>(
    input: &'a [u8],
    file: &Path,
    max: u64,
    what: &str,
    read: impl FnOnce(&'a str, &mut Sink) -> Option<T>,
) -> Result<(T, &'a str, Diagnostics), Diagnostics> {
    let name = printable_path(file);
    let mut sink = Sink::default();
    let text = match text_of(input, max, what, &mut sink) {
        Ok(text) => text,
        Err(before) => return Err(sink.finish(before, &name)),
    };
    match read(text, &mut sink) {
        Some(read) if sink.is_empty() => Ok((read, text, sink.finish(text, &name))),
        _ => {
            if sink.is_empty() {
                sink.error(Span::default(), format!("{what} cannot be used"));
            }
            Err(sink.finish(text, &name))
        }
    }
}

/// The text, or the part of it that stands before the reported problem.
fn text_of<'a>(input: &'a [u8], max: u64, what: &str, sink: &mut Sink) -> Result<&'a str, &'a str> {
    if u64::try_from(input.len()).is_ok_and(|bytes| bytes > max) {
        let message = format!("{what} has {} bytes; at most {max} are read", input.len());
        sink.error(Span::default(), message);
        return Err("");
    }
    let text = std::str::from_utf8(input).map_err(|error| {
        // The bytes before the first wrong one are text, which is enough to say where it stands.
        let at = error.valid_up_to();
        sink.error(Span::new(at, at + 1), "not a text file: this byte is not UTF-8");
        let before = input.get(..at).and_then(|bytes| std::str::from_utf8(bytes).ok());
        before.unwrap_or_default()
    })?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if let Some(at) = text.find('\0') {
        sink.error(Span::new(at, at + 1), "not a text file: it contains the character NUL");
        return Err(text);
    }
    Ok(text)
}

/// A function that replaces a position in the text by its line.
pub(crate) fn lines_of(text: &str) -> impl Fn(&mut u32) {
    let breaks: Vec<usize> = text.match_indices('\n').map(|(at, _)| at).collect();
    move |at: &mut u32| {
        let before = breaks.partition_point(|end| *end < *at as usize);
        *at = u32::try_from(before + 1).unwrap_or(u32::MAX);
    }
}
