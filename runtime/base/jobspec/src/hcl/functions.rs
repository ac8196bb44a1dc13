//! The functions of a job file, which are those of Nomad, by family. `try`, `can` and `convert` are in the evaluator.
//!
//! Functions that put texts together (`join`, `format`, `concat`, `jsonencode`, …) accept texts that are known only
//! when a task starts. Functions that look into a text refuse such texts.

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

use super::budget::Budget;
use super::operators::LATE;
use super::value::{HclText, Seq, Val, ValKind, parse_number};
use crate::diagnostic::{Sink, Span, quote_text};
use crate::inputs::Inputs;

/// A function that works on evaluated arguments.
pub(super) type Function = fn(FunctionCall<'_>) -> Result<ValKind, FunctionError>;

/// Why a call has no result.
pub(super) struct FunctionError {
    /// The place of the call or of the wrong argument.
    pub at: Span,
    /// The message; absent where the budget is exceeded, which is reported elsewhere.
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

/// The functions that the evaluator has itself.
const SPECIAL: [&str; 3] = ["can", "convert", "try"];

/// The function of this name. An unknown name is reported.
pub(super) fn find(name: &str, at: Span, sink: &mut Sink) -> Option<Function> {
    let all = || TABLES.iter().flat_map(|table| table.iter());
    if let Some((_, function)) = all().find(|(known, _)| *known == name) {
        return Some(*function);
    }
    let names = all().map(|(name, _)| *name).chain(SPECIAL);
    let instead = sink.nearest(name, names);
    sink.suggest(at, format!("there is no function {}", quote_text(name)), instead);
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

/// A call of a function: the arguments, and what the function may use.
pub(super) struct FunctionCall<'a> {
    pub name: &'a str,
    pub arguments: Vec<Val>,
    pub span: Span,
    pub budget: &'a mut Budget,
    pub inputs: &'a Inputs,
}

impl<'a> FunctionCall<'a> {
    pub(super) fn new(
        name: &'a str,
        arguments: Vec<Val>,
        span: Span,
        budget: &'a mut Budget,
        inputs: &'a Inputs,
    ) -> Self {
        Self { name, arguments, span, budget, inputs }
    }

    /// An error of the call as a whole.
    fn fail<T>(&self, message: impl Into<String>) -> Result<T, FunctionError> {
        Err(FunctionError { at: self.span, message: Some(message.into()) })
    }

    /// An error of one argument.
    fn fail_at<T>(&self, index: usize, message: impl Into<String>) -> Result<T, FunctionError> {
        let at = self.arguments.get(index).map_or(self.span, |argument| argument.span);
        Err(FunctionError { at, message: Some(message.into()) })
    }

    /// Count bytes before they are produced.
    fn pay(&mut self, bytes: usize) -> Result<(), FunctionError> {
        if self.budget.pay_bytes(bytes) {
            Ok(())
        } else {
            Err(FunctionError { at: self.span, message: None })
        }
    }

    /// Check that there are from `least` to `most` arguments.
    fn check_count(&self, least: usize, most: usize) -> Result<(), FunctionError> {
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
        self.fail(format!("a wrong number of arguments: {} takes {wanted}, not {given}", self.name))
    }

    fn argument(&self, index: usize) -> Result<&Val, FunctionError> {
        match self.arguments.get(index) {
            Some(argument) => Ok(argument),
            None => self.fail("a wrong number of arguments for this function"),
        }
    }

    fn take(&mut self, index: usize) -> Val {
        let nothing = Val::new(ValKind::Null, self.span);
        self.arguments
            .get_mut(index)
            .map(|argument| std::mem::replace(argument, nothing.clone()))
            .unwrap_or(nothing)
    }

    /// The argument as a text, which may have references that are known later.
    fn raw(&self, index: usize) -> Result<HclText, FunctionError> {
        let argument = self.argument(index)?;
        raw(argument)
    }

    /// The argument as a text without such references.
    fn text(&self, index: usize) -> Result<String, FunctionError> {
        let argument = self.argument(index)?;
        plain(argument)
    }

    fn number(&self, index: usize) -> Result<Number, FunctionError> {
        let argument = self.argument(index)?;
        let number = match &argument.kind {
            ValKind::Number(number) => Some(number.clone()),
            ValKind::Text(text) => parse_number(text.as_str().trim()),
            _ => None,
        };
        match number {
            Some(number) => Ok(number),
            None => self.fail_at(index, needed_message("a number", argument)),
        }
    }

    fn float(&self, index: usize) -> Result<f64, FunctionError> {
        Ok(self.number(index)?.as_f64().unwrap_or(f64::NAN))
    }

    fn whole(&self, index: usize) -> Result<i64, FunctionError> {
        let number = self.number(index)?;
        match number.as_i64() {
            Some(whole) => Ok(whole),
            None => self.fail_at(index, "a whole number is needed here"),
        }
    }

    /// The argument as a whole number from 0 on.
    fn count(&self, index: usize) -> Result<usize, FunctionError> {
        let whole = self.whole(index)?;
        match usize::try_from(whole) {
            Ok(count) => Ok(count),
            Err(_) => self.fail_at(index, "a number of at least 0 is needed here"),
        }
    }

    /// The elements of the argument, which has to be a list or a set.
    fn items(&self, index: usize) -> Result<(Seq, &[Val]), FunctionError> {
        let argument = self.argument(index)?;
        match &argument.kind {
            ValKind::List(seq, items) => Ok((*seq, items)),
            _ => self.fail_at(index, needed_message("a list", argument)),
        }
    }

    /// The elements of the argument, taken out of the call.
    fn take_items(&mut self, index: usize) -> Result<(Seq, Vec<Val>), FunctionError> {
        self.items(index)?;
        match self.take(index).kind {
            ValKind::List(seq, items) => Ok((seq, items)),
            _ => self.fail_at(index, "a list is needed here"),
        }
    }

    fn members(&self, index: usize) -> Result<&BTreeMap<String, (Span, Val)>, FunctionError> {
        let argument = self.argument(index)?;
        match &argument.kind {
            ValKind::Object(members) => Ok(members),
            _ => self.fail_at(index, needed_message("an object", argument)),
        }
    }
}

fn needed_message(what: &str, given: &Val) -> String {
    if given.is_late() {
        LATE.to_owned()
    } else {
        format!("{what} is needed here, not {}", given.kind.describe())
    }
}

fn raw(value: &Val) -> Result<HclText, FunctionError> {
    let text = value.kind.to_text();
    text.ok_or_else(|| FunctionError {
        at: value.span,
        message: Some(needed_message("a text", value)),
    })
}

fn plain(value: &Val) -> Result<String, FunctionError> {
    let text = raw(value)?;
    if text.is_late() {
        return Err(FunctionError { at: value.span, message: Some(LATE.to_owned()) });
    }
    Ok(text.into_string())
}

#[cfg(test)]
mod tests;
