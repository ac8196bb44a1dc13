//! Blocks of a list: matches those of the old version with those of the new one, and gives each a title and a
//! summary.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde_json::{Map, Value};

use super::{is_user_key, values};
use crate::keys::{BlockForm, BlockSchema, Field, FieldBounds, FieldShape};

/// The JSON members that can name a block of a list that has no label.
const NAMES: [&str; 6] = ["Name", "Label", "DestPath", "GetterSource", "Destination", "Volume"];
/// The JSON members that say what a block without a name is about.
const SUBJECTS: [&str; 2] = ["LTarget", "Attribute"];

pub(super) type Block = Map<String, Value>;

/// The blocks of one list, in the old or the new version.
pub(super) struct TitledBlocks<'a> {
    schema: &'a BlockSchema,
    all: Vec<Block>,
    /// The titles of blocks that are still there: with the name, or with what the block is about.
    titles: Vec<String>,
    /// The titles of blocks that were added or removed. The text of [`describe_block`] follows them.
    short: Vec<String>,
}

impl<'a> TitledBlocks<'a> {
    pub(super) fn new(name: &str, schema: &'a BlockSchema, list: &Value) -> Self {
        let items = list.as_array().into_iter().flatten();
        let all: Vec<Block> = items.filter_map(Value::as_object).cloned().collect();
        let said = |block: &Block| {
            let said = block_name(schema, block).or_else(|| subject(block));
            said.map_or(name.to_owned(), |said| format!("{name} {}", values::quote_json(said)))
        };
        let titles: Vec<String> = all.iter().map(said).collect();
        let short = all.iter().zip(&titles).map(|(block, title)| match block_name(schema, block) {
            Some(_) => title.clone(),
            None => name.to_owned(),
        });
        let whole: Vec<String> = all.iter().map(|block| describe_block(schema, block)).collect();
        let short: Vec<String> = short.collect();
        let both: Vec<(&String, &String)> = short.iter().zip(&whole).collect();
        let short = number_titles(&short, &both);
        Self { schema, titles: number_titles(&titles, &titles), short, all }
    }

    /// Each block with its title and its short title.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Block, &str, &str)> {
        let titles = self.titles.iter().zip(&self.short);
        self.all.iter().zip(titles).map(|(block, (title, short))| (block, &**title, &**short))
    }

    /// For each block, the index of the block in `old` that it was: one that is equal, or else one of the same name,
    /// or else one about the same subject, or else the next one that has no subject. No index is used twice.
    pub(super) fn match_blocks(&self, old: &Self) -> Vec<Option<usize>> {
        let mut found = vec![None; self.all.len()];
        let mut taken = BTreeSet::new();
        let whole = |block: &Block| Some(Value::Object(block.clone()).to_string());
        let name = |block: &Block| block_name(self.schema, block).map(str::to_owned);
        let about = |block: &Block| match block_name(self.schema, block) {
            Some(_) => None,
            None => Some(subject(block).unwrap_or_default().to_owned()),
        };
        let keys: [&KeyOf<'_>; 3] = [&whole, &name, &about];
        for key in keys {
            let mut left: BTreeMap<String, VecDeque<usize>> = BTreeMap::new();
            for (index, block) in old.all.iter().enumerate() {
                if let (false, Some(key)) = (taken.contains(&index), key(block)) {
                    left.entry(key).or_default().push_back(index);
                }
            }
            for (block, found) in self.all.iter().zip(&mut found).filter(|(_, f)| f.is_none()) {
                let of_key = key(block).and_then(|key| left.get_mut(&key));
                *found = of_key.and_then(VecDeque::pop_front);
                taken.extend(*found);
            }
        }
        found
    }
}

/// A function that gives the key by which a block is matched; `None` where the block has no such key.
type KeyOf<'a> = dyn Fn(&Block) -> Option<String> + 'a;

/// The titles, with numbers where several are alike.
fn number_titles<K: Ord>(titles: &[String], alike: &[K]) -> Vec<String> {
    let mut all: BTreeMap<&K, usize> = BTreeMap::new();
    for key in alike {
        *all.entry(key).or_default() += 1;
    }
    let mut seen: BTreeMap<&K, usize> = BTreeMap::new();
    let one = |(title, key)| {
        let number = seen.entry(key).or_default();
        *number += 1;
        match all.get(key) {
            Some(2..) => format!("{title} #{number}"),
            _ => String::clone(title),
        }
    };
    titles.iter().zip(alike).map(one).collect()
}

/// The value at a key. Blocks that stand in two lists in JSON and in one in HCL, such as ports, are put together.
pub(super) fn value_at(schema: &BlockSchema, field: &Field, block: &Block) -> Value {
    let value = block.get(field.json).cloned().unwrap_or_default();
    if matches!(field.bounds, FieldBounds::NotZero(..)) && value == 0 {
        return Value::Null;
    }
    let others = schema.fields.iter().filter(|other| is_rest_of(other, field));
    let others: Vec<&Value> = others.filter_map(|other| block.get(other.json)).collect();
    if others.is_empty() {
        return value;
    }
    let lists = std::iter::once(&value).chain(others).filter_map(Value::as_array);
    Value::Array(lists.flatten().cloned().collect())
}

/// Whether the blocks of a key are described together with those of another key.
pub(super) fn is_second(schema: &BlockSchema, field: &Field) -> bool {
    schema.fields.iter().any(|first| is_rest_of(field, first))
}

fn is_rest_of(other: &Field, first: &Field) -> bool {
    let of = |field: &Field| match field.shape {
        FieldShape::Block { schema, form: BlockForm::List } => Some(schema.what),
        _ => None,
    };
    other.hcl.is_empty() && !first.hcl.is_empty() && of(first).is_some() && of(other) == of(first)
}

/// The name of a block of a list.
fn block_name<'a>(schema: &BlockSchema, block: &'a Block) -> Option<&'a str> {
    let members = schema.label.into_iter().chain(NAMES);
    let mut texts = members.filter_map(|member| block.get(member).and_then(Value::as_str));
    texts.find(|text| !text.is_empty())
}

/// What a block without a name is about.
fn subject(block: &Block) -> Option<&str> {
    let mut texts = SUBJECTS.iter().filter_map(|member| block.get(*member).and_then(Value::as_str));
    texts.find(|text| !text.is_empty())
}

/// The content of a block that was added or removed. It is empty for a block with a name, which says enough.
pub(super) fn describe_block(schema: &BlockSchema, block: &Block) -> String {
    if block_name(schema, block).is_some() { String::new() } else { content(schema, block) }
}

/// The whole content of a block, in one line.
fn content(schema: &BlockSchema, block: &Block) -> String {
    let is_written = |field: &&Field| {
        let supported = !matches!(field.shape, FieldShape::Unsupported { .. });
        is_user_key(field) && supported && !field.hcl.is_empty()
    };
    let said = schema
        .fields
        .iter()
        .filter(is_written)
        .flat_map(|field| member(field, &value_at(schema, field, block)));
    said.collect::<Vec<_>>().join(", ")
}

/// The parts of the content for one key: none, a value, or the blocks.
fn member(field: &Field, value: &Value) -> Vec<String> {
    let name = field.hcl;
    let whole = |schema: &BlockSchema, label: Option<&str>, block: &Block| {
        let label =
            label.map(|label| format!(" {}", values::quote_json(label))).unwrap_or_default();
        match content(schema, block) {
            inner if inner.is_empty() => format!("{name}{label} {{}}"),
            inner => format!("{name}{label} {{ {inner} }}"),
        }
    };
    match (field.shape, value) {
        (_, Value::Null) => Vec::new(),
        (FieldShape::Block { schema, form: BlockForm::ByName }, Value::Object(blocks)) => {
            let blocks = blocks.iter().filter_map(|(label, one)| Some((label, one.as_object()?)));
            blocks.map(|(label, one)| whole(schema, Some(label), one)).collect()
        }
        (FieldShape::Block { schema, .. }, Value::Object(block)) => {
            vec![whole(schema, None, block)]
        }
        (FieldShape::Block { schema, .. }, Value::Array(blocks)) => {
            let label = |block: &'_ Block| {
                let label = schema.label.and_then(|label| block.get(label));
                label.and_then(Value::as_str).map(str::to_owned)
            };
            let blocks = blocks.iter().filter_map(Value::as_object);
            blocks.map(|block| whole(schema, label(block).as_deref(), block)).collect()
        }
        (FieldShape::Duration, Value::Number(nanos)) => {
            let time = nanos.as_u64().map(|nanos| format!("{name} = {}", values::duration(nanos)));
            time.into_iter().collect()
        }
        (_, Value::String(text)) if text.is_empty() => Vec::new(),
        (_, Value::Array(items)) if items.is_empty() => Vec::new(),
        (_, Value::Object(members)) if members.is_empty() => Vec::new(),
        (_, value) => vec![format!("{name} = {value}")],
    }
}
