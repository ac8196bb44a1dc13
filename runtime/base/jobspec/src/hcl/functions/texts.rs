//! Functions of texts.

use unicode_segmentation::UnicodeSegmentation as _;

use super::super::value::{HclText, ValKind};
use super::{Function, FunctionCall, FunctionError, plain, raw};

pub(super) const TABLE: &[(&str, Function)] = &[
    ("chomp", |call| one(call, |text| text.trim_end_matches(['\r', '\n']).to_owned())),
    ("indent", indent),
    ("join", join),
    ("lower", |call| one(call, |text| text.to_lowercase())),
    ("regex_replace", regex_replace),
    ("replace", replace),
    ("reverse", |call| one(call, |text| text.graphemes(true).rev().collect())),
    ("split", split),
    ("strrev", |call| one(call, |text| text.graphemes(true).rev().collect())),
    ("substr", substr),
    ("title", |call| one(call, title)),
    ("trim", trim),
    ("trimprefix", |call| strip_affix(call, |text, end| text.strip_prefix(end))),
    ("trimspace", |call| one(call, |text| text.trim().to_owned())),
    ("trimsuffix", |call| strip_affix(call, |text, end| text.strip_suffix(end))),
    ("upper", |call| one(call, |text| text.to_uppercase())),
];

/// The bytes that each part of a split text counts as.
const PART_BYTES: usize = 64;

fn one(call: FunctionCall<'_>, change: fn(&str) -> String) -> Result<ValKind, FunctionError> {
    call.check_count(1, 1)?;
    Ok(ValKind::literal(change(&call.text(0)?)))
}

fn strip_affix(
    call: FunctionCall<'_>,
    cut: for<'t> fn(&'t str, &str) -> Option<&'t str>,
) -> Result<ValKind, FunctionError> {
    call.check_count(2, 2)?;
    let (text, end) = (call.text(0)?, call.text(1)?);
    Ok(ValKind::literal(cut(&text, &end).unwrap_or(&text)))
}

fn trim(call: FunctionCall<'_>) -> Result<ValKind, FunctionError> {
    call.check_count(2, 2)?;
    let (text, letters) = (call.text(0)?, call.text(1)?);
    Ok(ValKind::literal(text.trim_matches(|c| letters.contains(c))))
}

fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut inside = false;
    for letter in text.chars() {
        if inside {
            out.push(letter);
        } else {
            out.extend(letter.to_uppercase());
        }
        inside = letter.is_alphanumeric() || letter == '_';
    }
    out
}

/// Indent the lines after the first one.
fn indent(mut call: FunctionCall<'_>) -> Result<ValKind, FunctionError> {
    call.check_count(2, 2)?;
    let (blanks, text) = (call.count(0)?, call.raw(1)?);
    let lines = text.as_str().matches('\n').count().saturating_add(1);
    call.pay(lines.saturating_mul(blanks))?;
    let line = format!("\n{}", " ".repeat(blanks));
    Ok(ValKind::Text(text.map(|text| text.replace('\n', &line))))
}

fn join(mut call: FunctionCall<'_>) -> Result<ValKind, FunctionError> {
    call.check_count(2, usize::MAX)?;
    let separator = call.raw(0)?;
    let mut texts = Vec::new();
    for index in 1..call.arguments.len() {
        for item in call.items(index)?.1 {
            texts.push(raw(item)?);
        }
    }
    let bytes: usize = texts.iter().map(|text| text.as_str().len()).sum();
    // The separator is repeated, so the budget is checked before.
    call.pay(bytes.saturating_add(separator.as_str().len().saturating_mul(texts.len())))?;
    let mut out = HclText::default();
    for (index, text) in texts.iter().enumerate() {
        if index > 0 {
            out.append(&separator);
        }
        out.append(text);
    }
    Ok(ValKind::Text(out))
}

fn split(mut call: FunctionCall<'_>) -> Result<ValKind, FunctionError> {
    call.check_count(2, 2)?;
    let (separator, text) = (call.text(0)?, call.text(1)?);
    // Each part is a value of its own, however short it is.
    let parts = if separator.is_empty() { text.len() } else { text.matches(&separator).count() };
    call.pay(parts.saturating_mul(PART_BYTES))?;
    let parts: Vec<&str> = if separator.is_empty() {
        text.graphemes(true).collect()
    } else {
        text.split(&separator).collect()
    };
    Ok(ValKind::list(parts.into_iter().map(ValKind::literal), call.span))
}

fn replace(mut call: FunctionCall<'_>) -> Result<ValKind, FunctionError> {
    call.check_count(3, 3)?;
    let (text, from, to) = (call.text(0)?, call.text(1)?, call.text(2)?);
    let times = text.matches(from.as_str()).count();
    call.pay(times.saturating_mul(to.len()))?;
    Ok(ValKind::literal(text.replace(&from, &to)))
}

fn regex_replace(mut call: FunctionCall<'_>) -> Result<ValKind, FunctionError> {
    call.check_count(3, 3)?;
    let (text, pattern, to) = (call.text(0)?, call.text(1)?, call.text(2)?);
    let (pattern, paid) = call.budget.pattern(&pattern);
    let pattern = match pattern {
        Ok(pattern) if paid => pattern,
        Err(error) if paid => return call.fail_at(1, format!("the pattern is {error}")),
        _ => return Err(FunctionError { at: call.span, message: None }),
    };
    call.pay(pattern.price_of(&text))?;
    let references = to.matches('$').count();
    let mut out = String::new();
    pattern.replace(&text, &to, |found| {
        out.push_str(found.before);
        // Each reference may stand for the whole match, so the budget is checked before.
        call.pay(references.saturating_mul(found.length).saturating_add(to.len()))?;
        (found.becomes)(&mut out);
        Ok(())
    })?;
    Ok(ValKind::literal(out))
}

/// A part of a text, in letters as people count them. A negative offset counts from the end. With a negative length,
/// the part goes up to the end.
fn substr(call: FunctionCall<'_>) -> Result<ValKind, FunctionError> {
    call.check_count(3, 3)?;
    let (text, offset, length) = (call.text(0)?, call.whole(1)?, call.whole(2)?);
    let letters: Vec<&str> = text.graphemes(true).collect();
    let start = match usize::try_from(offset) {
        Ok(offset) => offset,
        Err(_) => {
            let back = usize::try_from(offset.unsigned_abs()).unwrap_or(usize::MAX);
            letters.len().saturating_sub(back)
        }
    };
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    let taken: String = letters.into_iter().skip(start).take(length).collect();
    Ok(ValKind::literal(taken))
}

/// The texts of a list, none of which may be known only later.
pub(super) fn list_texts(
    call: &FunctionCall<'_>,
    index: usize,
) -> Result<Vec<String>, FunctionError> {
    call.items(index)?.1.iter().map(plain).collect()
}
