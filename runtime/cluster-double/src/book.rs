//! What the servers know, and how they answer. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use ostler_cluster::msgpack::{Value, ValueReader};
use ostler_cluster::rpc::{field, map, text};

/// What a server (v1.0.18) answered to `Alloc.GetAllocs`.
const RECORDED: &[u8] = include_bytes!("../../cluster/fixtures/get-allocs.bin");

/// A node that has registered.
#[derive(Clone, Debug, Default)]
pub struct BookNode {
    /// As it described itself, each time.
    pub registered: Vec<Value>,
    /// Heartbeats.
    pub beats: u32,
}

/// An allocation.
#[derive(Clone, Debug)]
pub struct BookAlloc {
    /// Of which node; none: of each that asks.
    pub node: Option<String>,
    /// Index of the last change that the servers made.
    pub index: u64,
    /// As `Alloc.GetAllocs` describes it.
    pub described: Value,
}

/// What the servers know.
#[derive(Clone, Debug)]
pub struct Book {
    /// Of the last change.
    pub index: u64,
    /// Within which nodes are to beat.
    pub ttl: Duration,
    /// By their ids.
    pub nodes: BTreeMap<String, BookNode>,
    /// By their ids.
    pub allocs: BTreeMap<String, BookAlloc>,
    /// What a node told last of each, by its id.
    pub told: BTreeMap<String, Value>,
    /// So many answers lack the allocations that were asked for.
    pub lacks: u32,
    /// No call is answered.
    pub silent: bool,
    /// What nodes said that happened to them.
    pub events: Vec<Value>,
}

impl Default for Book {
    fn default() -> Self {
        Self {
            index: 0,
            ttl: Duration::from_millis(500),
            nodes: BTreeMap::new(),
            allocs: BTreeMap::new(),
            told: BTreeMap::new(),
            lacks: 0,
            silent: false,
            events: Vec::new(),
        }
    }
}

/// The allocation of a recorded answer of a server: a service of one native task.
#[must_use]
pub fn recorded() -> BTreeMap<String, Value> {
    let mut reader = ValueReader::new(RECORDED.len());
    reader.extend(RECORDED);
    let answer = reader.take_next().ok().flatten().unwrap_or(Value::Nil);
    let first = field(&answer, "Allocs").and_then(Value::as_array).and_then(|all| all.first());
    let fields = first.and_then(Value::as_map).into_iter().flatten();
    fields.filter_map(|(key, value)| Some((text(key)?.to_owned(), value.clone()))).collect()
}

impl Book {
    /// Place an allocation, or change one: the recorded one with these fields. Its id.
    pub fn put(&mut self, node: Option<&str>, fields: &[(&str, Value)]) -> String {
        self.index = self.index.saturating_add(1);
        let mut all = recorded();
        all.insert("AllocModifyIndex".to_owned(), self.index.into());
        for (key, value) in fields {
            all.insert((*key).to_owned(), value.clone());
        }
        let id = all.get("ID").and_then(text).unwrap_or_default().to_owned();
        let described = map(all.iter().map(|(key, value)| (key.as_str(), value.clone())));
        let (node, index) = (node.map(str::to_owned), self.index);
        self.allocs.insert(id.clone(), BookAlloc { node, index, described });
        id
    }

    /// The servers forget every allocation.
    pub fn forget_all(&mut self) {
        self.allocs.clear();
        self.index = self.index.saturating_add(1);
    }

    /// The status that a node told last of an allocation; empty: none.
    #[must_use]
    pub fn told_status(&self, id: &str) -> &str {
        let told = self.told.get(id).and_then(|told| field(told, "ClientStatus"));
        told.and_then(text).unwrap_or_default()
    }

    /// The answer to a call, or why it is refused. `None`: the question waits until something has changed;
    /// not where it has `waited` for as long as it may.
    pub fn answer(
        &mut self,
        method: &str,
        body: &Value,
        waited: bool,
    ) -> Option<Result<Value, String>> {
        if self.silent {
            return None;
        }
        let given = |name| field(body, name).and_then(text).unwrap_or_default().to_owned();
        Some(match method {
            "Status.Ping" => Ok(map([])),
            "Status.Leader" => Ok("127.0.0.1:4647".into()),
            "Node.Register" => {
                let node = field(body, "Node").cloned().unwrap_or(Value::Nil);
                let id = field(&node, "ID").and_then(text).unwrap_or_default().to_owned();
                self.nodes.entry(id).or_default().registered.push(node);
                Ok(self.beat())
            }
            "Node.UpdateStatus" => match self.nodes.get_mut(&given("NodeID")) {
                None => Err("node not found".to_owned()),
                Some(node) => {
                    node.beats = node.beats.saturating_add(1);
                    Ok(self.beat())
                }
            },
            "Node.GetClientAllocs" => {
                let after = field(body, "MinQueryIndex").and_then(Value::as_u64).unwrap_or(0);
                if after > 0 && after >= self.index && !waited {
                    return None;
                }
                let node = given("NodeID");
                let of_node = self
                    .allocs
                    .iter()
                    .filter(|(_, alloc)| alloc.node.as_ref().is_none_or(|of| *of == node));
                let listed = of_node.map(|(id, alloc)| (id.as_str(), alloc.index.into()));
                Ok(map([("Index", self.index.into()), ("Allocs", map(listed))]))
            }
            "Alloc.GetAllocs" => Ok(self.described(body)),
            "Node.UpdateAlloc" => {
                for alloc in items(body, "Alloc") {
                    let id = field(alloc, "ID").and_then(text).unwrap_or_default();
                    self.told.insert(id.to_owned(), alloc.clone());
                }
                Ok(map([("Index", self.index.into())]))
            }
            "Node.EmitEvents" => {
                let of_nodes = field(body, "NodeEvents").and_then(Value::as_map);
                let events = of_nodes.into_iter().flatten().filter_map(|(_, of)| of.as_array());
                self.events.extend(events.flatten().cloned());
                Ok(map([("Index", self.index.into())]))
            }
            _ => Err(format!("rpc: can't find method {method}")),
        })
    }

    fn beat(&self) -> Value {
        let ttl = u64::try_from(self.ttl.as_nanos()).unwrap_or(u64::MAX);
        map([("HeartbeatTTL", ttl.into()), ("NumNodes", self.nodes.len().into())])
    }

    fn described(&mut self, body: &Value) -> Value {
        if self.lacks > 0 {
            self.lacks = self.lacks.saturating_sub(1);
            return map([("Index", self.index.into()), ("Allocs", Value::Nil)]);
        }
        let found = items(body, "AllocIDs").filter_map(|id| self.allocs.get(text(id)?));
        let found = found.map(|alloc| alloc.described.clone()).collect();
        map([("Index", self.index.into()), ("Allocs", Value::Array(found))])
    }
}

fn items<'a>(body: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    field(body, name).and_then(Value::as_array).into_iter().flatten()
}
