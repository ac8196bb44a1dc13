//! Paths: `var.x`, `local.x` and names of loops, with members, indices and splats. A variable or local
//! is evaluated at its first use and kept; one that needs itself is reported.

use hcl_edit::Span as _;
use hcl_edit::expr::{Expression, Traversal, TraversalOperator};

use super::super::diagnostic::{Sink, Span, shown};
use super::super::suggest;
use super::eval::{DEPTH_MAX, Evaluator, Known};
use super::operators;
use super::reference::{Reference, classify};
use super::scan::AS_TEXT;
use super::value::{Kind, Seq, Text, Val};

/// Said of a reference in a value that does not stand in the file.
const FROM_OUTSIDE: &str = "a value from outside of the file can refer to nothing";

/// One part of a path.
enum Step {
    Member(String),
    Index(Val),
    /// `.*`: what follows is done to each element, up to the first index.
    Members,
    /// `[*]`: what follows is done to each element.
    Each,
}

/// Why a path leads nowhere, and what may have been meant.
type Lost = (String, Option<String>);

impl Evaluator<'_> {
    /// Evaluate every variable and local, so that what is wrong in an unused one is seen too.
    pub(super) fn all(&mut self, sink: &mut Sink) {
        let scope = self.scope;
        for (name, declared) in &scope.variables {
            self.named(false, name, declared.at, sink);
        }
        for (name, expr) in &scope.locals {
            let at = self.at(expr.span());
            self.named(true, name, at, sink);
        }
    }

    /// A name or a path. `in_text`: it stands in a text as `"${…}"`.
    pub(super) fn reference(
        &mut self,
        expr: &Expression,
        path: Option<&Traversal>,
        in_text: bool,
        span: Span,
        sink: &mut Sink,
    ) -> Option<Kind> {
        let root = path.map_or(expr, |path| &path.expr);
        let operators = path.map(|path| path.operators.iter()).into_iter().flatten();
        if let Expression::Variable(name) = root {
            if self.loop_name(name.as_str()).is_some() {
                let steps = self.steps(operators, sink)?;
                let lost = match self.loop_name(name.as_str()) {
                    Some(value) => walk(value, &steps),
                    None => return None,
                };
                return self.found(lost, span, sink);
            }
        } else if !is_path(root) {
            let value = self.value(root, sink)?;
            let steps = self.steps(operators, sink)?;
            return self.found(walk(&value, &steps), span, sink);
        }
        if let (Expression::Variable(name), Some(path)) = (root, path)
            && matches!(name.as_str(), "var" | "local")
        {
            return self.own(path, span, sink);
        }
        match classify(expr, in_text) {
            Reference::Later(_) if self.elsewhere.is_some() => {
                let hint = if in_text { format!("; {AS_TEXT}") } else { String::new() };
                sink.refuse(span, format!("{FROM_OUTSIDE}{hint}"))
            }
            Reference::Later(text) => Some(Kind::Text(Text::reference(text))),
            Reference::Own => sink.refuse(span, "write var.name or local.name"),
            Reference::Unknown(instead) => {
                let message = match path {
                    None => "a name without meaning here; a text needs quotes".to_owned(),
                    Some(_) => format!(
                        "a reference that neither the file nor Nomad gives a meaning; {AS_TEXT}"
                    ),
                };
                sink.suggest(span, message, instead);
                None
            }
        }
    }

    /// `var.x…` or `local.x…`
    fn own(&mut self, path: &Traversal, span: Span, sink: &mut Sink) -> Option<Kind> {
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
        self.named(is_local, name, span, sink)?;
        let steps = self.steps(operators, sink)?;
        let kind = if is_local { "local" } else { "var" };
        let lost = match self.known.get(&(kind, name.to_owned())) {
            Some(Known::Done(Some(value))) => walk(value, &steps),
            _ => return None,
        };
        self.found(lost, span, sink)
    }

    /// What a path led to, counted.
    fn found(&mut self, found: Result<Val, Lost>, span: Span, sink: &mut Sink) -> Option<Kind> {
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
    ) -> Option<Vec<Step>> {
        let mut steps = Vec::new();
        for operator in operators {
            // Each is one call deeper, and each splat makes what it finds one level deeper.
            if steps.len() >= DEPTH_MAX {
                let message = format!("too many steps; a path has at most {DEPTH_MAX}");
                return sink.refuse(self.at(operator.span()), message);
            }
            steps.push(match operator.value() {
                TraversalOperator::GetAttr(name) => Step::Member(name.as_str().to_owned()),
                TraversalOperator::LegacyIndex(index) => {
                    let at = self.at(operator.span());
                    Step::Index(Val::new(Kind::Number((*index.value()).into()), at))
                }
                TraversalOperator::Index(expr) => {
                    let index = self.value(expr, sink)?;
                    operators::refuse_late(&index, sink)?;
                    Step::Index(index)
                }
                TraversalOperator::AttrSplat(_) => Step::Members,
                TraversalOperator::FullSplat(_) => Step::Each,
            });
        }
        Some(steps)
    }

    /// Evaluate a variable or local, at its first use; `None` when it has no value, which is reported.
    fn named(&mut self, is_local: bool, name: &str, span: Span, sink: &mut Sink) -> Option<()> {
        let kind = if is_local { "local" } else { "var" };
        let id = (kind, name.to_owned());
        match self.known.get(&id) {
            Some(Known::Done(value)) => return value.as_ref().map(|_| ()),
            Some(Known::Open) => {
                let message = format!("{kind}.{name} refers to itself, directly or through others");
                return sink.refuse(span, message);
            }
            None => {}
        }
        let scope = self.scope;
        let known = match is_local {
            true => scope.locals.contains_key(name),
            false => scope.variables.contains_key(name),
        };
        if !known {
            let locals = scope.locals.keys().copied().filter(|_| is_local);
            let variables = scope.variables.keys().copied().filter(|_| !is_local);
            let instead = sink.nearest(name, locals.chain(variables));
            let instead = instead.map(|name| format!("{kind}.{name}"));
            sink.suggest(span, format!("{kind}.{name} is not declared"), instead.as_deref());
            return None;
        }
        self.known.insert(id.clone(), Known::Open);
        // Names of the loops around the use mean nothing where it is declared.
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
            // Nobody was told why: who needs it in earnest shall be.
            self.known.remove(&id);
        } else {
            self.known.insert(id, Known::Done(value));
        }
        there
    }
}

/// Is it a name, or a path that begins with one?
fn is_path(expr: &Expression) -> bool {
    match expr {
        Expression::Variable(_) => true,
        Expression::Traversal(inner) => is_path(&inner.expr),
        _ => false,
    }
}

fn walk(value: &Val, steps: &[Step]) -> Result<Val, Lost> {
    let Some((first, rest)) = steps.split_first() else { return Ok(value.clone()) };
    match first {
        Step::Member(name) => walk(member(value, name)?, rest),
        Step::Index(index) => walk(at_index(value, index)?, rest),
        Step::Each => splat(value, rest),
        Step::Members => {
            let members = rest.iter().take_while(|step| matches!(step, Step::Member(_))).count();
            let (inner, rest) = rest.split_at_checked(members).unwrap_or((rest, &[]));
            walk(&splat(value, inner)?, rest)
        }
    }
}

/// Do the steps with each element. Null has none; anything else that is no list is its only one.
fn splat(value: &Val, steps: &[Step]) -> Result<Val, Lost> {
    let items = match &value.kind {
        Kind::Null => Vec::new(),
        Kind::List(_, items) => {
            items.iter().map(|item| walk(item, steps)).collect::<Result<_, _>>()?
        }
        _ => vec![walk(value, steps)?],
    };
    let seq = match &value.kind {
        Kind::List(Seq::List, _) => Seq::List,
        _ => Seq::Tuple,
    };
    Ok(Val::new(Kind::List(seq, items), value.span))
}

fn member<'v>(value: &'v Val, name: &str) -> Result<&'v Val, Lost> {
    let Kind::Object(members) = &value.kind else {
        let kind = value.kind.describe();
        let message = match value.is_late() {
            true => operators::LATE.to_owned(),
            false => format!("{kind} has no member {}", shown(name)),
        };
        return Err((message, None));
    };
    match members.get(name) {
        Some((_, value)) => Ok(value),
        None => {
            let instead = suggest::nearest(name, members.keys().map(String::as_str));
            Err((format!("there is no member {}", shown(name)), instead.map(str::to_owned)))
        }
    }
}

/// `value[index]`, for functions too.
pub(super) fn at_index<'v>(value: &'v Val, index: &Val) -> Result<&'v Val, Lost> {
    match (&value.kind, &index.kind) {
        (Kind::Object(_), key) => match key.to_characters() {
            Some(name) => member(value, &name),
            None => Err((format!("{} is no name of a member", key.describe()), None)),
        },
        (Kind::List(Seq::Set, _), _) => Err(("a set has no positions".to_owned(), None)),
        (Kind::List(_, items), Kind::Number(_) | Kind::Text(_)) => {
            let number = match &index.kind {
                Kind::Number(number) => number.as_u64(),
                Kind::Text(text) => text.as_str().parse().ok(),
                _ => None,
            };
            let found = number.and_then(|index| items.get(usize::try_from(index).ok()?));
            found.ok_or_else(|| {
                (format!("there is no such element; the list has {}", items.len()), None)
            })
        }
        (Kind::List(..), key) => Err((format!("{} is no index", key.describe()), None)),
        (kind, _) => Err((format!("{} has no elements", kind.describe()), None)),
    }
}
