//! Evaluates paths: `var.x`, `local.x` and names of loops, with members, indices and splats. A variable or a local is
//! evaluated at its first use, and its value is kept. One that refers to itself is reported.

use hcl_edit::Span as _;
use hcl_edit::expr::{Expression, Traversal, TraversalOperator};
use ostler_text::suggest::nearest;

use super::eval::{DEPTH_MAX, Evaluator, NameState};
use super::operators;
use super::reference::{ReferenceKind, classify};
use super::scan::AS_TEXT;
use super::value::{HclText, Seq, Val, ValKind};
use crate::diagnostic::{Sink, Span, quote_text};

/// The message about a reference in a value from outside of the file.
const FROM_OUTSIDE: &str = "a value from outside of the file can refer to nothing";

/// One part of a path.
enum PathStep {
    Member(String),
    Index(Val),
    /// `.*`: the steps up to the first index are done with each element.
    Members,
    /// `[*]`: the further steps are done with each element.
    Each,
}

/// Why a path leads to nothing, and what may have been meant.
type PathError = (String, Option<String>);

impl Evaluator<'_> {
    /// Evaluate every variable and local, so that problems in unused ones are reported too.
    pub(super) fn evaluate_all(&mut self, sink: &mut Sink) {
        let scope = self.scope;
        for (name, declared) in &scope.variables {
            self.evaluate_name(false, name, declared.at, sink);
        }
        for (name, expr) in &scope.locals {
            let at = self.span_of(expr.span());
            self.evaluate_name(true, name, at, sink);
        }
    }

    /// Evaluate a name or a path. `in_text` tells that it stands in a text as `"${…}"`.
    pub(super) fn reference(
        &mut self,
        expr: &Expression,
        path: Option<&Traversal>,
        in_text: bool,
        span: Span,
        sink: &mut Sink,
    ) -> Option<ValKind> {
        let root = path.map_or(expr, |path| &path.expr);
        let operators = path.map(|path| path.operators.iter()).into_iter().flatten();
        if let Expression::Variable(name) = root {
            if self.loop_name(name.as_str()).is_some() {
                let steps = self.steps(operators, sink)?;
                let lost = match self.loop_name(name.as_str()) {
                    Some(value) => walk(value, &steps),
                    None => return None,
                };
                return self.finish_path(lost, span, sink);
            }
        } else if !is_path(root) {
            let value = self.value(root, sink)?;
            let steps = self.steps(operators, sink)?;
            return self.finish_path(walk(&value, &steps), span, sink);
        }
        if let (Expression::Variable(name), Some(path)) = (root, path)
            && matches!(name.as_str(), "var" | "local")
        {
            return self.declared_reference(path, span, sink);
        }
        match classify(expr, in_text) {
            ReferenceKind::Later(_) if self.elsewhere.is_some() => {
                let hint = if in_text { format!("; {AS_TEXT}") } else { String::new() };
                sink.refuse(span, format!("{FROM_OUTSIDE}{hint}"))
            }
            ReferenceKind::Later(text) => Some(ValKind::Text(HclText::reference(text))),
            ReferenceKind::Own => sink.refuse(span, "write var.name or local.name"),
            ReferenceKind::Unknown(instead) => {
                let message = match path {
                    None => "a name without meaning here; a text needs quotes".to_owned(),
                    Some(_) => format!(
                        "neither the file nor Nomad gives this reference a meaning; {AS_TEXT}"
                    ),
                };
                sink.suggest(span, message, instead);
                None
            }
        }
    }

    /// Evaluate a path `var.x…` or `local.x…`.
    fn declared_reference(
        &mut self,
        path: &Traversal,
        span: Span,
        sink: &mut Sink,
    ) -> Option<ValKind> {
        if self.elsewhere.is_some() {
            return sink.refuse(span, FROM_OUTSIDE);
        }
        let is_local = matches!(&path.expr, Expression::Variable(root) if root.as_str() == "local");
        let mut operators = path.operators.iter();
        let name = match operators.next().map(|first| first.value()) {
            Some(TraversalOperator::GetAttr(name)) => name.as_str(),
            Some(TraversalOperator::Index(Expression::String(name))) => name.as_str(),
            _ => return sink.refuse(span, "write var.name or local.name"),
        };
        self.evaluate_name(is_local, name, span, sink)?;
        let steps = self.steps(operators, sink)?;
        let kind = if is_local { "local" } else { "var" };
        let lost = match self.known.get(&(kind, name.to_owned())) {
            Some(NameState::Done(Some(value))) => walk(value, &steps),
            _ => return None,
        };
        self.finish_path(lost, span, sink)
    }

    /// The value that a path led to, counted in the budget; or a report that it led to nothing.
    fn finish_path(
        &mut self,
        found: Result<Val, PathError>,
        span: Span,
        sink: &mut Sink,
    ) -> Option<ValKind> {
        match found {
            Ok(value) => self.pay(value.size(), span, sink).then_some(value.kind),
            Err((message, instead)) => {
                sink.suggest(span, message, instead.as_deref());
                None
            }
        }
    }

    fn steps<'e>(
        &mut self,
        operators: impl Iterator<Item = &'e hcl_edit::Decorated<TraversalOperator>>,
        sink: &mut Sink,
    ) -> Option<Vec<PathStep>> {
        let mut steps = Vec::new();
        for operator in operators {
            // Each step is one call deeper, and each splat makes the result one level deeper.
            if steps.len() >= DEPTH_MAX {
                let message = format!("too many steps; a path has at most {DEPTH_MAX}");
                return sink.refuse(self.span_of(operator.span()), message);
            }
            steps.push(match operator.value() {
                TraversalOperator::GetAttr(name) => PathStep::Member(name.as_str().to_owned()),
                TraversalOperator::LegacyIndex(index) => {
                    let at = self.span_of(operator.span());
                    PathStep::Index(Val::new(ValKind::Number((*index.value()).into()), at))
                }
                TraversalOperator::Index(expr) => {
                    let index = self.value(expr, sink)?;
                    operators::refuse_late(&index, sink)?;
                    PathStep::Index(index)
                }
                TraversalOperator::AttrSplat(_) => PathStep::Members,
                TraversalOperator::FullSplat(_) => PathStep::Each,
            });
        }
        Some(steps)
    }

    /// Evaluate a variable or a local, at its first use. `None` means that it has no value, which was reported.
    fn evaluate_name(
        &mut self,
        is_local: bool,
        name: &str,
        span: Span,
        sink: &mut Sink,
    ) -> Option<()> {
        let kind = if is_local { "local" } else { "var" };
        let id = (kind, name.to_owned());
        match self.known.get(&id) {
            Some(NameState::Done(value)) => return value.as_ref().map(|_| ()),
            Some(NameState::Open) => {
                let message = format!("{kind}.{name} refers to itself, directly or through others");
                return sink.refuse(span, message);
            }
            None => {}
        }
        let scope = self.scope;
        let known = if is_local {
            scope.locals.contains_key(name)
        } else {
            scope.variables.contains_key(name)
        };
        if !known {
            let locals = scope.locals.keys().copied().filter(|_| is_local);
            let variables = scope.variables.keys().copied().filter(|_| !is_local);
            let instead = sink.nearest(name, locals.chain(variables));
            let instead = instead.map(|name| format!("{kind}.{name}"));
            sink.suggest(span, format!("{kind}.{name} is not declared"), instead.as_deref());
            return None;
        }
        self.known.insert(id.clone(), NameState::Open);
        // The names of loops around the use have no meaning at the declaration.
        let frames = std::mem::take(&mut self.frames);
        let value = match scope.locals.get(name).filter(|_| is_local) {
            Some(expr) => self.value(expr, sink),
            None => self.variable(name, sink),
        };
        self.frames = frames;
        let value = value.filter(|value| {
            let deep = value.depth() > DEPTH_MAX;
            if deep {
                let message = format!("nested too deeply; at most {DEPTH_MAX} levels are allowed");
                sink.error(value.span, message);
            }
            !deep
        });
        let there = value.as_ref().map(|_| ());
        if there.is_none() && self.silent > 0 {
            // The report was dropped. Evaluate it again at the next use, so that the problem is reported.
            self.known.remove(&id);
        } else {
            self.known.insert(id, NameState::Done(value));
        }
        there
    }
}

/// Whether an expression is a name, or a path that begins with one.
fn is_path(expr: &Expression) -> bool {
    match expr {
        Expression::Variable(_) => true,
        Expression::Traversal(inner) => is_path(&inner.expr),
        _ => false,
    }
}

fn walk(value: &Val, steps: &[PathStep]) -> Result<Val, PathError> {
    let Some((first, rest)) = steps.split_first() else { return Ok(value.clone()) };
    match first {
        PathStep::Member(name) => walk(member(value, name)?, rest),
        PathStep::Index(index) => walk(at_index(value, index)?, rest),
        PathStep::Each => splat(value, rest),
        PathStep::Members => {
            let members =
                rest.iter().take_while(|step| matches!(step, PathStep::Member(_))).count();
            let (inner, rest) = rest.split_at_checked(members).unwrap_or((rest, &[]));
            walk(&splat(value, inner)?, rest)
        }
    }
}

/// Do the steps with each element. Null has no elements. Any other value that is no list counts as its only element.
fn splat(value: &Val, steps: &[PathStep]) -> Result<Val, PathError> {
    let items = match &value.kind {
        ValKind::Null => Vec::new(),
        ValKind::List(_, items) => {
            items.iter().map(|item| walk(item, steps)).collect::<Result<_, _>>()?
        }
        _ => vec![walk(value, steps)?],
    };
    let seq = match &value.kind {
        ValKind::List(Seq::List, _) => Seq::List,
        _ => Seq::Tuple,
    };
    Ok(Val::new(ValKind::List(seq, items), value.span))
}

fn member<'v>(value: &'v Val, name: &str) -> Result<&'v Val, PathError> {
    let ValKind::Object(members) = &value.kind else {
        let kind = value.kind.describe();
        let message = if value.is_late() {
            operators::LATE.to_owned()
        } else {
            format!("{kind} has no member {}", quote_text(name))
        };
        return Err((message, None));
    };
    match members.get(name) {
        Some((_, value)) => Ok(value),
        None => {
            let instead = nearest(name, members.keys().map(String::as_str));
            Err((format!("there is no member {}", quote_text(name)), instead.map(str::to_owned)))
        }
    }
}

/// The element or member `value[index]`, which functions use too.
pub(super) fn at_index<'v>(value: &'v Val, index: &Val) -> Result<&'v Val, PathError> {
    match (&value.kind, &index.kind) {
        (ValKind::Object(_), key) => match key.to_characters() {
            Some(name) => member(value, &name),
            None => Err((format!("{} is not the name of a member", key.describe()), None)),
        },
        (ValKind::List(Seq::Set, _), _) => Err(("a set has no positions".to_owned(), None)),
        (ValKind::List(_, items), ValKind::Number(_) | ValKind::Text(_)) => {
            let number = match &index.kind {
                ValKind::Number(number) => number.as_u64(),
                ValKind::Text(text) => text.as_str().parse().ok(),
                _ => None,
            };
            let found = number.and_then(|index| items.get(usize::try_from(index).ok()?));
            found.ok_or_else(|| {
                (format!("there is no such element; the list has {}", items.len()), None)
            })
        }
        (ValKind::List(..), key) => Err((format!("{} is not an index", key.describe()), None)),
        (kind, _) => Err((format!("{} has no elements", kind.describe()), None)),
    }
}
