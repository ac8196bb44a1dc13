//! Expression → value, with a bound on how much is produced.
//!
//! Supported: literals, lists, objects, templates, heredocs, `var.x` and `local.x` with members and
//! indices, arithmetic, comparison, logic, conditionals and the functions of [`super::functions`].
//! Everything else is reported where it stands.

use std::collections::{BTreeMap, BTreeSet};

use hcl_edit::Span as _;
use hcl_edit::expr::{Expression, FuncCall, Object, ObjectKey, Traversal};
use hcl_edit::template::Element;
use serde_json::Number;

use super::super::diagnostic::{Sink, Span, shown};
use super::super::tree::{Key, Value, ValueKind};
use super::place;
use super::reference::{Reference, classify};
use super::scope::Scope;
use super::{functions, operators};
use ostler_model::limits::{JOB_FILE_BYTES_MAX, JOB_NESTING_MAX};

/// Bytes and values all expressions together may produce: a few locals that repeat each other
/// could ask for more than there is memory.
const PRODUCED_MAX: u64 = 4 * JOB_FILE_BYTES_MAX;
/// Deepest chain of locals and expressions, and deepest value.
pub(super) const DEPTH_MAX: usize = 2 * JOB_NESTING_MAX;

/// State of a name of the file.
pub(super) enum Known {
    /// Being evaluated: met again, it refers to itself.
    Open,
    /// Its value; `None` when that was reported.
    Done(Option<Value>),
}

/// Evaluates expressions in one scope.
pub(super) struct Evaluator<'a> {
    pub(super) scope: &'a Scope<'a>,
    pub(super) known: BTreeMap<(&'static str, String), Known>,
    produced: u64,
    /// The bound was met and reported; nothing is evaluated any more.
    exhausted: bool,
    depth: usize,
}

impl<'a> Evaluator<'a> {
    pub(super) fn new(scope: &'a Scope<'a>) -> Self {
        Self { scope, known: BTreeMap::new(), produced: 0, exhausted: false, depth: 0 }
    }

    /// The value of an expression; `None` after a problem was reported.
    pub(super) fn value(&mut self, expr: &Expression, sink: &mut Sink) -> Option<Value> {
        let span = place(expr.span());
        if self.depth >= DEPTH_MAX {
            let message = format!("nested too deeply; at most {DEPTH_MAX} levels are allowed");
            return sink.refuse(span, message);
        }
        self.depth += 1;
        let kind = self.kind(expr, span, sink);
        self.depth -= 1;
        let value = Value { kind: kind?, span };
        self.pay(own_size(&value), span, sink).then_some(value)
    }

    fn kind(&mut self, expr: &Expression, span: Span, sink: &mut Sink) -> Option<ValueKind> {
        Some(match expr {
            Expression::Null(_) => ValueKind::Null,
            Expression::Bool(truth) => ValueKind::Bool(*truth.value()),
            Expression::Number(number) => ValueKind::Number(to_json(number.value())?),
            Expression::String(text) => ValueKind::Text(escape(text.value())),
            Expression::Array(items) => {
                let mut list = Vec::with_capacity(items.len().min(1_024));
                let mut whole = true;
                for item in items.iter() {
                    match self.value(item, sink) {
                        Some(value) => list.push(value),
                        None => whole = false,
                    }
                }
                ValueKind::List(whole.then_some(list)?)
            }
            Expression::Object(object) => self.object(object, sink)?,
            Expression::StringTemplate(template) => self.template(template.iter(), span, sink)?,
            Expression::HeredocTemplate(heredoc) => {
                self.template(heredoc.template.iter(), span, sink)?
            }
            Expression::Parenthesis(inner) => self.value(inner.inner(), sink)?.kind,
            Expression::Variable(_) => self.reference(expr, None, false, span, sink)?,
            Expression::Traversal(path) => self.reference(expr, Some(path), false, span, sink)?,
            Expression::Conditional(conditional) => {
                let condition = self.value(&conditional.cond_expr, sink)?;
                let chosen = if operators::truth(&condition, sink)? {
                    &conditional.true_expr
                } else {
                    &conditional.false_expr
                };
                self.value(chosen, sink)?.kind
            }
            Expression::UnaryOp(op) => {
                let operand = self.value(&op.expr, sink)?;
                operators::unary(op.operator.value(), &operand, span, sink)?
            }
            Expression::BinaryOp(op) => {
                let left = self.value(&op.lhs_expr, sink);
                let right = self.value(&op.rhs_expr, sink)?;
                operators::binary(*op.operator.value(), &left?, &right, span, sink)?
            }
            Expression::FuncCall(call) => self.call(call, span, sink)?,
            Expression::ForExpr(_) => {
                let message = "a for expression is valid in Nomad, not supported by Ostler yet";
                return sink.refuse(span, message);
            }
        })
    }

    fn call(&mut self, call: &FuncCall, span: Span, sink: &mut Sink) -> Option<ValueKind> {
        let name = call.name.name.as_str();
        let at = place(call.name.name.span());
        if call.name.is_namespaced() || call.args.expand_final() {
            let message = "this form of call is valid in Nomad, not supported by Ostler yet";
            return sink.refuse(span, message);
        }
        let function = functions::find(name, at, sink)?;
        let mut arguments = Vec::with_capacity(call.args.len());
        for argument in call.args.iter() {
            arguments.push(self.value(argument, sink)?);
        }
        functions::call(function, arguments, span, sink)
    }

    fn object(&mut self, object: &Object, sink: &mut Sink) -> Option<ValueKind> {
        let mut members = Vec::with_capacity(object.len().min(1_024));
        let mut names = BTreeSet::new();
        let mut whole = true;
        for (key, value) in object.iter() {
            let (Some(key), Some(value)) = (self.key(key, sink), self.value(value.expr(), sink))
            else {
                whole = false;
                continue;
            };
            // The parser sees only those written alike: not `a` and `"a"`.
            if !names.insert(key.name.clone()) {
                sink.error(key.span, format!("{} is given twice", shown(&key.name)));
                whole = false;
            }
            members.push((key, value));
        }
        whole.then_some(ValueKind::Object(members))
    }

    fn key(&mut self, key: &ObjectKey, sink: &mut Sink) -> Option<Key> {
        match key {
            ObjectKey::Ident(name) => Some(Key::new(name.as_str(), place(name.span()))),
            ObjectKey::Expression(expr) => {
                let value = self.value(expr, sink)?;
                match value.kind {
                    ValueKind::Text(text) => Some(Key::new(text, value.span)),
                    ValueKind::Number(number) => Some(Key::new(number.to_string(), value.span)),
                    kind => sink.refuse(
                        value.span,
                        format!("a key must be a text, not {}", kind.describe()),
                    ),
                }
            }
        }
    }

    fn template<'t>(
        &mut self,
        elements: impl Iterator<Item = &'t Element>,
        span: Span,
        sink: &mut Sink,
    ) -> Option<ValueKind> {
        let elements: Vec<&Element> = elements.collect();
        // `"${var.x}"` is the value itself, not its text.
        if let [Element::Interpolation(only)] = elements.as_slice() {
            return self.interpolated(&only.expr, sink);
        }
        let mut text = String::new();
        let mut whole = true;
        for element in elements {
            match element {
                Element::Literal(literal) => text.push_str(&escape(literal)),
                Element::Interpolation(part) => {
                    let at = place(part.expr.span());
                    if part.strip != hcl_edit::template::Strip::None {
                        sink.error(at, "~ is valid in Nomad, not supported by Ostler yet");
                        whole = false;
                        continue;
                    }
                    match self.interpolated(&part.expr, sink) {
                        Some(ValueKind::Text(part)) => text.push_str(&part),
                        Some(ValueKind::Number(number)) => text.push_str(&number.to_string()),
                        Some(ValueKind::Bool(truth)) => {
                            text.push_str(if truth { "true" } else { "false" })
                        }
                        Some(kind) => {
                            let message = format!("{} cannot stand in a text", kind.describe());
                            sink.error(at, message);
                            whole = false;
                        }
                        None => whole = false,
                    }
                }
                Element::Directive(directive) => {
                    let at = directive.span().map_or(span, Span::from);
                    sink.error(at, "%{ } is valid in Nomad, not supported by Ostler yet");
                    whole = false;
                }
            }
            if u64::try_from(text.len()).is_ok_and(|bytes| bytes > PRODUCED_MAX) {
                return self.pay(PRODUCED_MAX + 1, span, sink).then_some(ValueKind::Null);
            }
        }
        whole.then_some(ValueKind::Text(text))
    }

    fn interpolated(&mut self, expr: &Expression, sink: &mut Sink) -> Option<ValueKind> {
        let span = place(expr.span());
        match expr {
            Expression::Variable(_) => self.reference(expr, None, true, span, sink),
            Expression::Traversal(path) => self.reference(expr, Some(path), true, span, sink),
            other => self.value(other, sink).map(|value| value.kind),
        }
    }

    fn reference(
        &mut self,
        expr: &Expression,
        path: Option<&Traversal>,
        in_text: bool,
        span: Span,
        sink: &mut Sink,
    ) -> Option<ValueKind> {
        match classify(expr, in_text) {
            Reference::Later(text) => Some(ValueKind::Text(text)),
            Reference::Own => match path {
                Some(path) => self.own(path, span, sink),
                None => sink.refuse(span, "write var.name or local.name"),
            },
            Reference::Unknown(instead) => {
                let message = match path {
                    None => "a name without meaning here; a text needs quotes",
                    Some(_) => {
                        "a reference that neither the file nor Nomad gives a meaning; write $${ for a literal ${"
                    }
                };
                sink.suggest(span, message, instead);
                None
            }
        }
    }

    /// Count what was produced; `false` once it is too much.
    pub(super) fn pay(&mut self, amount: u64, span: Span, sink: &mut Sink) -> bool {
        self.produced = self.produced.saturating_add(amount);
        if self.produced > PRODUCED_MAX && !self.exhausted {
            self.exhausted = true;
            let message = "the expressions of this file produce too much; check locals that repeat each other";
            sink.error(span, message);
        }
        !self.exhausted
    }
}

/// The value itself, without what is inside.
pub(super) fn own_size(value: &Value) -> u64 {
    let bytes = match &value.kind {
        ValueKind::Text(text) => text.len(),
        _ => 1,
    };
    u64::try_from(bytes).unwrap_or(u64::MAX).saturating_add(1)
}

fn to_json(number: &hcl_edit::Number) -> Option<Number> {
    if let Some(number) = number.as_i64() {
        return Some(number.into());
    }
    if let Some(number) = number.as_u64() {
        return Some(number.into());
    }
    number.as_f64().and_then(Number::from_f64)
}

/// A `${` in the text of a literal was written `$${` and must stay so until the task starts.
fn escape(literal: &str) -> String {
    literal.replace("${", "$${")
}
