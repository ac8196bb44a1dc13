//! Constraints and affinities, with the short forms `version = "…"`, `regexp = "…"` and so on.

use super::super::diagnostic::{Span, shown};
use super::super::schema::Schema;
use super::super::tree::Block;
use super::group::inner;
use super::{Context, Reader};
use ostler_model::job::{Affinity, Constraint, Operator};

const OPERATORS: [(&str, Operator); 18] = [
    ("=", Operator::Equal),
    ("==", Operator::Equal),
    ("is", Operator::Equal),
    ("!=", Operator::NotEqual),
    ("not", Operator::NotEqual),
    ("<", Operator::Less),
    ("<=", Operator::LessOrEqual),
    (">", Operator::Greater),
    (">=", Operator::GreaterOrEqual),
    ("version", Operator::Version),
    ("semver", Operator::Semver),
    ("regexp", Operator::Regexp),
    ("set_contains", Operator::SetContainsAll),
    ("set_contains_all", Operator::SetContainsAll),
    ("set_contains_any", Operator::SetContainsAny),
    ("is_set", Operator::IsSet),
    ("is_not_set", Operator::IsNotSet),
    ("", Operator::Equal),
];

/// Operators that may stand as a key: `regexp = "…"`.
const SHORT: [(&str, Operator); 6] = [
    ("version", Operator::Version),
    ("semver", Operator::Semver),
    ("regexp", Operator::Regexp),
    ("set_contains", Operator::SetContainsAll),
    ("set_contains_all", Operator::SetContainsAll),
    ("set_contains_any", Operator::SetContainsAny),
];

/// Nomad's operators on other allocations of the job.
const LATER: [&str; 2] = ["distinct_hosts", "distinct_property"];

/// Decode `constraint` blocks.
pub(super) fn constraints(blocks: Vec<Block>, cx: &mut Context<'_>) -> Vec<Constraint> {
    let Some(schema) = inner(&super::super::schema::JOB, "constraint") else {
        return Vec::new();
    };
    let mut constraints = Vec::with_capacity(blocks.len());
    for block in blocks {
        let header = block.key.span;
        let mut reader = Reader::new(block.body, schema, cx);
        constraints.extend(rule(&mut reader, header, "a constraint", cx));
        reader.finish();
    }
    constraints
}

/// Decode `affinity` blocks.
pub(super) fn affinities(blocks: Vec<Block>, cx: &mut Context<'_>) -> Vec<Affinity> {
    let Some(schema) = affinity_schema() else {
        return Vec::new();
    };
    let mut affinities = Vec::with_capacity(blocks.len());
    for block in blocks {
        let header = block.key.span;
        let mut reader = Reader::new(block.body, schema, cx);
        let weight = reader.integer("weight", -100..=100, cx);
        if let Some((0, at)) = weight {
            cx.error(at, "an affinity of weight 0 has no effect; use −100 to 100 without 0");
        }
        let rule = rule(&mut reader, header, "an affinity", cx);
        reader.finish();
        // Nomad's default.
        let weight = weight.map_or(50, |(weight, _)| i8::try_from(weight).unwrap_or(50));
        affinities.extend(rule.map(|rule| Affinity { rule, weight }));
    }
    affinities
}

fn affinity_schema() -> Option<&'static Schema> {
    let mut schema = &super::super::schema::JOB;
    for name in ["group", "task", "resources", "device", "affinity"] {
        schema = inner(schema, name)?;
    }
    Some(schema)
}

fn rule(reader: &mut Reader, header: Span, what: &str, cx: &mut Context<'_>) -> Option<Constraint> {
    let left = reader.text("attribute", cx);
    let operator_text = reader.text("operator", cx);
    let value = reader.text("value", cx);
    let mut short: Option<(Operator, String)> = None;
    for (key, operator) in SHORT {
        let Some((text, at)) = reader.text(key, cx) else {
            continue;
        };
        if short.is_some() || operator_text.is_some() || value.is_some() {
            cx.error(at, format!("{what} compares once; use {key} or operator and value"));
        }
        short = Some((operator, text));
    }
    let (operator, right) = match short {
        Some((operator, right)) => (operator, right),
        None => {
            let operator = operator(operator_text, cx)?;
            let unary = matches!(operator, Operator::IsSet | Operator::IsNotSet);
            match value {
                Some((right, _)) => (operator, right),
                None if unary || reader.was_given("value") => (operator, String::new()),
                None => {
                    let value = cx.name("value", "RTarget");
                    cx.error(header, format!("{what} needs a {value} to compare with"));
                    return None;
                }
            }
        }
    };
    let Some((left, _)) = left else {
        if !reader.was_given("attribute") {
            let attribute = cx.name("attribute", "LTarget");
            cx.error(header, format!("{what} needs an {attribute} to look at"));
        }
        return None;
    };
    Some(Constraint { left, operator, right })
}

fn operator(given: Option<(String, Span)>, cx: &mut Context<'_>) -> Option<Operator> {
    let Some((text, at)) = given else {
        return Some(Operator::Equal);
    };
    if let Some((_, operator)) = OPERATORS.iter().find(|(name, _)| *name == text) {
        return Some(*operator);
    }
    if LATER.contains(&text.as_str()) {
        cx.error(at, format!("{text} is valid in Nomad, not supported by Ostler yet"));
        return None;
    }
    let names = OPERATORS.iter().map(|(name, _)| *name);
    let instead = cx.sink.nearest(&text, names);
    cx.sink.suggest(at, format!("{} is no operator of a constraint", shown(&text)), instead);
    None
}
