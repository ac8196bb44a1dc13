//! Untrusted texts made safe for people to read: hidden characters become visible, and the length
//! is bounded.
//!
//! A text of a plugin, a guest or a server is made safe once, where it enters. Newlines would forge
//! lines of a log, control characters would control a terminal, and marks of writing direction
//! would show one name as another. All of them become visible: `\n`, `\u{202e}`.

use std::fmt::Write as _;

/// Most bytes of the note behind a text that was cut, which says how much is missing.
pub const REST_BYTES_MAX: usize = 40;

/// Whether a character is invisible, or changes how others are shown: control characters, line
/// separators, marks of direction, and characters without a glyph. Joiners are not among them,
/// because scripts and emoji need them.
#[must_use]
pub fn is_hidden_char(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}' | '\u{200e}' | '\u{200f}')
        || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
        || matches!(c, '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Whether a text has a character that [`is_hidden_char`].
#[must_use]
pub fn has_hidden(text: &str) -> bool {
    if text.is_ascii() {
        text.bytes().any(|byte| byte.is_ascii_control())
    } else {
        text.chars().any(is_hidden_char)
    }
}

/// The first character of a name that people do not see: one that [`is_hidden_char`], or a joiner beside
/// ASCII or at an end, where there is nothing to join.
#[must_use]
pub fn first_unseen(name: &str) -> Option<char> {
    if name.is_ascii() {
        return name.chars().find(|c| is_hidden_char(*c));
    }
    let joins = |c: Option<char>| c.is_some_and(|c| !c.is_ascii());
    let mut before = None;
    let mut rest = name.chars().peekable();
    while let Some(c) = rest.next() {
        let joiner = matches!(c, '\u{200c}' | '\u{200d}');
        if is_hidden_char(c) || (joiner && !(joins(before) && joins(rest.peek().copied()))) {
            return Some(c);
        }
        before = Some(c);
    }
    None
}

/// Name of a character that cannot be seen: `U+202E`.
#[must_use]
pub fn code_point(c: char) -> String {
    format!("U+{:04X}", u32::from(c))
}

/// A text in one line, with all hidden characters made visible. It is cut to `max` bytes, and a
/// note of at most [`REST_BYTES_MAX`] bytes counts the rest: `… (12 bytes more)`.
#[must_use]
pub fn printable_line(text: impl Into<String>, max: usize) -> String {
    let text = text.into();
    if has_hidden(&text) { escape_hidden(&text, max, |_| false) } else { truncate_text(text, max) }
}

/// A path in one line, with all hidden characters made visible, because anybody who may make a file
/// chooses its name.
#[must_use]
pub fn printable_path(path: &std::path::Path) -> String {
    printable_line(path.to_string_lossy(), PATH_BYTES_MAX)
}

/// Longest path that the kernel takes, bytes.
const PATH_BYTES_MAX: usize = 4_096;

/// The end of a text in one line of at most `max` bytes, for error output of programs, whose last
/// line says most.
#[must_use]
pub fn printable_end(text: &str, max: usize) -> String {
    let mut end = printable_line(text, usize::MAX);
    let from = end.ceil_char_boundary(end.len().saturating_sub(max));
    end.drain(..from);
    end
}

/// As [`printable_line`], for a text of several lines: newlines and tabs stay.
#[must_use]
pub fn printable_lines(text: impl Into<String>, max: usize) -> String {
    let text = text.into();
    if has_hidden(&text) {
        escape_hidden(&text, max, |c| matches!(c, '\n' | '\t'))
    } else {
        truncate_text(text, max)
    }
}

/// A text cut to at most `max` bytes at a character, with a note of at most [`REST_BYTES_MAX`]
/// bytes about the rest.
#[must_use]
pub fn truncate_text(mut text: String, max: usize) -> String {
    if text.len() > max {
        let end = text.floor_char_boundary(max);
        let more = text.len() - end;
        text.truncate(end);
        append_rest(&mut text, more);
    }
    text
}

/// The first `max` names, comma separated, and how many more there are.
#[must_use]
pub fn join_some<'a>(names: impl ExactSizeIterator<Item = &'a str>, max: usize) -> String {
    let more = names.len().saturating_sub(max);
    let mut text = names.take(max).collect::<Vec<_>>().join(", ");
    if more > 0 {
        let _ = write!(text, " and {more} more");
    }
    text
}

fn escape_hidden(text: &str, max: usize, stays: impl Fn(char) -> bool) -> String {
    let mut shown = String::with_capacity(text.len().min(max));
    for (at, c) in text.char_indices() {
        let before = shown.len();
        if is_hidden_char(c) && !stays(c) {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
        if shown.len() > max {
            shown.truncate(before);
            append_rest(&mut shown, text.len() - at);
            break;
        }
    }
    shown
}

fn append_rest(text: &mut String, bytes: usize) {
    // Writing to a String cannot fail.
    let _ = write!(text, "… ({} more)", super::words::count_noun(bytes as u64, "byte"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hides_is_made_visible_and_what_people_write_stays() {
        assert_eq!(printable_line("a\nb\tc\u{1b}[2J", 99), r"a\nb\tc\u{1b}[2J");
        assert_eq!(printable_line("exe\u{202e}cod.exe", 99), r"exe\u{202e}cod.exe");
        assert_eq!(printable_line("a\u{2028}\u{feff}\u{85}", 99), r"a\u{2028}\u{feff}\u{85}");
        assert_eq!(printable_lines("a\nb\tc\r\u{2066}", 99), "a\nb\tc\\r\\u{2066}");
        for whole in ["größer 大 שלום", "👩\u{200d}🔬", r"C:\new", ""] {
            assert_eq!(printable_line(whole, 99), whole);
        }
    }

    #[test]
    fn a_path_is_shown_in_one_line() {
        let path = std::path::Path::new("/jobs/a\nERROR b.hcl");
        assert_eq!(printable_path(path), r"/jobs/a\nERROR b.hcl");
    }

    #[test]
    fn what_is_not_seen_in_a_name_is_found() {
        assert_eq!(first_unseen("web\u{202e}bew"), Some('\u{202e}'));
        assert_eq!(first_unseen("we\u{200d}b"), Some('\u{200d}'), "nothing is joined");
        assert_eq!(first_unseen("大\u{200c}"), Some('\u{200c}'), "at the end");
        assert_eq!(first_unseen("a\u{7f}"), Some('\u{7f}'));
        for seen in ["", "web-1", "größer", "שלום", "👩\u{200d}🔬", "می\u{200c}خواهم"]
        {
            assert_eq!(first_unseen(seen), None, "{seen}");
        }
        assert_eq!(code_point('\u{202e}'), "U+202E");
        assert_eq!(code_point('\u{e0041}'), "U+E0041");
    }

    #[test]
    fn what_is_too_long_is_cut_at_a_character_and_the_rest_is_counted() {
        assert_eq!(printable_line("x".repeat(10), 10), "xxxxxxxxxx");
        assert_eq!(printable_line("x".repeat(11), 10), "xxxxxxxxxx… (1 byte more)");
        assert_eq!(printable_line("ä".repeat(4), 5), "ää… (4 bytes more)");
        assert_eq!(printable_line("\n".repeat(1 << 20), 5), r"\n\n… (1048574 bytes more)");
        assert_eq!(printable_line("ab\u{202e}", 5), "ab… (3 bytes more)", "no half of an escape");
    }

    #[test]
    fn of_a_complaint_the_end_is_kept() {
        assert_eq!(printable_end("all of it", 9), "all of it");
        assert_eq!(printable_end("a\nb: last", 7), "b: last");
        assert_eq!(printable_end("ä\nb", 4), r"\nb", "no half of a character");
    }

    #[test]
    fn how_much_is_missing_fits_its_room() {
        let mut text = String::new();
        append_rest(&mut text, usize::MAX);
        assert!(text.len() <= REST_BYTES_MAX, "{text}");
    }

    #[test]
    fn of_many_names_some_are_told() {
        let names = ["a", "b", "c"];
        assert_eq!(join_some(names.into_iter(), 3), "a, b, c");
        assert_eq!(join_some(names.into_iter(), 2), "a, b and 1 more");
    }
}
