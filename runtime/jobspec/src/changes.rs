//! What differs between two versions of a job, in the words of the job file. Pure.
//!
//! ```text
//! both as Nomad's JSON ─► walked along the description of their keys ─► Change: where, and what
//!                                                                         │
//!           the same of what cannot change under a task ─► its places ────┴─► lines for people
//! ```
//! A list and a text of several lines are compared line by line. Blocks of a list are found by their names; those
//! without one by what they hold.

mod values;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde_json::{Map, Value};

use crate::decode::job::JobKeys;
use crate::encode::nomad_json;
use crate::keys::{Bounds, Field, Form, Keys as _, Schema, Shape};
use ostler_model::job::Job;
use values::{Said, between};

/// Most changes that are told; a job that is another one altogether is not worth more.
const CHANGES_MAX: usize = 200;
/// JSON members by which a block of a list is known that has no label.
const NAMES: [&str; 6] = ["Name", "Label", "DestPath", "GetterSource", "Destination", "Volume"];

/// One place of the job, outermost block first: `group "web"`, `count`.
type Place = Vec<String>;

/// One thing that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Change {
    place: Place,
    said: Said,
}

/// What differs from `old` to `new`, an entry for each, of one line or several: `group "web" count: 1 -> 3`.
/// `decisive`: what of both cannot change under a task; what differs in that says that it forces replacement.
#[must_use]
pub fn changes(old: &Job, new: &Job, decisive: (&Job, &Job)) -> Vec<String> {
    let all = between_jobs(old, new);
    let forcing: BTreeSet<Place> =
        between_jobs(decisive.0, decisive.1).into_iter().map(|change| change.place).collect();
    let more = all.len().saturating_sub(CHANGES_MAX);
    let told = all.iter().take(CHANGES_MAX).map(|change| {
        let forces = forces(&change.place, &forcing);
        change.said.in_words(&change.place.join(" "), forces)
    });
    let rest = (more > 0).then(|| format!("and {more} more"));
    told.chain(rest).collect()
}

/// Does a change at this place replace what runs? A group that comes or goes does not replace another one.
fn forces(place: &[String], forcing: &BTreeSet<Place>) -> bool {
    let whole_group = place.len() == 1 && place.iter().all(|part| part.starts_with("group "));
    // Meta of a job and of a group is that of their tasks.
    let meta = match place {
        [outer @ .., meta, key] if meta == "meta" => Some((outer, key)),
        _ => None,
    };
    let same = |other: &Place| {
        let below = other.starts_with(place) || place.starts_with(other);
        let inherited = meta.is_some_and(|(outer, key)| {
            other.starts_with(outer) && other.ends_with(&["meta".to_owned(), key.clone()])
        });
        below || inherited
    };
    !whole_group && forcing.iter().any(same)
}

fn between_jobs(old: &Job, new: &Job) -> Vec<Change> {
    let (old, new) = (nomad_json(old), nomad_json(new));
    let mut found = Found { at: Vec::new(), all: Vec::new() };
    if let (Some(old), Some(new)) = (old.as_object(), new.as_object()) {
        found.block(JobKeys::SCHEMA, old, new);
    }
    found.all
}

/// What was found, and where the walk is.
struct Found {
    at: Place,
    all: Vec<Change>,
}

impl Found {
    fn say(&mut self, said: Said) {
        self.all.push(Change { place: self.at.clone(), said });
    }

    /// Go on one step further in.
    fn within(&mut self, name: impl Into<String>, look: impl FnOnce(&mut Self)) {
        self.at.push(name.into());
        look(self);
        self.at.pop();
    }

    fn block(&mut self, schema: &Schema, old: &Map<String, Value>, new: &Map<String, Value>) {
        for field in schema.fields.iter().filter(|field| is_told(field)) {
            let of = |object: &'_ Map<String, Value>| {
                let value = object.get(field.json).cloned().unwrap_or_default();
                let none = matches!(field.bounds, Bounds::NotZero(..)) && value == 0;
                if none { Value::Null } else { value }
            };
            let (old, new) = (of(old), of(new));
            if old != new {
                self.field(field, &old, &new);
            }
        }
    }

    fn field(&mut self, field: &Field, old: &Value, new: &Value) {
        let name = if field.hcl.is_empty() { field.json } else { field.hcl };
        match field.shape {
            Shape::Block { schema, form: Form::One } => {
                self.within(name, |found| found.one(schema, old.as_object(), new.as_object()));
            }
            Shape::Block { schema, form: Form::List } => self.list(name, schema, old, new),
            Shape::Block { schema, form: Form::ByName } => self.by_name(name, schema, old, new),
            Shape::Duration => {
                self.within(name, |found| found.say(values::durations(old, new)));
            }
            _ => self.within(name, |found| found.value(old, new)),
        }
    }

    /// A block that may be there once.
    fn one(
        &mut self,
        schema: &Schema,
        old: Option<&Map<String, Value>>,
        new: Option<&Map<String, Value>>,
    ) {
        match (old, new) {
            (Some(old), Some(new)) => self.block(schema, old, new),
            (None, Some(new)) => self.say(Said::Added(holds(schema, new))),
            (Some(old), None) => self.say(Said::Removed(holds(schema, old))),
            (None, None) => {}
        }
    }

    /// Blocks of which there may be several.
    fn list(&mut self, name: &str, schema: &Schema, old: &Value, new: &Value) {
        let mut rest: BTreeMap<String, VecDeque<&Map<String, Value>>> = BTreeMap::new();
        let objects = |list: &'_ Value| -> Vec<Map<String, Value>> {
            let items = list.as_array().into_iter().flatten();
            items.filter_map(Value::as_object).cloned().collect()
        };
        let (old, new) = (objects(old), objects(new));
        for one in &old {
            rest.entry(known_by(schema, one)).or_default().push_back(one);
        }
        let title = |one: &Map<String, Value>| match named(schema, one) {
            Some(label) => format!("{name} {}", values::quoted(label)),
            None => name.to_owned(),
        };
        let mut came = Vec::new();
        for one in &new {
            match rest.get_mut(&known_by(schema, one)).and_then(VecDeque::pop_front) {
                Some(before) => {
                    self.within(title(one), |found| found.block(schema, before, one));
                }
                None => came.push(one),
            }
        }
        // In the order of the old one.
        for one in &old {
            let left = rest.get_mut(&known_by(schema, one));
            let is_left = left.is_some_and(|left| {
                left.front().is_some_and(|first| std::ptr::eq(*first, one))
                    && left.pop_front().is_some()
            });
            if is_left {
                self.within(title(one), |found| found.say(Said::Removed(holds(schema, one))));
            }
        }
        for one in came {
            self.within(title(one), |found| found.say(Said::Added(holds(schema, one))));
        }
    }

    /// Blocks of which each has a name of its own.
    fn by_name(&mut self, name: &str, schema: &Schema, old: &Value, new: &Value) {
        let of = |value: &'_ Value| value.as_object().cloned().unwrap_or_default();
        let (old, new) = (of(old), of(new));
        for label in old.keys().chain(new.keys()).collect::<BTreeSet<_>>() {
            let [old, new] = [&old, &new].map(|all| all.get(label).and_then(Value::as_object));
            let title = format!("{name} {}", values::quoted(label));
            self.within(title, |found| found.one(schema, old, new));
        }
    }

    /// A value of any form.
    fn value(&mut self, old: &Value, new: &Value) {
        match (old, new) {
            _ if old == new => {}
            (Value::Object(old), Value::Object(new)) => self.members(old, new),
            // As if it were there and held nothing.
            (Value::Object(old), Value::Null) => self.members(old, &Map::new()),
            (Value::Null, Value::Object(new)) => self.members(&Map::new(), new),
            (Value::Array(old), Value::Array(new))
                if old.len() == new.len() && old.iter().chain(new).any(Value::is_object) =>
            {
                for (index, (old, new)) in old.iter().zip(new).enumerate() {
                    self.within(format!("[{index}]"), |found| found.value(old, new));
                }
            }
            _ => self.say(between(old, new)),
        }
    }

    fn members(&mut self, old: &Map<String, Value>, new: &Map<String, Value>) {
        let nothing = Value::Null;
        for key in old.keys().chain(new.keys()).collect::<BTreeSet<_>>() {
            let [old, new] = [old, new].map(|all| all.get(key).unwrap_or(&nothing));
            self.within(key.as_str(), |found| found.value(old, new));
        }
    }
}

/// Is this a key that somebody writes?
fn is_told(field: &Field) -> bool {
    let served = matches!(field.shape, Shape::Served);
    !field.json.is_empty() && !served && !matches!(field.bounds, Bounds::Unwritten)
}

/// The name of a block of a list.
fn named<'a>(schema: &Schema, block: &'a Map<String, Value>) -> Option<&'a str> {
    let members = schema.label.into_iter().chain(NAMES);
    let mut texts = members.filter_map(|member| block.get(member).and_then(Value::as_str));
    texts.find(|text| !text.is_empty())
}

/// By what a block of a list is found in the other version.
fn known_by(schema: &Schema, block: &Map<String, Value>) -> String {
    match named(schema, block) {
        Some(name) => name.to_owned(),
        None => Value::Object(block.clone()).to_string(),
    }
}

/// What a block without a name says, in short.
fn holds(schema: &Schema, block: &Map<String, Value>) -> String {
    if named(schema, block).is_some() {
        return String::new();
    }
    let plain = schema.fields.iter().filter(|field| !field.hcl.is_empty() && is_told(field));
    let said = plain.filter_map(|field| {
        let value = block.get(field.json)?;
        let text = match (value, field.shape) {
            (Value::Number(nanos), Shape::Duration) => values::duration(nanos.as_u64()?),
            (Value::String(text), _) if !text.is_empty() => values::quoted(text),
            (Value::Number(_) | Value::Bool(_), _) => value.to_string(),
            _ => return None,
        };
        Some(format!("{} = {text}", field.hcl))
    });
    said.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
