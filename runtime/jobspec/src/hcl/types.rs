//! Types of variables and of `convert`: read, and values made to fit them.

use std::collections::BTreeMap;

use hcl_edit::expr::{Expression, ObjectKey};

use super::super::diagnostic::{Span, shown};
use super::value::{Kind, Seq, Val, number_text, parse_number};

/// A type.
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

    /// Values from outside are texts, not expressions.
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

    /// The value as this type, or where and why it is none.
    pub(super) fn convert(&self, value: Val) -> Result<Val, (Span, String)> {
        let span = value.span;
        let kind = match (self, value.kind) {
            (_, Kind::Null) => Kind::Null,
            (Self::Any, kind) => kind,
            (_, Kind::Text(text)) if text.is_late() && !matches!(self, Self::Text) => {
                return Err((span, super::operators::LATE.to_owned()));
            }
            (Self::Bool, kind) => to_bool(kind).map_err(|kind| self.wrong(span, &kind))?,
            (Self::Number, Kind::Text(text)) => match parse_number(text.as_str().trim()) {
                Some(number) => Kind::Number(number),
                None => return Err(self.wrong(span, &Kind::Text(text))),
            },
            (Self::Number, kind @ Kind::Number(_)) => kind,
            (Self::Text, kind) => match kind.to_text() {
                Some(text) => Kind::Text(text),
                None => return Err(self.wrong(span, &kind)),
            },
            (Self::List(seq, of), Kind::List(_, items)) => {
                let items = items.into_iter().map(|item| of.convert(item));
                let items = items.collect::<Result<Vec<_>, _>>()?;
                // Of one type: where one is a text, those that can be become texts too.
                let typed = *seq != Seq::Tuple && **of == Type::Any;
                let items = if typed { unified(items) } else { items };
                if *seq == Seq::Set { set(items) } else { Kind::List(*seq, items) }
            }
            (Self::Tuple(of), Kind::List(seq, items))
                if of.len() == items.len() && seq != Seq::Set =>
            {
                let items = items.into_iter().zip(of).map(|(item, of)| of.convert(item));
                Kind::List(Seq::Tuple, items.collect::<Result<_, _>>()?)
            }
            (Self::Map(of), Kind::Object(members)) => {
                let member = |(name, (at, value))| Ok((name, (at, of.convert(value)?)));
                let members: BTreeMap<_, _> =
                    members.into_iter().map(member).collect::<Result<_, (Span, String)>>()?;
                Kind::Object(members)
            }
            (Self::Object(of), Kind::Object(mut members)) => {
                let member = |(name, of): (&String, &Self)| match members.remove(name) {
                    Some((at, value)) => Ok((name.clone(), (at, of.convert(value)?))),
                    None => Err((span, format!("the member {} is missing", shown(name)))),
                };
                Kind::Object(of.iter().map(member).collect::<Result<_, _>>()?)
            }
            (_, kind) => return Err(self.wrong(span, &kind)),
        };
        Ok(Val { kind, span })
    }

    fn wrong(&self, at: Span, kind: &Kind) -> (Span, String) {
        let given = match kind {
            Kind::Text(text) => shown(text.as_str()),
            Kind::Number(number) => number_text(number),
            kind => kind.describe().to_owned(),
        };
        (at, format!("{} is needed here, not {given}", self.describe()))
    }
}

fn to_bool(kind: Kind) -> Result<Kind, Kind> {
    match kind {
        Kind::Bool(truth) => Ok(Kind::Bool(truth)),
        Kind::Text(text) => match text.as_str() {
            "true" | "1" => Ok(Kind::Bool(true)),
            "false" | "0" => Ok(Kind::Bool(false)),
            _ => Err(Kind::Text(text)),
        },
        kind => Err(kind),
    }
}

/// Elements of one type: where one is a text, those that can be become texts too.
pub(super) fn unified(items: Vec<Val>) -> Vec<Val> {
    if !items.iter().any(|item| matches!(item.kind, Kind::Text(_))) {
        return items;
    }
    let text = |item: Val| match item.kind.to_text() {
        Some(text) => Val { kind: Kind::Text(text), ..item },
        None => item,
    };
    items.into_iter().map(text).collect()
}

/// A set of these: in order, each once.
pub(super) fn set(items: Vec<Val>) -> Kind {
    let mut keyed: Vec<(String, Val)> =
        items.into_iter().map(|item| (sort_key(&item), item)).collect();
    keyed.sort_by(|(a, _), (b, _)| a.cmp(b));
    keyed.dedup_by(|(a, _), (b, _)| a == b);
    let mut items: Vec<Val> = keyed.into_iter().map(|(_, item)| item).collect();
    // Numbers by size.
    if items.iter().all(|item| matches!(item.kind, Kind::Number(_))) {
        items.sort_by(|a, b| as_f64(a).total_cmp(&as_f64(b)));
    }
    Kind::List(Seq::Set, items)
}

fn as_f64(value: &Val) -> f64 {
    match &value.kind {
        Kind::Number(number) => number.as_f64().unwrap_or(0.0),
        _ => 0.0,
    }
}

/// Equal for equal values alone.
pub(super) fn sort_key(value: &Val) -> String {
    match &value.kind {
        Kind::Text(text) => format!("t{}", text.as_str()),
        Kind::Number(number) => format!("n{}", number_text(number)),
        _ => format!("v{}", value.clone().into_tree().into_json()),
    }
}
