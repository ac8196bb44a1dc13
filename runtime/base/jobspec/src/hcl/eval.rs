//! Evaluates expressions to values, with a bound on how much is produced.
//!
//! This module has literals, lists, objects, operators, conditionals and calls. Texts with `${…}` and `%{…}` are in
//! [`super::template`], `for` is in [`super::loops`], and paths such as `var.x[0]` are in [`super::names`].

use std::collections::BTreeMap;

use hcl_edit::Span as _;
use hcl_edit::expr::{Conditional, Expression, FuncCall, Object, ObjectKey};
use serde_json::Number;

use super::budget::Budget;
use super::functions::{self, FunctionCall};
use super::operators;
use super::place;
use super::scope::NameScope;
use super::template::TextForm;
use super::types::Type;
use super::value::{Seq, Val, ValKind, to_number};
use crate::diagnostic::{Sink, Span, quote_text};
use crate::inputs::Inputs;
use ostler_model::limits::JOB_NESTING_MAX;

/// The deepest chain of locals and expressions, and the deepest nesting of a value.
pub(super) const DEPTH_MAX: usize = 2 * JOB_NESTING_MAX;

/// The state of evaluating a variable or a local of the file.
pub(super) enum NameState {
    /// It is being evaluated. A reference to it now means that it refers to itself.
    Open,
    /// It was evaluated; `None` means that a problem was reported.
    Done(Option<Val>),
}

/// Evaluates expressions in one scope.
pub(super) struct Evaluator<'a> {
    pub(super) scope: &'a NameScope<'a>,
    pub(super) inputs: &'a Inputs,
    pub(super) known: BTreeMap<(&'static str, String), NameState>,
    /// The values of variables from outside of the file, with where each one comes from. Wrong values are `None`.
    pub(super) given: BTreeMap<String, (&'static str, Option<Val>)>,
    pub(super) budget: Budget,
    /// The names of loops with their values, the innermost one last.
    pub(super) frames: Vec<(String, Val)>,
    /// The number of attempts around the present place, whose reports are dropped.
    pub(super) silent: usize,
    /// The place that an expression from outside of the file counts as having, while one is evaluated.
    pub(super) elsewhere: Option<Span>,
    depth: usize,
}

impl<'a> Evaluator<'a> {
    pub(super) fn new(scope: &'a NameScope<'a>, inputs: &'a Inputs) -> Self {
        Self {
            scope,
            inputs,
            known: BTreeMap::new(),
            given: BTreeMap::new(),
            budget: Budget::new(inputs.wanted.clone()),
            frames: Vec::new(),
            silent: 0,
            elsewhere: None,
            depth: 0,
        }
    }

    /// The place of a part of an expression.
    pub(super) fn span_of(&self, span: Option<std::ops::Range<usize>>) -> Span {
        self.elsewhere.unwrap_or_else(|| place(span))
    }

    /// Count bytes that are produced. `false` means that the budget is exceeded, which is reported.
    pub(super) fn pay(&mut self, amount: u64, at: Span, sink: &mut Sink) -> bool {
        let paid = self.budget.pay(amount);
        self.budget.report_excess(at, sink);
        paid
    }

    /// Evaluate an expression. `None` means that a problem was reported.
    pub(super) fn value(&mut self, expr: &Expression, sink: &mut Sink) -> Option<Val> {
        let span = self.span_of(expr.span());
        if self.budget.is_exhausted() {
            self.budget.report_excess(span, sink);
            return None;
        }
        if self.depth >= DEPTH_MAX {
            let message = format!("nested too deeply; at most {DEPTH_MAX} levels are allowed");
            return sink.refuse(span, message);
        }
        self.depth += 1;
        let kind = self.kind(expr, span, sink);
        self.depth -= 1;
        let value = Val::new(kind?, span);
        self.pay(value.own_size(), span, sink).then_some(value)
    }

    /// Evaluate an expression without reports; `None` means that there is a problem. The work counts as usual.
    pub(super) fn attempt(&mut self, expr: &Expression, sink: &mut Sink) -> Option<Val> {
        let told = self.budget.is_reported();
        self.silent += 1;
        let value = self.value(expr, &mut Sink::default());
        self.silent -= 1;
        self.budget.set_reported(told);
        let at = self.span_of(expr.span());
        self.budget.report_excess(at, sink);
        value
    }

    fn kind(&mut self, expr: &Expression, span: Span, sink: &mut Sink) -> Option<ValKind> {
        match expr {
            Expression::Null(_) => Some(ValKind::Null),
            Expression::Bool(truth) => Some(ValKind::Bool(*truth.value())),
            Expression::Number(number) => to_json(number.value()).map(ValKind::Number),
            Expression::String(text) => Some(ValKind::literal(text.value().as_str())),
            Expression::Array(items) => self.list(items.iter(), sink),
            Expression::Object(object) => self.object(object, sink),
            Expression::StringTemplate(template) => {
                self.template(template.iter(), TextForm::Quoted, span, sink)
            }
            Expression::HeredocTemplate(heredoc) => {
                let written = TextForm::Lines(heredoc.indent().unwrap_or(0));
                self.template(heredoc.template.iter(), written, span, sink)
            }
            Expression::Parenthesis(inner) => self.value(inner.inner(), sink).map(|v| v.kind),
            Expression::Variable(_) => self.reference(expr, None, false, span, sink),
            Expression::Traversal(path) => self.reference(expr, Some(path), false, span, sink),
            Expression::Conditional(conditional) => self.conditional(conditional, sink),
            Expression::UnaryOp(op) => {
                let operand = self.value(&op.expr, sink)?;
                operators::unary(op.operator.value(), &operand, span, sink)
            }
            Expression::BinaryOp(op) => {
                let left = self.value(&op.lhs_expr, sink);
                let right = self.value(&op.rhs_expr, sink)?;
                operators::binary(*op.operator.value(), &left?, &right, span, sink)
            }
            Expression::FuncCall(call) => self.call(call, span, sink),
            Expression::ForExpr(each) => self.for_expr(each, span, sink),
        }
    }

    fn list<'e>(
        &mut self,
        items: impl Iterator<Item = &'e Expression>,
        sink: &mut Sink,
    ) -> Option<ValKind> {
        let (mut list, mut whole) = (Vec::new(), true);
        for item in items {
            match self.value(item, sink) {
                Some(value) => list.push(value),
                None => whole = false,
            }
        }
        whole.then_some(ValKind::List(Seq::Tuple, list))
    }

    /// Evaluate a conditional. Both sides decide the type of the result; only the chosen side has to be valid.
    fn conditional(&mut self, conditional: &Conditional, sink: &mut Sink) -> Option<ValKind> {
        let condition = self.value(&conditional.cond_expr, sink)?;
        let (chosen, other) = if operators::truth(&condition, sink)? {
            (&conditional.true_expr, &conditional.false_expr)
        } else {
            (&conditional.false_expr, &conditional.true_expr)
        };
        let chosen = self.value(chosen, sink)?.kind;
        let other = self.attempt(other, sink).map(|value| value.kind);
        Some(match (chosen, other) {
            (kind @ (ValKind::Number(_) | ValKind::Bool(_)), Some(ValKind::Text(_))) => {
                kind.to_text().map_or(kind, ValKind::Text)
            }
            (
                ValKind::List(Seq::Tuple, items),
                Some(ValKind::List(seq @ (Seq::List | Seq::Set), _)),
            ) => {
                match Type::List(seq, Box::new(Type::Any))
                    .convert(Val::new(ValKind::List(Seq::Tuple, items.clone()), Span::default()))
                {
                    Ok(value) => value.kind,
                    Err(_) => ValKind::List(Seq::Tuple, items),
                }
            }
            (kind, _) => kind,
        })
    }

    fn call(&mut self, call: &FuncCall, span: Span, sink: &mut Sink) -> Option<ValKind> {
        let name = call.name.name.as_str();
        let at = self.span_of(call.name.name.span());
        if call.name.is_namespaced() {
            return sink.refuse(at, "there are no functions with :: in their names");
        }
        match name {
            "try" => return self.call_try(call, span, sink),
            "can" => return self.call_can(call, span, sink),
            "convert" => return self.call_convert(call, span, sink),
            _ => {}
        }
        let function = functions::find(name, at, sink)?;
        let arguments = self.arguments(call, sink)?;
        match function(FunctionCall::new(name, arguments, span, &mut self.budget, self.inputs)) {
            Ok(kind) => {
                let value = Val::new(kind, span);
                if value.depth() > DEPTH_MAX {
                    let message =
                        format!("nested too deeply; at most {DEPTH_MAX} levels are allowed");
                    return sink.refuse(span, message);
                }
                self.pay(value.size(), span, sink).then_some(value.kind)
            }
            Err(wrong) => {
                self.budget.report_excess(span, sink);
                if let Some(message) = wrong.message {
                    sink.error(wrong.at, message);
                }
                None
            }
        }
    }

    /// Evaluate the arguments of a call. In `f(list...)`, the elements of the last one are arguments.
    fn arguments(&mut self, call: &FuncCall, sink: &mut Sink) -> Option<Vec<Val>> {
        let mut arguments = Vec::with_capacity(call.args.len().min(1_024));
        for argument in call.args.iter() {
            arguments.push(self.value(argument, sink)?);
        }
        if call.args.expand_final()
            && let Some(last) = arguments.pop()
        {
            match last.kind {
                ValKind::List(_, items) => arguments.extend(items),
                kind => {
                    let message = format!("... needs a list before it, not {}", kind.describe());
                    return sink.refuse(last.span, message);
                }
            }
        }
        Some(arguments)
    }

    /// Evaluate `can(expression)`.
    fn call_can(&mut self, call: &FuncCall, span: Span, sink: &mut Sink) -> Option<ValKind> {
        let mut arguments = call.args.iter();
        match (arguments.next(), arguments.next()) {
            (Some(tried), None) => Some(ValKind::Bool(self.attempt(tried, sink).is_some())),
            _ => sink.refuse(span, "can takes one expression"),
        }
    }

    /// Evaluate `convert(value, type)`.
    fn call_convert(&mut self, call: &FuncCall, span: Span, sink: &mut Sink) -> Option<ValKind> {
        let mut arguments = call.args.iter();
        let (Some(value), Some(wanted), None) =
            (arguments.next(), arguments.next(), arguments.next())
        else {
            return sink.refuse(span, "convert takes a value and a type");
        };
        let wanted_at = self.span_of(wanted.span());
        let value = self.value(value, sink)?;
        let wanted = Type::read(wanted).map_err(|message| sink.error(wanted_at, message)).ok()?;
        let converted = wanted.convert(value).map_err(|(at, message)| sink.error(at, message));
        converted.ok().map(|value| value.kind)
    }

    fn call_try(&mut self, call: &FuncCall, span: Span, sink: &mut Sink) -> Option<ValKind> {
        let count = call.args.len();
        if count == 0 {
            return sink.refuse(span, "try takes at least one expression");
        }
        for (index, tried) in call.args.iter().enumerate() {
            // The problems of the last expression are reported.
            if index + 1 == count {
                return self.value(tried, sink).map(|value| value.kind);
            }
            if let Some(value) = self.attempt(tried, sink) {
                return Some(value.kind);
            }
        }
        None
    }

    fn object(&mut self, object: &Object, sink: &mut Sink) -> Option<ValKind> {
        let mut members = BTreeMap::new();
        let mut whole = true;
        for (key, value) in object.iter() {
            let (Some((name, at)), Some(value)) =
                (self.key(key, sink), self.value(value.expr(), sink))
            else {
                whole = false;
                continue;
            };
            if members.contains_key(&name) {
                sink.error(at, format!("{} is given twice", quote_text(&name)));
                whole = false;
                continue;
            }
            members.insert(name, (at, value));
        }
        whole.then_some(ValKind::Object(members))
    }

    fn key(&mut self, key: &ObjectKey, sink: &mut Sink) -> Option<(String, Span)> {
        match key {
            ObjectKey::Ident(name) => Some((name.as_str().to_owned(), self.span_of(name.span()))),
            // A name without brackets is a key, whatever it means elsewhere.
            ObjectKey::Expression(Expression::Variable(name)) => {
                Some((name.as_str().to_owned(), self.span_of(name.span())))
            }
            ObjectKey::Expression(expr) => {
                let value = self.value(expr, sink)?;
                match value.kind.to_characters() {
                    Some(name) => Some((name, value.span)),
                    None => {
                        let kind = value.kind.describe();
                        sink.refuse(value.span, format!("a key must be a text, not {kind}"))
                    }
                }
            }
        }
    }
}

fn to_json(number: &hcl_edit::Number) -> Option<Number> {
    if let Some(number) = number.as_i64() {
        return Some(number.into());
    }
    if let Some(number) = number.as_u64() {
        return Some(number.into());
    }
    number.as_f64().and_then(to_number)
}
