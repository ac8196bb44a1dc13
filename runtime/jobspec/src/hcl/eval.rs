//! Expression → value, with a bound on how much is produced.
//!
//! Here: literals, lists, objects, operators, conditionals and calls. Texts with `${…}` and `%{…}` are in
//! [`super::template`], `for` in [`super::loops`], paths such as `var.x[0]` in [`super::names`].

use std::collections::BTreeMap;

use hcl_edit::Span as _;
use hcl_edit::expr::{Conditional, Expression, FuncCall, Object, ObjectKey};
use serde_json::Number;

use super::super::diagnostic::{Sink, Span, shown};
use super::budget::Budget;
use super::functions::{self, Call};
use super::operators;
use super::place;
use super::scope::Scope;
use super::template::Written;
use super::types::Type;
use super::value::{Kind, Seq, Val, to_number};
use crate::inputs::Inputs;
use ostler_model::limits::JOB_NESTING_MAX;

/// Deepest chain of locals and expressions, and deepest value.
pub(super) const DEPTH_MAX: usize = 2 * JOB_NESTING_MAX;

/// State of a name of the file.
pub(super) enum Known {
    /// Being evaluated: met again, it refers to itself.
    Open,
    /// Its value; `None` when that was reported.
    Done(Option<Val>),
}

/// Evaluates expressions in one scope.
pub(super) struct Evaluator<'a> {
    pub(super) scope: &'a Scope<'a>,
    pub(super) inputs: &'a Inputs,
    pub(super) known: BTreeMap<(&'static str, String), Known>,
    /// Values of variables from outside of the file, and from where; those that are wrong are `None`.
    pub(super) given: BTreeMap<String, (&'static str, Option<Val>)>,
    pub(super) budget: Budget,
    /// Names of loops, the innermost last.
    pub(super) frames: Vec<(String, Val)>,
    /// Reports go nowhere, at so many levels.
    pub(super) silent: usize,
    /// What is evaluated does not stand in the file: where it counts as standing.
    pub(super) elsewhere: Option<Span>,
    depth: usize,
}

impl<'a> Evaluator<'a> {
    pub(super) fn new(scope: &'a Scope<'a>, inputs: &'a Inputs) -> Self {
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
    pub(super) fn at(&self, span: Option<std::ops::Range<usize>>) -> Span {
        self.elsewhere.unwrap_or_else(|| place(span))
    }

    /// Count what is produced; `false` once it is too much.
    pub(super) fn pay(&mut self, amount: u64, at: Span, sink: &mut Sink) -> bool {
        let paid = self.budget.pay(amount);
        self.budget.tell(at, sink);
        paid
    }

    /// The value of an expression; `None` after a problem was reported.
    pub(super) fn value(&mut self, expr: &Expression, sink: &mut Sink) -> Option<Val> {
        let span = self.at(expr.span());
        if self.budget.is_exhausted() {
            self.budget.tell(span, sink);
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

    /// The value, or `None` without a report. What is computed meanwhile counts.
    pub(super) fn attempt(&mut self, expr: &Expression, sink: &mut Sink) -> Option<Val> {
        let told = self.budget.told();
        self.silent += 1;
        let value = self.value(expr, &mut Sink::default());
        self.silent -= 1;
        self.budget.told_before(told);
        let at = self.at(expr.span());
        self.budget.tell(at, sink);
        value
    }

    fn kind(&mut self, expr: &Expression, span: Span, sink: &mut Sink) -> Option<Kind> {
        match expr {
            Expression::Null(_) => Some(Kind::Null),
            Expression::Bool(truth) => Some(Kind::Bool(*truth.value())),
            Expression::Number(number) => to_json(number.value()).map(Kind::Number),
            Expression::String(text) => Some(Kind::literal(text.value().as_str())),
            Expression::Array(items) => self.list(items.iter(), sink),
            Expression::Object(object) => self.object(object, sink),
            Expression::StringTemplate(template) => {
                self.template(template.iter(), Written::Quoted, span, sink)
            }
            Expression::HeredocTemplate(heredoc) => {
                let written = Written::Lines(heredoc.indent().unwrap_or(0));
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
    ) -> Option<Kind> {
        let (mut list, mut whole) = (Vec::new(), true);
        for item in items {
            match self.value(item, sink) {
                Some(value) => list.push(value),
                None => whole = false,
            }
        }
        whole.then_some(Kind::List(Seq::Tuple, list))
    }

    /// Both sides say of what type the result is; only the chosen one has to be right.
    fn conditional(&mut self, conditional: &Conditional, sink: &mut Sink) -> Option<Kind> {
        let condition = self.value(&conditional.cond_expr, sink)?;
        let (chosen, other) = match operators::truth(&condition, sink)? {
            true => (&conditional.true_expr, &conditional.false_expr),
            false => (&conditional.false_expr, &conditional.true_expr),
        };
        let chosen = self.value(chosen, sink)?.kind;
        let other = self.attempt(other, sink).map(|value| value.kind);
        Some(match (chosen, other) {
            (kind @ (Kind::Number(_) | Kind::Bool(_)), Some(Kind::Text(_))) => {
                kind.to_text().map_or(kind, Kind::Text)
            }
            (Kind::List(Seq::Tuple, items), Some(Kind::List(seq @ (Seq::List | Seq::Set), _))) => {
                match Type::List(seq, Box::new(Type::Any))
                    .convert(Val::new(Kind::List(Seq::Tuple, items.clone()), Span::default()))
                {
                    Ok(value) => value.kind,
                    Err(_) => Kind::List(Seq::Tuple, items),
                }
            }
            (kind, _) => kind,
        })
    }

    fn call(&mut self, call: &FuncCall, span: Span, sink: &mut Sink) -> Option<Kind> {
        let name = call.name.name.as_str();
        let at = self.at(call.name.name.span());
        if call.name.is_namespaced() {
            return sink.refuse(at, "there are no functions with :: in their names");
        }
        match name {
            "try" => return self.first_that_works(call, span, sink),
            "can" => return self.works(call, span, sink),
            "convert" => return self.converted(call, span, sink),
            _ => {}
        }
        let function = functions::find(name, at, sink)?;
        let arguments = self.arguments(call, sink)?;
        match function(Call::new(name, arguments, span, &mut self.budget, self.inputs)) {
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
                self.budget.tell(span, sink);
                if let Some(message) = wrong.message {
                    sink.error(wrong.at, message);
                }
                None
            }
        }
    }

    /// The arguments; `f(list...)` takes the elements of the last one.
    fn arguments(&mut self, call: &FuncCall, sink: &mut Sink) -> Option<Vec<Val>> {
        let mut arguments = Vec::with_capacity(call.args.len().min(1_024));
        for argument in call.args.iter() {
            arguments.push(self.value(argument, sink)?);
        }
        if call.args.expand_final()
            && let Some(last) = arguments.pop()
        {
            match last.kind {
                Kind::List(_, items) => arguments.extend(items),
                kind => {
                    let message = format!("... needs a list before it, not {}", kind.describe());
                    return sink.refuse(last.span, message);
                }
            }
        }
        Some(arguments)
    }

    /// `can(expression)`
    fn works(&mut self, call: &FuncCall, span: Span, sink: &mut Sink) -> Option<Kind> {
        let mut arguments = call.args.iter();
        match (arguments.next(), arguments.next()) {
            (Some(tried), None) => Some(Kind::Bool(self.attempt(tried, sink).is_some())),
            _ => sink.refuse(span, "can takes one expression"),
        }
    }

    /// `convert(value, type)`
    fn converted(&mut self, call: &FuncCall, span: Span, sink: &mut Sink) -> Option<Kind> {
        let mut arguments = call.args.iter();
        let (Some(value), Some(wanted), None) =
            (arguments.next(), arguments.next(), arguments.next())
        else {
            return sink.refuse(span, "convert takes a value and a type");
        };
        let wanted_at = self.at(wanted.span());
        let value = self.value(value, sink)?;
        let wanted = Type::read(wanted).map_err(|message| sink.error(wanted_at, message)).ok()?;
        let converted = wanted.convert(value).map_err(|(at, message)| sink.error(at, message));
        converted.ok().map(|value| value.kind)
    }

    fn first_that_works(&mut self, call: &FuncCall, span: Span, sink: &mut Sink) -> Option<Kind> {
        let count = call.args.len();
        if count == 0 {
            return sink.refuse(span, "try takes at least one expression");
        }
        for (index, tried) in call.args.iter().enumerate() {
            // What is wrong with the last one is what is wrong.
            if index + 1 == count {
                return self.value(tried, sink).map(|value| value.kind);
            }
            if let Some(value) = self.attempt(tried, sink) {
                return Some(value.kind);
            }
        }
        None
    }

    fn object(&mut self, object: &Object, sink: &mut Sink) -> Option<Kind> {
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
                sink.error(at, format!("{} is given twice", shown(&name)));
                whole = false;
                continue;
            }
            members.insert(name, (at, value));
        }
        whole.then_some(Kind::Object(members))
    }

    fn key(&mut self, key: &ObjectKey, sink: &mut Sink) -> Option<(String, Span)> {
        match key {
            ObjectKey::Ident(name) => Some((name.as_str().to_owned(), self.at(name.span()))),
            // Without brackets a name is itself, whatever it means elsewhere.
            ObjectKey::Expression(Expression::Variable(name)) => {
                Some((name.as_str().to_owned(), self.at(name.span())))
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
