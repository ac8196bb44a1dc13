//! Checks the brackets of a file cheaply, before the file is given to a recursive parser: nothing is nested deeper
//! than [`JOB_NESTING_MAX`], no object is so large that the parser's search for repeated keys takes long, and every
//! bracket is closed.

use super::shell_text;
use crate::diagnostic::{Sink, Span};
use ostler_model::limits::JOB_NESTING_MAX;

/// The largest number of `=` and `:` directly between two brackets. The parser compares each key of an object with
/// all keys before it: a file full of objects of 1,000 keys costs a hundred million comparisons.
const MEMBERS_MAX: usize = 1_000;

/// Something that was opened and is not closed yet.
enum OpenDelimiter<'a> {
    /// A `{`, a `[`, a `(`, or a `${` inside of a text; with the number of members so far.
    Bracket { closing: u8, members: usize },
    /// A text in quotes.
    Quote,
    /// A text from `<<NAME` up to a line that is the name.
    Heredoc { name: &'a str },
}

struct BracketScanner<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    open: Vec<(usize, OpenDelimiter<'a>)>,
    /// The first problem that was found, which ends the scan.
    problem: Option<(Span, String)>,
    /// The places of each `${` in a text.
    templates: Vec<usize>,
}

/// Check the bounds and the brackets of a text. `false` means that there is a problem, which was reported.
pub(super) fn scan(text: &str, sink: &mut Sink) -> bool {
    let mut scanner = BracketScanner::run(text);
    if scanner.problem.is_none()
        && let Some((at, open)) = scanner.open.last()
    {
        let what = match open {
            OpenDelimiter::Bracket { closing: b'}', .. } => {
                "this { is never closed; add a }".to_owned()
            }
            OpenDelimiter::Bracket { closing: b']', .. } => {
                "this [ is never closed; add a ]".to_owned()
            }
            OpenDelimiter::Bracket { .. } => "this ( is never closed; add a )".to_owned(),
            OpenDelimiter::Quote => "this text is never closed; add a \"".to_owned(),
            OpenDelimiter::Heredoc { name } => {
                format!("this text is never closed; add a line that is only {name}")
            }
        };
        scanner.problem = Some((Span::new(*at, *at + 1), what));
    }
    match scanner.problem {
        None => true,
        Some(problem) => {
            // A text that is meant for a shell may have caused the problem.
            let (span, message) =
                shell_text::first_non_expression(text, &scanner.templates).unwrap_or(problem);
            sink.error(span, message);
            false
        }
    }
}

/// The advice about a `${` that was not meant for the job file.
pub(super) const AS_TEXT: &str = "write $${ for a literal ${";

/// The first `${` of a text that was not meant for the job file, with the message about it.
pub(super) fn find_shell_text(text: &str) -> Option<(Span, String)> {
    shell_text::first_non_expression(text, &BracketScanner::run(text).templates)
}

impl<'a> BracketScanner<'a> {
    fn run(text: &'a str) -> Self {
        let mut scanner = BracketScanner {
            text,
            bytes: text.as_bytes(),
            at: 0,
            open: Vec::new(),
            problem: None,
            templates: Vec::new(),
        };
        while scanner.at < scanner.bytes.len() && scanner.problem.is_none() {
            scanner.step();
        }
        scanner
    }

    fn peek(&self, ahead: usize) -> u8 {
        self.bytes.get(self.at + ahead).copied().unwrap_or(0)
    }

    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn push(&mut self, open: OpenDelimiter<'a>) {
        if self.open.len() >= JOB_NESTING_MAX {
            let message =
                format!("nested too deeply; at most {JOB_NESTING_MAX} levels are allowed");
            self.problem = Some((Span::new(self.at, self.at + 1), message));
        } else {
            self.open.push((self.at, open));
        }
    }

    fn step(&mut self) {
        match self.open.last() {
            Some((_, OpenDelimiter::Quote)) => self.in_quotes(),
            Some((_, OpenDelimiter::Heredoc { name })) => {
                let name = *name;
                self.in_heredoc(name);
            }
            _ => self.in_code(),
        }
    }

    /// Read a `${` or `%{`, which open a template, or a `$${` or `%%{`, which do not. `true` means that one of them
    /// stood here.
    fn template(&mut self) -> bool {
        let sign = self.peek(0);
        if sign != b'$' && sign != b'%' {
            return false;
        }
        if self.peek(1) == sign && self.peek(2) == b'{' {
            self.at += 3;
            return true;
        }
        if self.peek(1) == b'{' {
            if sign == b'$' && self.templates.len() < shell_text::LOOKED_AT_MAX {
                self.templates.push(self.at);
            }
            self.push(OpenDelimiter::Bracket { closing: b'}', members: 0 });
            self.at += 2;
            return true;
        }
        false
    }

    fn in_quotes(&mut self) {
        if self.template() {
            return;
        }
        match self.peek(0) {
            b'\\' => self.at += 2,
            b'"' => {
                self.open.pop();
                self.at += 1;
            }
            b'\n' => {
                let at = self.open.last().map_or(self.at, |(at, _)| *at);
                let message = "this text is not closed on its line; add a \" or use <<EOT";
                self.problem = Some((Span::new(at, at + 1), message.to_owned()));
            }
            _ => self.at += 1,
        }
    }

    fn in_heredoc(&mut self, name: &str) {
        // The name that ends the text can only stand at the start of a line.
        let line_start =
            self.at == 0 || self.bytes.get(self.at - 1).is_some_and(|byte| *byte == b'\n');
        if line_start {
            let line = self.rest().split('\n').next().unwrap_or_default();
            if line.trim_start().strip_prefix(name).is_some_and(|end| !continues(end)) {
                self.open.pop();
                self.at += line.len() - line.trim_start().len() + name.len();
                return;
            }
        }
        if !self.template() {
            self.at += 1;
        }
    }

    fn in_code(&mut self) {
        let byte = self.peek(0);
        match (byte, self.peek(1)) {
            (b'#', _) | (b'/', b'/') => self.at += self.rest().find('\n').unwrap_or(usize::MAX / 2),
            (b'/', b'*') => {
                // Search behind the opening, so that /*/ does not close itself.
                let body = self.text.get(self.at + 2..).unwrap_or_default();
                match body.find("*/") {
                    Some(end) => self.at += end + 4,
                    None => {
                        let message = "this comment is never closed; add */".to_owned();
                        self.problem = Some((Span::new(self.at, self.at + 2), message));
                    }
                }
            }
            (b'<', b'<') => self.heredoc(),
            (b'"', _) => {
                self.push(OpenDelimiter::Quote);
                self.at += 1;
            }
            (b'{', _) => self.bracket(b'}'),
            (b'[', _) => self.bracket(b']'),
            (b'(', _) => self.bracket(b')'),
            (b'}' | b']' | b')', _) => self.close(byte),
            (b'=' | b':', _) => self.member(),
            _ => self.at += 1,
        }
    }

    fn bracket(&mut self, closing: u8) {
        self.push(OpenDelimiter::Bracket { closing, members: 0 });
        self.at += 1;
    }

    fn close(&mut self, byte: u8) {
        match self.open.pop() {
            Some((_, OpenDelimiter::Bracket { closing, .. })) if closing == byte => {}
            Some((_, OpenDelimiter::Bracket { closing, .. })) => {
                let message = format!(
                    "{} closes nothing; {} is expected",
                    char::from(byte),
                    char::from(closing)
                );
                self.problem = Some((Span::new(self.at, self.at + 1), message));
            }
            _ => {
                let message = format!("{} closes nothing; remove it", char::from(byte));
                self.problem = Some((Span::new(self.at, self.at + 1), message));
            }
        }
        self.at += 1;
    }

    /// Read a `=` or a `:`, and count it as a member of the bracket around it. Members outside of all brackets are not
    /// counted, because the parser does not compare them with each other.
    fn member(&mut self) {
        if let Some((_, OpenDelimiter::Bracket { members, .. })) = self.open.last_mut() {
            *members += 1;
            if *members > MEMBERS_MAX {
                let message = format!("more than {MEMBERS_MAX} members between two brackets");
                self.problem = Some((Span::new(self.at, self.at + 1), message));
            }
        }
        self.at += 1;
    }

    /// Read a `<<NAME` or `<<-NAME` up to the end of its line.
    fn heredoc(&mut self) {
        let line = self.rest().split('\n').next().unwrap_or_default();
        let name = line.trim_start_matches('<').trim_start_matches('-').trim();
        let is_name = name.starts_with(|c: char| c.is_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-'));
        if is_name {
            self.push(OpenDelimiter::Heredoc { name });
            self.at += line.len() + 1;
        } else {
            self.at += 2;
        }
    }
}

fn continues(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | '-'))
}
