//! Printing: messages, tables, JSON. A closed standard output is an [`Exit`], not a panic.

use std::io::{self, Write as _};

use serde::Serialize;

use super::exit::Exit;
use super::failure::Failure;
use super::input::{InputError, JobInput};
pub(super) use super::table::table;
use super::terminal::{Terminal, one_line, paint, plain, unturned};
use ostler_model::shown::hides;

const BOLD: &str = "1";
const RED: &str = "1;31";
const YELLOW: &str = "33";

/// Print on standard output, whole.
pub(super) fn print(text: &str, terminal: &Terminal) -> Result<(), Exit> {
    let mut out = io::stdout().lock();
    // Other programs get what it is.
    let text = if terminal.stdout { unturned(text) } else { text.into() };
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|error| output_failed(&error, terminal))
}

/// Print a value as JSON, indented for people.
pub(super) fn print_json<T: Serialize + ?Sized>(
    value: &T,
    terminal: &Terminal,
) -> Result<(), Exit> {
    match serde_json::to_string_pretty(value) {
        Ok(text) => print(&(visible_json(text) + "\n"), terminal),
        Err(cause) => {
            error(terminal, &format!("cannot be shown as JSON: {cause}"));
            Err(Exit::Agent)
        }
    }
}

/// JSON with what a terminal would not show, or show in another order, as escapes: the value is the same.
pub(super) fn visible_json(text: String) -> String {
    let unseen = |c: char| hides(c) && c != '\n';
    if !text.contains(unseen) {
        return text;
    }
    let mut visible = String::with_capacity(text.len());
    for c in text.chars() {
        if !unseen(c) {
            visible.push(c);
            continue;
        }
        // Such characters stand in strings alone.
        for unit in c.encode_utf16(&mut [0; 2]) {
            let _ = std::fmt::Write::write_fmt(&mut visible, format_args!("\\u{unit:04x}"));
        }
    }
    visible
}

/// Print a value: as JSON where that is asked for, else as a text for people.
pub(super) fn show<T: Serialize + ?Sized>(
    json: bool,
    value: &T,
    text: impl FnOnce() -> String,
    terminal: &Terminal,
) -> Result<(), Exit> {
    if json { print_json(value, terminal) } else { print(&text(), terminal) }
}

/// What a failure to write standard output means; said unless the reader just left.
pub(super) fn output_failed(cause: &io::Error, terminal: &Terminal) -> Exit {
    if cause.kind() == io::ErrorKind::BrokenPipe {
        return Exit::OutputClosed;
    }
    error(terminal, &format!("cannot write to standard output: {cause}"));
    Exit::Agent
}

/// Print a line on standard error. Nothing can be done when that is closed.
pub(super) fn say(text: &str) {
    let _closed = writeln!(io::stderr().lock(), "{}", unturned(text));
}

/// Put a line in the place of the one that was drawn before, on a terminal; without text it is gone.
pub(super) fn draw(text: &str) {
    let mut stderr = io::stderr().lock();
    let _closed = write!(stderr, "\r{}\x1b[K", plain(text)).and_then(|()| stderr.flush());
}

/// Say that something failed, to a program: one object in one line.
pub(super) fn failure(failure: &Failure<'_>) {
    say_json(failure);
}

fn say_json<T: Serialize>(value: &T) {
    // What cannot be made JSON has no such values.
    let text = serde_json::to_string(value).unwrap_or_default();
    say(&visible_json(text));
}

/// Say that something failed.
pub(super) fn error(terminal: &Terminal, message: &str) {
    if terminal.json {
        return failure(&Failure::new(message));
    }
    say(&format!("{} {}", paint("error:", RED, terminal.stderr_colours()), plain(message)));
}

/// Say that something is not as it should be.
pub(super) fn warning(terminal: &Terminal, message: &str) {
    if terminal.json {
        return say_json(&serde_json::json!({ "warning": message }));
    }
    say(&format!("{} {}", paint("warning:", YELLOW, terminal.stderr_colours()), plain(message)));
}

/// Say what is wrong with a file, with the places.
pub(super) fn input_error(terminal: &Terminal, wrong: &InputError) {
    if terminal.json {
        return failure(&Failure::of_input(wrong));
    }
    if let InputError::Invalid { text, diagnostics, .. } = wrong {
        say(diagnostics.render(text, terminal.stderr_colours()).trim_end());
    }
    error(terminal, &wrong.to_string());
}

/// Say what a job file asks for that is not done, with the places.
pub(super) fn job_warnings(terminal: &Terminal, job: &JobInput) {
    if job.warnings().is_empty() {
        return;
    }
    if terminal.json {
        for one in &job.warnings().diagnostics {
            say_json(&serde_json::json!({ "warning": one.in_words(), "diagnostics": [one] }));
        }
    } else {
        say(job.warnings().render(job.text(), terminal.stderr_colours()).trim_end());
    }
}

/// A headline on standard output.
pub(super) fn headline(text: &str, terminal: &Terminal) -> String {
    paint(text, BOLD, terminal.stdout_colours())
}

/// What stands below a headline, after an empty line.
pub(super) fn section(title: &str, body: &str, terminal: &Terminal) -> String {
    format!("\n{}\n{body}", headline(title, terminal))
}

/// A line with a name and a value; none where there is no value.
pub(super) fn fact(text: &mut String, width: usize, name: &str, value: &str) {
    if !value.is_empty() {
        let _ =
            std::fmt::Write::write_fmt(text, format_args!("{name:<width$}{}\n", one_line(value)));
    }
}

/// Bytes as people read them.
pub(super) fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    let mut tenths = u128::from(bytes) * 10;
    let mut unit = "B";
    for larger in UNITS {
        if tenths < 10_240 {
            break;
        }
        tenths = (tenths + 512) / 1_024;
        unit = larger;
    }
    match unit {
        "B" => format!("{bytes} B"),
        _ => format!("{}.{} {unit}", tenths / 10, tenths % 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_one_digit_and_a_unit() {
        assert_eq!(size(0), "0 B");
        assert_eq!(size(1_023), "1023 B");
        assert_eq!(size(1_024), "1.0 KiB");
        assert_eq!(size(126_412), "123.4 KiB");
        assert_eq!(size(u64::MAX), "16777216.0 TiB");
    }

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
        let failed = |kind: io::ErrorKind| output_failed(&kind.into(), &Terminal::default());
        assert_eq!(failed(io::ErrorKind::BrokenPipe), Exit::OutputClosed);
        assert_eq!(failed(io::ErrorKind::StorageFull), Exit::Agent);
    }
}
