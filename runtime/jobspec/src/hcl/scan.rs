//! A cheap look at the brackets of a file before it is given to a recursive parser: nothing is
//! nested deeper than [`JOB_NESTING_MAX`], no object is so large that the parser's search for
//! repeated keys takes long, and what is opened is closed.

use super::super::diagnostic::{Sink, Span};
use super::shell_text;
use ostler_model::limits::JOB_NESTING_MAX;

/// Most `=` and `:` directly between two brackets. The parser compares each object key with all
/// before it: a file full of objects of 1,000 keys is a hundred million comparisons.
const MEMBERS_MAX: usize = 1_000;

/// What is open.
enum Open<'a> {
    /// `{`, `[`, `(` or a `${` inside a text; how many members so far.
    Bracket { closing: u8, members: usize },
    /// A `"`.
    Quote,
    /// `<<NAME`, until a line that is NAME.
    Heredoc { name: &'a str },
}

struct Scanner<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    open: Vec<(usize, Open<'a>)>,
    /// Members outside of all brackets are not compared with each other.
    problem: Option<(Span, String)>,
    /// Where each `${` of a text stands.
    templates: Vec<usize>,
}

/// Check the bounds; `false` when one is exceeded or something is not closed, which is reported.
pub(super) fn scan(text: &str, sink: &mut Sink) -> bool {
    let mut scanner = Scanner::run(text);
    if scanner.problem.is_none()
        && let Some((at, open)) = scanner.open.last()
    {
        let what = match open {
            Open::Bracket { closing: b'}', .. } => "this { is never closed; add a }".to_owned(),
            Open::Bracket { closing: b']', .. } => "this [ is never closed; add a ]".to_owned(),
            Open::Bracket { .. } => "this ( is never closed; add a )".to_owned(),
            Open::Quote => "this text is never closed; add a \"".to_owned(),
            Open::Heredoc { name } => {
                format!("this text is never closed; add a line that is only {name}")
            }
        };
        scanner.problem = Some((Span::new(*at, *at + 1), what));
    }
    match scanner.problem {
        None => true,
        Some(problem) => {
            // What is not closed may be what a shell's text opened.
            let (span, message) = shell_text::found(text, &scanner.templates).unwrap_or(problem);
            sink.error(span, message);
            false
        }
    }
}

/// What is advised where a `${` was not meant for us.
pub(super) const AS_TEXT: &str = "write $${ for a literal ${";

/// What is wrong with a `${` of a text, where it was not meant for us.
pub(super) fn shell_text(text: &str) -> Option<(Span, String)> {
    shell_text::found(text, &Scanner::run(text).templates)
}

impl<'a> Scanner<'a> {
    fn run(text: &'a str) -> Self {
        let mut scanner = Scanner {
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

    fn push(&mut self, open: Open<'a>) {
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
            Some((_, Open::Quote)) => self.in_quotes(),
            Some((_, Open::Heredoc { name })) => {
                let name = *name;
                self.in_heredoc(name);
            }
            _ => self.in_code(),
        }
    }

    /// `${` and `%{` open, `$${` and `%%{` do not. `true` when one of them stood here.
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
            self.push(Open::Bracket { closing: b'}', members: 0 });
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
        // At the start of a line it may be the end.
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
                // Past the opening, so that /*/ does not end itself.
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
                self.push(Open::Quote);
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
        self.push(Open::Bracket { closing, members: 0 });
        self.at += 1;
    }

    fn close(&mut self, byte: u8) {
        match self.open.pop() {
            Some((_, Open::Bracket { closing, .. })) if closing == byte => {}
            Some((_, Open::Bracket { closing, .. })) => {
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

    fn member(&mut self) {
        if let Some((_, Open::Bracket { members, .. })) = self.open.last_mut() {
            *members += 1;
            if *members > MEMBERS_MAX {
                let message = format!("more than {MEMBERS_MAX} members between two brackets");
                self.problem = Some((Span::new(self.at, self.at + 1), message));
            }
        }
        self.at += 1;
    }

    /// `<<NAME` or `<<-NAME` up to the end of its line.
    fn heredoc(&mut self) {
        let line = self.rest().split('\n').next().unwrap_or_default();
        let name = line.trim_start_matches('<').trim_start_matches('-').trim();
        let is_name = name.starts_with(|c: char| c.is_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-'));
        if is_name {
            self.push(Open::Heredoc { name });
            self.at += line.len() + 1;
        } else {
            self.at += 2;
        }
    }
}

fn continues(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | '-'))
}
