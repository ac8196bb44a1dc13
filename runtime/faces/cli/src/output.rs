//! Printing: messages, tables, JSON. A closed standard output is an [`Exit`], not a panic.

use std::io::{self, Write as _};

use serde::Serialize;

use super::exit::Exit;
use super::failure::ErrorReport;
use super::input::{InputError, JobInput};
pub(super) use super::table::table;
use super::terminal::{TerminalInfo, escape_hidden, one_line, paint, plain};
use ostler_model::printable::is_hidden_char;
use ostler_model::time::Timestamp;
use ostler_model::words::time_ago;

/// Characters of an id that lists show.
pub(super) const ID_CHARS_SHOWN: usize = 8;

const BOLD: &str = "1";
const RED: &str = "1;31";
const YELLOW: &str = "33";

/// Print a whole text on standard output.
pub(super) fn print(text: &str, terminal: &TerminalInfo) -> Result<(), Exit> {
    let mut out = io::stdout().lock();
    // Other programs get the text unchanged.
    let text = if terminal.stdout { escape_hidden(text) } else { text.into() };
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|error| report_output_error(&error, terminal))
}

/// Print a value as JSON, indented for people.
pub(super) fn print_json<T: Serialize + ?Sized>(
    value: &T,
    terminal: &TerminalInfo,
) -> Result<(), Exit> {
    match serde_json::to_string_pretty(value) {
        Ok(text) => print(&(visible_json(text) + "\n"), terminal),
        Err(cause) => {
            error(terminal, &format!("cannot be shown as JSON: {cause}"));
            Err(Exit::Agent)
        }
    }
}

/// Replace characters in JSON that a terminal would hide or reorder with escapes. The value stays
/// the same.
pub(super) fn visible_json(text: String) -> String {
    let unseen = |c: char| is_hidden_char(c) && c != '\n';
    if !text.contains(unseen) {
        return text;
    }
    let mut visible = String::with_capacity(text.len());
    for c in text.chars() {
        if !unseen(c) {
            visible.push(c);
            continue;
        }
        // Such characters are only in strings.
        for unit in c.encode_utf16(&mut [0; 2]) {
            let _ = std::fmt::Write::write_fmt(&mut visible, format_args!("\\u{unit:04x}"));
        }
    }
    visible
}

/// The exit code after a failure to write standard output. Prints the error, unless the reader has
/// just closed its end.
pub(super) fn report_output_error(cause: &io::Error, terminal: &TerminalInfo) -> Exit {
    if cause.kind() == io::ErrorKind::BrokenPipe {
        return Exit::OutputClosed;
    }
    error(terminal, &format!("cannot write to standard output: {cause}"));
    Exit::Agent
}

/// Print a line on standard error. An error is ignored: there is nowhere to report it.
pub(super) fn say(text: &str) {
    let _closed = writeln!(io::stderr().lock(), "{}", escape_hidden(text));
}

/// Replace the line that was drawn before on the terminal; an empty text removes it.
pub(super) fn draw(text: &str) {
    let mut stderr = io::stderr().lock();
    let _closed = write!(stderr, "\r{}\x1b[K", plain(text)).and_then(|()| stderr.flush());
}

/// Print an error for programs: one object in one line.
pub(super) fn say_failure(failure: &ErrorReport<'_>) {
    say_json(failure);
}

fn say_json<T: Serialize>(value: &T) {
    // The values that are passed here can always be made JSON.
    let text = serde_json::to_string(value).unwrap_or_default();
    say(&visible_json(text));
}

/// Print an error message.
pub(super) fn error(terminal: &TerminalInfo, message: &str) {
    if terminal.json {
        return say_failure(&ErrorReport::new(message));
    }
    say(&format!("{} {}", paint("error:", RED, terminal.stderr_colours()), plain(message)));
}

/// Print a warning.
pub(super) fn warning(terminal: &TerminalInfo, message: &str) {
    if terminal.json {
        return say_json(&serde_json::json!({ "warning": message }));
    }
    say(&format!("{} {}", paint("warning:", YELLOW, terminal.stderr_colours()), plain(message)));
}

/// Print what is wrong with a file, with the places.
pub(super) fn input_error(terminal: &TerminalInfo, wrong: &InputError) {
    if terminal.json {
        return say_failure(&ErrorReport::from_input(wrong));
    }
    if let InputError::Invalid { text, diagnostics, .. } = wrong {
        say(diagnostics.render(text, terminal.stderr_colours()).trim_end());
    }
    error(terminal, &wrong.to_string());
}

/// Print what a job file asks for and the agent does not do, with the places.
pub(super) fn job_warnings(terminal: &TerminalInfo, job: &JobInput) {
    if job.warnings().is_empty() {
        return;
    }
    if terminal.json {
        for one in &job.warnings().diagnostics {
            say_json(
                &serde_json::json!({ "warning": one.message_with_path(), "diagnostics": [one] }),
            );
        }
    } else {
        say(job.warnings().render(job.text(), terminal.stderr_colours()).trim_end());
    }
}

/// A headline, with its colour on a terminal.
pub(super) fn headline(text: &str, terminal: &TerminalInfo) -> String {
    paint(text, BOLD, terminal.stdout_colours())
}

/// A text below a headline, after an empty line.
pub(super) fn section(title: &str, body: &str, terminal: &TerminalInfo) -> String {
    format!("\n{}\n{body}", headline(title, terminal))
}

/// Append a line with a name and a value; nothing where the value is empty.
pub(super) fn fact(text: &mut String, width: usize, name: &str, value: &str) {
    if !value.is_empty() {
        let _ =
            std::fmt::Write::write_fmt(text, format_args!("{name:<width$}{}\n", one_line(value)));
    }
}

/// How long ago something was; empty where it never was.
pub(super) fn age_text(at: Timestamp, now: Timestamp) -> String {
    if at == Timestamp::default() { String::new() } else { time_ago(at, now) }
}

/// The beginning of an id, as lists show it.
pub(super) fn short_id(id: &str) -> String {
    id.chars().take(ID_CHARS_SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_shows_what_hides_and_says_the_same() {
        let value = serde_json::json!({"a": "ex\u{202e}ce\u{e0041}\u{7f}", "b": "größer 大"});
        let text = visible_json(serde_json::to_string_pretty(&value).unwrap_or_default());
        assert!(
            text.contains(r"ex\u202ece\udb40\udc41\u007f") && text.contains("größer 大"),
            "{text}"
        );
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).ok(), Some(value));
    }

    #[test]
    fn a_reader_that_left_is_told_from_a_full_disk() {
        let failed =
            |kind: io::ErrorKind| report_output_error(&kind.into(), &TerminalInfo::default());
        assert_eq!(failed(io::ErrorKind::BrokenPipe), Exit::OutputClosed);
        assert_eq!(failed(io::ErrorKind::StorageFull), Exit::Agent);
    }
}
