//! Reads files of `NAME=value` lines, as Nomad reads the files of templates with `env`.
//!
//! ```text
//! # a comment                     export NAME=value # a comment
//! NAME = value with spaces        NAME="a \"quoted\" é\n"   NAME='as it is'
//! ```
//! Pure.

use std::collections::BTreeMap;

/// What is wrong with a file of variables.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the environment: {problem}")]
pub(super) struct EnvFileError {
    line: usize,
    problem: String,
}

impl EnvFileError {
    /// A text that says where the mistake is, without the content of the line.
    pub(super) fn without_text(&self) -> String {
        format!(
            "line {} of the environment is not NAME=value; what is in it is not shown, because the template \
             reads variables",
            self.line
        )
    }
}

/// The variables of a file. If a name comes twice, the last value counts.
pub(super) fn read(bytes: &[u8]) -> Result<BTreeMap<String, String>, EnvFileError> {
    let wrong = |line: usize, problem: String| EnvFileError { line: line + 1, problem };
    let text = std::str::from_utf8(bytes).map_err(|_| wrong(0, "it is not UTF-8".to_owned()))?;
    let mut vars = BTreeMap::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let Some((name, text)) = line.split_once('=') else {
            return Err(wrong(number, "there is no =; write NAME=value".to_owned()));
        };
        let name = name.trim();
        let name = name.strip_prefix("export ").unwrap_or(name).trim();
        if !is_name(name) {
            return Err(wrong(number, format!("{name:?} is not a valid name of a variable")));
        }
        let text = value(text.trim()).map_err(|problem| wrong(number, problem))?;
        vars.insert(name.to_owned(), text);
    }
    Ok(vars)
}

fn is_name(name: &str) -> bool {
    let letter = |c: char| c.is_ascii_alphabetic() || c == '_';
    name.starts_with(letter) && name.chars().all(|c| letter(c) || c.is_ascii_digit() || c == '.')
}

/// A value without its quotes, and without a comment after it.
fn value(text: &str) -> Result<String, String> {
    let (mut made, mut kept) = (String::new(), 0);
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        match c {
            '#' => break,
            '\'' => {
                let (inside, after) = rest.as_str().split_once('\'').ok_or("a ' is not closed")?;
                made.push_str(inside);
                rest = after.chars();
                kept = made.len();
            }
            '"' => {
                read_quoted(&mut rest, &mut made)?;
                kept = made.len();
            }
            ' ' => made.push(' '),
            c if c.is_control() => return Err(format!("{c:?} is not allowed in a value")),
            c => {
                made.push(c);
                kept = made.len();
            }
        }
    }
    made.truncate(kept);
    Ok(made)
}

fn read_quoted(rest: &mut std::str::Chars<'_>, made: &mut String) -> Result<(), String> {
    loop {
        match rest.next().ok_or("a \" is not closed")? {
            '"' => return Ok(()),
            '\\' => match rest.next() {
                Some(c @ ('"' | '\\' | '/')) => made.push(c),
                Some('b') => made.push('\u{8}'),
                Some('f') => made.push('\u{c}'),
                Some('r') => made.push('\r'),
                Some('n') => made.push('\n'),
                Some('t') => made.push('\t'),
                Some('u') => made.push(unicode(rest)?),
                _ => return Err("a \\ does not begin an escape".to_owned()),
            },
            c if c.is_control() => return Err(format!("{c:?} is not allowed in a value")),
            c => made.push(c),
        }
    }
}

/// The character of an escape `\uXXXX`, or of two such escapes.
fn unicode(rest: &mut std::str::Chars<'_>) -> Result<char, String> {
    let wrong = || "\\u needs four hexadecimal digits of a character".to_owned();
    let first = hex(rest).ok_or_else(wrong)?;
    if !(0xd800..0xdc00).contains(&first) {
        return char::from_u32(first).ok_or_else(wrong);
    }
    let after = rest.as_str().strip_prefix("\\u").ok_or_else(wrong)?;
    *rest = after.chars();
    let second = hex(rest).filter(|code| (0xdc00..0xe000).contains(code)).ok_or_else(wrong)?;
    char::from_u32(0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00)).ok_or_else(wrong)
}

fn hex(rest: &mut std::str::Chars<'_>) -> Option<u32> {
    let mut code = 0;
    for _ in 0..4 {
        code = code * 16 + rest.next()?.to_digit(16)?;
    }
    Some(code)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lines_are_read_as_nomad_reads_them() {
        let text = "# note\n\nA=1\nexport B = two words # said\nC=\"q \\\"x\\\" \\u00e9\\n\"\n\
                    D='as \\n is' # no\nE=\nF=a#b\nG=\"#\" x\nH='a'\"b\"c  \nA=last\nI.x=1\n";
        let vars: Vec<_> = read(text.as_bytes()).unwrap().into_iter().collect();
        let expected = [
            ("A", "last"),
            ("B", "two words"),
            ("C", "q \"x\" é\n"),
            ("D", "as \\n is"),
            ("E", ""),
            ("F", "a"),
            ("G", "# x"),
            ("H", "abc"),
            ("I.x", "1"),
        ];
        assert_eq!(vars, expected.map(|(name, text)| (name.to_owned(), text.to_owned())));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        for (text, said) in [
            ("A=1\nB", "line 2 of the environment: there is no ="),
            ("1A=x", "line 1 of the environment: \"1A\" is not a valid name"),
            ("\n\nA=\"x", "line 3 of the environment: a \" is not"),
            ("A='x", "line 1 of the environment: a ' is not"),
            ("A=\"\\q\"", "line 1 of the environment: a \\ does"),
            ("A=\"\\ud83d\"", "line 1 of the environment: \\u needs"),
        ] {
            let error = read(text.as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with(said), "{text:?}: {error}");
        }
        assert_eq!(read(b"A=\"\\ud83d\\ude00\"").unwrap()["A"], "😀");
    }

    proptest! {
        #[test]
        fn any_file_is_read_or_refused(text in "[A-Z=\"'# \\\\u0-9\n]{0,60}") {
            let _any = read(text.as_bytes());
        }
    }
}
