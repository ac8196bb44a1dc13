//! `format` and `formatlist`, with verbs like those of Go.

use serde_json::Number;
use unicode_segmentation::UnicodeSegmentation as _;

use super::super::super::diagnostic::{Span, quote_text};
use super::super::budget::Budget;
use super::super::types::Type;
use super::super::value::{HclText, Seq, Val, ValKind, number_text};
use super::encoding::to_sorted_json;
use super::{Function, FunctionCall, FunctionError, LATE};

pub(super) const TABLE: &[(&str, Function)] =
    &[("format", format_one), ("formatlist", format_list)];

/// From this many digits on, a number is written with an exponent, unless the verb has a precision.
const GENERAL_DIGITS: i32 = 6;
/// The widest field, and the largest number of digits after the point.
const WIDTH_MAX: usize = 10_000;

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

/// One verb of a pattern, with its flags.
#[derive(Default)]
struct FormatVerb {
    /// The verb as it is written, for messages.
    text: String,
    zero: bool,
    sharp: bool,
    plus: bool,
    minus: bool,
    space: bool,
    width: Option<usize>,
    precision: Option<usize>,
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
        let most = verb.width.unwrap_or(0).saturating_add(verb.precision.unwrap_or(0));
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
        while let Some(flag) = letters.next_if(|c| matches!(c, ' ' | '+' | '-' | '0' | '#')) {
            verb.text.push(flag);
            match flag {
                ' ' => verb.space = true,
                '+' => verb.plus = true,
                '-' => verb.minus = true,
                '0' => verb.zero = true,
                _ => verb.sharp = true,
            }
        }
        verb.width = digits(letters, &mut verb.text)?;
        if letters.next_if_eq(&'.').is_some() {
            verb.text.push('.');
            verb.precision = digits(letters, &mut verb.text)?;
            if verb.precision.is_none() {
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
        if grown > WIDTH_MAX {
            return Err(format!("a width or a precision is at most {WIDTH_MAX}"));
        }
        number = Some(grown);
    }
    Ok(number)
}

/// A value as the verb formats it.
fn one(verb: &FormatVerb, mode: char, value: &Val) -> Result<String, String> {
    // The length of a text that is known later is not known either.
    if value.is_late() && (verb.width.is_some() || verb.precision.is_some()) {
        return Err(LATE.to_owned());
    }
    if value.kind == ValKind::Null && mode != 'v' {
        return Err(format!("{} needs a value, not null", quote_text(&verb.text)));
    }
    match mode {
        'v' => match &value.kind {
            ValKind::Text(text) if !verb.sharp => Ok(pad_text(verb, text.as_str())),
            ValKind::Number(number) if !verb.sharp => {
                Ok(pad_text(verb, &general(number, None, 'e')))
            }
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
            let text = match verb.precision.filter(|precision| *precision > 0) {
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
    let (negative, mut body) = match mode {
        'b' | 'd' | 'o' | 'x' | 'X' => {
            let whole = number.as_i64().map(i128::from).or(number.as_u64().map(i128::from))?;
            let size = whole.unsigned_abs();
            let text = match mode {
                'b' => format!("{size:b}"),
                'o' => format!("{size:o}"),
                'x' => format!("{size:x}"),
                'X' => format!("{size:X}"),
                _ => size.to_string(),
            };
            let least = verb.precision.unwrap_or(0);
            let text = format!("{text:0>least$}");
            let sign = match (verb.sharp, mode) {
                (true, 'x') => "0x",
                (true, 'X') => "0X",
                (true, 'o') => "0",
                (true, 'b') => "0b",
                _ => "",
            };
            (whole < 0, format!("{sign}{text}"))
        }
        _ => {
            let float = number.as_f64()?;
            let size = float.abs();
            let text = match mode {
                'f' => format!("{size:.*}", verb.precision.unwrap_or(6)),
                'e' | 'E' => scientific(size, verb.precision.unwrap_or(6), mode),
                _ => {
                    let positive = Number::from_f64(size)?;
                    let mark = if mode == 'g' { 'e' } else { 'E' };
                    general(&positive, verb.precision, mark)
                }
            };
            (float < 0.0, text)
        }
    };
    let sign = match (negative, verb.plus, verb.space) {
        (true, ..) => "-",
        (_, true, _) => "+",
        (_, _, true) => " ",
        _ => "",
    };
    let whole_digits = matches!(mode, 'b' | 'd' | 'o' | 'x' | 'X') && verb.precision.is_some();
    if verb.zero && !verb.minus && !whole_digits {
        let width = verb.width.unwrap_or(0).saturating_sub(sign.len());
        body = format!("{body:0>width$}");
    }
    let text = format!("{sign}{body}");
    let width = verb.width.unwrap_or(0);
    Some(if verb.minus { format!("{text:<width$}") } else { format!("{text:>width$}") })
}

/// A number with an exponent, such as `1.5e+06`.
fn scientific(float: f64, precision: usize, mark: char) -> String {
    let text = format!("{float:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}{mark}{sign}{:02}", exponent.abs())
}

/// A number with the fewest digits that stand for it. Very large and very small numbers have an exponent.
fn general(number: &Number, precision: Option<usize>, mark: char) -> String {
    let float = number.as_f64().unwrap_or(0.0);
    if float == 0.0 {
        return "0".to_owned();
    }
    let digits = precision.map(|precision| precision.max(1));
    let (text, limit) = match digits {
        Some(digits) => {
            (format!("{float:.*e}", digits - 1), i32::try_from(digits).unwrap_or(i32::MAX))
        }
        None => (format!("{float:e}"), GENERAL_DIGITS),
    };
    let exponent: i32 = text.split_once('e').and_then(|(_, e)| e.parse().ok()).unwrap_or(0);
    if exponent < -4 || exponent >= limit {
        let (digits, _) = text.split_once('e').unwrap_or((&text, "0"));
        let digits = if digits.contains('.') {
            digits.trim_end_matches('0').trim_end_matches('.')
        } else {
            digits
        };
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}{mark}{sign}{:02}", exponent.abs());
    }
    match digits {
        Some(digits) => {
            let after = i32::try_from(digits).unwrap_or(i32::MAX) - 1 - exponent;
            let text = format!("{float:.*}", usize::try_from(after).unwrap_or(0));
            if text.contains('.') {
                text.trim_end_matches('0').trim_end_matches('.').to_owned()
            } else {
                text
            }
        }
        None => number_text(number),
    }
}

/// The text padded to the width of the verb, which counts letters as people do.
fn pad_text(verb: &FormatVerb, text: &str) -> String {
    let wanted = verb.width.unwrap_or(0);
    let fill = wanted.saturating_sub(text.graphemes(true).count());
    let fill = if verb.zero { "0" } else { " " }.repeat(fill);
    if verb.minus { format!("{text}{fill}") } else { format!("{fill}{text}") }
}
