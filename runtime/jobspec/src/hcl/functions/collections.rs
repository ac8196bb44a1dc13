//! Objects, and what lists and objects have in common.

use std::collections::BTreeMap;

use super::super::names::at_index;
use super::super::value::{Kind, Seq, Text, Val};
use super::{Call, Function, Wrong};

pub(super) const TABLE: &[(&str, Function)] = &[
    ("index", index),
    ("keys", keys),
    ("length", length),
    ("lookup", lookup),
    ("merge", merge),
    ("values", values),
    ("zipmap", zipmap),
];

/// The element at a position, or the member of a name.
fn index(call: Call<'_>) -> Result<Kind, Wrong> {
    call.takes(2, 2)?;
    match at_index(call.argument(0)?, call.argument(1)?) {
        Ok(found) => Ok(found.kind.clone()),
        Err((message, _)) => call.wrong(message),
    }
}

fn keys(call: Call<'_>) -> Result<Kind, Wrong> {
    call.takes(1, 1)?;
    let names = call.members(0)?.keys().map(|name| Kind::literal(name.as_str()));
    Ok(Kind::list(names, call.span))
}

fn length(call: Call<'_>) -> Result<Kind, Wrong> {
    call.takes(1, 1)?;
    let argument = call.argument(0)?;
    let length = match &argument.kind {
        Kind::List(_, items) => items.len(),
        Kind::Object(members) => members.len(),
        _ => return call.wrong_at(0, super::needed("a list or an object", argument)),
    };
    Ok(Kind::Number(length.into()))
}

fn lookup(call: Call<'_>) -> Result<Kind, Wrong> {
    call.takes(2, 3)?;
    let name = call.raw(1)?.into_string();
    if let Some((_, found)) = call.members(0)?.get(&name) {
        return Ok(found.kind.clone());
    }
    match call.arguments.get(2) {
        Some(default) => Ok(default.kind.clone()),
        None => call.wrong_at(1, format!("there is no member {}", super::shown(&name))),
    }
}

/// Of members of one name the last one.
fn merge(mut call: Call<'_>) -> Result<Kind, Wrong> {
    let mut all = BTreeMap::new();
    for index in 0..call.arguments.len() {
        if call.argument(index)?.kind == Kind::Null {
            continue;
        }
        call.members(index)?;
        if let Kind::Object(members) = call.take(index).kind {
            all.extend(members);
        }
    }
    Ok(Kind::Object(all))
}

fn values(call: Call<'_>) -> Result<Kind, Wrong> {
    call.takes(1, 1)?;
    let values = call.members(0)?.values().map(|(_, value)| value.clone());
    Ok(Kind::List(Seq::Tuple, values.collect()))
}

fn zipmap(mut call: Call<'_>) -> Result<Kind, Wrong> {
    call.takes(2, 2)?;
    let name = |item| super::raw(item).map(Text::into_string);
    let names: Vec<String> = call.items(0)?.1.iter().map(name).collect::<Result<_, _>>()?;
    let (_, values) = call.take_items(1)?;
    if names.len() != values.len() {
        return call.wrong(format!("there are {} names and {} values", names.len(), values.len()));
    }
    let member = |(name, value): (String, Val)| (name, (value.span, value));
    Ok(Kind::Object(names.into_iter().zip(values).map(member).collect()))
}
