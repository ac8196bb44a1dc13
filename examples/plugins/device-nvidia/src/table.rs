//! What `nvidia-smi --query-gpu=… --format=csv,noheader,nounits` prints: one line a card, values
//! with `, ` between them. Everything in it is untrusted; what cannot be read is an error that
//! names the line.

use ostler_sdk::error::{Error, Result};

/// Most cards of one answer: more than any machine has.
const CARDS_MAX: usize = 256;
/// Most characters of a line that an error repeats.
const QUOTE_MAX: usize = 120;
/// How nvidia-smi begins the line about a card that no longer answers.
const LOST: &str = "Unable to determine the device handle for";

/// One value as printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    /// The card has no such thing, or does not tell it: `[N/A]`, `[Not Supported]`.
    Absent,
    /// The card should tell and cannot: `[Unknown Error]`, `[GPU requires reset]`.
    Broken(&'a str),
    /// A value.
    Given(&'a str),
}

impl<'a> Value<'a> {
    fn read(text: &'a str) -> Self {
        let inner = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let said = inner.unwrap_or(text).to_ascii_lowercase();
        let ill = ["error", "err!", "lost", "reset", "fault", "fallen off"];
        match inner {
            _ if matches!(said.as_str(), "" | "n/a" | "not supported") => Self::Absent,
            _ if said == "err!" => Self::Broken(text),
            Some(inner) if ill.iter().any(|word| said.contains(word)) => Self::Broken(inner),
            Some(_) => Self::Absent,
            None => Self::Given(text),
        }
    }
}

/// The line of one card.
#[derive(Debug)]
pub struct Row<'a> {
    columns: &'a [&'static str],
    values: Vec<Value<'a>>,
    line: usize,
}

impl<'a> Row<'a> {
    /// A value; absent when it was not asked for.
    pub fn value(&self, column: &str) -> Value<'a> {
        let index = self.columns.iter().position(|name| *name == column);
        let value = index.and_then(|index| self.values.get(index));
        value.copied().unwrap_or(Value::Absent)
    }

    /// A value that is there and not broken.
    pub fn text(&self, column: &str) -> Option<&'a str> {
        match self.value(column) {
            Value::Given(text) => Some(text),
            Value::Absent | Value::Broken(_) => None,
        }
    }

    /// A whole number that is not negative.
    ///
    /// # Errors
    /// Something else is there.
    pub fn whole(&self, column: &str) -> Result<Option<i64>> {
        let number = |text: &str| text.parse().ok().filter(|number: &i64| *number >= 0);
        self.number(column, number)
    }

    /// A number that is not negative, with or without a fraction.
    ///
    /// # Errors
    /// Something else is there.
    pub fn fraction(&self, column: &str) -> Result<Option<f64>> {
        let number = |text: &str| {
            text.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0)
        };
        self.number(column, number)
    }

    fn number<T>(&self, column: &str, parse: impl Fn(&str) -> Option<T>) -> Result<Option<T>> {
        let Some(text) = self.text(column) else {
            return Ok(None);
        };
        match parse(text) {
            Some(number) => Ok(Some(number)),
            None => Err(self.error(&format!("{column} is {:?}, which is not a number", cut(text)))),
        }
    }

    /// An error about this line.
    pub fn error(&self, problem: &str) -> Error {
        Error::recoverable(self.says(problem))
    }

    /// A sentence about this line.
    pub fn says(&self, what: &str) -> String {
        format!("line {} of nvidia-smi: {what}", self.line)
    }

    /// The columns whose value is broken, with what is said of them.
    pub fn broken(&self) -> impl Iterator<Item = (&'static str, &'a str)> {
        self.columns.iter().zip(&self.values).filter_map(|(name, value)| match value {
            Value::Broken(said) => Some((*name, *said)),
            Value::Absent | Value::Given(_) => None,
        })
    }
}

/// What was printed.
#[derive(Debug)]
pub struct Table<'a> {
    /// One line a card.
    pub rows: Vec<Row<'a>>,
    /// What is said of cards that no longer answer.
    pub lost: Vec<&'a str>,
    /// Warnings, for the log.
    pub warnings: Vec<&'a str>,
}

impl<'a> Table<'a> {
    /// Read what was printed for these columns.
    ///
    /// # Errors
    /// A line with fewer or more values than asked for, or more cards than a machine has.
    pub fn read(text: &'a str, columns: &'a [&'static str]) -> Result<Self> {
        let mut table = Self { rows: vec![], lost: vec![], warnings: vec![] };
        for (index, line) in text.lines().enumerate() {
            let (line, number) = (line.trim(), index + 1);
            if line.is_empty() {
                continue;
            }
            if line.starts_with(LOST) {
                table.lost.push(line);
                continue;
            }
            if line.to_ascii_lowercase().starts_with("warning") {
                table.warnings.push(line);
                continue;
            }
            let values: Vec<_> = line.split(',').map(|text| Value::read(text.trim())).collect();
            let row = Row { columns, values, line: number };
            if row.values.len() != columns.len() {
                let (got, asked) = (row.values.len(), columns.len());
                let line = cut(line);
                return Err(row.error(&format!("{got} values instead of {asked}: {line:?}")));
            }
            if table.rows.len() == CARDS_MAX {
                return Err(row.error(&format!("more than {CARDS_MAX} cards")));
            }
            table.rows.push(row);
        }
        Ok(table)
    }
}

/// The beginning of a text, without control characters.
pub fn cut(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(QUOTE_MAX).collect()
}
