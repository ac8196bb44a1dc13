//! The meaning of the plain words of YAML.

/// The meaning of a plain word.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum YamlWord {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text,
}

/// Resolve a word as the readers of YAML 1.1 in Go do: `yes` and `on` are true.
pub(crate) fn resolve(word: &str) -> YamlWord {
    match word {
        "" | "~" | "null" | "Null" | "NULL" => return YamlWord::Null,
        "true" | "True" | "TRUE" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" | "y" | "Y" => {
            return YamlWord::Bool(true);
        }
        "false" | "False" | "FALSE" | "no" | "No" | "NO" | "off" | "Off" | "OFF" | "n" | "N" => {
            return YamlWord::Bool(false);
        }
        ".nan" | ".NaN" | ".NAN" => return YamlWord::Float(f64::NAN),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => {
            return YamlWord::Float(f64::INFINITY);
        }
        "-.inf" | "-.Inf" | "-.INF" => return YamlWord::Float(f64::NEG_INFINITY),
        _ => {}
    }
    let begins = word.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.'));
    if !begins {
        return YamlWord::Text;
    }
    let plain = word.replace('_', "");
    integer(&plain).or_else(|| float(&plain)).unwrap_or(YamlWord::Text)
}

fn integer(text: &str) -> Option<YamlWord> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let (radix, digits) = if let Some(hex) = digits.strip_prefix("0x") {
        (16, hex)
    } else if let Some(octal) = digits.strip_prefix("0o") {
        (8, octal)
    } else if let Some(binary) = digits.strip_prefix("0b") {
        (2, binary)
    } else if digits.len() > 1 && digits.starts_with('0') {
        (8, digits)
    } else {
        (10, digits)
    };
    if digits.is_empty() || !digits.chars().all(|c| c.is_digit(radix)) {
        return None;
    }
    let value = i128::from_str_radix(digits, radix).ok()?;
    let value = if negative { -value } else { value };
    #[expect(clippy::cast_precision_loss, reason = "no whole number of 64 bits: a float, as in Go")]
    Some(i64::try_from(value).map_or(YamlWord::Float(value as f64), YamlWord::Int))
}

/// Read a number of the form `[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?`.
fn float(text: &str) -> Option<YamlWord> {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let begins = unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.');
    let only = unsigned.bytes().all(|byte| byte.is_ascii_digit() || b".eE+-".contains(&byte));
    let some = unsigned.bytes().any(|byte| byte.is_ascii_digit());
    if !(begins && only && some) {
        return None;
    }
    text.parse().ok().map(YamlWord::Float)
}
