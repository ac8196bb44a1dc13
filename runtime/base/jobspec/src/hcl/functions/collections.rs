//! Functions of objects, and of both lists and objects.

use std::collections::BTreeMap;

use super::super::names::at_index;
use super::super::value::{HclText, Seq, Val, ValKind};
use super::{Function, FunctionCall, FunctionError};

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
fn index(call: FunctionCall<'_>) -> Result<ValKind, FunctionError> {
    call.check_count(2, 2)?;
    match at_index(call.argument(0)?, call.argument(1)?) {
        Ok(found) => Ok(found.kind.clone()),
        Err((message, _)) => call.fail(message),
    }
}

fn keys(call: FunctionCall<'_>) -> Result<ValKind, FunctionError> {
    call.check_count(1, 1)?;
    let names = call.members(0)?.keys().map(|name| ValKind::literal(name.as_str()));
    Ok(ValKind::list(names, call.span))
}

fn length(call: FunctionCall<'_>) -> Result<ValKind, FunctionError> {
    call.check_count(1, 1)?;
    let argument = call.argument(0)?;
    let length = match &argument.kind {
        ValKind::List(_, items) => items.len(),
        ValKind::Object(members) => members.len(),
        _ => return call.fail_at(0, super::needed_message("a list or an object", argument)),
    };
    Ok(ValKind::Number(length.into()))
}

fn lookup(call: FunctionCall<'_>) -> Result<ValKind, FunctionError> {
    call.check_count(2, 3)?;
    let name = call.raw(1)?.into_string();
    if let Some((_, found)) = call.members(0)?.get(&name) {
        return Ok(found.kind.clone());
    }
    match call.arguments.get(2) {
        Some(default) => Ok(default.kind.clone()),
        None => call.fail_at(1, format!("there is no member {}", super::quote_text(&name))),
    }
}

/// Merge objects. Of members with one name, the last one is kept.
fn merge(mut call: FunctionCall<'_>) -> Result<ValKind, FunctionError> {
    let mut all = BTreeMap::new();
    for index in 0..call.arguments.len() {
        if call.argument(index)?.kind == ValKind::Null {
            continue;
        }
        call.members(index)?;
        if let ValKind::Object(members) = call.take(index).kind {
            all.extend(members);
        }
    }
    Ok(ValKind::Object(all))
}

fn values(call: FunctionCall<'_>) -> Result<ValKind, FunctionError> {
    call.check_count(1, 1)?;
    let values = call.members(0)?.values().map(|(_, value)| value.clone());
    Ok(ValKind::List(Seq::Tuple, values.collect()))
}

fn zipmap(mut call: FunctionCall<'_>) -> Result<ValKind, FunctionError> {
    call.check_count(2, 2)?;
    let name = |item| super::raw(item).map(HclText::into_string);
    let names: Vec<String> = call.items(0)?.1.iter().map(name).collect::<Result<_, _>>()?;
    let (_, values) = call.take_items(1)?;
    if names.len() != values.len() {
        return call.fail(format!("there are {} names and {} values", names.len(), values.len()));
    }
    let member = |(name, value): (String, Val)| (name, (value.span, value));
    Ok(ValKind::Object(names.into_iter().zip(values).map(member).collect()))
}
