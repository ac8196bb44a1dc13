//! `format` and `formatlist`, with verbs like those of Go.

use ostler_text::layout::{LAYOUT_WIDTH_MAX, PrintfLayout};
use ostler_text::number;
use serde_json::Number;
use unicode_segmentation::UnicodeSegmentation as _;

use super::super::budget::Budget;
use super::super::types::Type;
use super::super::value::{HclText, Seq, Val, ValKind};
use super::encoding::to_sorted_json;
use super::{Function, FunctionCall, FunctionError, LATE};
use crate::diagnostic::{Span, quote_text};

pub(super) const TABLE: &[(&str, Function)] =
    &[("format", format_one), ("formatlist", format_list)];

fn format_one(mut call: FunctionCall<'_>) -> Result<ValKind, FunctionError> {
    call.check_count(1, usize::MAX)?;
    let pattern = call.raw(0)?;
    let arguments = std::mem::take(&mut call.arguments);
    let values: Vec<&Val> = arguments.iter().skip(1).collect();
    format(&pattern, &values, call.span, call.budget).map(ValKind::Text)
}

/// Format once for each element of the lists among the arguments.
fn format_list(mut call: FunctionCall<'_>) -> Result<ValKind, FunctionError> {
    call.check_count(1, usize::MAX)?;
    let pattern = call.raw(0)?;
    let arguments = std::mem::take(&mut call.arguments);
    let values: Vec<&Val> = arguments.iter().skip(1).collect();
    let mut count = None;
    for value in &values {
        let ValKind::List(_, items) = &value.kind else { continue };
        if *count.get_or_insert(items.len()) != items.len() {
            let message = "the lists differ in length".to_owned();
            return Err(FunctionError { at: value.span, message: Some(message) });
        }
    }
    let mut texts = Vec::new();
    for index in 0..count.unwrap_or(1) {
        let one = |value: &&'_ Val| -> Option<Val> {
            match &value.kind {
                ValKind::List(_, items) => items.get(index).cloned(),
                _ => Some((*value).clone()),
            }
        };
        let row: Vec<Val> = values.iter().filter_map(one).collect();
        let row: Vec<&Val> = row.iter().collect();
        let text = format(&pattern, &row, call.span, call.budget)?;
        texts.push(Val::new(ValKind::Text(text), call.span));
    }
    Ok(ValKind::List(Seq::List, texts))
}

/// One verb of a pattern, with its layout.
#[derive(Default)]
struct FormatVerb {
    /// The verb as it is written, for messages.
    text: String,
    layout: PrintfLayout,
}

fn format(
    pattern: &HclText,
    values: &[&Val],
    span: Span,
    budget: &mut Budget,
) -> Result<HclText, FunctionError> {
    let wrong = |message: String| FunctionError { at: span, message: Some(message) };
    let mut out = String::new();
    let late = pattern.is_late() || values.iter().any(|value| value.is_late());
    let mut letters = pattern.as_str().chars().peekable();
    let (mut next, mut used) = (0_usize, 0_usize);
    while let Some(letter) = letters.next() {
        if letter != '%' {
            out.push(letter);
            continue;
        }
        if letters.next_if_eq(&'%').is_some() {
            out.push('%');
            continue;
        }
        let (verb, mode) = FormatVerb::read(&mut letters, &mut next).map_err(wrong)?;
        let Some(value) = values.get(next) else {
            let there = if values.len() == 1 { "is" } else { "are" };
            let text = quote_text(&verb.text);
            return Err(wrong(format!("{text} needs a value: there {there} {}", values.len())));
        };
        next += 1;
        used = used.max(next);
        let most =
            verb.layout.width.unwrap_or(0).saturating_add(verb.layout.precision.unwrap_or(0));
        let size = usize::try_from(value.size()).unwrap_or(usize::MAX);
        if !budget.pay_bytes(most.saturating_add(size)) {
            return Err(FunctionError { at: span, message: None });
        }
        let made = one(&verb, mode, value);
        let made =
            made.map_err(|message| FunctionError { at: value.span, message: Some(message) })?;
        out.push_str(&made);
    }
    if used < values.len() {
        let all = values.len();
        return Err(wrong(format!(
            "more values than the format has places: {used} of {all} are used"
        )));
    }
    Ok(HclText::new(out, late))
}

type Letters<'a> = std::iter::Peekable<std::str::Chars<'a>>;

impl FormatVerb {
    /// Read the part after a `%`. Returns the flags and the letter. An index `[n]` sets which value is `next`.
    fn read(letters: &mut Letters<'_>, next: &mut usize) -> Result<(Self, char), String> {
        let mut verb = Self { text: "%".to_owned(), ..Self::default() };
        while let Some(flag) = letters.peek().copied().filter(|flag| verb.layout.set_flag(*flag)) {
            verb.text.push(flag);
            letters.next();
        }
        verb.layout.width = digits(letters, &mut verb.text)?;
        if letters.next_if_eq(&'.').is_some() {
            verb.text.push('.');
            verb.layout.precision = digits(letters, &mut verb.text)?;
            if verb.layout.precision.is_none() {
                return Err(format!("{} needs a number after its point", quote_text(&verb.text)));
            }
        }
        if letters.next_if_eq(&'[').is_some() {
            verb.text.push('[');
            let index = digits(letters, &mut verb.text)?;
            match (index.and_then(|index| index.checked_sub(1)), letters.next()) {
                (Some(index), Some(']')) => *next = index,
                _ => return Err("a position in a format is written [1], [2] and so on".to_owned()),
            }
            verb.text.push(']');
        }
        let Some(mode) = letters.next() else {
            return Err(format!("the format ends after {}", quote_text(&verb.text)));
        };
        verb.text.push(mode);
        Ok((verb, mode))
    }
}

fn digits(letters: &mut Letters<'_>, text: &mut String) -> Result<Option<usize>, String> {
    let mut number: Option<usize> = None;
    while let Some(digit) = letters.next_if(char::is_ascii_digit) {
        text.push(digit);
        let digit = digit.to_digit(10).and_then(|digit| usize::try_from(digit).ok()).unwrap_or(0);
        let grown = number.unwrap_or(0).saturating_mul(10).saturating_add(digit);
        if grown > LAYOUT_WIDTH_MAX {
            return Err(format!("a width or a precision is at most {LAYOUT_WIDTH_MAX}"));
        }
        number = Some(grown);
    }
    Ok(number)
}

/// A value as the verb formats it.
fn one(verb: &FormatVerb, mode: char, value: &Val) -> Result<String, String> {
    // The length of a text that is known later is not known either.
    if value.is_late() && (verb.layout.width.is_some() || verb.layout.precision.is_some()) {
        return Err(LATE.to_owned());
    }
    if value.kind == ValKind::Null && mode != 'v' {
        return Err(format!("{} needs a value, not null", quote_text(&verb.text)));
    }
    match mode {
        'v' => match &value.kind {
            ValKind::Text(text) if !verb.layout.sharp => Ok(pad_text(verb, text.as_str())),
            ValKind::Number(number) if !verb.layout.sharp => Ok(pad_text(verb, &general(number))),
            _ => Ok(pad_text(verb, &to_sorted_json((*value).clone()).to_string())),
        },
        't' => {
            let converted = Type::Bool.convert((*value).clone()).map_err(|(_, message)| message)?;
            Ok(converted.kind.to_characters().unwrap_or_default())
        }
        's' | 'q' => {
            let Some(text) = value.kind.to_characters() else {
                return Err(format!("%{mode} needs a text, not {}", value.kind.describe()));
            };
            let text = match verb.layout.precision.filter(|precision| *precision > 0) {
                Some(most) => text.graphemes(true).take(most).collect(),
                None => text,
            };
            match mode {
                'q' => Ok(pad_text(verb, &serde_json::Value::from(text).to_string())),
                _ => Ok(pad_text(verb, &text)),
            }
        }
        'b' | 'd' | 'o' | 'x' | 'X' | 'e' | 'E' | 'f' | 'g' | 'G' => {
            if value.is_late() {
                return Err(LATE.to_owned());
            }
            let needs = if matches!(mode, 'b' | 'd' | 'o' | 'x' | 'X') {
                "a whole number"
            } else {
                "a number"
            };
            let wrong = || format!("%{mode} needs {needs}");
            let converted = Type::Number.convert((*value).clone()).map_err(|_| wrong())?;
            let ValKind::Number(number) = converted.kind else { return Err(wrong()) };
            numeric(verb, mode, &number).ok_or_else(wrong)
        }
        _ => Err(format!(
            "{} is not a verb: there are %s %q %v %t %d %b %o %x %X %e %E %f %g %G and %%",
            quote_text(&verb.text)
        )),
    }
}

fn numeric(verb: &FormatVerb, mode: char, number: &Number) -> Option<String> {
    let layout = &verb.layout;
    let is_whole = matches!(mode, 'b' | 'd' | 'o' | 'x' | 'X');
    let (negative, prefix, mut digits) = if is_whole {
        let whole = number.as_i64().map(i128::from).or(number.as_u64().map(i128::from))?;
        let (prefix, digits) = layout.whole_digits(mode, whole.unsigned_abs())?;
        let least = layout.precision.unwrap_or(0);
        (whole < 0, prefix, format!("{digits:0>least$}"))
    } else {
        let float = number.as_f64()?;
        (float < 0.0, "", layout.fraction_digits(mode, float.abs())?)
    };
    let sign = layout.sign(negative);
    if layout.zero && !layout.minus && !(is_whole && layout.precision.is_some()) {
        let width = layout.width.unwrap_or(0).saturating_sub(sign.len() + prefix.len());
        digits = format!("{digits:0>width$}");
    }
    Some(layout.pad_blanks(&format!("{sign}{prefix}{digits}")))
}

/// A number with the fewest digits that stand for it. Very large and very small numbers have an exponent.
fn general(number: &Number) -> String {
    let float = number.as_f64().unwrap_or(0.0);
    // There is only one zero.
    number::general(if float == 0.0 { 0.0 } else { float }, None)
}

/// The text padded to the width of the verb, which counts letters as people do.
fn pad_text(verb: &FormatVerb, text: &str) -> String {
    let wanted = verb.layout.width.unwrap_or(0);
    let fill = wanted.saturating_sub(text.graphemes(true).count());
    let fill = if verb.layout.zero { "0" } else { " " }.repeat(fill);
    if verb.layout.minus { format!("{text}{fill}") } else { format!("{fill}{text}") }
}
