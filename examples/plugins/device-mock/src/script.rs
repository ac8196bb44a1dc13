//! What the mock shall find and how it shall fail, as configuration.

use std::path::PathBuf;

use ostler_sdk::device::prelude::*;
use serde::Deserialize;

/// Schema of the `config` in the agent's `plugin` block, and of `script.json`.
pub const SCHEMA: &str = include_str!("config.schema.json");

/// The whole script. Everything absent: no devices, no faults.
#[derive(Deserialize, Default, Debug)]
#[serde(deny_unknown_fields, default)]
pub struct Script {
    /// Granted directory with `script.json` and the journal.
    pub dir: Option<PathBuf>,
    /// Write each call to `journal` in `dir`.
    pub journal: bool,
    /// What it calls itself.
    pub name: Option<String>,
    /// The version it says it is.
    pub version: Option<String>,
    /// Milliseconds to the next fingerprint.
    pub check_after_ms: Option<u64>,
    /// Paths to watch.
    pub watch_paths: Vec<String>,
    /// Kernel subsystems to watch.
    pub watch_subsystems: Vec<String>,
    /// What there is.
    pub groups: Vec<GroupScript>,
    /// Faults of `describe`.
    pub describe: Vec<Fault>,
    /// Faults of `fingerprint`.
    pub fingerprint: Vec<Fault>,
    /// Faults of `reserve`.
    pub reserve: Vec<Fault>,
    /// Faults of `release`.
    pub release: Vec<Fault>,
    /// Faults of `stats`.
    pub stats: Vec<Fault>,
}

/// When something holds; absent: always.
#[derive(Deserialize, Clone, Debug)]
#[serde(deny_unknown_fields)]
pub struct Window {
    /// Zero point, milliseconds since 1970.
    #[serde(default)]
    since_ms: u64,
    /// Start over after this time; zero: never.
    #[serde(default)]
    every_ms: u64,
    /// From here, counted from the zero point or the last start-over.
    #[serde(default)]
    from_ms: u64,
    /// Up to and without this.
    to_ms: Option<u64>,
}

impl Window {
    /// Whether it holds at `now` (nanoseconds since 1970).
    pub fn holds(&self, now: Timestamp) -> bool {
        let Some(elapsed) = (now / 1_000_000).checked_sub(self.since_ms) else {
            return false;
        };
        let at = elapsed.checked_rem(self.every_ms).unwrap_or(elapsed);
        at >= self.from_ms && self.to_ms.is_none_or(|end| at < end)
    }
}

/// One fault of one function. The first of the list that applies is done, no other.
#[derive(Deserialize, Clone, Debug)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// What to do.
    #[serde(rename = "do")]
    pub what: What,
    /// Variant of the error for `error`; `recoverable` if absent.
    #[serde(default)]
    pub kind: ErrorKind,
    /// Text of the error, reason of the health.
    #[serde(default = "as_scripted")]
    pub message: String,
    /// Milliseconds for `sleep` and `spin`; absent: for ever.
    pub for_ms: Option<u64>,
    /// Only at these times.
    during: Option<Window>,
    /// Only in these calls of the function, counted from 0 in the journal: from, up to and without.
    calls: Option<(u64, u64)>,
    /// Only for claims with one of these instances (`reserve` and `release`).
    #[serde(default)]
    ids: Vec<String>,
}

fn as_scripted() -> String {
    "as the script says".to_owned()
}

impl Fault {
    /// Whether it applies to call number `call` at `now` about `claimed`.
    pub fn applies(&self, now: Timestamp, call: u64, claimed: &[String]) -> bool {
        self.during.as_ref().is_none_or(|window| window.holds(now))
            && self.calls.is_none_or(|(from, to)| (from..to).contains(&call))
            && (self.ids.is_empty() || self.ids.iter().any(|id| claimed.contains(id)))
    }
}

/// See the README for what each does, and in which functions.
#[derive(Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum What {
    Nothing,
    Error,
    Trap,
    StackOverflow,
    Spin,
    HostCallFlood,
    MemoryBomb,
    LogFlood,
    Sleep,
    DuplicateIds,
    DuplicateGroups,
    DuplicateAttributes,
    EmptyVendor,
    EmptyType,
    EmptyName,
    EmptyId,
    LongId,
    ControlCharacters,
    TooManyGroups,
    TooManyInstances,
    TooManyAttributes,
    Nan,
    Infinite,
    UnknownUnit,
    UnitOnText,
    HugeText,
    HugeAnswer,
    NoGroups,
    Undetected,
    UndetectedGroups,
    Unhealthy,
    EmptyAnswer,
    EmptyPath,
    RelativePath,
    ClimbingPath,
    BadPermissions,
    BadVariable,
    TooMany,
    NothingSet,
    ForeignIds,
    ForeignGroup,
    DuplicatePaths,
    LeaveOut,
    Stale,
    Future,
}

/// Variants of the contract's error.
#[derive(Deserialize, Clone, Copy, Debug, Default)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    NotFound,
    InvalidConfig,
    #[default]
    Recoverable,
    Fatal,
    Unsupported,
    PermissionDenied,
}

impl ErrorKind {
    /// The error itself.
    pub fn with(self, message: &str) -> Error {
        match self {
            Self::NotFound => Error::not_found(message),
            Self::InvalidConfig => Error::invalid_config("groups.0", message),
            Self::Recoverable => Error::recoverable(message),
            Self::Fatal => Error::fatal(message),
            Self::Unsupported => Error::unsupported(message),
            Self::PermissionDenied => Error::PermissionDenied(message.to_owned()),
        }
    }
}

/// A group. Instances are `count` with the ids `0`, `1` …, and those listed.
#[derive(Deserialize, Clone, Debug)]
#[serde(deny_unknown_fields)]
pub struct GroupScript {
    #[serde(default = "mock")]
    pub vendor: String,
    #[serde(rename = "type", default = "device")]
    pub type_: String,
    #[serde(default = "mock")]
    pub name: String,
    #[serde(default)]
    count: u32,
    #[serde(default)]
    instances: Vec<InstanceScript>,
    #[serde(default)]
    pub attributes: Vec<AttributeScript>,
    /// Only there at these times.
    pub during: Option<Window>,
    /// Environment of a reservation; `MOCK_DEVICES` names the instances in any case.
    #[serde(default)]
    pub env: Vec<(String, String)>,
    /// Mounts of a reservation.
    #[serde(default)]
    pub mounts: Vec<MountScript>,
    /// Device nodes of a reservation.
    #[serde(default)]
    pub device_nodes: Vec<NodeScript>,
    /// Measurements of each instance; the first is its summary too.
    #[serde(default)]
    pub stats: Vec<StatScript>,
}

fn mock() -> String {
    "mock".to_owned()
}

fn device() -> String {
    "device".to_owned()
}

impl GroupScript {
    /// All instances, also those that are not there now.
    pub fn instances(&self) -> impl Iterator<Item = InstanceScript> + '_ {
        let counted = (0..self.count).map(|n| InstanceScript::named(n.to_string()));
        counted.chain(self.instances.iter().cloned())
    }

    /// Whether it is the one with this name.
    pub fn is(&self, claim: &Claim) -> bool {
        (&self.vendor, &self.type_, &self.name) == (&claim.vendor, &claim.type_, &claim.name)
    }
}

/// An instance.
#[derive(Deserialize, Clone, Debug, Default)]
#[serde(deny_unknown_fields, default)]
pub struct InstanceScript {
    pub id: String,
    /// Unhealthy with this reason, always or (with `unhealthy_during`) at these times.
    pub unhealthy: Option<String>,
    pub unhealthy_during: Option<Window>,
    /// Undetected with this reason.
    pub undetected: Option<String>,
    /// Only there at these times.
    pub during: Option<Window>,
    pub pci_bus_id: Option<String>,
    pub numa_node: Option<u32>,
}

impl InstanceScript {
    fn named(id: String) -> Self {
        Self { id, ..Self::default() }
    }

    /// What the fingerprint says of it; `None` while it is not there.
    pub fn at(self, now: Timestamp) -> Option<Instance> {
        if self.during.is_some_and(|window| !window.holds(now)) {
            return None;
        }
        let ill = self.unhealthy_during.as_ref().is_none_or(|window| window.holds(now));
        let scripted = self.unhealthy.is_some() || self.unhealthy_during.is_some();
        let reason = self.unhealthy.unwrap_or_else(as_scripted);
        let instance = match self.undetected {
            Some(reason) => {
                Instance { health: Health::undetected(reason), ..Instance::healthy(self.id) }
            }
            None if scripted && ill => Instance::unhealthy(self.id, reason),
            None => Instance::healthy(self.id),
        };
        let placed = self.pci_bus_id.is_some() || self.numa_node.is_some();
        Some(if placed { instance.at(self.pci_bus_id, self.numa_node) } else { instance })
    }
}

/// An attribute.
#[derive(Deserialize, Clone, Debug)]
#[serde(deny_unknown_fields)]
pub struct AttributeScript {
    name: String,
    value: ScalarScript,
    unit: Option<String>,
}

impl AttributeScript {
    /// The attribute itself.
    pub fn attribute(&self) -> NamedAttribute {
        let value = match self.value.clone() {
            ScalarScript::Boolean(truth) => Scalar::Boolean(truth),
            ScalarScript::Int(number) => Scalar::Int(number),
            ScalarScript::Float(number) => Scalar::Float(number),
            ScalarScript::Text(text) => Scalar::Text(text),
        };
        let attribute = Attribute { value, unit: self.unit.clone() };
        NamedAttribute { name: self.name.clone(), attribute }
    }
}

#[derive(Deserialize, Clone, Debug)]
#[serde(untagged)]
enum ScalarScript {
    Boolean(bool),
    Int(i64),
    Float(f64),
    Text(String),
}

/// A mount; `{id}` stands for the instance.
#[derive(Deserialize, Clone, Debug)]
#[serde(deny_unknown_fields)]
pub struct MountScript {
    pub host_path: String,
    pub task_path: String,
    #[serde(default = "yes")]
    pub read_only: bool,
}

fn yes() -> bool {
    true
}

/// A device node; `{id}` stands for the instance.
#[derive(Deserialize, Clone, Debug)]
#[serde(deny_unknown_fields)]
pub struct NodeScript {
    pub host_path: String,
    pub task_path: String,
    #[serde(default = "read_and_write")]
    pub permissions: String,
}

fn read_and_write() -> String {
    "rw".to_owned()
}

/// One measurement; members that are absent are not measured.
#[derive(Deserialize, Clone, Debug, Default)]
#[serde(deny_unknown_fields, default)]
pub struct StatScript {
    pub path: Vec<String>,
    description: Option<String>,
    unit: Option<String>,
    int_numerator: Option<i64>,
    int_denominator: Option<i64>,
    float_numerator: Option<f64>,
    float_denominator: Option<f64>,
    text: Option<String>,
    boolean: Option<bool>,
}

impl StatScript {
    /// The measurement itself.
    pub fn value(&self) -> StatValue {
        let Self { path: _, description, unit, text, .. } = self.clone();
        StatValue {
            description,
            unit,
            int_numerator: self.int_numerator,
            int_denominator: self.int_denominator,
            float_numerator: self.float_numerator,
            float_denominator: self.float_denominator,
            text,
            boolean: self.boolean,
        }
    }
}
