//! The servers of a simulated node: what they place, and how they answer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ostler_cluster::msgpack::{self, Value};
use ostler_cluster::rpc::{self, Header, field, map, text};
use ostler_model::alloc::Allocation;
use ostler_model::clock::Clock;
use ostler_model::rng::Rng;
use ostler_model::time::Timestamp;
use ostler_testing::servers::{
    BeatRule, BookAlloc, CallFault, Fields, ServerBook, ServerDouble, recorded_alloc,
};

use super::plan::{JoinedAct, Mood, SERVERS};
use crate::drivers::DRIVER;
use crate::world::World;

/// Within which the node is to beat.
pub(crate) const TTL: Duration = Duration::from_secs(15);
/// Allocations that the servers want at once, at most.
const WANTED_MAX: usize = 12;

/// What stands before the number of a copy in its description.
const COPY: &str = "copy ";

/// The number of a copy: grows with each that the servers make of an allocation.
pub(crate) fn copy_of(alloc: &Allocation) -> Option<u64> {
    alloc.desired_description.strip_prefix(COPY)?.parse().ok()
}

/// See the module. Clones are the same ones.
#[derive(Clone)]
pub(crate) struct Servers {
    pub(crate) double: ServerDouble,
    state: Arc<Mutex<State>>,
    rng: Rng,
    /// Of the one node.
    node: String,
}

struct State {
    mood: Mood,
    /// How often it became another one.
    moods: u64,
    /// What they knew once.
    older: Option<Arc<Mutex<ServerBook>>>,
    copies: u64,
    /// The highest index there was.
    highest: u64,
    /// The one that has the port.
    with_port: Option<String>,
}

impl Servers {
    pub(crate) fn new(seed: u64, node: String, world: &World) -> Self {
        let state = Arc::new(Mutex::new(State {
            mood: Mood::Works,
            moods: 0,
            older: None,
            copies: 0,
            highest: 0,
            with_port: None,
        }));
        let rng = Rng::from_seed(seed ^ 0x5e12_7e25);
        let (time, asked, drawn) = (world.clone(), Arc::clone(&state), rng.clone());
        let clock = Clock::from_fn(move || {
            Timestamp::from_nanos(u64::try_from(time.time().as_nanos()).unwrap_or(u64::MAX))
        });
        let troubles = move |header: &Header, body: &Value| {
            trouble(&asked.lock().unwrap_or_else(PoisonError::into_inner), &drawn, header, body)
        };
        let double = ServerDouble::new(clock, Box::new(troubles));
        double.book().beats = BeatRule::Fixed(TTL);
        Self { double, state, rng, node }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often it became another way how they answer.
    pub(crate) fn moods(&self) -> u64 {
        self.state().moods
    }

    /// Do they answer as they should?
    pub(crate) fn works(&self) -> bool {
        self.state().mood == Mood::Works
    }

    /// They answer as they should, and are past everything there was.
    pub(crate) fn mend(&self) {
        let mut state = self.state();
        state.mood = Mood::Works;
        let mut book = self.double.book();
        book.lacks = 0;
        book.advance_past(state.highest);
    }

    /// They do something.
    pub(crate) fn act(&self, act: JoinedAct) {
        let index = self.double.book().index;
        {
            let mut state = self.state();
            state.highest = state.highest.max(index);
        }
        match act {
            JoinedAct::Place(count) => (0..count).for_each(|_| self.place(None)),
            JoinedAct::Replace => {
                let before = self.state().with_port.clone();
                if let Some(before) = &before {
                    self.stop(before);
                }
                self.place(Some(before));
            }
            JoinedAct::Stop(pick) => {
                if let Some(id) = self.pick(pick, |alloc| !is_stopped(alloc)) {
                    self.stop(&id);
                }
            }
            JoinedAct::Change(pick) => {
                if let Some(id) = self.pick(pick, |_| true) {
                    let copy = self.next_copy();
                    self.double.book().change(&id, &[copy]);
                }
            }
            JoinedAct::Forget(pick) => {
                if let Some(id) = self.pick(pick, |_| true) {
                    self.double.book().forget(&id);
                }
            }
            JoinedAct::Collect => {
                let over = |alloc: &BookAlloc| is_over(alloc);
                let ids: Vec<_> = self.ids(over);
                ids.iter().for_each(|id| self.double.book().forget(id));
            }
            JoinedAct::ForgetNode => {
                let ids: Vec<_> = self.ids(|alloc| !is_stopped(alloc));
                ids.iter().for_each(|id| self.stop(id));
                self.double.book().forget_node(&self.node);
            }
            JoinedAct::Remember => {
                let older = Arc::new(Mutex::new(ServerBook::clone(&self.double.book())));
                self.state().older = Some(older);
            }
            JoinedAct::SetBack => {
                if let Some(older) = self.state().older.clone() {
                    let older = older.lock().unwrap_or_else(PoisonError::into_inner);
                    self.double.book().set_back(&older);
                }
            }
            JoinedAct::Mood(mood) => {
                let mut state = self.state();
                (state.mood, state.moods) = (mood, state.moods.saturating_add(1));
                drop(state);
                self.double.book().lacks = if mood == Mood::Lacks { 3 } else { 0 };
            }
            JoinedAct::Name(bits) => {
                let named = SERVERS.iter().enumerate().filter(|(at, _)| bits & (1 << at) != 0);
                let named = named.map(|(_, name)| format!("{name}:4647")).collect();
                self.double.book().servers = named;
            }
            _ => {}
        }
    }

    fn next_copy(&self) -> (&'static str, Value) {
        let mut state = self.state();
        state.copies = state.copies.saturating_add(1);
        ("DesiredDescription", format!("{COPY}{}", state.copies).into())
    }

    /// Place one; `replaces`: it needs the port, and has the place of this one.
    fn place(&self, replaces: Option<Option<String>>) {
        if self.ids(|alloc| !is_stopped(alloc) && !is_over(alloc)).len() >= WANTED_MAX {
            return;
        }
        let id = self.rng.uuid().to_string();
        let name = pick_job(&self.rng);
        let common = Arc::new(common(name, replaces.is_some()));
        let previous = replaces.clone().flatten().unwrap_or_default();
        let own = [
            ("ID", id.as_str().into()),
            ("DesiredStatus", "run".into()),
            ("ClientStatus", "pending".into()),
            ("PreviousAllocation", previous.as_str().into()),
            self.next_copy(),
        ];
        let own = own.map(|(name, value)| (name.to_owned(), value)).into();
        if replaces.is_some() {
            self.state().with_port = Some(id);
        }
        self.double.book().place(Some(&self.node), common, own);
    }

    pub(crate) fn stop(&self, id: &str) {
        let fields = [("DesiredStatus", "stop".into()), self.next_copy()];
        self.double.book().change(id, &fields);
    }

    fn ids(&self, which: impl Fn(&BookAlloc) -> bool) -> Vec<String> {
        let book = self.double.book();
        let of = book.allocs().iter().filter(|(_, alloc)| which(alloc));
        of.map(|(id, _)| id.clone()).collect()
    }

    fn pick(&self, pick: u64, which: impl Fn(&BookAlloc) -> bool) -> Option<String> {
        let mut ids = self.ids(which);
        let count = u64::try_from(ids.len()).ok().filter(|count| *count > 0)?;
        Some(ids.swap_remove(usize::try_from(pick % count).ok()?))
    }
}

/// Do the servers want it to stop?
pub(crate) fn is_stopped(alloc: &BookAlloc) -> bool {
    alloc.field("DesiredStatus").and_then(text) == Some("stop")
}

/// Do they know that it is over?
pub(crate) fn is_over(alloc: &BookAlloc) -> bool {
    alloc.field("ClientStatus").and_then(text).is_some_and(ostler_testing::servers::is_over)
}

fn pick_job(rng: &Rng) -> &'static str {
    crate::plan::pick(rng, &crate::plan::JOBS).unwrap_or("web")
}

/// A map with another value of a field.
fn with(of: &Value, name: &str, new: Value) -> Value {
    let fields = of.as_map().into_iter().flatten();
    let fields = fields.filter_map(|(key, value)| Some((text(key)?, value)));
    let kept = fields.filter(|(key, _)| *key != name).map(|(key, value)| (key, value.clone()));
    map(kept.collect::<Vec<_>>().into_iter().chain([(name, new)]))
}

/// The first value of a list in a map, changed.
fn with_first(of: &Value, name: &str, change: impl FnOnce(&Value) -> Value) -> Value {
    let mut list = field(of, name).and_then(Value::as_array).cloned().unwrap_or_default();
    if let Some(first) = list.first_mut() {
        *first = change(first);
    }
    with(of, name, Value::Array(list))
}

/// What the allocations of a job have in common: one task of the simulated driver.
pub(crate) fn common(job: &str, port: bool) -> Fields {
    let mut fields: BTreeMap<_, _> = recorded_alloc();
    let of_job = |of: &Value| {
        let of = with(&with(of, "ID", job.into()), "Name", job.into());
        with_first(&of, "TaskGroups", |group| {
            let group = with_first(group, "Tasks", |task| {
                with(&with(task, "Driver", DRIVER.into()), "Config", Value::Map(Vec::new()))
            });
            if port { group } else { with(&group, "Networks", Value::Nil) }
        })
    };
    if let Some(of) = fields.get_mut("Job") {
        *of = of_job(of);
    }
    if !port {
        let shared = fields.get("AllocatedResources").cloned().unwrap_or(Value::Nil);
        fields.insert("AllocatedResources".to_owned(), with(&shared, "Shared", Value::Nil));
    }
    fields.insert("JobID".to_owned(), job.into());
    fields.insert("Name".to_owned(), format!("{job}.g[0]").into());
    fields
}

fn trouble(state: &State, rng: &Rng, header: &Header, body: &Value) -> Option<CallFault> {
    let sometimes = || rng.number_below(3) == 0;
    match state.mood {
        Mood::Works | Mood::Lacks => None,
        Mood::Leaderless => Some(CallFault::Refused("No cluster leader")),
        Mood::RefusesNodes if header.method == "Node.Register" => {
            Some(CallFault::Refused("Permission denied"))
        }
        Mood::Late(seconds) => Some(CallFault::Late(Duration::from_secs(seconds))),
        Mood::Babbles if sometimes() => Some(CallFault::Garbage(babble(rng, header))),
        Mood::Endless if sometimes() => {
            let mut bytes = rpc::answer(&header.method, header.seq, Ok(&map([])));
            bytes.pop();
            let begins: &[u8] = match rng.number_below(3) {
                0 => &[0xdb, 0x7f, 0xff, 0xff, 0xff],
                1 => &[0xdf, 0xff, 0xff, 0xff, 0xff],
                _ => &[0xdd, 0xff, 0xff, 0xff, 0xff],
            };
            bytes.extend(begins);
            bytes.extend(std::iter::repeat_n(0x93, 4_000));
            Some(CallFault::Garbage(bytes))
        }
        Mood::HangsUp if sometimes() => Some(CallFault::HangsUp),
        Mood::Older => {
            let stale = field(body, "AllowStale").and_then(Value::as_bool).unwrap_or(false);
            state.older.clone().filter(|_| stale).map(CallFault::Older)
        }
        _ => None,
    }
}

/// An answer that is none.
fn babble(rng: &Rng, header: &Header) -> Vec<u8> {
    let mut noise = vec![0; usize::try_from(1 + rng.number_below(300)).unwrap_or(1)];
    rng.fill(&mut noise);
    match rng.number_below(5) {
        0 => noise,
        1 => rpc::answer(&header.method, header.seq.wrapping_add(1), Ok(&map([]))),
        2 => rpc::answer(&header.method, header.seq, Ok(&Value::Binary(noise))),
        3 => rpc::answer(&header.method, header.seq, Ok(&map([("Index", "x".into())]))),
        _ => {
            let mut bytes = Vec::new();
            msgpack::write(&mut bytes, &map([("Seq", header.seq.into())]));
            bytes
        }
    }
}
