//! The difference between two versions of a job, as Nomad's command line prints it. It is made from
//! the JSON of the jobs only, so that it covers every key. Pure.
//!
//! ```text
//!   value of a key                         in the diff
//!   text, number, truth, nothing           a field
//!   list of such, map of such              fields KEY[0], KEY[name]
//!   object                                 an object with its fields
//!   list of objects                        objects by Name, Label or ID, else by what they hold
//! ```

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde_json::{Map, Value};

use ostler_agent::GroupPlan;
use ostler_wire::{FieldDiff, GroupDiff, JobDiff, ObjectDiff, TaskDiff};

type Object = Map<String, Value>;

const ADDED: &str = "Added";
const DELETED: &str = "Deleted";
const EDITED: &str = "Edited";
const NONE: &str = "None";

/// Looks up the plan of a group by its name.
type PlanOf<'a> = &'a dyn Fn(&str) -> Option<GroupPlan>;

/// The difference from the present version of a job, if there is one, to the new one.
pub(crate) fn job(
    id: &str,
    old: Option<&Value>,
    new: &Value,
    plan: PlanOf<'_>,
) -> JobDiff<'static> {
    let (old, new) = (old.and_then(Value::as_object), new.as_object());
    let (fields, objects) = members(old, new, &["ID", "TaskGroups"]);
    let pairs = pair_by_name(list(old, "TaskGroups"), list(new, "TaskGroups"));
    let groups: Vec<_> = pairs.into_iter().filter_map(|(old, new)| group(old, new, plan)).collect();
    let same = fields.is_empty() && objects.is_empty() && groups.iter().all(|g| g.kind == NONE);
    let kind = if same && old.is_some() { NONE } else { kind(old, new) };
    JobDiff {
        kind: kind.into(),
        id: id.to_owned().into(),
        fields: non_empty(fields),
        objects: non_empty(objects),
        task_groups: non_empty(groups),
    }
}

fn group(old: Option<&Object>, new: Option<&Object>, plan: PlanOf<'_>) -> Option<GroupDiff> {
    let name = name_of(new.or(old)?);
    let (mut fields, objects) = members(old, new, &["Name", "Tasks"]);
    for field in fields.iter_mut().filter(|field| field.name == "Count") {
        let number = |text: &str| text.parse::<i64>().unwrap_or(0);
        let more = number(&field.new) > number(&field.old);
        field.annotations =
            Some(vec![if more { "forces create" } else { "forces destroy" }.to_owned()]);
    }
    let planned = plan(name);
    // The plan does not count allocations that wait for their turn in a rolling update.
    let replaced = planned.as_ref().is_none_or(|plan| plan.in_place == 0);
    let pairs = pair_by_name(list(old, "Tasks"), list(new, "Tasks"));
    let tasks: Vec<_> =
        pairs.into_iter().filter_map(|(old, new)| task(old, new, replaced)).collect();
    let updates = planned.map(updates).unwrap_or_default();
    let same = fields.is_empty() && objects.is_empty() && tasks.is_empty();
    let kind = if same && old.is_some() && new.is_some() { NONE } else { kind(old, new) };
    Some(GroupDiff {
        kind: kind.into(),
        name: name.to_owned(),
        fields: non_empty(fields),
        objects: non_empty(objects),
        tasks: non_empty(tasks),
        updates: Some(updates).filter(|updates| !updates.is_empty()),
    })
}

/// The counts of a plan, in the words of Nomad's command line.
fn updates(plan: GroupPlan) -> std::collections::BTreeMap<String, u64> {
    let GroupPlan { place, in_place, destructive, canary, stop, later, waiting, ignore } = plan;
    let (place, ignore) = (place.saturating_add(waiting), ignore.saturating_add(later));
    let counts = [
        ("create", place),
        ("in-place update", in_place),
        ("create/destroy update", destructive),
        ("canary", canary),
        ("destroy", stop),
        ("ignore", ignore),
    ];
    let some = counts.into_iter().filter(|(_, count)| *count > 0);
    some.map(|(name, count)| (name.to_owned(), count.into())).collect()
}

fn task(old: Option<&Object>, new: Option<&Object>, replaced: bool) -> Option<TaskDiff> {
    let (fields, objects) = members(old, new, &["Name"]);
    let annotation = match (old, new) {
        (Some(_), Some(_)) if fields.is_empty() && objects.is_empty() => return None,
        (None, _) => "forces create",
        (_, None) => "forces destroy",
        _ if replaced => "forces create/destroy update",
        _ => "forces in-place update",
    };
    Some(TaskDiff {
        kind: kind(old, new).into(),
        name: name_of(new.or(old)?).to_owned(),
        fields: non_empty(fields),
        objects: non_empty(objects),
        annotations: Some(vec![annotation.to_owned()]),
    })
}

/// The fields and objects in which two objects differ, except for the keys in `without`.
fn members(
    old: Option<&Object>,
    new: Option<&Object>,
    without: &[&str],
) -> (Vec<FieldDiff>, Vec<ObjectDiff>) {
    let (mut fields, mut objects) = (Vec::new(), Vec::new());
    let keys: BTreeSet<&String> = old.into_iter().chain(new).flat_map(Map::keys).collect();
    for key in keys.into_iter().filter(|key| !without.contains(&key.as_str())) {
        let of = |object: Option<&'_ Object>| object.and_then(|object| object.get(key)).cloned();
        let (old, new) = (of(old).unwrap_or_default(), of(new).unwrap_or_default());
        if old != new {
            member(key, &old, &new, &mut fields, &mut objects);
        }
    }
    (fields, objects)
}

fn member(
    key: &str,
    old: &Value,
    new: &Value,
    fields: &mut Vec<FieldDiff>,
    objects: &mut Vec<ObjectDiff>,
) {
    let holds = |value: &Value, what: fn(&Value) -> bool| what(value) || value.is_null();
    let both = |what: fn(&Value) -> bool| holds(old, what) && holds(new, what);
    if both(Value::is_object) && !(is_flat(old) && is_flat(new) && MAPS.contains(&key)) {
        objects.extend(object(key, old.as_object(), new.as_object()));
    } else if both(Value::is_object) {
        each(key, old.as_object(), new.as_object(), fields);
    } else if both(Value::is_array) {
        lists(key, old, new, fields, objects);
    } else {
        fields.extend(field(key, &text(old), &text(new)));
    }
}

/// Maps whose keys are names that people choose.
const MAPS: [&str; 2] = ["Env", "Meta"];

fn is_flat(value: &Value) -> bool {
    let plain = |value: &Value| !value.is_object() && !value.is_array();
    value.is_null() || value.as_object().is_some_and(|object| object.values().all(plain))
}

fn each(key: &str, old: Option<&Object>, new: Option<&Object>, fields: &mut Vec<FieldDiff>) {
    let names: BTreeSet<&String> = old.into_iter().chain(new).flat_map(Map::keys).collect();
    for name in names {
        let of = |object: Option<&Object>| object.and_then(|object| object.get(name)).map(text);
        let (old, new) = (of(old).unwrap_or_default(), of(new).unwrap_or_default());
        fields.extend(field(&format!("{key}[{name}]"), &old, &new));
    }
}

fn lists(
    key: &str,
    old: &Value,
    new: &Value,
    fields: &mut Vec<FieldDiff>,
    objects: &mut Vec<ObjectDiff>,
) {
    let items = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let (old, new) = (items(old), items(new));
    if old.iter().chain(&new).any(Value::is_object) {
        let of = |items: &[Value]| items.iter().filter_map(Value::as_object).cloned().collect();
        let (old, new): (Vec<Object>, Vec<Object>) = (of(&old), of(&new));
        // Objects are named in the singular: `Constraints` has objects of the name `Constraint`.
        let name = key.strip_suffix('s').unwrap_or(key);
        let pairs = pair_by_name(old.iter().collect(), new.iter().collect());
        objects.extend(pairs.into_iter().filter_map(|(old, new)| object(name, old, new)));
        return;
    }
    for index in 0..old.len().max(new.len()) {
        let at = |items: &[Value]| items.get(index).map(text).unwrap_or_default();
        fields.extend(field(&format!("{key}[{index}]"), &at(&old), &at(&new)));
    }
}

fn object(name: &str, old: Option<&Object>, new: Option<&Object>) -> Option<ObjectDiff> {
    let (fields, objects) = members(old, new, &[]);
    if fields.is_empty() && objects.is_empty() {
        return None;
    }
    let (kind, name) = (kind(old, new).into(), name.to_owned());
    Some(ObjectDiff { kind, name, fields: non_empty(fields), objects: non_empty(objects) })
}

fn field(name: &str, old: &str, new: &str) -> Option<FieldDiff> {
    let kind = match (old, new) {
        _ if old == new => return None,
        ("", _) => ADDED,
        (_, "") => DELETED,
        _ => EDITED,
    };
    Some(FieldDiff {
        kind: kind.into(),
        name: name.to_owned(),
        old: old.to_owned(),
        new: new.to_owned(),
        annotations: None,
    })
}

fn kind(old: Option<&Object>, new: Option<&Object>) -> &'static str {
    match (old, new) {
        (None, _) => ADDED,
        (_, None) => DELETED,
        _ => EDITED,
    }
}

/// A value for people: a text without quotes, and null as an empty text.
fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn name_of(object: &Object) -> &str {
    let named = ["Name", "Label", "ID"].into_iter().find_map(|key| object.get(key)?.as_str());
    named.unwrap_or_default()
}

fn list<'a>(of: Option<&'a Object>, key: &str) -> Vec<&'a Object> {
    let items = of.and_then(|of| of.get(key)).and_then(Value::as_array);
    items.into_iter().flatten().filter_map(Value::as_object).collect()
}

/// Pair each old object with the new object of the same name, or with an equal one. An object
/// without a partner stands alone.
fn pair_by_name<'a>(
    old: Vec<&'a Object>,
    new: Vec<&'a Object>,
) -> Vec<(Option<&'a Object>, Option<&'a Object>)> {
    // The positions of new objects of one name, or of one text if they have no name, in order.
    let mut places: BTreeMap<ObjectIdentity<'_>, VecDeque<usize>> = BTreeMap::new();
    for (place, one) in new.iter().enumerate() {
        places.entry(object_identity(one)).or_default().push_back(place);
    }
    let mut rest: Vec<Option<&Object>> = new.into_iter().map(Some).collect();
    let mut pairs = Vec::new();
    for one in old {
        let place = places.get_mut(&object_identity(one)).and_then(VecDeque::pop_front);
        let same = place.and_then(|place| rest.get_mut(place)).and_then(Option::take);
        pairs.push((Some(one), same));
    }
    pairs.extend(rest.into_iter().flatten().map(|one| (None, Some(one))));
    pairs
}

/// What identifies an object in a list.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum ObjectIdentity<'a> {
    ByName(&'a str),
    /// Its whole content as text, if it has no name.
    ByText(String),
}

fn object_identity(object: &Object) -> ObjectIdentity<'_> {
    match name_of(object) {
        "" => ObjectIdentity::ByText(serde_json::to_string(object).unwrap_or_default()),
        name => ObjectIdentity::ByName(name),
    }
}

fn non_empty<T>(list: Vec<T>) -> Option<Vec<T>> {
    Some(list).filter(|list| !list.is_empty())
}

#[cfg(test)]
#[path = "diff_tests.rs"]
mod tests;
