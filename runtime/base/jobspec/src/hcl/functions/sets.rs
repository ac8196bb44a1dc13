//! Functions of sets.

use std::collections::BTreeSet;

use super::super::types::{set, sort_key, unify_texts};
use super::super::value::{Seq, Val, ValKind};
use super::{Function, FunctionCall, FunctionError};

pub(super) const TABLE: &[(&str, Function)] =
    &[("setintersection", intersection), ("setproduct", product), ("setunion", union)];

fn union(mut call: FunctionCall<'_>) -> Result<ValKind, FunctionError> {
    call.check_count(1, usize::MAX)?;
    let mut all = Vec::new();
    for index in 0..call.arguments.len() {
        all.extend(call.take_items(index)?.1);
    }
    Ok(set(unify_texts(all)))
}

fn intersection(mut call: FunctionCall<'_>) -> Result<ValKind, FunctionError> {
    call.check_count(1, usize::MAX)?;
    let mut kept = unify_texts(call.take_items(0)?.1);
    for index in 1..call.arguments.len() {
        let other: BTreeSet<String> =
            unify_texts(call.take_items(index)?.1).iter().map(sort_key).collect();
        kept.retain(|item| other.contains(&sort_key(item)));
    }
    Ok(set(kept))
}

/// All ways to take one element from each collection. The result is a set if all of them are sets.
fn product(mut call: FunctionCall<'_>) -> Result<ValKind, FunctionError> {
    call.check_count(2, usize::MAX)?;
    let (mut lists, mut sets, mut total) = (Vec::new(), true, 1_usize);
    for index in 0..call.arguments.len() {
        let (seq, items) = call.take_items(index)?;
        sets &= seq == Seq::Set;
        total = total.saturating_mul(items.len());
        lists.push(items);
    }
    let largest: u64 = lists.iter().flatten().map(Val::size).max().unwrap_or(0);
    let each = usize::try_from(largest).unwrap_or(usize::MAX).saturating_mul(lists.len());
    call.pay(total.saturating_mul(each))?;
    let mut ways: Vec<Vec<Val>> = vec![Vec::new()];
    for items in &lists {
        let longer = |way: &Vec<Val>, item: &Val| {
            let mut way = way.clone();
            way.push(item.clone());
            way
        };
        ways =
            ways.iter().flat_map(|way| items.iter().map(move |item| longer(way, item))).collect();
    }
    let span = call.span;
    let ways = ways.into_iter().map(|way| Val::new(ValKind::List(Seq::Tuple, way), span));
    let seq = if sets { Seq::Set } else { Seq::List };
    Ok(ValKind::List(seq, ways.collect()))
}
