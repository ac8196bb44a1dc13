//! The reasons why a job does not fit, as data and as text.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::attempt_names::AttemptNames;
use crate::ports::PortError;
use ostler_device::ledger::ClaimError;
use ostler_device::matching::NoDevice;
use ostler_model::cores::CoreSet;
use ostler_model::device::{Health, HealthState};
use ostler_model::ids::{AllocId, GroupName, JobId, PluginName, TaskName};
use ostler_model::volume::NoVolume;
use ostler_model::words::count_noun;
use ostler_node::constraint::UnmetConstraint;

/// A job that does not fit on this node. Nothing of it was placed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Refusal {
    /// Id of the refused job.
    pub job: JobId,
    /// Name of the node.
    pub node: String,
    /// The problems: first those of the job as a whole, then those of its groups in file order.
    pub groups: Vec<GroupRefusal>,
    /// Allocations of this job that were only tried and that a problem names as holders. The text
    /// names them by their names.
    pub attempts: Vec<Attempt>,
}

/// An allocation that was made only for a trial.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Attempt {
    /// Id of the trial allocation, used nowhere else.
    pub id: AllocId,
    /// Name of the allocation, `<job>.<group>[<index>]`.
    pub name: String,
}

/// The problems of one group.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GroupRefusal {
    /// Name of the group; absent for problems of the job as a whole.
    pub group: Option<GroupName>,
    /// What does not fit; at least one problem.
    pub problems: Vec<Problem>,
}

/// The part of the job in which a constraint is written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RefusalScope {
    /// The job as a whole.
    Job,
    /// The task group.
    Group,
    /// The task of this name.
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

/// A resource that is counted in totals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Resource {
    /// Processor time, MHz.
    Cpu,
    /// Memory, MiB.
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

/// The text that lists the drivers there are, for a driver that does not exist.
pub(super) fn other_drivers(
    driver: &PluginName,
    loaded: &[String],
    refused: &BTreeMap<String, String>,
) -> String {
    let all = if loaded.is_empty() { "none".to_owned() } else { loaded.join(", ") };
    let off = if refused.contains_key(driver.as_str()) { None } else { switched_off_hint(driver) };
    format!("the loaded ones are: {all}{}{}", not_used(refused), off.unwrap_or_default())
}

/// A hint for a driver that every agent has. It is switched off, since it is neither
/// loaded nor refused.
fn switched_off_hint(driver: &PluginName) -> Option<String> {
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

/// The text that lists the refused plugins, which may have offered what is missing.
fn not_used(refused: &BTreeMap<String, String>) -> String {
    let told = |(name, why): (&String, &String)| format!("plugin {name} was refused: {why}");
    let all: Vec<String> = refused.iter().map(told).collect();
    if all.is_empty() { String::new() } else { format!(" ({})", all.join("; ")) }
}

/// One reason why something does not fit.
#[derive(Clone, Debug, PartialEq, Serialize, thiserror::Error)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Problem {
    /// The job has more tasks than this agent accepts of one job.
    #[error("the job has {tasks} tasks over all groups and counts; at most {most} are allowed")]
    TooManyTasks {
        /// Number of tasks asked for, over all groups and counts.
        tasks: u64,
        /// The bound, [`ostler_model::limits::JOB_TASKS_MAX`].
        most: u64,
    },
    /// The job is for other data centers.
    #[error("the job is for data center {}; this node is in {actual}", wanted.join(", "))]
    Datacenter {
        /// Names or patterns of data centers from the job.
        wanted: Vec<String>,
        /// Data center of the node.
        actual: String,
    },
    /// A constraint does not hold.
    #[error("{scope}: {unmet}")]
    Constraint {
        /// The part of the job in which it is written.
        scope: RefusalScope,
        /// The constraint, with the values of both sides.
        unmet: Box<UnmetConstraint>,
    },
    /// A constraint bounds the allocations of the job or the group on one node, and the
    /// bound is reached.
    #[error(
        "{scope}: by {constraint} at most {most} of its allocations may be on this node, and {here} are; \
         allocation {index} waits"
    )]
    Distinct {
        /// The part of the job in which it is written: it counts allocations of that job or group.
        scope: RefusalScope,
        /// The constraint as one line of text.
        constraint: String,
        /// Index of the allocation.
        index: u32,
        /// Number of live allocations on this node.
        here: u64,
        /// The most allocations that the constraint allows.
        most: u64,
    },
    /// No driver of this name.
    #[error(
        "task {task}: no driver {driver}{}; {}",
        nearest.as_ref().map(|name| format!(" (did you mean {name}?)")).unwrap_or_default(),
        other_drivers(driver, loaded, refused)
    )]
    UnknownDriver {
        /// Name of the task.
        task: TaskName,
        /// The name of the driver that the task gives.
        driver: PluginName,
        /// The loaded driver whose name is most like it.
        nearest: Option<String>,
        /// All loaded drivers.
        loaded: Vec<String>,
        /// Plugins that were refused, each with the reason.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        refused: BTreeMap<String, String>,
    },
    /// The driver is not loaded, but may be among the plugins that are still being loaded.
    #[error("task {task}: driver {driver} is not loaded yet; still loading: {}", loading.join(", "))]
    DriverStillLoading {
        /// Name of the task.
        task: TaskName,
        /// Name of the task's driver.
        driver: PluginName,
        /// Names of the blocks of those plugins.
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
        /// Name of the task.
        task: TaskName,
        /// Name of the task's driver.
        driver: PluginName,
        /// The health that the driver reports.
        health: Health,
    },
    /// This node cannot make such a network.
    #[error("network mode {mode}: {reason}")]
    Network {
        /// The mode as the job gives it.
        mode: String,
        /// The reason why not, for people.
        reason: String,
    },
    /// This node does not offer such a volume.
    #[error("volume {volume:?} (source {source_name:?}): {reason}")]
    Volume {
        /// The name that the group gives the volume.
        volume: String,
        /// The name of the volume on the node.
        #[serde(rename = "source")]
        source_name: String,
        /// The reason why the node does not give it.
        reason: NoVolume,
    },
    /// The new id of an allocation is in use already: the source of randomness is broken.
    #[error("allocation id {alloc} is in use; the node's source of random numbers repeats itself")]
    IdInUse {
        /// The id that is in use.
        alloc: AllocId,
    },
    /// Not enough processor time or memory.
    #[error(
        "allocation {index} needs {wanted} {}; {} of {total} are free, {assigned} are assigned to {}",
        resource.unit(),
        total.saturating_sub(*assigned),
        count_noun(*holders, "allocation")
    )]
    Resource {
        /// The resource that is short.
        resource: Resource,
        /// Index of the allocation.
        index: u32,
        /// The amount that the allocation needs, in the unit of the resource.
        wanted: u64,
        /// The amount that the node has in all.
        total: u64,
        /// The assigned amount, earlier allocations of this job included.
        #[serde(rename = "lent")]
        assigned: u64,
        /// Number of allocations that have the assigned amount.
        holders: usize,
    },
    /// Not enough cores are free.
    #[error(
        "task {task} of allocation {index} needs {}{} for itself; of this node's cores {total}, {} free",
        count_noun(usize::try_from(*wanted).unwrap_or(usize::MAX), "core"),
        if *one_node { " of one NUMA node" } else { "" },
        match free.len() {
            0 => "none is".to_owned(),
            1 => format!("{free} is"),
            _ => format!("{free} are"),
        }
    )]
    Cores {
        /// Name of the task.
        task: TaskName,
        /// Index of the allocation.
        index: u32,
        /// Number of cores that the task needs.
        wanted: u32,
        /// The cores have to be of one NUMA node.
        one_node: bool,
        /// The cores that are free for the task.
        free: CoreSet,
        /// The cores that this node can reserve.
        total: CoreSet,
    },
    /// No core would be left for tasks that have none of their own.
    #[error(
        "allocation {index}: of this node's cores {total} none would be left for tasks that share them"
    )]
    NoSharedCore {
        /// Index of the allocation.
        index: u32,
        /// The cores that this node can reserve.
        total: CoreSet,
    },
    /// This node cannot reserve cores.
    #[error("task {task} asks for cores, and this node can reserve none, so ask for cpu: {reason}")]
    NoCores {
        /// Name of the task.
        task: TaskName,
        /// The reason why the node can reserve none.
        reason: String,
    },
    /// The driver gives no cores: its tasks run beside others in the same process.
    #[error(
        "task {task} asks for cores, and driver {driver} gives none: its tasks share them with others; ask \
         for cpu"
    )]
    DriverGivesNoCores {
        /// Name of the task.
        task: TaskName,
        /// Name of the task's driver.
        driver: PluginName,
    },
    /// No device fits a request.
    #[error("task {task} of allocation {index}: {refusal}{}", not_used(refused))]
    Device {
        /// Name of the task.
        task: TaskName,
        /// Index of the allocation.
        index: u32,
        /// Every candidate with its reason.
        refusal: NoDevice,
        /// Where no group has the name asked for: plugins that were refused, each with the reason.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        refused: BTreeMap<String, String>,
    },
    /// A device that was chosen as free has a holder.
    #[error("task {task}: {error}")]
    DeviceHeld {
        /// Name of the task.
        task: TaskName,
        /// The device and its holder.
        error: ClaimError,
    },
    /// The node takes no new allocations.
    #[error(
        "the node {}, so nothing new is placed on it; `ostler node {}` ends that",
        if *draining { "is being drained" } else { "is not eligible" },
        if *draining { "drain --disable" } else { "eligibility --enable" }
    )]
    Closed {
        /// The node is being drained.
        draining: bool,
    },
    /// A run that no agent owns is alive, and may belong to this place.
    #[error(
        "held back: a run is alive ({run}), and {reason}; end it with `{end_with}`, or wait for its end"
    )]
    HeldBack {
        /// The run: its supervisor, its process and the place it belongs to.
        run: String,
        /// The reason why nobody owns it.
        reason: String,
        /// The command that ends it.
        end_with: String,
    },
    /// A port cannot be assigned.
    #[error("allocation {index}: {error}")]
    Port {
        /// Index of the allocation.
        index: u32,
        /// The port and the reason.
        error: PortError,
    },
}

impl Refusal {
    /// Every problem, in one line.
    #[must_use]
    pub fn problems(&self) -> String {
        let problems = self.groups.iter().flat_map(|refusal| &refusal.problems);
        let tried = AttemptNames::new(&self.attempts);
        let lines = problems.map(|problem| {
            let text = tried.replace_ids(problem.to_string());
            text.split('\n').map(str::trim).collect::<Vec<_>>().join(" ")
        });
        lines.collect::<Vec<_>>().join("; ")
    }

    /// The text of a problem for people. An allocation that was only tried is named by its name,
    /// because nobody could ask for its id.
    #[must_use]
    pub fn text_of(&self, problem: &impl fmt::Display) -> String {
        AttemptNames::new(&self.attempts).replace_ids(problem.to_string())
    }

    /// This refusal with the names of those trial allocations that a problem mentions. `None` where
    /// no problem does.
    pub(crate) fn name_attempts(&self, tried: &AttemptNames<'_>) -> Option<Self> {
        let named = tried.find_named(&self.problem_texts()).into_iter().cloned();
        let named: Vec<Attempt> = named.filter(|one| !self.attempts.contains(one)).collect();
        let attempts = self.attempts.iter().cloned().chain(named.iter().cloned()).collect();
        (!named.is_empty()).then(|| Self { attempts, ..self.clone() })
    }

    /// Note the trial allocations that a problem names.
    pub(super) fn note_attempts(&mut self, tried: &[Attempt]) {
        let named = AttemptNames::new(tried).find_named(&self.problem_texts());
        self.attempts.extend(named.into_iter().cloned());
    }

    /// The texts of all problems in one string.
    fn problem_texts(&self) -> String {
        self.groups.iter().flat_map(|one| &one.problems).map(ToString::to_string).collect()
    }

    /// Is it refused because the node takes no new allocations, whether it would fit or not?
    #[must_use]
    pub fn is_closed(&self) -> bool {
        let mut problems = self.groups.iter().flat_map(|refusal| &refusal.problems);
        problems.any(|problem| matches!(problem, Problem::Closed { .. }))
    }

    pub(super) fn new(job: JobId, node: String) -> Self {
        Self { job, node, groups: Vec::new(), attempts: Vec::new() }
    }

    /// Add the problems of a group. Without problems nothing is added.
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
        let tried = AttemptNames::new(&self.attempts);
        for refusal in &self.groups {
            match &refusal.group {
                Some(group) => write!(f, "\n  group {group}:")?,
                None => write!(f, "\n  job:")?,
            }
            for problem in &refusal.problems {
                let text = tried.replace_ids(problem.to_string()).replace('\n', "\n      ");
                write!(f, "\n    - {text}")?;
            }
        }
        Ok(())
    }
}
