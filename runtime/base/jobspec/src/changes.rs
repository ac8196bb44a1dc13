//! Describes what differs between two versions of a job, in the words of the job file. Pure.
//!
//! ```text
//! both as Nomad's JSON ─► walked along the description of their keys ─► BlockChange: where, and what
//!                                                                         │
//!           the same of what cannot change under a task ─► its places ────┴─► lines for people
//! ```
//! Lists and texts of several lines are compared line by line. Blocks of a list are matched by their names, or, where
//! they have none, by what they are about.

mod blocks;
mod values;

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::decode::job::JobKeys;
use crate::encode::nomad_json;
use crate::keys::{BlockForm, BlockSchema, Field, FieldBounds, FieldShape, Keys as _};
use blocks::{TitledBlocks, describe_block, is_second, value_at};
use ostler_model::job::Job;
use values::{ValueChange, diff_values};

/// The largest number of changes that are described. Of a completely different job, more of them would not help.
const CHANGES_MAX: usize = 200;

/// The path to a place in the job, the outermost block first: `group "web"`, `count`.
type BlockPath = Vec<String>;

/// One difference, with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
struct BlockChange {
    place: BlockPath,
    said: ValueChange,
}

/// Describe each difference from `old` to `new`, in one or more lines: `group "web" count: 1 -> 3`. `decisive` has the
/// parts of both jobs that cannot change under a running task. A difference in these parts is marked as one that
/// forces replacement.
#[must_use]
pub fn changes(old: &Job, new: &Job, decisive: (&Job, &Job)) -> Vec<String> {
    let all = diff_jobs(old, new);
    let forcing: BTreeSet<BlockPath> =
        diff_jobs(decisive.0, decisive.1).into_iter().map(|change| change.place).collect();
    let more = all.len().saturating_sub(CHANGES_MAX);
    let told = all.iter().take(CHANGES_MAX).map(|change| {
        let forces = forces(&change.place, &forcing);
        change.said.describe(&change.place.join(" "), forces)
    });
    let rest = (more > 0).then(|| format!("and {more} more"));
    told.chain(rest).collect()
}

/// Whether a change at this place replaces running tasks. A group that is added or removed replaces nothing.
fn forces(place: &[String], forcing: &BTreeSet<BlockPath>) -> bool {
    let whole_group = place.len() == 1 && place.iter().all(|part| part.starts_with("group "));
    // The tasks inherit the meta of their job and their group.
    let meta = match place {
        [outer @ .., meta, key] if meta == "meta" => Some((outer, key)),
        _ => None,
    };
    let same = |other: &BlockPath| {
        let below = other.starts_with(place) || place.starts_with(other);
        let inherited = meta.is_some_and(|(outer, key)| {
            other.starts_with(outer) && other.ends_with(&["meta".to_owned(), key.clone()])
        });
        below || inherited
    };
    !whole_group && forcing.iter().any(same)
}

fn diff_jobs(old: &Job, new: &Job) -> Vec<BlockChange> {
    let (old, new) = (nomad_json(old), nomad_json(new));
    let mut found = DiffWalk { at: Vec::new(), all: Vec::new() };
    if let (Some(old), Some(new)) = (old.as_object(), new.as_object()) {
        found.diff_block(JobKeys::SCHEMA, old, new);
    }
    found.all
}

/// The state of the comparison: the present place, and the differences that were found.
struct DiffWalk {
    at: BlockPath,
    all: Vec<BlockChange>,
}

impl DiffWalk {
    fn push_change(&mut self, said: ValueChange) {
        self.all.push(BlockChange { place: self.at.clone(), said });
    }

    /// Compare one level further in.
    fn descend(&mut self, name: impl Into<String>, look: impl FnOnce(&mut Self)) {
        self.at.push(name.into());
        look(self);
        self.at.pop();
    }

    fn diff_block(
        &mut self,
        schema: &BlockSchema,
        old: &Map<String, Value>,
        new: &Map<String, Value>,
    ) {
        let fields = schema.fields.iter();
        for field in fields.filter(|field| is_user_key(field) && !is_second(schema, field)) {
            let [old, new] = [old, new].map(|block| value_at(schema, field, block));
            if old != new {
                self.diff_field(field, &old, &new);
            }
        }
    }

    fn diff_field(&mut self, field: &Field, old: &Value, new: &Value) {
        let name = if field.hcl.is_empty() { field.json } else { field.hcl };
        match field.shape {
            FieldShape::Block { schema, form: BlockForm::One } => {
                self.descend(name, |found| {
                    found.diff_one(schema, old.as_object(), new.as_object())
                });
            }
            FieldShape::Block { schema, form: BlockForm::List } => {
                self.diff_list(name, schema, old, new)
            }
            FieldShape::Block { schema, form: BlockForm::ByName } => {
                self.diff_named(name, schema, old, new)
            }
            FieldShape::Duration => {
                self.descend(name, |found| found.push_change(values::diff_durations(old, new)));
            }
            _ => self.descend(name, |found| found.diff_value(old, new)),
        }
    }

    /// Compare a block that may be there once.
    fn diff_one(
        &mut self,
        schema: &BlockSchema,
        old: Option<&Map<String, Value>>,
        new: Option<&Map<String, Value>>,
    ) {
        match (old, new) {
            (Some(old), Some(new)) => self.diff_block(schema, old, new),
            (None, Some(new)) => self.push_change(ValueChange::Added(describe_block(schema, new))),
            (Some(old), None) => {
                self.push_change(ValueChange::Removed(describe_block(schema, old)))
            }
            (None, None) => {}
        }
    }

    /// Compare blocks of which there may be several.
    fn diff_list(&mut self, name: &str, schema: &BlockSchema, old: &Value, new: &Value) {
        let [old, new] = [old, new].map(|list| TitledBlocks::new(name, schema, list));
        let was = new.match_blocks(&old);
        let olds: Vec<_> = old.iter().collect();
        for ((block, ..), was) in new.iter().zip(&was) {
            let before = was.and_then(|was| olds.get(was)).filter(|(before, ..)| *before != block);
            if let Some((before, title, _)) = before {
                self.descend(*title, |found| found.diff_block(schema, before, block));
            }
        }
        let kept: BTreeSet<usize> = was.iter().flatten().copied().collect();
        for (index, (block, _, short)) in olds.iter().enumerate() {
            if !kept.contains(&index) {
                self.descend(*short, |found| {
                    found.push_change(ValueChange::Removed(describe_block(schema, block)))
                });
            }
        }
        for ((block, _, short), was) in new.iter().zip(&was) {
            if was.is_none() {
                self.descend(short, |found| {
                    found.push_change(ValueChange::Added(describe_block(schema, block)))
                });
            }
        }
    }

    /// Compare blocks that each have a name of their own.
    fn diff_named(&mut self, name: &str, schema: &BlockSchema, old: &Value, new: &Value) {
        let of = |value: &'_ Value| value.as_object().cloned().unwrap_or_default();
        let (old, new) = (of(old), of(new));
        for label in old.keys().chain(new.keys()).collect::<BTreeSet<_>>() {
            let [old, new] = [&old, &new].map(|all| all.get(label).and_then(Value::as_object));
            let title = format!("{name} {}", values::quote_json(label));
            self.descend(title, |found| found.diff_one(schema, old, new));
        }
    }

    /// Compare two values of any form.
    fn diff_value(&mut self, old: &Value, new: &Value) {
        match (old, new) {
            _ if old == new => {}
            (Value::Object(old), Value::Object(new)) => self.diff_members(old, new),
            // A missing object is compared like an empty one.
            (Value::Object(old), Value::Null) => self.diff_members(old, &Map::new()),
            (Value::Null, Value::Object(new)) => self.diff_members(&Map::new(), new),
            (Value::Array(old), Value::Array(new))
                if old.len() == new.len() && old.iter().chain(new).any(Value::is_object) =>
            {
                for (index, (old, new)) in old.iter().zip(new).enumerate() {
                    self.descend(format!("[{index}]"), |found| found.diff_value(old, new));
                }
            }
            _ => self.push_change(diff_values(old, new)),
        }
    }

    fn diff_members(&mut self, old: &Map<String, Value>, new: &Map<String, Value>) {
        let nothing = Value::Null;
        for key in old.keys().chain(new.keys()).collect::<BTreeSet<_>>() {
            let [old, new] = [old, new].map(|all| all.get(key).unwrap_or(&nothing));
            self.descend(key.as_str(), |found| found.diff_value(old, new));
        }
    }
}

/// Whether a key is one that users write.
fn is_user_key(field: &Field) -> bool {
    let served = matches!(field.shape, FieldShape::Served);
    !field.json.is_empty() && !served && !matches!(field.bounds, FieldBounds::Unwritten)
}

#[cfg(test)]
mod tests;
