//! Evaluates `for` expressions, and the collections that loops go through.

use std::collections::BTreeMap;

use hcl_edit::expr::{Expression, ForExpr};

use super::eval::Evaluator;
use super::operators;
use super::value::{Seq, Val, ValKind};
use crate::diagnostic::{Sink, Span, quote_text};

/// One element of the collection of a loop: its key and its value.
pub(super) type LoopElement = (Val, Val);

impl Evaluator<'_> {
    /// The elements of a list, a set or an object. `None` means that a problem was reported.
    pub(super) fn entries(
        &mut self,
        expr: &Expression,
        sink: &mut Sink,
    ) -> Option<Vec<LoopElement>> {
        let collection = self.value(expr, sink)?;
        let span = collection.span;
        match collection.kind {
            ValKind::List(Seq::Set, items) => {
                Some(items.into_iter().map(|item| (item.clone(), item)).collect())
            }
            ValKind::List(_, items) => {
                let entry = |(index, item): (usize, Val)| {
                    (Val::new(ValKind::Number(index.into()), item.span), item)
                };
                Some(items.into_iter().enumerate().map(entry).collect())
            }
            ValKind::Object(members) => {
                let entry = |(name, (at, value))| (Val::new(ValKind::literal(name), at), value);
                Some(members.into_iter().map(entry).collect())
            }
            kind => {
                let late = operators::refuse_late(&Val::new(kind.clone(), span), sink);
                late?;
                let message =
                    format!("a list, a set or an object is needed here, not {}", kind.describe());
                sink.refuse(span, message)
            }
        }
    }

    /// Give the names of a loop their values. Returns the number of names before.
    pub(super) fn enter(&mut self, names: (Option<&str>, &str), entry: LoopElement) -> usize {
        let before = self.frames.len();
        let (key, value) = entry;
        if let Some(name) = names.0 {
            self.frames.push((name.to_owned(), key));
        }
        self.frames.push((names.1.to_owned(), value));
        before
    }

    pub(super) fn for_expr(
        &mut self,
        each: &ForExpr,
        span: Span,
        sink: &mut Sink,
    ) -> Option<ValKind> {
        let intro = &each.intro;
        let names = (intro.key_var.as_ref().map(|name| name.as_str()), intro.value_var.as_str());
        let entries = self.entries(&intro.collection_expr, sink)?;
        let (mut list, mut object) = (Vec::new(), BTreeMap::new());
        for entry in entries {
            let frames = self.enter(names, entry);
            let made = self.one(each, sink);
            self.frames.truncate(frames);
            // The problems of one element are enough: the loop ends here.
            let Some((key, value)) = made? else { continue };
            let Some(key) = key else {
                list.push(value);
                continue;
            };
            let Some(name) = key.kind.to_characters() else {
                let message = format!("a key must be a text, not {}", key.kind.describe());
                return sink.refuse(key.span, message);
            };
            if each.grouping {
                let (_, group) = object.entry(name).or_insert_with(|| {
                    (key.span, Val::new(ValKind::List(Seq::Tuple, Vec::new()), span))
                });
                if let ValKind::List(_, items) = &mut group.kind {
                    items.push(value);
                }
                continue;
            }
            let shown = quote_text(&name);
            if object.insert(name, (key.span, value)).is_some() {
                let message = format!(
                    "two elements have the key {shown}; end the value with ... to group them"
                );
                return sink.refuse(key.span, message);
            }
        }
        Some(match each.key_expr {
            Some(_) => ValKind::Object(object),
            None => ValKind::List(Seq::Tuple, list),
        })
    }

    /// Evaluate one element. `Some(None)` means that the condition leaves it out.
    fn one(&mut self, each: &ForExpr, sink: &mut Sink) -> Option<Option<(Option<Val>, Val)>> {
        if let Some(condition) = &each.cond {
            let condition = self.value(&condition.expr, sink)?;
            if !operators::truth(&condition, sink)? {
                return Some(None);
            }
        }
        let key = match &each.key_expr {
            Some(key) => Some(self.value(key, sink)?),
            None => None,
        };
        let value = self.value(&each.value_expr, sink)?;
        Some(Some((key, value)))
    }

    /// The value of a name of a loop.
    pub(super) fn loop_name(&self, name: &str) -> Option<&Val> {
        self.frames.iter().rev().find(|(known, _)| known == name).map(|(_, value)| value)
    }
}
