//! The types of variables and of `convert`: reads them, and converts values to them.

use std::collections::BTreeMap;

use hcl_edit::expr::{Expression, ObjectKey};

use super::value::{Seq, Val, ValKind, number_text, parse_number};
use crate::diagnostic::{Span, quote_text};

/// A type of values, as the `type` of a variable names it.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Type {
    Any,
    Bool,
    Number,
    Text,
    List(Seq, Box<Self>),
    Map(Box<Self>),
    Tuple(Vec<Self>),
    Object(BTreeMap<String, Self>),
}

const WRITTEN: &str =
    "a type is string, number, bool, any, list(…), set(…), map(…), object({…}) or tuple([…])";

impl Type {
    /// The type that an expression names.
    pub(super) fn read(expr: &Expression) -> Result<Self, String> {
        let unknown = || Err(WRITTEN.to_owned());
        match expr {
            Expression::Parenthesis(inner) => Self::read(inner.inner()),
            Expression::Variable(name) => match name.as_str() {
                "any" => Ok(Self::Any),
                "bool" => Ok(Self::Bool),
                "number" => Ok(Self::Number),
                "string" => Ok(Self::Text),
                name @ ("list" | "set" | "map") => {
                    Err(format!("{name} needs the type of its elements, such as {name}(string)"))
                }
                "object" => Err("object needs its members, such as object({ a = string })".into()),
                "tuple" => Err("tuple needs its elements, such as tuple([string, number])".into()),
                _ => unknown(),
            },
            Expression::FuncCall(call) if !call.name.is_namespaced() => {
                let mut arguments = call.args.iter();
                let (Some(inner), None) = (arguments.next(), arguments.next()) else {
                    return unknown();
                };
                let boxed = |inner| Self::read(inner).map(Box::new);
                match (call.name.name.as_str(), inner) {
                    ("list", inner) => Ok(Self::List(Seq::List, boxed(inner)?)),
                    ("set", inner) => Ok(Self::List(Seq::Set, boxed(inner)?)),
                    ("map", inner) => Ok(Self::Map(boxed(inner)?)),
                    ("tuple", Expression::Array(items)) => {
                        items.iter().map(Self::read).collect::<Result<_, _>>().map(Self::Tuple)
                    }
                    ("object", Expression::Object(members)) => {
                        let member = |(key, value): (&ObjectKey, &hcl_edit::expr::ObjectValue)| {
                            let name = match key {
                                ObjectKey::Ident(name) => name.as_str(),
                                ObjectKey::Expression(Expression::String(name)) => name.as_str(),
                                ObjectKey::Expression(Expression::Variable(name)) => name.as_str(),
                                ObjectKey::Expression(_) => return Err(WRITTEN.to_owned()),
                            };
                            Ok((name.to_owned(), Self::read(value.expr())?))
                        };
                        members.iter().map(member).collect::<Result<_, _>>().map(Self::Object)
                    }
                    _ => unknown(),
                }
            }
            _ => unknown(),
        }
    }

    /// Whether a value from outside of the file is taken as a text, not as an expression.
    pub(super) fn is_plain(&self) -> bool {
        matches!(self, Self::Text | Self::Number)
    }

    fn describe(&self) -> &'static str {
        match self {
            Self::Any => "any value",
            Self::Bool => "true or false",
            Self::Number => "a number",
            Self::Text => "a text",
            Self::List(Seq::Set, _) => "a set",
            Self::List(..) => "a list",
            Self::Map(_) => "a map",
            Self::Tuple(_) => "a list of another length",
            Self::Object(_) => "an object",
        }
    }

    /// Convert a value to this type. The error has the place and the reason.
    pub(super) fn convert(&self, value: Val) -> Result<Val, (Span, String)> {
        let span = value.span;
        let kind = match (self, value.kind) {
            (_, ValKind::Null) => ValKind::Null,
            (Self::Any, kind) => kind,
            (_, ValKind::Text(text)) if text.is_late() && !matches!(self, Self::Text) => {
                return Err((span, super::operators::LATE.to_owned()));
            }
            (Self::Bool, kind) => to_bool(kind).map_err(|kind| self.mismatch(span, &kind))?,
            (Self::Number, ValKind::Text(text)) => match parse_number(text.as_str().trim()) {
                Some(number) => ValKind::Number(number),
                None => return Err(self.mismatch(span, &ValKind::Text(text))),
            },
            (Self::Number, kind @ ValKind::Number(_)) => kind,
            (Self::Text, kind) => match kind.to_text() {
                Some(text) => ValKind::Text(text),
                None => return Err(self.mismatch(span, &kind)),
            },
            (Self::List(seq, of), ValKind::List(_, items)) => {
                let items = items.into_iter().map(|item| of.convert(item));
                let items = items.collect::<Result<Vec<_>, _>>()?;
                // The elements get one type: where one is a text, the others become texts if they can.
                let typed = *seq != Seq::Tuple && **of == Type::Any;
                let items = if typed { unify_texts(items) } else { items };
                if *seq == Seq::Set { set(items) } else { ValKind::List(*seq, items) }
            }
            (Self::Tuple(of), ValKind::List(seq, items))
                if of.len() == items.len() && seq != Seq::Set =>
            {
                let items = items.into_iter().zip(of).map(|(item, of)| of.convert(item));
                ValKind::List(Seq::Tuple, items.collect::<Result<_, _>>()?)
            }
            (Self::Map(of), ValKind::Object(members)) => {
                let member = |(name, (at, value))| Ok((name, (at, of.convert(value)?)));
                let members: BTreeMap<_, _> =
                    members.into_iter().map(member).collect::<Result<_, (Span, String)>>()?;
                ValKind::Object(members)
            }
            (Self::Object(of), ValKind::Object(mut members)) => {
                let member = |(name, of): (&String, &Self)| match members.remove(name) {
                    Some((at, value)) => Ok((name.clone(), (at, of.convert(value)?))),
                    None => Err((span, format!("the member {} is missing", quote_text(name)))),
                };
                ValKind::Object(of.iter().map(member).collect::<Result<_, _>>()?)
            }
            (_, kind) => return Err(self.mismatch(span, &kind)),
        };
        Ok(Val { kind, span })
    }

    fn mismatch(&self, at: Span, kind: &ValKind) -> (Span, String) {
        let given = match kind {
            ValKind::Text(text) => quote_text(text.as_str()),
            ValKind::Number(number) => number_text(number),
            kind => kind.describe().to_owned(),
        };
        (at, format!("{} is needed here, not {given}", self.describe()))
    }
}

fn to_bool(kind: ValKind) -> Result<ValKind, ValKind> {
    match kind {
        ValKind::Bool(truth) => Ok(ValKind::Bool(truth)),
        ValKind::Text(text) => match text.as_str() {
            "true" | "1" => Ok(ValKind::Bool(true)),
            "false" | "0" => Ok(ValKind::Bool(false)),
            _ => Err(ValKind::Text(text)),
        },
        kind => Err(kind),
    }
}

/// The elements with one type: where one is a text, the others become texts if they can.
pub(super) fn unify_texts(items: Vec<Val>) -> Vec<Val> {
    if !items.iter().any(|item| matches!(item.kind, ValKind::Text(_))) {
        return items;
    }
    let text = |item: Val| match item.kind.to_text() {
        Some(text) => Val { kind: ValKind::Text(text), ..item },
        None => item,
    };
    items.into_iter().map(text).collect()
}

/// The set of these elements: sorted, and each one once.
pub(super) fn set(items: Vec<Val>) -> ValKind {
    let mut keyed: Vec<(String, Val)> =
        items.into_iter().map(|item| (sort_key(&item), item)).collect();
    keyed.sort_by(|(a, _), (b, _)| a.cmp(b));
    keyed.dedup_by(|(a, _), (b, _)| a == b);
    let mut items: Vec<Val> = keyed.into_iter().map(|(_, item)| item).collect();
    // Numbers are sorted by value.
    if items.iter().all(|item| matches!(item.kind, ValKind::Number(_))) {
        items.sort_by(|a, b| as_f64(a).total_cmp(&as_f64(b)));
    }
    ValKind::List(Seq::Set, items)
}

fn as_f64(value: &Val) -> f64 {
    match &value.kind {
        ValKind::Number(number) => number.as_f64().unwrap_or(0.0),
        _ => 0.0,
    }
}

/// A key to sort and compare values by. It is equal for equal values alone.
pub(super) fn sort_key(value: &Val) -> String {
    match &value.kind {
        ValKind::Text(text) => format!("t{}", text.as_str()),
        ValKind::Number(number) => format!("n{}", number_text(number)),
        _ => format!("v{}", value.clone().into_tree().into_json()),
    }
}
