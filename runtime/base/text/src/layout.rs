//! The flags, the width and the precision of a verb of `printf`, such as those of `%+08.3f`.

use crate::number;

/// The widest field and the longest fraction, in characters. Go's own bound is a million.
pub const LAYOUT_WIDTH_MAX: usize = 10_000;

/// How a verb lays its value out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrintfLayout {
    /// Numbers have a sign in any case; texts in quotes are ASCII.
    pub plus: bool,
    /// The value stands on the left.
    pub minus: bool,
    /// The other form of the verb: a prefix, for example.
    pub sharp: bool,
    /// A blank stands for the sign that a number does not have.
    pub space: bool,
    /// Zeros fill the width.
    pub zero: bool,
    /// The smallest width.
    pub width: Option<usize>,
    /// The number of digits or of characters.
    pub precision: Option<usize>,
}

impl PrintfLayout {
    /// Note a flag. `false` if the character is none.
    pub fn set_flag(&mut self, flag: char) -> bool {
        match flag {
            '+' => self.plus = true,
            '-' => self.minus = true,
            '#' => self.sharp = true,
            ' ' => self.space = true,
            '0' => self.zero = true,
            _ => return false,
        }
        true
    }

    /// The sign of a number.
    #[must_use]
    pub fn sign(&self, is_negative: bool) -> &'static str {
        match (is_negative, self.plus, self.space) {
            (true, _, _) => "-",
            (_, true, _) => "+",
            (_, _, true) => " ",
            _ => "",
        }
    }

    /// The prefix and the digits of a whole number, without its sign. `None` if the verb writes no
    /// whole numbers in digits.
    #[must_use]
    pub fn whole_digits(&self, verb: char, size: u128) -> Option<(&'static str, String)> {
        let sharp = |prefix| if self.sharp { prefix } else { "" };
        Some(match verb {
            'd' | 'v' => ("", size.to_string()),
            'b' => (sharp("0b"), format!("{size:b}")),
            'o' => (sharp("0"), format!("{size:o}")),
            'O' => ("0o", format!("{size:o}")),
            'x' => (sharp("0x"), format!("{size:x}")),
            'X' => (sharp("0X"), format!("{size:X}")),
            _ => return None,
        })
    }

    /// A number that is not below zero, with its fraction or its exponent. `None` if the verb writes
    /// no such numbers.
    #[must_use]
    pub fn fraction_digits(&self, verb: char, size: f64) -> Option<String> {
        let precision = self.precision.unwrap_or(6);
        Some(match verb {
            'v' | 'g' => number::general(size, self.precision),
            'G' => number::general(size, self.precision).to_uppercase(),
            'f' | 'F' => number::fixed(size, precision),
            'e' | 'E' => number::exponential(size, precision, verb),
            _ => return None,
        })
    }

    /// The text with blanks up to the width, which counts characters.
    #[must_use]
    pub fn pad_blanks(&self, text: &str) -> String {
        let width = self.width.unwrap_or(0);
        if self.minus { format!("{text:<width$}") } else { format!("{text:>width$}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_say_how_a_number_is_laid_out() {
        let mut layout = PrintfLayout { width: Some(4), ..PrintfLayout::default() };
        assert_eq!(layout.pad_blanks("ab"), "  ab");
        assert!("+-#0 ".chars().all(|flag| layout.set_flag(flag)) && !layout.set_flag('x'));
        assert_eq!(layout.pad_blanks("ab"), "ab  ");
        assert_eq!((layout.sign(true), layout.sign(false)), ("-", "+"));
        assert_eq!(layout.whole_digits('x', 255), Some(("0x", "ff".to_owned())));
        assert_eq!(layout.whole_digits('f', 255), None);
        assert_eq!(layout.fraction_digits('E', 1_500.0), Some("1.500000E+03".to_owned()));
        assert_eq!(layout.fraction_digits('d', 1.0), None);
    }
}
