//! Explains why the parser could not read a text, in the terms of a job file, at the place of the mistake.
//!
//! The parser's message names what it expected at the place where it stopped. Of a text in quotes, it only reports
//! that something in it is wrong. The usual causes in job files are looked for around that place. For any other
//! cause, the message of the parser is shown.

use crate::diagnostic::{Span, quote_text};

/// The longest text in which the cause is looked for, in bytes.
const LOOKED_AT_BYTES_MAX: usize = 256 * 1024;

/// The keywords that may follow `%{`.
const DIRECTIVES: [&str; 5] = ["if", "else", "endif", "for", "endfor"];

/// The quotes that word processors put in the place of straight ones.
const CURLY: [char; 10] = ['“', '”', '„', '‟', '‘', '’', '‚', '‛', '«', '»'];

/// The place where the parser stopped, with the text around it.
struct ParseStop<'a> {
    at: usize,
    /// The line up to that place.
    before: &'a str,
    /// The text from that place on.
    rest: &'a str,
}

impl<'a> ParseStop<'a> {
    fn line(&self) -> &'a str {
        self.rest.split('\n').next().unwrap_or_default()
    }

    fn span(&self, length: usize) -> Span {
        Span::new(self.at, self.at + length.max(1))
    }

    /// The text in double quotes that begins here, without the quotes.
    fn quoted_text(&self) -> Option<&'a str> {
        let inner = self.line().strip_prefix('"')?;
        inner.split_once('"').map(|(inner, _)| inner)
    }
}

/// The mistake where the parser stopped with `message`, and its exact place.
pub(super) fn explain(text: &str, at: usize, message: &str) -> (Span, String) {
    let before = text.get(..at).unwrap_or_default();
    let before = before.rsplit('\n').next().unwrap_or_default();
    let stop = ParseStop { at, before, rest: text.get(at..).unwrap_or_default() };
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

type ParseExplanation = Option<(Span, String)>;

/// An unknown directive in a text, such as `%{host}`.
fn directive(stop: &ParseStop<'_>, message: &str) -> ParseExplanation {
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
            let what = if word.is_empty() { "nothing".to_owned() } else { quote_text(&word) };
            let message = format!(
                "%{{ begins if, else, endif, for or endfor in a text, and {what} is none of them; write %%{{ for a \
                 literal %{{"
            );
            return Some((span, message));
        }
    }
    None
}

/// A name in quotes in a block: `"http.host" = …`.
fn quoted_name(stop: &ParseStop<'_>, _message: &str) -> ParseExplanation {
    let name = stop.quoted_text()?;
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

/// A reference in a label: `job "${NAME}" {`.
fn template_in_label(stop: &ParseStop<'_>, _message: &str) -> ParseExplanation {
    let label = stop.quoted_text()?;
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
        quote_text(label.get(start..start + length)?)
    );
    Some((Span::new(from, from + length), message))
}

/// A comma after an attribute of a block: `datacenters = ["dc1"],`.
fn comma(stop: &ParseStop<'_>, _message: &str) -> ParseExplanation {
    let ends = stop.rest.starts_with(',') && stop.before.contains('=') && !opens_block(stop.before);
    ends.then(|| {
        let message = "no comma follows an attribute of a block; remove it and begin the next one on a line of its own";
        (stop.span(1), message.to_owned())
    })
}

/// A text in other quotes: `'dc1'` or `“dc1”`.
fn other_quotes(stop: &ParseStop<'_>, _message: &str) -> ParseExplanation {
    let first = stop.rest.chars().next().filter(|c| *c == '\'' || CURLY.contains(c))?;
    let inside = stop.line().get(first.len_utf8()..)?;
    let ends = |c: char| if first == '\'' { c == '\'' } else { c == '"' || CURLY.contains(&c) };
    let end = inside.char_indices().find(|(_, c)| ends(*c));
    let Some((end, last)) = end else {
        let message = format!("a text must be in double quotes, as in \"…\", not in {first}");
        return (first != '\'').then(|| (stop.span(first.len_utf8()), message));
    };
    let inner = inside.get(..end)?;
    let straight = if first == '\'' { "" } else { "straight " };
    let message =
        format!("a text must be in {straight}double quotes: \"{}\"", inner.escape_debug());
    Some((stop.span(first.len_utf8() + end + last.len_utf8()), message))
}

/// A colon in place of `=`: `type: "batch"`. The parser stops at the name or after it.
fn colon(stop: &ParseStop<'_>, _message: &str) -> ParseExplanation {
    let (rest, before) = (super::identifier_at(stop.rest, 0), stop.before.trim());
    let name = if before.is_empty() { rest.as_str() } else { before };
    let after = stop.rest.get(rest.len()..)?.trim_start_matches(' ');
    (is_name(name) && after.starts_with(':'))
        .then(|| (stop.span(rest.len()), format!("an attribute is given with =, as in {name} = …")))
}

/// A `=` before the label of a block: `group = "g" {`.
fn block_with_equals(stop: &ParseStop<'_>, _message: &str) -> ParseExplanation {
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

/// An attribute without `=`: `type "batch"` or `priority 5`. The parser stops after the text, or at the number.
fn without_equals(stop: &ParseStop<'_>, message: &str) -> ParseExplanation {
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

/// A block whose brace stands on the next line, after `group "g"`.
fn brace_on_next_line(stop: &ParseStop<'_>, message: &str) -> ParseExplanation {
    let name = stop.before.split_whitespace().next().filter(|name| is_name(name))?;
    let start = stop.at.checked_sub(stop.before.trim_start().len())?;
    let splits = message.contains('{') && stop.line().trim().is_empty() && opens_next(stop);
    splits.then(|| {
        let message = "the { that opens a block stands on the line of its name; move it there";
        (Span::new(start, start + name.len()), message.to_owned())
    })
}

/// Whether a brace is the next character, after blanks and line ends.
fn opens_next(stop: &ParseStop<'_>) -> bool {
    stop.rest.trim_start().starts_with('{')
}

/// A semicolon: `type = "batch";`.
fn semicolon(stop: &ParseStop<'_>, _message: &str) -> ParseExplanation {
    stop.rest.trim_start_matches(' ').starts_with(';').then(|| {
        let blanks = stop.rest.len() - stop.rest.trim_start_matches(' ').len();
        let message = "no ; ends an attribute or a block; remove it, and begin what follows on a line of its own";
        (Span::new(stop.at + blanks, stop.at + blanks + 1), message.to_owned())
    })
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && super::identifier_at(text, 0) == text
}

/// A block on one line that holds more than one attribute, or an inner block.
fn one_line(stop: &ParseStop<'_>, message: &str) -> ParseExplanation {
    let structure = ["invalid attribute", "invalid block", "unexpected token"];
    let is_structure = structure.iter().any(|start| message.starts_with(start));
    (is_structure && opens_block(stop.before)).then(|| {
        let message =
            "a one-line block holds one attribute; put nested blocks on lines of their own";
        (stop.span(1), message.to_owned())
    })
}

/// Whether a brace that was opened in the line is still open at its end. Braces in texts do not count.
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
