//! Functions of lists.

use super::super::operators::same;
use super::super::types::{sort_key, unify_texts};
use super::super::value::{Seq, Val, ValKind};
use super::{Function, FunctionCall, FunctionError, texts};

pub(super) const TABLE: &[(&str, Function)] = &[
    ("chunklist", chunk_list),
    ("coalesce", coalesce),
    ("coalescelist", coalesce_list),
    ("compact", compact),
    ("concat", concat),
    ("contains", contains),
    ("distinct", distinct),
    ("element", element),
    ("flatten", flatten),
    ("range", range),
    ("slice", slice),
    ("sort", sort),
];

/// The largest number of elements of `range`, as in Nomad.
const RANGE_MAX: usize = 1_024;
/// The largest number of elements that `distinct` accepts.
const DISTINCT_MAX: usize = 10_000;

fn chunk_list(mut call: FunctionCall<'_>) -> Result<ValKind, FunctionError> {
    call.check_count(2, 2)?;
    let size = call.count(1)?;
    let (_, items) = call.take_items(0)?;
    let span = call.span;
    if items.is_empty() {
        return Ok(ValKind::List(Seq::List, Vec::new()));
    }
    let size = if size == 0 { items.len() } else { size };
    let chunk = |items: &[Val]| ValKind::List(Seq::List, items.to_vec());
    Ok(ValKind::list(items.chunks(size).map(chunk), span))
}

/// The first argument that is not null.
fn coalesce(mut call: FunctionCall<'_>) -> Result<ValKind, FunctionError> {
    call.check_count(1, usize::MAX)?;
    let items = unify_texts(std::mem::take(&mut call.arguments));
    match items.into_iter().find(|item| item.kind != ValKind::Null) {
        Some(found) => Ok(found.kind),
        None => call.fail("all arguments are null"),
    }
}

/// The first list that has elements.
fn coalesce_list(mut call: FunctionCall<'_>) -> Result<ValKind, FunctionError> {
    call.check_count(1, usize::MAX)?;
    for index in 0..call.arguments.len() {
        if call.argument(index)?.kind != ValKind::Null && !call.items(index)?.1.is_empty() {
            return Ok(call.take(index).kind);
        }
    }
    call.fail("all lists are empty")
}

/// The list without null and empty texts.
fn compact(mut call: FunctionCall<'_>) -> Result<ValKind, FunctionError> {
    call.check_count(1, 1)?;
    let (_, items) = call.take_items(0)?;
    let mut kept = Vec::new();
    for item in items.into_iter().filter(|item| item.kind != ValKind::Null) {
        let text = super::raw(&item)?;
        if !text.as_str().is_empty() {
            kept.push(Val::new(ValKind::Text(text), item.span));
        }
    }
    Ok(ValKind::List(Seq::List, kept))
}

/// The lists one after the other. The result is a list of one type if all arguments are such lists.
fn concat(mut call: FunctionCall<'_>) -> Result<ValKind, FunctionError> {
    call.check_count(1, usize::MAX)?;
    let (mut all, mut typed) = (Vec::new(), true);
    for index in 0..call.arguments.len() {
        let (seq, items) = call.take_items(index)?;
        typed &= seq == Seq::List;
        all.extend(items);
    }
    Ok(ValKind::List(if typed { Seq::List } else { Seq::Tuple }, all))
}

fn contains(call: FunctionCall<'_>) -> Result<ValKind, FunctionError> {
    call.check_count(2, 2)?;
    let wanted = call.argument(1)?;
    let (_, items) = call.items(0)?;
    if wanted.is_late() || items.iter().any(Val::is_late) {
        return call.fail(super::LATE);
    }
    Ok(ValKind::Bool(items.iter().any(|item| same(item, wanted))))
}

fn distinct(mut call: FunctionCall<'_>) -> Result<ValKind, FunctionError> {
    call.check_count(1, 1)?;
    let (_, items) = call.take_items(0)?;
    if items.len() > DISTINCT_MAX {
        return call.fail(format!("distinct takes at most {DISTINCT_MAX} elements"));
    }
    let mut seen = std::collections::BTreeSet::new();
    let mut kept = unify_texts(items);
    kept.retain(|item| seen.insert(sort_key(item)));
    Ok(ValKind::List(Seq::List, kept))
}

/// The element at an index. An index past the end counts from the beginning again.
fn element(mut call: FunctionCall<'_>) -> Result<ValKind, FunctionError> {
    call.check_count(2, 2)?;
    let index = call.count(1)?;
    let (seq, items) = call.take_items(0)?;
    if seq == Seq::Set {
        return call.fail_at(0, "a set has no positions");
    }
    let count = items.len();
    let found = index.checked_rem(count).and_then(|index| items.into_iter().nth(index));
    match found {
        Some(found) => Ok(found.kind),
        None => call.fail("the list is empty"),
    }
}

fn flatten(mut call: FunctionCall<'_>) -> Result<ValKind, FunctionError> {
    call.check_count(1, 1)?;
    let (_, items) = call.take_items(0)?;
    let mut flat = Vec::new();
    let mut open: Vec<Val> = items.into_iter().rev().collect();
    while let Some(next) = open.pop() {
        match next.kind {
            ValKind::List(_, inner) => open.extend(inner.into_iter().rev()),
            _ => flat.push(next),
        }
    }
    Ok(ValKind::List(Seq::Tuple, flat))
}

/// Evaluate `range(end)`, `range(start, end)` or `range(start, end, step)`.
fn range(mut call: FunctionCall<'_>) -> Result<ValKind, FunctionError> {
    call.check_count(1, 3)?;
    let (start, end, step) = match call.arguments.len() {
        1 => {
            let end = call.float(0)?;
            (0.0, end, if end < 0.0 { -1.0 } else { 1.0 })
        }
        2 => {
            let (start, end) = (call.float(0)?, call.float(1)?);
            (start, end, if end < start { -1.0 } else { 1.0 })
        }
        _ => (call.float(0)?, call.float(1)?, call.float(2)?),
    };
    if step == 0.0 || (end < start && step > 0.0) || (end > start && step < 0.0) {
        return call.fail("the step of a range has to lead to its end");
    }
    let mut numbers = Vec::new();
    // Each number is computed from its index, because adding up steps of a tenth would be inexact.
    for index in 0.. {
        let number = super::super::value::round_float(start + f64::from(index) * step);
        if (step > 0.0 && number >= end) || (step < 0.0 && number <= end) || start == end {
            break;
        }
        if numbers.len() >= RANGE_MAX {
            return call
                .fail(format!("a range has at most {RANGE_MAX} numbers; use a larger step"));
        }
        match super::super::value::to_number(number) {
            Some(number) => numbers.push(ValKind::Number(number)),
            None => return call.fail("a range is made of numbers"),
        }
    }
    call.pay(numbers.len())?;
    Ok(ValKind::list(numbers, call.span))
}

fn slice(mut call: FunctionCall<'_>) -> Result<ValKind, FunctionError> {
    call.check_count(3, 3)?;
    let (start, end) = (call.count(1)?, call.count(2)?);
    let (seq, items) = call.take_items(0)?;
    if seq == Seq::Set {
        return call.fail_at(0, "a set has no positions");
    }
    match items.get(start..end) {
        Some(items) => Ok(ValKind::List(seq, items.to_vec())),
        None => call.fail(format!(
            "the list has {} elements: there are none from {start} to {end}",
            items.len()
        )),
    }
}

fn sort(call: FunctionCall<'_>) -> Result<ValKind, FunctionError> {
    call.check_count(1, 1)?;
    let mut texts = texts::list_texts(&call, 0)?;
    texts.sort();
    Ok(ValKind::list(texts.iter().map(ValKind::literal), call.span))
}
