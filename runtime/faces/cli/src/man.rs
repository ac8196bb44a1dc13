//! Manual pages: what `clap_mangen` makes of the commands, with the examples, exit codes and
//! environment of their long help as sections of those names.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use clap::builder::Resettable;
use clap::{Command, CommandFactory as _};
use clap_mangen::Man;

use super::args::Cli;

/// The section for text of the long help that belongs to no other section.
const OTHER: &str = "NOTES";

/// The page of the whole program.
pub(super) fn page() -> io::Result<Vec<u8>> {
    render(&Man::new(strip_help(Cli::command())), &Cli::command())
}

/// Write one page per command into `dir`.
pub(super) fn write_all(dir: &Path) -> io::Result<()> {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    write(&command, dir)
}

fn write(command: &Command, dir: &Path) -> io::Result<()> {
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        write(inner, dir)?;
    }
    let man = Man::new(strip_help(command.clone()));
    std::fs::write(dir.join(man.get_filename()), render(&man, command)?)
}

fn strip_help(command: Command) -> Command {
    command.after_help(Resettable::Reset).after_long_help(Resettable::Reset)
}

/// Render a page, with the sections of the command's long help before its version.
fn render(man: &Man, command: &Command) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    man.render(&mut page)?;
    let help = command.get_after_long_help().or_else(|| command.get_after_help());
    let Some(help) = help.map(ToString::to_string) else { return Ok(page) };
    let page = String::from_utf8_lossy(&page);
    let at = page.find("\n.SH VERSION").map_or(page.len(), |at| at + 1);
    let (before, after) = page.split_at(at);
    Ok(format!("{before}{}{after}", sections(&help)).into_bytes())
}

/// The sections of a long help: a title like `Examples:` with the indented lines below it is one;
/// everything else is one together.
fn sections(help: &str) -> String {
    let mut sections: Vec<(String, Vec<&str>)> = Vec::new();
    for line in help.lines() {
        let indented = line.starts_with(' ') || line.is_empty();
        let title = line.strip_suffix(':').filter(|_| !indented);
        let titled = sections.last().is_some_and(|(title, _)| title != OTHER);
        match (title, sections.last_mut()) {
            (Some(title), _) => sections.push((title.to_uppercase(), Vec::new())),
            (None, Some((_, lines))) if indented || !titled => lines.push(line),
            (None, _) => sections.push((OTHER.to_owned(), vec![line])),
        }
    }
    let mut text = String::new();
    for (title, lines) in sections {
        // The text stays as it is: examples and lists have their own line breaks.
        let _ = writeln!(text, ".SH {}\n.nf", quote_title(&title));
        let body = lines.join("\n");
        for line in body.trim_matches('\n').lines() {
            let _ = writeln!(text, "{}", escape_line(line.strip_prefix("  ").unwrap_or(line)));
        }
        text.push_str(".fi\n");
    }
    text
}

fn quote_title(title: &str) -> String {
    if title.contains(' ') { format!("\"{title}\"") } else { title.to_owned() }
}

/// Escape a line so that roff shows it unchanged.
fn escape_line(line: &str) -> String {
    let text = line.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
    if text.starts_with('.') { format!("\\&{text}") } else { text }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn what_stands_after_the_help_has_sections_of_its_own_names() {
        let page = String::from_utf8(page().unwrap()).unwrap();
        let titles: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix(".SH ")).collect();
        assert_eq!(
            titles,
            [
                "NAME",
                "SYNOPSIS",
                "DESCRIPTION",
                "OPTIONS",
                "SUBCOMMANDS",
                "EXAMPLES",
                "ENVIRONMENT",
                "VERSION"
            ],
            "{page}"
        );
        assert!(page.contains("\nostler alloc logs \\-f 0f01c0de "), "{page}");
    }

    #[test]
    fn no_page_has_a_section_that_says_nothing() {
        let dir = tempfile::tempdir().unwrap();
        write_all(dir.path()).unwrap();
        let mut pages = 0;
        for entry in std::fs::read_dir(dir.path()).unwrap() {
            let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
            assert!(!text.contains(".SH EXTRA"), "{text}");
            pages += 1;
        }
        assert!(pages > 20, "{pages}");
        let run = std::fs::read_to_string(dir.path().join("ostler-run.1")).unwrap();
        for title in [".SH EXAMPLES\n", ".SH \"EXIT CODES\"\n", ".SH NOTES\n"] {
            assert!(run.contains(title), "no {title:?} in\n{run}");
        }
    }

    #[test]
    fn nothing_of_a_line_is_taken_for_a_request() {
        assert_eq!(escape_line(".hidden 'a' -b \\n"), "\\&.hidden \\(aqa\\(aq \\-b \\en");
    }
}
