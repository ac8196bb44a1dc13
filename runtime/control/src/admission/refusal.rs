//! Why a job does not fit, as data and as text.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::tried::Tried;
use crate::ports::PortError;
use ostler_device::ledger::ClaimError;
use ostler_device::matching::NoDevice;
use ostler_model::cores::CoreSet;
use ostler_model::device::{Health, HealthState};
use ostler_model::ids::{AllocId, GroupName, JobId, PluginName, TaskName};
use ostler_model::volume::NoVolume;
use ostler_model::words::counted;
use ostler_node::constraint::Unmet;

/// A job that does not fit on this node. Nothing of it was placed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Refusal {
    /// The job.
    pub job: JobId,
    /// Name of the node.
    pub node: String,
    /// What does not fit: first the job as a whole, then its groups in file order.
    pub groups: Vec<GroupRefusal>,
    /// Allocations of this job that were only tried and that a problem names as holders: it is told with their
    /// names.
    pub attempts: Vec<Attempt>,
}

/// An allocation that was made for a moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Attempt {
    /// Its id, used nowhere else.
    pub id: AllocId,
    /// `<job>.<group>[<index>]`.
    pub name: String,
}

/// What does not fit of one group.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GroupRefusal {
    /// The group; absent for problems of the job as a whole.
    pub group: Option<GroupName>,
    /// At least one.
    pub problems: Vec<Problem>,
}

/// Where in the job a constraint is written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RefusalScope {
    /// In the job.
    Job,
    /// In the group.
    Group,
    /// In this task.
    Task(TaskName),
}

impl fmt::Display for RefusalScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Job => f.write_str("constraint of the job"),
            Self::Group => f.write_str("constraint of the group"),
            Self::Task(task) => write!(f, "constraint of task {task}"),
        }
    }
}

/// What is counted in totals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Resource {
    /// MHz of processor time.
    Cpu,
    /// MiB of memory.
    Memory,
}

impl Resource {
    const fn unit(self) -> &'static str {
        match self {
            Self::Cpu => "MHz of processor time",
            Self::Memory => "MiB of memory",
        }
    }
}

/// Drivers that every agent has, which are on unless its configuration says otherwise.
const BUILT_IN: [&str; 3] = ["exec", "wasm", "mock_driver"];

/// What there is instead of a driver that is not there.
pub(super) fn other_drivers(
    driver: &PluginName,
    loaded: &[String],
    refused: &BTreeMap<String, String>,
) -> String {
    let all = if loaded.is_empty() { "none".to_owned() } else { loaded.join(", ") };
    let off = if refused.contains_key(driver.as_str()) { None } else { switched_off(driver) };
    format!("loaded are: {all}{}{}", not_used(refused), off.unwrap_or_default())
}

/// Of a driver that every agent has: it is off, since it is neither loaded nor refused.
fn switched_off(driver: &PluginName) -> Option<String> {
    match driver.as_str() {
        crate::RAW_EXEC => Some(
            "; raw_exec isolates nothing and is off: switch it on by plugin \"raw_exec\" { enabled = \
             true } in the agent's configuration, for one job by ostler run --raw-exec, or use exec"
                .to_owned(),
        ),
        name if BUILT_IN.contains(&name) => Some(format!(
            "; {name} comes with the agent and is off: its configuration says plugin \"{name}\" {{ enabled = \
             false }}"
        )),
        _ => None,
    }
}

/// Plugins that may have offered what is not there.
fn not_used(refused: &BTreeMap<String, String>) -> String {
    let told = |(name, why): (&String, &String)| format!("plugin {name} was refused: {why}");
    let all: Vec<String> = refused.iter().map(told).collect();
    if all.is_empty() { String::new() } else { format!(" ({})", all.join("; ")) }
}

/// One thing that does not fit.
#[derive(Clone, Debug, PartialEq, Serialize, thiserror::Error)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Problem {
    /// More tasks than this agent takes of one job.
    #[error("{tasks} tasks over all groups and counts; at most {most} are taken of one job")]
    TooManyTasks {
        /// Tasks asked for.
        tasks: u64,
        /// [`ostler_model::limits::JOB_TASKS_MAX`].
        most: u64,
    },
    /// The job is for other data centers.
    #[error("the job is for data center {}; this node is in {actual}", wanted.join(", "))]
    Datacenter {
        /// Names or patterns of the job.
        wanted: Vec<String>,
        /// The node's.
        actual: String,
    },
    /// A constraint does not hold.
    #[error("{scope}: {unmet}")]
    Constraint {
        /// Where it is written.
        scope: RefusalScope,
        /// Which, with both values.
        unmet: Box<Unmet>,
    },
    /// As many of the job or the group are here as a constraint allows on one node.
    #[error(
        "{scope}: by {constraint} at most {most} of its allocations may be on this node, and {here} are; \
         allocation {index} waits"
    )]
    Distinct {
        /// Where the constraint is written: it counts allocations of that job or group.
        scope: RefusalScope,
        /// The constraint.
        constraint: String,
        /// Index of the allocation.
        index: u32,
        /// Live ones that are here.
        here: u64,
        /// Most of them.
        most: u64,
    },
    /// No driver of this name.
    #[error(
        "task {task}: no driver {driver}{}; {}",
        nearest.as_ref().map(|name| format!(" (did you mean {name}?)")).unwrap_or_default(),
        other_drivers(driver, loaded, refused)
    )]
    UnknownDriver {
        /// The task.
        task: TaskName,
        /// The name it gives.
        driver: PluginName,
        /// The loaded driver most like it.
        nearest: Option<String>,
        /// All loaded drivers.
        loaded: Vec<String>,
        /// Plugins that are not used, and why.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        refused: BTreeMap<String, String>,
    },
    /// The driver may be among the plugins that are still being loaded.
    #[error("task {task}: driver {driver} is not loaded yet; still loading: {}", loading.join(", "))]
    DriverStillLoading {
        /// The task.
        task: TaskName,
        /// Its driver.
        driver: PluginName,
        /// Blocks of those plugins.
        loading: Vec<String>,
    },
    /// The driver is loaded and cannot be used.
    #[error(
        "task {task}: driver {driver} is {}: {}",
        match health.state {
            HealthState::Undetected => "not on this node",
            HealthState::Unhealthy => "unhealthy",
            HealthState::Healthy => "healthy",
        },
        if health.reason.is_empty() { "it gives no reason" } else { &health.reason }
    )]
    DriverNotReady {
        /// The task.
        task: TaskName,
        /// Its driver.
        driver: PluginName,
        /// What the driver says of itself.
        health: Health,
    },
    /// The node makes no such network.
    #[error("network mode {mode}: {reason}")]
    Network {
        /// As the job says it.
        mode: String,
        /// Why not.
        reason: String,
    },
    /// The node has no such volume for it.
    #[error("volume {volume:?} (source {source_name:?}): {reason}")]
    Volume {
        /// What the group calls it.
        volume: String,
        /// What the node calls it.
        #[serde(rename = "source")]
        source_name: String,
        /// Why not.
        reason: NoVolume,
    },
    /// The id drawn for an allocation is another's: the source of randomness is broken.
    #[error("allocation id {alloc} is in use; the node's source of random numbers repeats itself")]
    IdInUse {
        /// The id.
        alloc: AllocId,
    },
    /// Not enough processor time or memory.
    #[error(
        "allocation {index} needs {wanted} {}; {} of {total} are free, {assigned} are assigned to {}",
        resource.unit(),
        total.saturating_sub(*assigned),
        counted(*holders, "allocation")
    )]
    Resource {
        /// Which.
        resource: Resource,
        /// Index of the allocation.
        index: u32,
        /// Needed by it.
        wanted: u64,
        /// The node's.
        total: u64,
        /// Assigned, earlier allocations of this job included.
        #[serde(rename = "lent")]
        assigned: u64,
        /// To how many.
        holders: usize,
    },
    /// Not enough cores are free.
    #[error(
        "task {task} of allocation {index} needs {}{} for itself; of this node's cores {total}, {} free",
        counted(usize::try_from(*wanted).unwrap_or(usize::MAX), "core"),
        if *one_node { " of one NUMA node" } else { "" },
        match free.len() {
            0 => "none is".to_owned(),
            1 => format!("{free} is"),
            _ => format!("{free} are"),
        }
    )]
    Cores {
        /// The task.
        task: TaskName,
        /// Index of the allocation.
        index: u32,
        /// Needed by it.
        wanted: u32,
        /// They have to be of one NUMA node.
        one_node: bool,
        /// Which nobody has.
        free: CoreSet,
        /// Which this node can reserve.
        total: CoreSet,
    },
    /// No core would be left for tasks that have none of their own.
    #[error(
        "allocation {index}: of this node's cores {total} none would be left for tasks that share them"
    )]
    NoSharedCore {
        /// Index of the allocation.
        index: u32,
        /// Which this node can reserve.
        total: CoreSet,
    },
    /// This node can reserve none.
    #[error("task {task} asks for cores, and this node can reserve none, so ask for cpu: {reason}")]
    NoCores {
        /// The task.
        task: TaskName,
        /// Why.
        reason: String,
    },
    /// Its tasks run beside others of the same process.
    #[error(
        "task {task} asks for cores, and driver {driver} gives none: its tasks share them with others; ask \
         for cpu"
    )]
    DriverGivesNoCores {
        /// The task.
        task: TaskName,
        /// Its driver.
        driver: PluginName,
    },
    /// No device for a request.
    #[error("task {task} of allocation {index}: {refusal}{}", not_used(refused))]
    Device {
        /// The task.
        task: TaskName,
        /// Index of the allocation.
        index: u32,
        /// Every candidate with its reason.
        refusal: NoDevice,
        /// Where no group is of that name: plugins that are not used, and why.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        refused: BTreeMap<String, String>,
    },
    /// A device chosen as free is not.
    #[error("task {task}: {error}")]
    DeviceHeld {
        /// The task.
        task: TaskName,
        /// Which and by whom.
        error: ClaimError,
    },
    /// The node takes nothing new.
    #[error(
        "the node {}, so nothing new is placed on it; `ostler node {}` ends that",
        if *draining { "is being drained" } else { "is not eligible" },
        if *draining { "drain --disable" } else { "eligibility --enable" }
    )]
    Closed {
        /// It is being emptied.
        draining: bool,
    },
    /// A run that no agent owns is alive, and may be of this place.
    #[error(
        "held back: a run is alive ({run}), and {reason}; end it with `{end_with}`, or wait for its end"
    )]
    HeldBack {
        /// Its supervisor, its process and where it belongs.
        run: String,
        /// Why nobody owns it.
        reason: String,
        /// The command that ends it.
        end_with: String,
    },
    /// A port cannot be assigned.
    #[error("allocation {index}: {error}")]
    Port {
        /// Index of the allocation.
        index: u32,
        /// Which and why.
        error: PortError,
    },
}

impl Refusal {
    /// Every problem, in one line.
    #[must_use]
    pub fn problems(&self) -> String {
        let problems = self.groups.iter().flat_map(|refusal| &refusal.problems);
        let tried = Tried::new(&self.attempts);
        let lines = problems.map(|problem| {
            let text = tried.name_in(problem.to_string());
            text.split('\n').map(str::trim).collect::<Vec<_>>().join(" ")
        });
        lines.collect::<Vec<_>>().join("; ")
    }

    /// A problem as people read it: an allocation that was only tried has no id that anybody could ask for.
    #[must_use]
    pub fn text_of(&self, problem: &impl fmt::Display) -> String {
        Tried::new(&self.attempts).name_in(problem.to_string())
    }

    /// The same with the names of those that were tried and did not come, where a problem names one.
    pub(crate) fn naming(&self, tried: &Tried<'_>) -> Option<Self> {
        let named = tried.named_in(&self.said()).into_iter().cloned();
        let named: Vec<Attempt> = named.filter(|one| !self.attempts.contains(one)).collect();
        let attempts = self.attempts.iter().cloned().chain(named.iter().cloned()).collect();
        (!named.is_empty()).then(|| Self { attempts, ..self.clone() })
    }

    /// Note those of these that a problem names.
    pub(super) fn note_tried(&mut self, tried: &[Attempt]) {
        let named = Tried::new(tried).named_in(&self.said());
        self.attempts.extend(named.into_iter().cloned());
    }

    /// What all problems say.
    fn said(&self) -> String {
        self.groups.iter().flat_map(|one| &one.problems).map(ToString::to_string).collect()
    }

    /// The node takes nothing new, whether it would fit or not.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        let mut problems = self.groups.iter().flat_map(|refusal| &refusal.problems);
        problems.any(|problem| matches!(problem, Problem::Closed { .. }))
    }

    pub(super) fn new(job: JobId, node: String) -> Self {
        Self { job, node, groups: Vec::new(), attempts: Vec::new() }
    }

    /// Note the problems of a group; nothing when there are none.
    pub(super) fn add(&mut self, group: Option<GroupName>, problems: Vec<Problem>) {
        if !problems.is_empty() {
            self.groups.push(GroupRefusal { group, problems });
        }
    }
}

impl std::error::Error for Refusal {}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "job {} does not fit on node {}", self.job, self.node)?;
        let tried = Tried::new(&self.attempts);
        for refusal in &self.groups {
            match &refusal.group {
                Some(group) => write!(f, "\n  group {group}:")?,
                None => write!(f, "\n  job:")?,
            }
            for problem in &refusal.problems {
                let text = tried.name_in(problem.to_string()).replace('\n', "\n      ");
                write!(f, "\n    - {text}")?;
            }
        }
        Ok(())
    }
}
