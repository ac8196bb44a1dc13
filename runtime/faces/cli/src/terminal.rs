//! The output streams of the program: decides on colours, widths and the control characters in
//! output.

use std::borrow::Cow;
use std::io::IsTerminal as _;

use ostler_model::limits::CLIENT_BODY_BYTES_MAX;
use ostler_model::printable::{is_hidden_char, printable_lines};

/// The properties of the two output streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TerminalInfo {
    /// Whether standard output is a terminal.
    pub stdout: bool,
    /// Whether standard error is a terminal.
    pub stderr: bool,
    /// Whether colours are wanted on a terminal.
    pub colours: bool,
    /// Columns of the terminal on standard output, if they are known.
    pub columns: Option<u16>,
    /// Whether a program reads the output (`--json`), and the errors too.
    pub json: bool,
}

/// Columns of a terminal whose width is not known.
const COLUMNS: u16 = 80;

impl TerminalInfo {
    /// Look at the process's streams and environment.
    pub(super) fn detect() -> Self {
        Self {
            stdout: std::io::stdout().is_terminal(),
            stderr: std::io::stderr().is_terminal(),
            colours: wants_colours(|name| std::env::var(name).ok()),
            columns: rustix::termios::tcgetwinsize(rustix::stdio::stdout())
                .ok()
                .map(|size| size.ws_col)
                .filter(|columns| *columns > 0),
            json: false,
        }
    }

    /// How wide a line on standard output may be; `None` where it is no terminal.
    pub(super) fn width(&self) -> Option<usize> {
        self.stdout.then(|| usize::from(self.columns.unwrap_or(COLUMNS)))
    }

    /// Whether standard output gets colours.
    pub(super) const fn stdout_colours(&self) -> bool {
        self.stdout && self.colours
    }

    /// Whether standard error gets colours.
    pub(super) const fn stderr_colours(&self) -> bool {
        self.stderr && self.colours
    }
}

/// Whether the environment allows colours: `NO_COLOR` with any text and `TERM=dumb` do not.
fn wants_colours(variable: impl Fn(&str) -> Option<String>) -> bool {
    variable("NO_COLOR").is_none_or(|text| text.is_empty())
        && variable("TERM").is_none_or(|term| term != "dumb")
}

/// A piece of text in a colour, or as it is. `code` is an SGR code such as `31`.
pub(super) fn paint(text: &str, code: &str, colours: bool) -> String {
    if colours { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
}

/// Make text of unknown origin harmless: characters that control a terminal or hide become visible.
/// Newlines and tabs stay.
pub(super) fn plain(text: &str) -> String {
    printable_lines(text, CLIENT_BODY_BYTES_MAX)
}

/// As [`plain`], in one line.
pub(super) fn one_line(text: &str) -> String {
    plain(text).replace('\n', "; ").replace('\t', " ")
}

/// Make characters visible that turn the direction of text or hide, in a whole message whose own
/// colours and line breaks stay. This is the last step before text goes to a terminal.
pub(super) fn escape_hidden(text: &str) -> Cow<'_, str> {
    let turns = |c: char| !c.is_control() && is_hidden_char(c);
    if text.is_ascii() || !text.contains(turns) {
        return Cow::Borrowed(text);
    }
    let mut visible = String::with_capacity(text.len());
    for c in text.chars() {
        if turns(c) {
            visible.extend(c.escape_default());
        } else {
            visible.push(c);
        }
    }
    Cow::Owned(visible)
}

/// Append a line that a task printed, for a terminal: colours stay, a carriage return at the end is
/// removed, and whatever else controls the terminal (cursor, title, clipboard) becomes visible.
/// Returns whether a colour may still be on at the end.
pub(super) fn task_line(bytes: &[u8], into: &mut Vec<u8>) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let mut rest = text.strip_suffix('\r').unwrap_or(&text);
    let mut coloured = false;
    while let Some(c) = rest.chars().next() {
        if let Some(length) = colour_sequence(rest) {
            into.extend_from_slice(rest.get(..length).unwrap_or_default().as_bytes());
            rest = rest.get(length..).unwrap_or_default();
            coloured = true;
            continue;
        }
        if is_hidden_char(c) && c != '\t' {
            into.extend(c.escape_default().map(|c| c as u8));
        } else {
            into.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
        }
        rest = rest.get(c.len_utf8()..).unwrap_or_default();
    }
    coloured
}

/// Length in bytes of the SGR sequence (`ESC [ 1 ; 31 m`) at the beginning of `text`.
fn colour_sequence(text: &str) -> Option<usize> {
    let parameters = text.strip_prefix("\x1b[")?;
    let end = parameters.find(|c: char| !c.is_ascii_digit() && c != ';')?;
    parameters.get(end..)?.starts_with('m').then_some("\x1b[".len() + end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(bytes: &[u8]) -> (String, bool) {
        let mut line = Vec::new();
        let coloured = task_line(bytes, &mut line);
        (String::from_utf8_lossy(&line).into_owned(), coloured)
    }

    #[test]
    fn no_color_and_a_dumb_terminal_switch_colours_off() {
        let with = |name: &'static str, text: &'static str| {
            wants_colours(move |asked| (asked == name).then(|| text.to_owned()))
        };
        assert!(with("", ""));
        assert!(with("TERM", "xterm"));
        assert!(with("NO_COLOR", ""));
        assert!(!with("NO_COLOR", "1"));
        assert!(!with("TERM", "dumb"));
    }

    #[test]
    fn task_output_keeps_its_colours_and_cannot_steer_the_terminal() {
        assert_eq!(shown(b"\x1b[1;31mred\x1b[0m\ta"), ("\x1b[1;31mred\x1b[0m\ta".to_owned(), true));
        assert_eq!(shown(b"\x1b]0;title\x07"), (r"\u{1b}]0;title\u{7}".to_owned(), false));
        assert_eq!(shown(b"\x1b[2Jx"), (r"\u{1b}[2Jx".to_owned(), false));
        assert_eq!(shown(b"\x1b[31"), (r"\u{1b}[31".to_owned(), false));
        assert_eq!(shown(b"dos\r"), ("dos".to_owned(), false));
        assert_eq!(shown(b"\xffok"), ("\u{fffd}ok".to_owned(), false));
    }

    #[test]
    fn messages_of_others_show_their_control_characters() {
        assert_eq!(plain("a\x1b[2Jb\nc"), "a\\u{1b}[2Jb\nc");
        assert_eq!(one_line("ex\u{202e}ce"), r"ex\u{202e}ce");
        assert_eq!(one_line("a\nb\tc"), "a; b c");
        assert_eq!(escape_hidden("\x1b[1mex\u{202e}ce\x1b[0m\n"), "\x1b[1mex\\u{202e}ce\x1b[0m\n");
        assert_eq!(escape_hidden("größer 👩\u{200d}🔬"), "größer 👩\u{200d}🔬");
        assert_eq!(paint("x", "31", false), "x");
        assert_eq!(paint("x", "31", true), "\x1b[31mx\x1b[0m");
    }
}
