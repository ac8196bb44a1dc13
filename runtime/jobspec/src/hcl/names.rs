//! `var.x` and `local.x`: each is evaluated at its first use and kept; one that needs itself is
//! reported.

use hcl_edit::Span as _;
use hcl_edit::expr::{Expression, Traversal, TraversalOperator};

use super::super::diagnostic::{Sink, Span, shown};
use super::super::tree::{Value, ValueKind};
use super::eval::{DEPTH_MAX, Evaluator, Known, own_size};
use super::place;

impl Evaluator<'_> {
    /// Evaluate every variable and local, so that what is wrong in an unused one is seen too.
    pub(super) fn all(&mut self, sink: &mut Sink) {
        let scope = self.scope;
        for (name, expr) in &scope.variables {
            let span = expr.map(|expr| place(expr.span())).unwrap_or_default();
            self.named(false, name, span, sink);
        }
        for (name, expr) in &scope.locals {
            self.named(true, name, place(expr.span()), sink);
        }
    }

    /// `var.x…` or `local.x…`
    pub(super) fn own(
        &mut self,
        path: &Traversal,
        span: Span,
        sink: &mut Sink,
    ) -> Option<ValueKind> {
        let is_local = matches!(&path.expr, Expression::Variable(root) if root.as_str() == "local");
        let mut operators = path.operators.iter();
        let name = match operators.next().map(|first| first.value()) {
            Some(TraversalOperator::GetAttr(name)) => name.as_str(),
            _ => {
                return sink.refuse(span, "write var.name or local.name");
            }
        };
        let mut value = self.named(is_local, name, span, sink)?;
        for operator in operators {
            value = match operator.value() {
                TraversalOperator::GetAttr(name) => member(value, name.as_str(), span, sink)?,
                TraversalOperator::LegacyIndex(index) => {
                    element(value, usize::try_from(*index.value()).ok(), span, sink)?
                }
                TraversalOperator::Index(expr) => match self.value(expr, sink)?.kind {
                    ValueKind::Text(name) => member(value, &name, span, sink)?,
                    ValueKind::Number(index) => {
                        let index = index.as_u64().and_then(|i| usize::try_from(i).ok());
                        element(value, index, span, sink)?
                    }
                    kind => {
                        return sink.refuse(span, format!("{} is no index", kind.describe()));
                    }
                },
                TraversalOperator::AttrSplat(_) | TraversalOperator::FullSplat(_) => {
                    return sink.refuse(span, "[*] is valid in Nomad, not supported by Ostler yet");
                }
            };
        }
        Some(value.kind)
    }

    /// The value of a variable or local, evaluated at its first use.
    fn named(&mut self, is_local: bool, name: &str, span: Span, sink: &mut Sink) -> Option<Value> {
        let kind = if is_local { "local" } else { "var" };
        let id = (kind, name.to_owned());
        let place_of = |value: Value| Value { span, ..value };
        match self.known.get(&id) {
            Some(Known::Done(value)) => {
                let value = value.clone()?;
                return self.pay(size(&value), span, sink).then(|| place_of(value));
            }
            Some(Known::Open) => {
                let message = format!("{kind}.{name} refers to itself, directly or through others");
                return sink.refuse(span, message);
            }
            None => {}
        }
        let scope = self.scope;
        let expr = if is_local {
            scope.locals.get(name).copied().map(Some)
        } else {
            scope.variables.get(name).copied()
        };
        let Some(expr) = expr else {
            let locals = scope.locals.keys().copied().filter(|_| is_local);
            let variables = scope.variables.keys().copied().filter(|_| !is_local);
            let instead = sink.nearest(name, locals.chain(variables));
            let instead = instead.map(|name| format!("{kind}.{name}"));
            sink.suggest(span, format!("{kind}.{name} is not declared"), instead.as_deref());
            return None;
        };
        self.known.insert(id.clone(), Known::Open);
        let value = expr.and_then(|expr| self.value(expr, sink));
        let value = value.filter(|value| {
            let deep = value.depth() > DEPTH_MAX;
            if deep {
                let message = format!("nested too deeply; at most {DEPTH_MAX} levels are allowed");
                sink.error(value.span, message);
            }
            !deep
        });
        self.known.insert(id, Known::Done(value.clone()));
        value.map(place_of)
    }
}

/// With everything inside: each value costs more memory than its text.
fn size(value: &Value) -> u64 {
    let inside: u64 = match &value.kind {
        ValueKind::List(items) => items.iter().map(size).sum(),
        ValueKind::Object(members) => members
            .iter()
            .map(|(key, value)| size(value) + u64::try_from(key.name.len()).unwrap_or(0))
            .sum(),
        _ => 0,
    };
    own_size(value).saturating_add(inside).saturating_add(16)
}

fn member(value: Value, name: &str, span: Span, sink: &mut Sink) -> Option<Value> {
    let ValueKind::Object(members) = value.kind else {
        return sink
            .refuse(span, format!("{} has no member {}", value.kind.describe(), shown(name)));
    };
    let instead = sink.nearest(name, members.iter().map(|(key, _)| key.name.as_str()));
    let instead = instead.map(str::to_owned);
    let found = members.into_iter().find(|(key, _)| key.name == name);
    if found.is_none() {
        sink.suggest(span, format!("there is no member {}", shown(name)), instead.as_deref());
    }
    found.map(|(_, value)| value)
}

fn element(value: Value, index: Option<usize>, span: Span, sink: &mut Sink) -> Option<Value> {
    let ValueKind::List(items) = value.kind else {
        return sink.refuse(span, format!("{} has no elements", value.kind.describe()));
    };
    let count = items.len();
    let found = index.and_then(|index| items.into_iter().nth(index));
    if found.is_none() {
        sink.error(span, format!("there is no such element; the list has {count}"));
    }
    found
}
