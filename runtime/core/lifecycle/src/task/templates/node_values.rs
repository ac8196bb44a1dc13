//! Services and variables of a node, as the values that consul-template gives to templates.
//!
//! | function | value |
//! |---|---|
//! | `nomadVar` | items by name; each is its text, with `Key`, `Value`, `Metadata`, `Parent`; `Keys`, `Values`, `Tuples`, `Metadata`, `Parent`, `ItemsMap` beside them |
//! | `nomadVarList` | paths, with `Namespace`, `Path`, `CreateIndex`, `ModifyIndex`, `CreateTime`, `ModifyTime` |
//! | `nomadService` | records `ID Name Node Address Port Datacenter Tags JobID AllocID` |
//! | `nomadServices` | records `Name Namespace Tags` |

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ostler_model::service::ServiceInstance;
use ostler_model::time::Timestamp;
use ostler_model::vars::Variable;
use ostler_template::{MapKind, TemplateProblem, Value, format_time};

/// The layout in which Go prints a time.
const TIME: &str = "2006-01-02 15:04:05.999999999 -0700 MST";

type Fields = BTreeMap<String, Value>;

fn fields<const N: usize>(named: [(&str, Value); N]) -> Fields {
    named.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn time(at: Timestamp) -> Value {
    Value::text(format_time(at.to_system_time(), TIME))
}

fn variable_fields(of: &Variable) -> Fields {
    fields([
        ("Namespace", Value::text(of.namespace.as_str())),
        ("Path", Value::text(of.path.as_str())),
        ("CreateIndex", Value::Uint(of.create_index)),
        ("ModifyIndex", Value::Uint(of.modify_index)),
        ("CreateTime", time(of.created)),
        ("ModifyTime", time(of.modified)),
    ])
}

/// The metadata of a variable: its path, as a text that has fields.
fn metadata(of: &Variable) -> Result<Value, TemplateProblem> {
    let fields = variable_fields(of);
    let data = Value::map_of(MapKind::Record, fields.clone())?;
    Value::text_with_fields(of.path.as_str(), fields, data)
}

/// The answer of `nomadVar`.
pub(super) fn variable(of: &Variable) -> Result<Value, TemplateProblem> {
    let texts = of.items.iter().map(|(name, item)| (name.as_str(), item.reveal()));
    let values = || texts.clone().map(|(name, text)| (name.to_owned(), Value::text(text)));
    let metadata = metadata(of)?;
    let plain = Value::map_of(MapKind::Texts, values().collect())?;
    let mut parent = variable_fields(of);
    parent.extend([("Items".to_owned(), plain.clone()), ("Metadata".to_owned(), metadata.clone())]);
    let parent = Value::map_of(MapKind::Record, parent)?;
    let item = |(name, text): (&str, &str)| {
        let known = fields([
            ("Key", Value::text(name)),
            ("Value", Value::text(text)),
            ("Metadata", metadata.clone()),
            ("Parent", parent.clone()),
        ]);
        Ok((name.to_owned(), Value::text_with_fields(text, known, Value::text(text))?))
    };
    let items = texts.clone().map(item).collect::<Result<Fields, TemplateProblem>>()?;
    let tuple = |(name, text): (String, Value)| {
        Value::map_of(MapKind::Record, fields([("K", Value::text(name)), ("V", text)]))
    };
    let tuples = values().map(tuple).collect::<Result<_, _>>()?;
    let beside = fields([
        ("Keys", Value::texts(of.items.keys())),
        ("Values", Value::texts(of.items.values().map(|item| item.reveal()))),
        ("Tuples", Value::list(tuples)?),
        ("ItemsMap", plain),
        ("Metadata", metadata.clone()),
        ("Parent", parent.clone()),
    ]);
    Value::map_with_fields(MapKind::Texts, items, beside)
}

/// The answer of `nomadVarList`.
pub(super) fn variables<'a>(
    all: impl Iterator<Item = &'a Arc<Variable>>,
) -> Result<Value, TemplateProblem> {
    Value::list(all.map(|of| metadata(of)).collect::<Result<_, _>>()?)
}

/// The answer of `nomadService`, on the node with this id and data center.
pub(super) fn service<'a>(
    all: impl Iterator<Item = &'a Arc<ServiceInstance>>,
    node: &str,
    datacenter: &str,
) -> Result<Value, TemplateProblem> {
    let one = |of: &Arc<ServiceInstance>| {
        let known = fields([
            ("ID", Value::text(&of.id)),
            ("Name", Value::text(&of.name)),
            ("Node", Value::text(node)),
            ("Address", Value::text(&of.address)),
            ("Port", Value::Int(i64::from(of.port))),
            ("Datacenter", Value::text(datacenter)),
            ("Tags", tags(of.tags.iter().map(String::as_str).collect())),
            ("JobID", Value::text(of.job.as_str())),
            ("AllocID", Value::text(of.alloc.to_string())),
        ]);
        Value::map_of(MapKind::Record, known)
    };
    Value::list(all.map(one).collect::<Result<_, _>>()?)
}

/// The answer of `nomadServices`.
pub(super) fn services<'a>(
    all: impl Iterator<Item = &'a Arc<ServiceInstance>>,
) -> Result<Value, TemplateProblem> {
    let mut by_name: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    for of in all {
        let known = by_name.entry((&of.name, &of.namespace)).or_default();
        known.extend(of.tags.iter().map(String::as_str));
    }
    let one = |((name, namespace), known): ((&str, &str), BTreeSet<&str>)| {
        let known = fields([
            ("Name", Value::text(name)),
            ("Namespace", Value::text(namespace)),
            ("Tags", tags(known.into_iter().collect())),
        ]);
        Value::map_of(MapKind::Record, known)
    };
    Value::list(by_name.into_iter().map(one).collect::<Result<_, _>>()?)
}

/// The tags, sorted.
fn tags(mut of: Vec<&str>) -> Value {
    of.sort_unstable();
    Value::texts(of)
}

#[cfg(test)]
#[path = "node_values_tests.rs"]
mod tests;
