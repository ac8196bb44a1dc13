//! What differs between two versions of a job, in the words of the job file. Pure.
//!
//! ```text
//! both as Nomad's JSON ─► walked along the description of their keys ─► Change: where, and what
//!                                                                         │
//!           the same of what cannot change under a task ─► its places ────┴─► lines for people
//! ```
//! A list and a text of several lines are compared line by line. Blocks of a list are found by their names; those
//! without one by what they are about.

mod blocks;
mod values;

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::decode::job::JobKeys;
use crate::encode::nomad_json;
use crate::keys::{Bounds, Field, Form, Keys as _, Schema, Shape};
use blocks::{Blocks, holds, is_second, value_at};
use ostler_model::job::Job;
use values::{Said, between};

/// Most changes that are told; a job that is another one altogether is not worth more.
const CHANGES_MAX: usize = 200;

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
        let fields = schema.fields.iter();
        for field in fields.filter(|field| is_told(field) && !is_second(schema, field)) {
            let [old, new] = [old, new].map(|block| value_at(schema, field, block));
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
        let [old, new] = [old, new].map(|list| Blocks::new(name, schema, list));
        let was = new.found_in(&old);
        let olds: Vec<_> = old.iter().collect();
        for ((block, ..), was) in new.iter().zip(&was) {
            let before = was.and_then(|was| olds.get(was)).filter(|(before, ..)| *before != block);
            if let Some((before, title, _)) = before {
                self.within(*title, |found| found.block(schema, before, block));
            }
        }
        let kept: BTreeSet<usize> = was.iter().flatten().copied().collect();
        for (index, (block, _, short)) in olds.iter().enumerate() {
            if !kept.contains(&index) {
                self.within(*short, |found| found.say(Said::Removed(holds(schema, block))));
            }
        }
        for ((block, _, short), was) in new.iter().zip(&was) {
            if was.is_none() {
                self.within(short, |found| found.say(Said::Added(holds(schema, block))));
            }
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

#[cfg(test)]
mod tests;
