//! What the servers know, and how they answer. Pure: the caller passes the time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ostler_cluster::msgpack::{self, Value, ValueReader};
use ostler_cluster::rpc::{field, map, text};
use ostler_model::limits::CLUSTER_ANSWER_BYTES_MAX;
use ostler_model::time::Timestamp;

use super::beats::BeatRule;
use super::traffic::Volume;

/// A recorded answer of a server (v1.0.18) to `Alloc.GetAllocs`.
const RECORDED: &[u8] = include_bytes!("../../../../faces/cluster/fixtures/get-allocs.bin");
/// The number of descriptions of a node that are kept.
const REGISTRATIONS_KEPT: usize = 4;

/// The fields of an allocation or a job.
pub type Fields = BTreeMap<String, Value>;

/// A node that has registered.
#[derive(Clone, Debug, Default)]
pub struct BookNode {
    registered: Vec<Vec<u8>>,
    /// How often the node has registered.
    pub registrations: u32,
    /// The number of heartbeats of the node.
    pub beats: u32,
    /// The time of its last registration or heartbeat.
    pub heard: Option<Timestamp>,
    /// The longest time between two of these.
    pub silence: Duration,
    /// The longest time by which it was late.
    pub late: Duration,
    within: Duration,
    /// The index of the last change that concerns the node.
    index: u64,
    allocs: BTreeSet<String>,
}

impl BookNode {
    /// The description of the node in one of its first registrations.
    #[must_use]
    pub fn registration(&self, at: usize) -> Option<Value> {
        self.registered.get(at).and_then(|bytes| read(bytes))
    }

    fn hear(&mut self, now: Timestamp, within: Duration) {
        let silence = self.heard.map(|heard| since(heard, now)).unwrap_or_default();
        self.silence = self.silence.max(silence);
        if self.heard.is_some() {
            self.late = self.late.max(silence.saturating_sub(self.within));
        }
        (self.heard, self.within) = (Some(now), within);
    }
}

/// An allocation that the servers know.
#[derive(Clone, Debug)]
pub struct BookAlloc {
    /// The id of its node; none for each node that asks.
    pub node: Option<String>,
    /// The index of the last change that the servers made.
    pub index: u64,
    /// The fields that many allocations have in common.
    pub common: Arc<Fields>,
    /// The fields that differ from those.
    pub own: Fields,
}

impl BookAlloc {
    /// A field of the allocation.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&Value> {
        self.own.get(name).or_else(|| self.common.get(name))
    }

    /// The description of the allocation in an answer to `Alloc.GetAllocs`.
    #[must_use]
    pub fn description(&self) -> Value {
        const INDEX: &str = "AllocModifyIndex";
        let common = self.common.iter().filter(|(name, _)| !self.own.contains_key(*name));
        let all = common.chain(&self.own).filter(|(name, _)| *name != INDEX);
        let all = all.map(|(name, value)| (name.as_str(), value.clone()));
        map(all.chain([(INDEX, self.index.into())]))
    }
}

/// What the servers know.
#[derive(Clone, Debug)]
pub struct ServerBook {
    /// The index of the last change that they know.
    pub index: u64,
    /// The index of the last change ever, so that a change after a lost one has a higher index.
    last: u64,
    /// The rule for heartbeats of nodes.
    pub beats: BeatRule,
    /// The addresses of servers that nodes get; if there are none, nodes keep those that they know.
    pub servers: Vec<String>,
    /// The nodes, by id.
    pub nodes: BTreeMap<String, BookNode>,
    allocs: BTreeMap<String, BookAlloc>,
    /// The last report about each allocation, by its id, as it came.
    told: BTreeMap<String, Vec<u8>>,
    /// How often a node repeated a report.
    pub told_again: u64,
    /// The number of all reports about allocations.
    pub tellings: u64,
    /// The ids of ended allocations that were reported as not ended.
    pub revived: Vec<String>,
    /// The number of answers to come that lack the requested allocations.
    pub lacks: u32,
    /// The number of calls, by method.
    pub asked: BTreeMap<String, u64>,
    /// The bytes of calls and their answers, by method.
    pub volumes: BTreeMap<String, Volume>,
    /// The number of calls in each second.
    pub busy: BTreeMap<u64, u64>,
    /// The nodes whose open questions have an answer now.
    touched: BTreeSet<String>,
    /// Whether no call is answered.
    pub silent: bool,
    /// The events that nodes have reported.
    pub events: Vec<Value>,
}

impl Default for ServerBook {
    fn default() -> Self {
        Self {
            index: 1,
            last: 1,
            beats: BeatRule::Fixed(Duration::from_millis(500)),
            servers: Vec::new(),
            nodes: BTreeMap::new(),
            allocs: BTreeMap::new(),
            told: BTreeMap::new(),
            told_again: 0,
            tellings: 0,
            revived: Vec::new(),
            lacks: 0,
            asked: BTreeMap::new(),
            volumes: BTreeMap::new(),
            busy: BTreeMap::new(),
            touched: BTreeSet::new(),
            silent: false,
            events: Vec::new(),
        }
    }
}

fn since(before: Timestamp, now: Timestamp) -> Duration {
    Duration::from_nanos(now.nanos().saturating_sub(before.nanos()))
}

fn read(bytes: &[u8]) -> Option<Value> {
    let mut reader = ValueReader::new(CLUSTER_ANSWER_BYTES_MAX);
    reader.extend(bytes);
    reader.take_next().ok().flatten()
}

fn to_bytes(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    msgpack::write(&mut bytes, value);
    bytes
}

fn status_of(told: &Value) -> &str {
    field(told, "ClientStatus").and_then(text).unwrap_or_default()
}

/// Whether an allocation with this client status has ended.
#[must_use]
pub fn is_over(status: &str) -> bool {
    ["complete", "failed", "lost"].contains(&status)
}

/// The allocation of a recorded answer of a server: a service of one native task.
#[must_use]
pub fn recorded_alloc() -> Fields {
    let answer = read(RECORDED).unwrap_or(Value::Nil);
    let first = field(&answer, "Allocs").and_then(Value::as_array).and_then(|all| all.first());
    let fields = first.and_then(Value::as_map).into_iter().flatten();
    fields.filter_map(|(key, value)| Some((text(key)?.to_owned(), value.clone()))).collect()
}

impl ServerBook {
    /// Place or change an allocation, which is the recorded one with these fields. Returns its id.
    pub fn put(&mut self, node: Option<&str>, fields: &[(&str, Value)]) -> String {
        let own = fields.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
        self.place(node, Arc::new(recorded_alloc()), own)
    }

    /// Place or change an allocation. Returns its id.
    pub fn place(&mut self, node: Option<&str>, common: Arc<Fields>, own: Fields) -> String {
        let (node, index) = (node.map(str::to_owned), self.next_index());
        let alloc = BookAlloc { node: node.clone(), index, common, own };
        let id = alloc.field("ID").and_then(text).unwrap_or_default().to_owned();
        self.allocs.insert(id.clone(), alloc);
        if let Some(node) = &node {
            self.nodes.entry(node.clone()).or_default().allocs.insert(id.clone());
        }
        self.touch(node);
        id
    }

    /// Change an allocation. Returns `false` if there is none.
    pub fn change(&mut self, id: &str, fields: &[(&str, Value)]) -> bool {
        let index = self.next_index();
        let Some(alloc) = self.allocs.get_mut(id) else { return false };
        let own = fields.iter().map(|(key, value)| ((*key).to_owned(), value.clone()));
        alloc.own.extend(own);
        alloc.index = index;
        let node = alloc.node.clone();
        self.touch(node);
        true
    }

    /// Make the servers forget an allocation.
    pub fn forget(&mut self, id: &str) {
        self.next_index();
        let Some(alloc) = self.allocs.remove(id) else { return };
        if let Some(node) = alloc.node.as_ref().and_then(|node| self.nodes.get_mut(node)) {
            node.allocs.remove(id);
        }
        self.touch(alloc.node);
    }

    /// Make the servers forget every allocation.
    pub fn forget_all(&mut self) {
        let all: Vec<_> = self.allocs.keys().cloned().collect();
        all.iter().for_each(|id| self.forget(id));
    }

    /// Make the servers forget a node.
    pub fn forget_node(&mut self, id: &str) {
        self.next_index();
        if let Some(node) = self.nodes.get_mut(id) {
            node.registrations = 0;
        }
        self.touch(Some(id.to_owned()));
    }

    /// Set the servers back to an older book, except for what nodes have reported. Later changes
    /// have higher indices than anything before.
    pub fn set_back(&mut self, older: &Self) {
        self.last = self.last.max(self.index);
        self.index = older.index;
        self.allocs = older.allocs.clone();
        for (id, node) in &mut self.nodes {
            let before = older.nodes.get(id).cloned().unwrap_or_default();
            (node.index, node.allocs) = (before.index, before.allocs);
        }
        for (id, alloc) in &mut self.allocs {
            if let Some(told) = self.told.get(id).and_then(|told| read(told)) {
                alloc.own.insert("ClientStatus".to_owned(), status_of(&told).into());
            }
        }
        self.touched.extend(self.nodes.keys().cloned());
    }

    /// Continue past this index, and notify each node.
    pub fn advance_past(&mut self, index: u64) {
        self.index = self.index.max(index);
        self.next_index();
        self.touch(None);
    }

    /// Every allocation, by id.
    #[must_use]
    pub const fn allocs(&self) -> &BTreeMap<String, BookAlloc> {
        &self.allocs
    }

    /// Forget all reports.
    pub fn forget_reports(&mut self) {
        self.told.clear();
    }

    /// The last report of a node about an allocation.
    #[must_use]
    pub fn last_report(&self, id: &str) -> Option<Value> {
        read(self.told.get(id)?)
    }

    /// The client status in the last report; empty if there is none.
    #[must_use]
    pub fn reported_status(&self, id: &str) -> String {
        self.last_report(id).as_ref().map(status_of).unwrap_or_default().to_owned()
    }

    /// Take the nodes whose open questions have got an answer since the last call.
    pub(crate) fn take_touched(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.touched)
    }

    fn next_index(&mut self) -> u64 {
        self.last = self.last.max(self.index).saturating_add(1);
        self.index = self.last;
        self.index
    }

    fn touch(&mut self, node: Option<String>) {
        let all = || self.nodes.keys().cloned().collect();
        let touched: Vec<String> = node.map_or_else(all, |node| vec![node]);
        for id in touched {
            self.nodes.entry(id.clone()).or_default().index = self.index;
            self.touched.insert(id);
        }
    }

    /// The answer to a call, or why it is refused. `None` if the question must wait for a change,
    /// unless it has `waited` for as long as it may.
    pub fn answer(
        &mut self,
        now: Timestamp,
        method: &str,
        body: &Value,
        waited: bool,
    ) -> Option<Result<Value, String>> {
        let given = |name| field(body, name).and_then(text).unwrap_or_default().to_owned();
        Some(match method {
            "Status.Ping" => Ok(map([])),
            // The cluster does not use access control.
            "ACL.ResolveToken" | "ACL.GetPolicies" => Err("ACL support disabled".to_owned()),
            "Status.Leader" => Ok("127.0.0.1:4647".into()),
            "Node.Register" => {
                let described = field(body, "Node").cloned().unwrap_or(Value::Nil);
                let id = field(&described, "ID").and_then(text).unwrap_or_default().to_owned();
                let index = self.next_index();
                let node = self.nodes.entry(id.clone()).or_default();
                node.registrations = node.registrations.saturating_add(1);
                node.index = node.index.max(index);
                if node.registered.len() < REGISTRATIONS_KEPT {
                    node.registered.push(to_bytes(&described));
                }
                Ok(self.hear_node(&id, now))
            }
            "Node.UpdateStatus" => match self.nodes.get_mut(&given("NodeID")) {
                Some(node) if node.registrations > 0 => {
                    node.beats = node.beats.saturating_add(1);
                    Ok(self.hear_node(&given("NodeID"), now))
                }
                _ => Err("node not found".to_owned()),
            },
            "Node.GetClientAllocs" => {
                let after = field(body, "MinQueryIndex").and_then(Value::as_u64).unwrap_or(0);
                return self.list_allocs(&given("NodeID"), after, waited).map(Ok);
            }
            "Alloc.GetAllocs" => Ok(self.describe_allocs(body)),
            "Node.UpdateAlloc" => {
                items(body, "Alloc").for_each(|alloc| self.tell(alloc));
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

    /// Count a call.
    pub(crate) fn count(&mut self, now: Timestamp, method: &str) {
        if let Some(count) = self.asked.get_mut(method) {
            *count = count.saturating_add(1);
        } else {
            self.asked.insert(method.to_owned(), 1);
        }
        let second = self.busy.entry(now.nanos() / 1_000_000_000).or_default();
        *second = second.saturating_add(1);
    }

    /// Count the bytes of an answered call and of its answer.
    pub(crate) fn weigh(&mut self, method: &str, came: usize, went: usize) {
        self.volumes.entry(method.to_owned()).or_default().count(came, went);
    }

    fn hear_node(&mut self, id: &str, now: Timestamp) -> Value {
        let known = self.nodes.values().filter(|node| node.registrations > 0).count();
        let within = self.beats.next_within(known);
        if let Some(node) = self.nodes.get_mut(id) {
            node.hear(now, within);
        }
        let ttl = u64::try_from(within.as_nanos()).unwrap_or(u64::MAX);
        let server = |at: &String| map([("RPCAdvertiseAddr", at.as_str().into())]);
        let servers = self.servers.iter().map(server).collect();
        map([
            ("HeartbeatTTL", ttl.into()),
            ("NumNodes", known.into()),
            ("Servers", Value::Array(servers)),
        ])
    }

    /// The list of all allocations of a node; none while there is no change after this index.
    fn list_allocs(&self, node: &str, after: u64, waited: bool) -> Option<Value> {
        let known = self.nodes.get(node);
        let index = known.map_or(self.index, |node| node.index.max(1));
        if after > 0 && after >= index && !waited {
            return None;
        }
        let mut listed: Vec<(&str, Value)> = Vec::new();
        let mine = known.into_iter().flat_map(|node| &node.allocs);
        let of_all = self.allocs.iter().filter(|(_, alloc)| alloc.node.is_none());
        let of_all = of_all.map(|(id, _)| id);
        for id in mine.chain(of_all) {
            listed.extend(self.allocs.get(id).map(|alloc| (id.as_str(), alloc.index.into())));
        }
        Some(map([("Index", index.into()), ("Allocs", map(listed))]))
    }

    fn describe_allocs(&mut self, body: &Value) -> Value {
        if self.lacks > 0 {
            self.lacks = self.lacks.saturating_sub(1);
            return map([("Index", self.index.into()), ("Allocs", Value::Nil)]);
        }
        let found = items(body, "AllocIDs").filter_map(|id| self.allocs.get(text(id)?));
        let found = found.map(BookAlloc::description).collect();
        map([("Index", self.index.into()), ("Allocs", Value::Array(found))])
    }

    /// Take the report about an allocation. It notifies the node, as servers do.
    fn tell(&mut self, alloc: &Value) {
        let (id, bytes) = (field(alloc, "ID").and_then(text).unwrap_or_default(), to_bytes(alloc));
        let before = self.told.get(id);
        let over = before.and_then(|told| read(told)).is_some_and(|told| is_over(status_of(&told)));
        // A report about a forgotten allocation changes nothing.
        if over && !is_over(status_of(alloc)) && self.allocs.contains_key(id) {
            self.revived.push(id.to_owned());
        }
        self.tellings = self.tellings.saturating_add(1);
        self.told_again = self.told_again.saturating_add(u64::from(before == Some(&bytes)));
        self.told.insert(id.to_owned(), bytes);
        self.next_index();
        let Some(known) = self.allocs.get_mut(id) else { return };
        known.own.insert("ClientStatus".to_owned(), status_of(alloc).into());
        let node = known.node.clone();
        self.touch(node);
    }
}

fn items<'a>(body: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    field(body, name).and_then(Value::as_array).into_iter().flatten()
}
