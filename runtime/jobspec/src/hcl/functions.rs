//! The functions of a job file: Nomad's, by family. `try`, `can` and `convert` are in the evaluator.
//!
//! What is known only when a task starts goes through those that put texts together (`join`,
//! `format`, `concat`, `jsonencode`, …); those that look into a text refuse it.

mod collections;
mod dates;
mod encoding;
mod files;
mod format;
mod hashes;
mod lists;
mod nets;
mod numbers;
mod sets;
mod texts;
mod yaml;

use std::collections::BTreeMap;

use serde_json::Number;

use super::super::diagnostic::{Sink, Span, shown};
use super::budget::Budget;
use super::operators::LATE;
use super::value::{Kind, Seq, Text, Val, parse_number};
use crate::inputs::Inputs;

/// A function on evaluated arguments.
pub(super) type Function = fn(Call<'_>) -> Result<Kind, Wrong>;

/// Why a call has no result.
pub(super) struct Wrong {
    /// Where.
    pub at: Span,
    /// Absent where too much would be produced, which is said elsewhere.
    pub message: Option<String>,
}

const TABLES: [&[(&str, Function)]; 11] = [
    collections::TABLE,
    dates::TABLE,
    encoding::TABLE,
    files::TABLE,
    format::TABLE,
    hashes::TABLE,
    lists::TABLE,
    nets::TABLE,
    numbers::TABLE,
    sets::TABLE,
    texts::TABLE,
];

/// Those of the evaluator.
const SPECIAL: [&str; 3] = ["can", "convert", "try"];

/// The function of this name; another is reported.
pub(super) fn find(name: &str, at: Span, sink: &mut Sink) -> Option<Function> {
    let all = || TABLES.iter().flat_map(|table| table.iter());
    if let Some((_, function)) = all().find(|(known, _)| *known == name) {
        return Some(*function);
    }
    let names = all().map(|(name, _)| *name).chain(SPECIAL);
    let instead = sink.nearest(name, names);
    sink.suggest(at, format!("there is no function {}", shown(name)), instead);
    None
}

/// The names of all functions, in order.
#[cfg(test)]
pub(crate) fn names() -> Vec<&'static str> {
    let all = TABLES.iter().flat_map(|table| table.iter()).map(|(name, _)| *name);
    let mut names: Vec<_> = all.chain(SPECIAL).collect();
    names.sort_unstable();
    names
}

/// A call: the arguments, and what a function may do.
pub(super) struct Call<'a> {
    pub name: &'a str,
    pub arguments: Vec<Val>,
    pub span: Span,
    pub budget: &'a mut Budget,
    pub inputs: &'a Inputs,
}

impl<'a> Call<'a> {
    pub(super) fn new(
        name: &'a str,
        arguments: Vec<Val>,
        span: Span,
        budget: &'a mut Budget,
        inputs: &'a Inputs,
    ) -> Self {
        Self { name, arguments, span, budget, inputs }
    }

    /// The call as a whole is wrong.
    fn wrong<T>(&self, message: impl Into<String>) -> Result<T, Wrong> {
        Err(Wrong { at: self.span, message: Some(message.into()) })
    }

    /// One argument is wrong.
    fn wrong_at<T>(&self, index: usize, message: impl Into<String>) -> Result<T, Wrong> {
        let at = self.arguments.get(index).map_or(self.span, |argument| argument.span);
        Err(Wrong { at, message: Some(message.into()) })
    }

    /// Count what will be produced, before it is.
    fn pay(&mut self, bytes: usize) -> Result<(), Wrong> {
        match self.budget.pay_bytes(bytes) {
            true => Ok(()),
            false => Err(Wrong { at: self.span, message: None }),
        }
    }

    /// There are from `least` to `most` arguments.
    fn takes(&self, least: usize, most: usize) -> Result<(), Wrong> {
        let given = self.arguments.len();
        if (least..=most).contains(&given) {
            return Ok(());
        }
        let wanted = match (least, most) {
            (0, 0) => "no arguments".to_owned(),
            (1, 1) => "one argument".to_owned(),
            (least, most) if least == most => format!("{least} arguments"),
            (least, usize::MAX) => format!("at least {least} arguments"),
            (least, most) => format!("{least} to {most} arguments"),
        };
        self.wrong(format!(
            "a wrong number of arguments: {} takes {wanted}, not {given}",
            self.name
        ))
    }

    fn argument(&self, index: usize) -> Result<&Val, Wrong> {
        match self.arguments.get(index) {
            Some(argument) => Ok(argument),
            None => self.wrong("a wrong number of arguments for this function"),
        }
    }

    fn take(&mut self, index: usize) -> Val {
        let nothing = Val::new(Kind::Null, self.span);
        self.arguments
            .get_mut(index)
            .map(|argument| std::mem::replace(argument, nothing.clone()))
            .unwrap_or(nothing)
    }

    /// A text, with what is known later in it.
    fn raw(&self, index: usize) -> Result<Text, Wrong> {
        let argument = self.argument(index)?;
        raw(argument)
    }

    /// A text that is known.
    fn text(&self, index: usize) -> Result<String, Wrong> {
        let argument = self.argument(index)?;
        plain(argument)
    }

    fn number(&self, index: usize) -> Result<Number, Wrong> {
        let argument = self.argument(index)?;
        let number = match &argument.kind {
            Kind::Number(number) => Some(number.clone()),
            Kind::Text(text) => parse_number(text.as_str().trim()),
            _ => None,
        };
        match number {
            Some(number) => Ok(number),
            None => self.wrong_at(index, needed("a number", argument)),
        }
    }

    fn float(&self, index: usize) -> Result<f64, Wrong> {
        Ok(self.number(index)?.as_f64().unwrap_or(f64::NAN))
    }

    fn whole(&self, index: usize) -> Result<i64, Wrong> {
        let number = self.number(index)?;
        match number.as_i64() {
            Some(whole) => Ok(whole),
            None => self.wrong_at(index, "a whole number is needed here"),
        }
    }

    /// A whole number that counts something.
    fn count(&self, index: usize) -> Result<usize, Wrong> {
        let whole = self.whole(index)?;
        match usize::try_from(whole) {
            Ok(count) => Ok(count),
            Err(_) => self.wrong_at(index, "a number from 0 on is needed here"),
        }
    }

    /// The elements of a list or a set.
    fn items(&self, index: usize) -> Result<(Seq, &[Val]), Wrong> {
        let argument = self.argument(index)?;
        match &argument.kind {
            Kind::List(seq, items) => Ok((*seq, items)),
            _ => self.wrong_at(index, needed("a list", argument)),
        }
    }

    /// The same, to keep.
    fn take_items(&mut self, index: usize) -> Result<(Seq, Vec<Val>), Wrong> {
        self.items(index)?;
        match self.take(index).kind {
            Kind::List(seq, items) => Ok((seq, items)),
            _ => self.wrong_at(index, "a list is needed here"),
        }
    }

    fn members(&self, index: usize) -> Result<&BTreeMap<String, (Span, Val)>, Wrong> {
        let argument = self.argument(index)?;
        match &argument.kind {
            Kind::Object(members) => Ok(members),
            _ => self.wrong_at(index, needed("an object", argument)),
        }
    }
}

fn needed(what: &str, given: &Val) -> String {
    match given.is_late() {
        true => LATE.to_owned(),
        false => format!("{what} is needed here, not {}", given.kind.describe()),
    }
}

fn raw(value: &Val) -> Result<Text, Wrong> {
    let text = value.kind.to_text();
    text.ok_or_else(|| Wrong { at: value.span, message: Some(needed("a text", value)) })
}

fn plain(value: &Val) -> Result<String, Wrong> {
    let text = raw(value)?;
    if text.is_late() {
        return Err(Wrong { at: value.span, message: Some(LATE.to_owned()) });
    }
    Ok(text.into_string())
}

#[cfg(test)]
mod tests;
