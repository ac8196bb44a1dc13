//! Lists.

use super::super::operators::same;
use super::super::types::{sort_key, unified};
use super::super::value::{Kind, Seq, Val};
use super::{Call, Function, Wrong, texts};

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

/// Most elements of `range`, as Nomad has it.
const RANGE_MAX: usize = 1_024;
/// Most elements that `distinct` compares with each other.
const DISTINCT_MAX: usize = 10_000;

fn chunk_list(mut call: Call<'_>) -> Result<Kind, Wrong> {
    call.takes(2, 2)?;
    let size = call.count(1)?;
    let (_, items) = call.take_items(0)?;
    let span = call.span;
    if items.is_empty() {
        return Ok(Kind::List(Seq::List, Vec::new()));
    }
    let size = if size == 0 { items.len() } else { size };
    let chunk = |items: &[Val]| Kind::List(Seq::List, items.to_vec());
    Ok(Kind::list(items.chunks(size).map(chunk), span))
}

/// The first that is not null.
fn coalesce(mut call: Call<'_>) -> Result<Kind, Wrong> {
    call.takes(1, usize::MAX)?;
    let items = unified(std::mem::take(&mut call.arguments));
    match items.into_iter().find(|item| item.kind != Kind::Null) {
        Some(found) => Ok(found.kind),
        None => call.wrong("all arguments are null"),
    }
}

/// The first that has elements.
fn coalesce_list(mut call: Call<'_>) -> Result<Kind, Wrong> {
    call.takes(1, usize::MAX)?;
    for index in 0..call.arguments.len() {
        if call.argument(index)?.kind != Kind::Null && !call.items(index)?.1.is_empty() {
            return Ok(call.take(index).kind);
        }
    }
    call.wrong("all lists are empty")
}

/// Without texts that are empty.
fn compact(mut call: Call<'_>) -> Result<Kind, Wrong> {
    call.takes(1, 1)?;
    let (_, items) = call.take_items(0)?;
    let mut kept = Vec::new();
    for item in items.into_iter().filter(|item| item.kind != Kind::Null) {
        let text = super::raw(&item)?;
        if !text.as_str().is_empty() {
            kept.push(Val::new(Kind::Text(text), item.span));
        }
    }
    Ok(Kind::List(Seq::List, kept))
}

/// A list of one type of such lists, else one that is written down.
fn concat(mut call: Call<'_>) -> Result<Kind, Wrong> {
    call.takes(1, usize::MAX)?;
    let (mut all, mut typed) = (Vec::new(), true);
    for index in 0..call.arguments.len() {
        let (seq, items) = call.take_items(index)?;
        typed &= seq == Seq::List;
        all.extend(items);
    }
    Ok(Kind::List(if typed { Seq::List } else { Seq::Tuple }, all))
}

fn contains(call: Call<'_>) -> Result<Kind, Wrong> {
    call.takes(2, 2)?;
    let wanted = call.argument(1)?;
    let (_, items) = call.items(0)?;
    if wanted.is_late() || items.iter().any(Val::is_late) {
        return call.wrong(super::LATE);
    }
    Ok(Kind::Bool(items.iter().any(|item| same(item, wanted))))
}

fn distinct(mut call: Call<'_>) -> Result<Kind, Wrong> {
    call.takes(1, 1)?;
    let (_, items) = call.take_items(0)?;
    if items.len() > DISTINCT_MAX {
        return call.wrong(format!("distinct takes at most {DISTINCT_MAX} elements"));
    }
    let mut seen = std::collections::BTreeSet::new();
    let mut kept = unified(items);
    kept.retain(|item| seen.insert(sort_key(item)));
    Ok(Kind::List(Seq::List, kept))
}

/// Past its end a list begins again.
fn element(mut call: Call<'_>) -> Result<Kind, Wrong> {
    call.takes(2, 2)?;
    let index = call.count(1)?;
    let (seq, items) = call.take_items(0)?;
    if seq == Seq::Set {
        return call.wrong_at(0, "a set has no positions");
    }
    let count = items.len();
    let found = index.checked_rem(count).and_then(|index| items.into_iter().nth(index));
    match found {
        Some(found) => Ok(found.kind),
        None => call.wrong("the list is empty"),
    }
}

fn flatten(mut call: Call<'_>) -> Result<Kind, Wrong> {
    call.takes(1, 1)?;
    let (_, items) = call.take_items(0)?;
    let mut flat = Vec::new();
    let mut open: Vec<Val> = items.into_iter().rev().collect();
    while let Some(next) = open.pop() {
        match next.kind {
            Kind::List(_, inner) => open.extend(inner.into_iter().rev()),
            _ => flat.push(next),
        }
    }
    Ok(Kind::List(Seq::Tuple, flat))
}

/// `range(end)`, `range(start, end)`, `range(start, end, step)`.
fn range(mut call: Call<'_>) -> Result<Kind, Wrong> {
    call.takes(1, 3)?;
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
        return call.wrong("the step of a range has to lead to its end");
    }
    let mut numbers = Vec::new();
    // Counted, not added up, so that steps of a tenth stay tenths.
    for index in 0.. {
        let number = super::super::value::rounded(start + f64::from(index) * step);
        if (step > 0.0 && number >= end) || (step < 0.0 && number <= end) || start == end {
            break;
        }
        if numbers.len() >= RANGE_MAX {
            return call
                .wrong(format!("a range has at most {RANGE_MAX} numbers; use a larger step"));
        }
        match super::super::value::to_number(number) {
            Some(number) => numbers.push(Kind::Number(number)),
            None => return call.wrong("a range is made of numbers"),
        }
    }
    call.pay(numbers.len())?;
    Ok(Kind::list(numbers, call.span))
}

fn slice(mut call: Call<'_>) -> Result<Kind, Wrong> {
    call.takes(3, 3)?;
    let (start, end) = (call.count(1)?, call.count(2)?);
    let (seq, items) = call.take_items(0)?;
    if seq == Seq::Set {
        return call.wrong_at(0, "a set has no positions");
    }
    match items.get(start..end) {
        Some(items) => Ok(Kind::List(seq, items.to_vec())),
        None => call.wrong(format!(
            "the list has {} elements: there are none from {start} to {end}",
            items.len()
        )),
    }
}

fn sort(call: Call<'_>) -> Result<Kind, Wrong> {
    call.takes(1, 1)?;
    let mut texts = texts::all(&call, 0)?;
    texts.sort();
    Ok(Kind::list(texts.iter().map(Kind::literal), call.span))
}
