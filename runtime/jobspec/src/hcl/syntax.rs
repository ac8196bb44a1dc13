//! Why the parser could not read a text, in the terms of a job file and at the place where it is wrong.
//!
//! The parser says what it expected where it stopped. Of a text it says only that something in it is
//! wrong. The causes that job files have in earnest are looked for around that place; of any other the
//! parser's words are given.

use super::super::diagnostic::{Span, shown};

/// Longest text in which the cause is looked for, bytes.
const LOOKED_AT_BYTES_MAX: usize = 256 * 1024;

/// The keywords that `%{` may begin.
const DIRECTIVES: [&str; 5] = ["if", "else", "endif", "for", "endfor"];

/// Quotes that word processors put in the place of the straight ones.
const CURLY: [char; 10] = ['“', '”', '„', '‟', '‘', '’', '‚', '‛', '«', '»'];

/// Where the parser stopped.
struct Stop<'a> {
    at: usize,
    /// The line up to there.
    before: &'a str,
    /// All from there on.
    rest: &'a str,
}

impl<'a> Stop<'a> {
    fn line(&self) -> &'a str {
        self.rest.split('\n').next().unwrap_or_default()
    }

    fn span(&self, length: usize) -> Span {
        Span::new(self.at, self.at + length.max(1))
    }

    /// The text in double quotes that begins here, without them.
    fn quoted(&self) -> Option<&'a str> {
        let inner = self.line().strip_prefix('"')?;
        inner.split_once('"').map(|(inner, _)| inner)
    }
}

/// What is wrong where the parser stopped with `message`, and where exactly.
pub(super) fn explain(text: &str, at: usize, message: &str) -> (Span, String) {
    let before = text.get(..at).unwrap_or_default();
    let before = before.rsplit('\n').next().unwrap_or_default();
    let stop = Stop { at, before, rest: text.get(at..).unwrap_or_default() };
    let causes = [
        directive,
        quoted_name,
        template_in_label,
        comma,
        other_quotes,
        colon,
        block_with_equals,
        without_equals,
        brace_on_next_line,
        semicolon,
        one_line,
    ];
    if let Some(explained) = causes.into_iter().find_map(|cause| cause(&stop, message)) {
        return explained;
    }
    let span = stop.span(super::identifier_at(text, at).len());
    if at >= text.trim_end().len() {
        return (span, format!("the file ends too early: {message}"));
    }
    (span, format!("cannot be read: {message}"))
}

type Explained = Option<(Span, String)>;

/// `%{host}` in a text: a directive that there is not.
fn directive(stop: &Stop<'_>, message: &str) -> Explained {
    let end = if message.contains("heredoc") {
        stop.rest.len().min(LOOKED_AT_BYTES_MAX)
    } else if stop.before.contains('"') || stop.line().contains('"') {
        stop.line().len()
    } else {
        return None;
    };
    let mut from = 0;
    while let Some(found) = stop.rest.get(from..end)?.find("%{") {
        let at = from + found;
        from = at + 2;
        if stop.rest.get(..at).is_some_and(|before| before.ends_with('%')) {
            continue;
        }
        let inside = stop.rest.get(from..).unwrap_or_default();
        let skipped = inside.len() - inside.trim_start_matches(['~', ' ', '\t']).len();
        let word = super::identifier_at(inside, skipped);
        if !DIRECTIVES.contains(&word.as_str()) {
            let span = Span::new(stop.at + at, stop.at + from + skipped + word.len());
            let what = if word.is_empty() { "nothing".to_owned() } else { shown(&word) };
            let message = format!(
                "%{{ begins if, else, endif, for or endfor in a text, and {what} is none of them; write %%{{ for a \
                 literal %{{"
            );
            return Some((span, message));
        }
    }
    None
}

/// `"http.host" = …` in a block.
fn quoted_name(stop: &Stop<'_>, _message: &str) -> Explained {
    let name = stop.quoted()?;
    let after = stop.line().get(name.len() + 2..)?.trim_start();
    if !stop.before.trim().is_empty() || !after.starts_with(['=', ':']) {
        return None;
    }
    let message = format!(
        "the name of an attribute has no quotes; a name with other characters than letters, digits, _ and - is the key \
         of an object: env = {{ \"{}\" = … }}",
        name.escape_debug()
    );
    Some((stop.span(name.len() + 2), message))
}

/// `job "${NAME}" {`.
fn template_in_label(stop: &Stop<'_>, _message: &str) -> Explained {
    let label = stop.quoted()?;
    let is_head = stop.before.trim_start().starts_with(|c: char| c.is_alphabetic() || c == '_')
        && !stop.before.contains(['=', '{']);
    let start = [label.find("${"), label.find("%{")].into_iter().flatten().min()?;
    if !is_head {
        return None;
    }
    let length = label.get(start..)?.find('}').map_or(2, |end| end + 1);
    let from = stop.at + 1 + start;
    let message = format!(
        "{} is not replaced in the label of a block; write the name itself",
        shown(label.get(start..start + length)?)
    );
    Some((Span::new(from, from + length), message))
}

/// `datacenters = ["dc1"],` in a block.
fn comma(stop: &Stop<'_>, _message: &str) -> Explained {
    let ends = stop.rest.starts_with(',') && stop.before.contains('=') && !opens_block(stop.before);
    ends.then(|| {
        let message = "no comma follows an attribute of a block; remove it and begin the next one on a line of its own";
        (stop.span(1), message.to_owned())
    })
}

/// `'dc1'` and `“dc1”`.
fn other_quotes(stop: &Stop<'_>, _message: &str) -> Explained {
    let first = stop.rest.chars().next().filter(|c| *c == '\'' || CURLY.contains(c))?;
    let inside = stop.line().get(first.len_utf8()..)?;
    let ends = |c: char| if first == '\'' { c == '\'' } else { c == '"' || CURLY.contains(&c) };
    let end = inside.char_indices().find(|(_, c)| ends(*c));
    let Some((end, last)) = end else {
        let message = format!("a text stands in double quotes, as in \"…\", not in {first}");
        return (first != '\'').then(|| (stop.span(first.len_utf8()), message));
    };
    let inner = inside.get(..end)?;
    let straight = if first == '\'' { "" } else { "straight " };
    let message = format!("a text stands in {straight}double quotes: \"{}\"", inner.escape_debug());
    Some((stop.span(first.len_utf8() + end + last.len_utf8()), message))
}

/// `type: "batch"`, of which the parser stops at the name or behind it.
fn colon(stop: &Stop<'_>, _message: &str) -> Explained {
    let (rest, before) = (super::identifier_at(stop.rest, 0), stop.before.trim());
    let name = if before.is_empty() { rest.as_str() } else { before };
    let after = stop.rest.get(rest.len()..)?.trim_start_matches(' ');
    (is_name(name) && after.starts_with(':'))
        .then(|| (stop.span(rest.len()), format!("an attribute is given with =, as in {name} = …")))
}

/// `group = "g" {`.
fn block_with_equals(stop: &Stop<'_>, _message: &str) -> Explained {
    let (name, label) = stop.before.split_once('=')?;
    let equals = stop.at.checked_sub(stop.before.len())? + name.len();
    let (name, label) = (name.trim(), label.trim());
    let text = label.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    // More labels may follow.
    let opens = stop.rest.starts_with('"') && stop.line().trim_end().ends_with('{');
    let opens = opens || stop.rest.starts_with('{');
    if !is_name(name) || text.is_none_or(|text| text.contains('"')) || !opens {
        return None;
    }
    let message = format!("no = stands before the label of a block; write {name} {label} {{");
    Some((Span::new(equals, equals + 1), message))
}

/// `type "batch"` and `priority 5`, of which the parser stops behind the text and at the number.
fn without_equals(stop: &Stop<'_>, message: &str) -> Explained {
    let mut words = stop.before.split_whitespace();
    let name = words.next().filter(|name| is_name(name))?;
    let begins_value = |c: char| c.is_ascii_digit() || "[(-!<".contains(c);
    let is_value = words.next().is_none() && stop.rest.starts_with(begins_value);
    let label = stop.before.trim_start().get(name.len()..)?.trim();
    let is_label = is_name(label)
        || label
            .strip_prefix('"')
            .and_then(|label| label.strip_suffix('"'))
            .is_some_and(|label| !label.contains('"'));
    let after = stop.line().trim_start();
    let ends = after.is_empty() || after.starts_with([';', '#']) || after.starts_with("//");
    let is_text = is_label && ends && message.contains("expected `{`") && !opens_next(stop);
    let start = stop.at.checked_sub(stop.before.trim_start().len())?;
    let span = Span::new(start, start + name.len());
    if is_value {
        return Some((span, format!("an attribute is given with =, as in {name} = …")));
    }
    is_text.then(|| {
        let message = format!(
            "an attribute is given with =, as in {name} = …, and a block opens with {{ on this line"
        );
        (span, message)
    })
}

/// `group "g"` with its brace on the next line.
fn brace_on_next_line(stop: &Stop<'_>, message: &str) -> Explained {
    let name = stop.before.split_whitespace().next().filter(|name| is_name(name))?;
    let start = stop.at.checked_sub(stop.before.trim_start().len())?;
    let splits = message.contains('{') && stop.line().trim().is_empty() && opens_next(stop);
    splits.then(|| {
        let message = "the { that opens a block stands on the line of its name; move it there";
        (Span::new(start, start + name.len()), message.to_owned())
    })
}

/// Is a brace the next thing that comes?
fn opens_next(stop: &Stop<'_>) -> bool {
    stop.rest.trim_start().starts_with('{')
}

/// `type = "batch";`.
fn semicolon(stop: &Stop<'_>, _message: &str) -> Explained {
    stop.rest.trim_start_matches(' ').starts_with(';').then(|| {
        let blanks = stop.rest.len() - stop.rest.trim_start_matches(' ').len();
        let message = "no ; ends an attribute or a block; remove it, and begin what follows on a line of its own";
        (Span::new(stop.at + blanks, stop.at + blanks + 1), message.to_owned())
    })
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && super::identifier_at(text, 0) == text
}

/// What comes after the one attribute of a block on one line, or a block where that should be.
fn one_line(stop: &Stop<'_>, message: &str) -> Explained {
    let structure = ["invalid attribute", "invalid block", "unexpected token"];
    let is_structure = structure.iter().any(|start| message.starts_with(start));
    (is_structure && opens_block(stop.before)).then(|| {
        let message =
            "a one-line block holds one attribute; put nested blocks on lines of their own";
        (stop.span(1), message.to_owned())
    })
}

/// Is a brace open at the end of the line that was opened in it? Those in texts do not count.
fn opens_block(line: &str) -> bool {
    let (mut open, mut quoted, mut escaped) = (0_usize, false, false);
    for c in line.chars() {
        match (c, quoted) {
            (_, true) if escaped => escaped = false,
            ('\\', true) => escaped = true,
            ('"', _) => quoted = !quoted,
            ('{', false) => open += 1,
            ('}', false) => open = open.saturating_sub(1),
            _ => {}
        }
    }
    open > 0
}
