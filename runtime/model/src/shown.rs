//! Texts of strangers as people may see them: nothing hidden in them, and nothing endless.
//!
//! A text of a plugin, a guest or a server is made harmless once, where it enters. Newlines would
//! forge lines of a log, control characters steer a terminal, and marks of writing direction show
//! one name as another; all of them become visible: `\n`, `\u{202e}`.

use std::fmt::Write as _;

/// Bytes that may stand behind a text that was cut, to say how much is missing.
pub const REST_BYTES_MAX: usize = 40;

/// Does a character show as nothing, or change how others show? Control characters, line separators,
/// marks of direction, what is invisible by itself. Joiners stay: scripts and emoji need them.
#[must_use]
pub fn hides(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}' | '\u{200e}' | '\u{200f}')
        || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
        || matches!(c, '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Does a text have such a character? Most texts are ASCII, where the bytes tell.
#[must_use]
pub fn has_hidden(text: &str) -> bool {
    if text.is_ascii() {
        text.bytes().any(|byte| byte.is_ascii_control())
    } else {
        text.chars().any(hides)
    }
}

/// The first character of a name that is not seen in it: one that [`hides`], or a joiner beside ASCII or at an end,
/// where there is nothing to join.
#[must_use]
pub fn unseen(name: &str) -> Option<char> {
    if name.is_ascii() {
        return name.chars().find(|c| hides(*c));
    }
    let joins = |c: Option<char>| c.is_some_and(|c| !c.is_ascii());
    let mut before = None;
    let mut rest = name.chars().peekable();
    while let Some(c) = rest.next() {
        let joiner = matches!(c, '\u{200c}' | '\u{200d}');
        if hides(c) || (joiner && !(joins(before) && joins(rest.peek().copied()))) {
            return Some(c);
        }
        before = Some(c);
    }
    None
}

/// What a character is called where it cannot be seen: `U+202E`.
#[must_use]
pub fn code_point(c: char) -> String {
    format!("U+{:04X}", u32::from(c))
}

/// A text in one line of at most `max` bytes and [`REST_BYTES_MAX`], with all that hides made visible; what is left out is
/// counted: `… (12 bytes more)`.
#[must_use]
pub fn shown(text: impl Into<String>, max: usize) -> String {
    let text = text.into();
    if has_hidden(&text) { visible(&text, max, |_| false) } else { cut(text, max) }
}

/// A path in one line, with all that hides made visible: whoever may make a file chooses its name.
#[must_use]
pub fn shown_path(path: &std::path::Path) -> String {
    shown(path.to_string_lossy(), PATH_BYTES_MAX)
}

/// Longest path that the kernel takes, bytes.
const PATH_BYTES_MAX: usize = 4_096;

/// The end of a text in one line of at most `max` bytes: of what a program complained, the last word
/// says most.
#[must_use]
pub fn shown_end(text: &str, max: usize) -> String {
    let mut end = shown(text, usize::MAX);
    let from = end.ceil_char_boundary(end.len().saturating_sub(max));
    end.drain(..from);
    end
}

/// As [`shown`], of a text that may have several lines: newlines and tabs stay.
#[must_use]
pub fn shown_lines(text: impl Into<String>, max: usize) -> String {
    let text = text.into();
    if has_hidden(&text) {
        visible(&text, max, |c| matches!(c, '\n' | '\t'))
    } else {
        cut(text, max)
    }
}

/// A text cut at a character to at most `max` bytes, and how much is missing
/// ([`REST_BYTES_MAX`]).
#[must_use]
pub fn cut(mut text: String, max: usize) -> String {
    if text.len() > max {
        let end = text.floor_char_boundary(max);
        let more = text.len() - end;
        text.truncate(end);
        tell_more(&mut text, more);
    }
    text
}

/// The first of many names, and how many more there are.
#[must_use]
pub fn some_of<'a>(names: impl ExactSizeIterator<Item = &'a str>, max: usize) -> String {
    let more = names.len().saturating_sub(max);
    let mut text = names.take(max).collect::<Vec<_>>().join(", ");
    if more > 0 {
        let _ = write!(text, " and {more} more");
    }
    text
}

fn visible(text: &str, max: usize, stays: impl Fn(char) -> bool) -> String {
    let mut shown = String::with_capacity(text.len().min(max));
    for (at, c) in text.char_indices() {
        let before = shown.len();
        if hides(c) && !stays(c) {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
        if shown.len() > max {
            shown.truncate(before);
            tell_more(&mut shown, text.len() - at);
            break;
        }
    }
    shown
}

fn tell_more(text: &mut String, bytes: usize) {
    // Writing to a String cannot fail.
    let _ = write!(text, "… ({} more)", super::words::counted(bytes as u64, "byte"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hides_is_made_visible_and_what_people_write_stays() {
        assert_eq!(shown("a\nb\tc\u{1b}[2J", 99), r"a\nb\tc\u{1b}[2J");
        assert_eq!(shown("exe\u{202e}cod.exe", 99), r"exe\u{202e}cod.exe");
        assert_eq!(shown("a\u{2028}\u{feff}\u{85}", 99), r"a\u{2028}\u{feff}\u{85}");
        assert_eq!(shown_lines("a\nb\tc\r\u{2066}", 99), "a\nb\tc\\r\\u{2066}");
        for whole in ["größer 大 שלום", "👩\u{200d}🔬", r"C:\new", ""] {
            assert_eq!(shown(whole, 99), whole);
        }
    }

    #[test]
    fn a_path_is_shown_in_one_line() {
        let path = std::path::Path::new("/jobs/a\nERROR b.hcl");
        assert_eq!(shown_path(path), r"/jobs/a\nERROR b.hcl");
    }

    #[test]
    fn what_is_not_seen_in_a_name_is_found() {
        assert_eq!(unseen("web\u{202e}bew"), Some('\u{202e}'));
        assert_eq!(unseen("we\u{200d}b"), Some('\u{200d}'), "nothing is joined");
        assert_eq!(unseen("大\u{200c}"), Some('\u{200c}'), "at the end");
        assert_eq!(unseen("a\u{7f}"), Some('\u{7f}'));
        for seen in ["", "web-1", "größer", "שלום", "👩\u{200d}🔬", "می\u{200c}خواهم"]
        {
            assert_eq!(unseen(seen), None, "{seen}");
        }
        assert_eq!(code_point('\u{202e}'), "U+202E");
        assert_eq!(code_point('\u{e0041}'), "U+E0041");
    }

    #[test]
    fn what_is_too_long_is_cut_at_a_character_and_the_rest_is_counted() {
        assert_eq!(shown("x".repeat(10), 10), "xxxxxxxxxx");
        assert_eq!(shown("x".repeat(11), 10), "xxxxxxxxxx… (1 byte more)");
        assert_eq!(shown("ä".repeat(4), 5), "ää… (4 bytes more)");
        assert_eq!(shown("\n".repeat(1 << 20), 5), r"\n\n… (1048574 bytes more)");
        assert_eq!(shown("ab\u{202e}", 5), "ab… (3 bytes more)", "no half of an escape");
    }

    #[test]
    fn of_a_complaint_the_end_is_kept() {
        assert_eq!(shown_end("all of it", 9), "all of it");
        assert_eq!(shown_end("a\nb: last", 7), "b: last");
        assert_eq!(shown_end("ä\nb", 4), r"\nb", "no half of a character");
    }

    #[test]
    fn how_much_is_missing_fits_its_room() {
        let mut text = String::new();
        tell_more(&mut text, usize::MAX);
        assert!(text.len() <= REST_BYTES_MAX, "{text}");
    }

    #[test]
    fn of_many_names_some_are_told() {
        let names = ["a", "b", "c"];
        assert_eq!(some_of(names.into_iter(), 3), "a, b, c");
        assert_eq!(some_of(names.into_iter(), 2), "a, b and 1 more");
    }
}
