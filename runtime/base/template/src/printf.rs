//! `printf` as in Go: `%[flags][width][.precision]verb`, with `*` and `%[n]`.
//!
//! As in Go, a value that does not fit its verb is no error: the output says so, as in `%!d(string=x)`.

use ostler_text::layout::{LAYOUT_WIDTH_MAX, PrintfLayout};

use crate::error::TemplateProblem;
use crate::print;
use crate::sink::BoundedBuffer;
use crate::value::{Value, lossy};

/// A verb's layout, and how it writes each kind of value.
#[derive(Clone, Copy, Default)]
struct PrintfSpec(PrintfLayout);

struct PrintfReader<'a> {
    rest: std::iter::Peekable<std::str::Chars<'a>>,
    arguments: &'a [Value],
    next: usize,
    reordered: bool,
}

/// Write the arguments as the format says.
pub(crate) fn printf(
    format: &str,
    arguments: &[Value],
    out: &mut BoundedBuffer,
) -> Result<(), TemplateProblem> {
    let rest = format.chars().peekable();
    let mut format = PrintfReader { rest, arguments, next: 0, reordered: false };
    let mut plain = String::new();
    while let Some(c) = format.rest.next() {
        if c != '%' {
            plain.push(c);
            continue;
        }
        out.push(&plain)?;
        plain.clear();
        format.directive(out)?;
    }
    out.push(&plain)?;
    if !format.reordered && format.next < arguments.len() {
        out.push("%!(EXTRA ")?;
        for (index, extra) in arguments.iter().skip(format.next).enumerate() {
            if index > 0 {
                out.push(", ")?;
            }
            write_typed(extra, out)?;
        }
        out.push(")")?;
    }
    Ok(())
}

/// Write the type and the value, as in `int=1` or `<nil>`.
fn write_typed(value: &Value, out: &mut BoundedBuffer) -> Result<(), TemplateProblem> {
    out.push(value.type_name())?;
    if value.is_nothing() {
        return Ok(());
    }
    out.push("=")?;
    print::plain(value, out)
}

impl PrintfReader<'_> {
    fn directive(&mut self, out: &mut BoundedBuffer) -> Result<(), TemplateProblem> {
        let mut layout = PrintfLayout::default();
        while self.rest.peek().is_some_and(|flag| layout.set_flag(*flag)) {
            self.rest.next();
        }
        // Zeros do not pad the right side of a value.
        layout.zero &= !layout.minus;
        self.index();
        layout.width = self.count();
        if self.rest.peek() == Some(&'.') {
            self.rest.next();
            self.index();
            layout.precision = Some(self.count().unwrap_or(0));
        }
        self.index();
        let Some(verb) = self.rest.next() else { return out.push("%!(NOVERB)") };
        if verb == '%' {
            return out.push("%");
        }
        let Some(value) = self.arguments.get(self.next) else {
            return out.push(format!("%!{verb}(MISSING)"));
        };
        self.next += 1;
        PrintfSpec(layout).write(verb, value, out)
    }

    /// Read an index such as `[2]`, which says which argument comes next.
    fn index(&mut self) {
        let mut ahead = self.rest.clone();
        if ahead.next() != Some('[') {
            return;
        }
        let digits: String = ahead.by_ref().take_while(|c| *c != ']').take(6).collect();
        if let Some(index) = digits.parse::<usize>().ok().and_then(|index| index.checked_sub(1)) {
            self.next = index;
            self.reordered = true;
            self.rest = ahead;
        }
    }

    /// Read a count: digits, or `*`, which takes it from an argument.
    fn count(&mut self) -> Option<usize> {
        if self.rest.peek() == Some(&'*') {
            self.rest.next();
            let value = self.arguments.get(self.next);
            self.next += 1;
            return match value {
                Some(Value::Int(count)) => {
                    usize::try_from(*count).ok().map(|c| c.min(LAYOUT_WIDTH_MAX))
                }
                _ => None,
            };
        }
        let mut count = None;
        while let Some(digit) = self.rest.peek().and_then(|c| c.to_digit(10)) {
            self.rest.next();
            let digit = usize::try_from(digit).unwrap_or(0);
            count = Some((count.unwrap_or(0_usize) * 10 + digit).min(LAYOUT_WIDTH_MAX));
        }
        count
    }
}

impl PrintfSpec {
    fn write(
        self,
        verb: char,
        value: &Value,
        out: &mut BoundedBuffer,
    ) -> Result<(), TemplateProblem> {
        if verb == 'T' {
            return self.pad(value.type_name(), out);
        }
        match value {
            Value::List(list) if verb != 'v' || self.0.sharp || self.0.precision.is_some() => {
                out.push("[")?;
                for (index, item) in list.items().iter().enumerate() {
                    if index > 0 {
                        out.push(" ")?;
                    }
                    self.write(verb, item, out)?;
                }
                out.push("]")
            }
            Value::Map(_) | Value::List(_) if matches!(verb, 'v' | 's') => {
                let mut made = BoundedBuffer::for_value(out.bytes_left());
                print::plain(value, &mut made)?;
                self.pad(&lossy(&made.into_bytes()), out)
            }
            _ => match self.scalar(verb, value) {
                Some(text) => out.push(text),
                None => {
                    out.push(format!("%!{verb}("))?;
                    write_typed(value, out)?;
                    out.push(")")
                }
            },
        }
    }

    /// The value as the verb writes it; `None` means that the verb does not fit such a value.
    fn scalar(self, verb: char, value: &Value) -> Option<Vec<u8>> {
        let text = match value {
            Value::Text(text) => return self.text(verb, text),
            Value::TextWithFields(told) => return self.text(verb, told.text()),
            Value::Bool(value) if matches!(verb, 't' | 'v') => {
                self.pad_text(&value.to_string(), false)
            }
            Value::Int(number) => self.whole(verb, i128::from(*number))?,
            Value::Uint(number) => self.whole(verb, i128::from(*number))?,
            Value::Float(number) => self.fraction(verb, *number)?,
            Value::Nothing | Value::Null if verb == 'v' => self.pad_text("<nil>", false),
            _ => return None,
        };
        Some(text.into_bytes())
    }

    fn text(self, verb: char, text: &[u8]) -> Option<Vec<u8>> {
        let cut = match self.0.precision {
            Some(count) if !matches!(verb, 'x' | 'X') => {
                lossy(text).chars().take(count).collect::<String>().into_bytes()
            }
            _ => text.to_vec(),
        };
        let made = match verb {
            'v' if self.0.sharp => quote_text(&lossy(&cut), '"', false).into_bytes(),
            's' | 'v' => cut,
            'q' if self.0.sharp && !cut.contains(&b'`') => [b"`", cut.as_slice(), b"`"].concat(),
            'q' => quote_text(&lossy(&cut), '"', self.0.plus).into_bytes(),
            'x' | 'X' => self.hex(verb, &cut).into_bytes(),
            _ => return None,
        };
        let short = self.0.width.is_some_and(|width| lossy(&made).chars().count() < width);
        Some(if short { self.pad_text(&lossy(&made), self.0.zero).into_bytes() } else { made })
    }

    fn hex(self, verb: char, bytes: &[u8]) -> String {
        let bytes = bytes.get(..self.0.precision.unwrap_or(bytes.len()).min(bytes.len()));
        let each = bytes.unwrap_or_default().iter().map(|byte| match verb {
            'x' => format!("{byte:02x}"),
            _ => format!("{byte:02X}"),
        });
        each.collect::<Vec<_>>().join(if self.0.space { " " } else { "" })
    }

    fn whole(self, verb: char, number: i128) -> Option<String> {
        let size = number.unsigned_abs();
        let character =
            || u32::try_from(number).ok().and_then(char::from_u32).unwrap_or('\u{fffd}');
        let (prefix, digits) = match verb {
            'c' => return Some(self.pad_text(&character().to_string(), self.0.zero)),
            'q' => {
                let quoted = quote_text(&character().to_string(), '\'', self.0.plus);
                return Some(self.pad_text(&quoted, self.0.zero));
            }
            'U' => return Some(self.pad_text(&format!("U+{size:04X}"), false)),
            _ => self.0.whole_digits(verb, size)?,
        };
        let zeros = match self.0.precision {
            Some(digits_least) => digits_least,
            None if self.0.zero => {
                let sign = usize::from(number < 0 || self.0.plus || self.0.space);
                self.0.width.unwrap_or(0).saturating_sub(sign)
            }
            None => 0,
        };
        let digits = format!("{digits:0>zeros$}");
        let signed = format!("{}{prefix}{digits}", self.0.sign(number < 0));
        Some(self.pad_text(&signed, false))
    }

    fn fraction(self, verb: char, value: f64) -> Option<String> {
        let digits = self.0.fraction_digits(verb, value.abs())?;
        let sign = self.0.sign(value.is_sign_negative());
        if self.0.zero && value.is_finite() {
            let zeros = self.0.width.unwrap_or(0).saturating_sub(sign.len());
            return Some(format!("{sign}{digits:0>zeros$}"));
        }
        Some(self.pad_text(&format!("{sign}{digits}"), false))
    }

    fn pad(self, text: &str, out: &mut BoundedBuffer) -> Result<(), TemplateProblem> {
        out.push(self.pad_text(text, self.0.zero))
    }

    fn pad_text(self, text: &str, zero: bool) -> String {
        if zero && !self.0.minus {
            let width = self.0.width.unwrap_or(0);
            return format!("{text:0>width$}");
        }
        self.0.pad_blanks(text)
    }
}

/// A text in quotes, escaped as in Go's source.
fn quote_text(text: &str, quote: char, ascii: bool) -> String {
    let mut made = String::from(quote);
    for c in text.chars() {
        match c {
            '\x07' => made.push_str("\\a"),
            '\x08' => made.push_str("\\b"),
            '\x0c' => made.push_str("\\f"),
            '\n' => made.push_str("\\n"),
            '\r' => made.push_str("\\r"),
            '\t' => made.push_str("\\t"),
            '\x0b' => made.push_str("\\v"),
            '\\' => made.push_str("\\\\"),
            c if c == quote => made.extend(['\\', c]),
            c if u32::from(c) < 0x20 || c == '\x7f' => {
                made.push_str(&format!("\\x{:02x}", u32::from(c)));
            }
            c if c.is_ascii() || !(ascii || c.is_control()) => made.push(c),
            c if u32::from(c) > 0xffff => made.push_str(&format!("\\U{:08x}", u32::from(c))),
            c => made.push_str(&format!("\\u{:04x}", u32::from(c))),
        }
    }
    made.push(quote);
    made
}
