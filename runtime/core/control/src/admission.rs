//! Decides whether a job fits on this node, and what each of its allocations gets.
//!
//! ```text
//!                       ┌ data center, constraints, drivers        (once per group)
//! Job + NodeView ─ check┤
//!                       └ memory, processor, cores, devices, ports (once per allocation)
//!                             │ every claim goes into the ledgers
//!            any problem? ─ yes ─► claims taken back, Refusal with all problems of all groups
//!                             │ no
//!                             ▼ the claims stay
//!                        Vec<Allocation>
//! ```
//! So a refused job changes nothing. [`Admission::release_alloc`] takes back what an ended
//! allocation has, and [`Admission::adopt`] enters one that was read from the state file. Pure but
//! for the port probe.

mod alloc_claims;
mod attempt_names;
mod cores;
mod device_plan;
mod distinct;
mod instance;
mod job_check;
pub(crate) mod looks;
mod needs;
mod owed_devices;
mod refusal;
mod room;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::ports::{PortError, PortLedger};
use ostler_device::ledger::{ClaimError, DeviceLedger, InstanceHolder};
use ostler_model::alloc::Allocation;
use ostler_model::device::HealthState;
use ostler_model::ids::{AllocId, GroupName, PluginName};
use ostler_model::job::{Constraint, Job, Task, TaskGroup};
use ostler_model::network::NetworkMode;
use ostler_model::rng::Rng;
use ostler_model::time::Timestamp;
use ostler_node::{NodeTotals, NodeView, constraint};
use ostler_text::suggest::nearest;

use cores::CoreLedger;
use distinct::{JobGroupKey, LiveCounts};
use instance::Instance;

pub(crate) use attempt_names::AttemptNames;
pub use device_plan::{DeviceExplanation, DevicePlan};
pub(crate) use job_check::{Indexes, JobCheck};
pub use refusal::{Attempt, GroupRefusal, Problem, Refusal, RefusalScope, Resource};

/// What the placement of allocations needs from outside.
pub struct Placing<'a> {
    /// Gives an id for each allocation, by its group and index: a new one, or that of
    /// an earlier trial.
    pub new_id: &'a mut dyn FnMut(&GroupName, u32) -> AllocId,
    /// The time that is written into the allocations.
    pub now: Timestamp,
    /// Chooses dynamic ports.
    pub rng: &'a Rng,
    /// Does somebody listen on this port? Usually [`super::ports::port_in_use`].
    pub port_in_use: &'a dyn Fn(u16) -> bool,
    /// Where to note why each device request gets what it gets; absent: nobody asks.
    pub explain: Option<&'a mut DevicePlan>,
}

/// The resources of the node that are assigned, and their holders.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admission {
    devices: DeviceLedger,
    /// Tasks of live allocations whose plugins know that they ended.
    released: BTreeSet<InstanceHolder>,
    ports: PortLedger,
    cores: CoreLedger,
    assigned: BTreeMap<AllocId, AllocShare>,
    live: LiveCounts,
    /// Sum of the totals of all assigned allocations.
    total: NodeTotals,
    /// Number of assigned allocations that have a task without cores of its own.
    sharing: usize,
}

/// The part of the node's totals that an allocation has, and the group it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
struct AllocShare {
    needs: NodeTotals,
    of: JobGroupKey,
    /// Some task of the allocation has no cores of its own.
    shares: bool,
}

/// Why an allocation read from the state file could not be entered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdoptError {
    /// The allocation is entered already.
    #[error("allocation {} is already entered", alloc.short())]
    Known {
        /// Id of the allocation.
        alloc: AllocId,
    },
    /// Its job has no such group.
    #[error("allocation {} is of task group {group}, which its job does not have", alloc.short())]
    UnknownGroup {
        /// Id of the allocation.
        alloc: AllocId,
        /// Name of the group that the job does not have.
        group: GroupName,
    },
    /// Another allocation holds one of its devices.
    #[error("allocation {} cannot have its device back", alloc.short())]
    Device {
        /// Id of the allocation.
        alloc: AllocId,
        /// The device and its holder.
        #[source]
        source: ClaimError,
    },
    /// Another allocation holds one of its cores.
    #[error("allocation {} cannot have its cores back: another has one of them", alloc.short())]
    Cores {
        /// Id of the allocation.
        alloc: AllocId,
    },
    /// Another allocation holds one of its ports.
    #[error("allocation {} cannot have its port back", alloc.short())]
    Port {
        /// Id of the allocation.
        alloc: AllocId,
        /// The port and its holder.
        #[source]
        source: PortError,
    },
}

impl Admission {
    /// Make the allocations of `job` and claim everything they need, or claim nothing.
    ///
    /// # Errors
    /// [`Refusal`] with every problem of every group. Of a group with several allocations the
    /// problems of the first one that does not fit are listed.
    pub fn place(
        &mut self,
        job: &Arc<Job>,
        view: &NodeView,
        placing: &mut Placing<'_>,
    ) -> Result<Vec<Allocation>, Refusal> {
        self.place_some(job, &|group| (0..group.count).collect(), view, placing)
    }

    /// Place as [`Admission::place`] does, for these indexes of each group only. A group without
    /// indexes is not considered.
    ///
    /// # Errors
    /// As [`Admission::place`].
    pub fn place_some(
        &mut self,
        job: &Arc<Job>,
        indexes: &dyn Fn(&TaskGroup) -> Vec<u32>,
        view: &NodeView,
        placing: &mut Placing<'_>,
    ) -> Result<Vec<Allocation>, Refusal> {
        let sought = JobCheck::new(job, view);
        let fits = sought.problems.is_ok();
        let groups = job.groups.iter().filter(|_| fits);
        let indexes = groups.map(|group| (&group.name, indexes(group)));
        self.place_indexes(&sought, &indexes.collect(), view, placing)
    }

    /// Place as [`Admission::place_some`] does, for a job that was checked as a whole before. The
    /// cost grows with the places that are tried, not with the job.
    ///
    /// # Errors
    /// As [`Admission::place`].
    pub(crate) fn place_indexes(
        &mut self,
        sought: &JobCheck<'_>,
        indexes: &Indexes<'_>,
        view: &NodeView,
        placing: &mut Placing<'_>,
    ) -> Result<Vec<Allocation>, Refusal> {
        let JobCheck { job, reserved, .. } = sought;
        let mut refusal = Refusal::new(job.id.clone(), view.name.clone());
        match &sought.problems {
            Ok(problems) => refusal.add(None, problems.clone()),
            Err(problem) => {
                refusal.add(None, vec![problem.clone()]);
                return Err(refusal);
            }
        }
        // The claims are made in place and taken back when the job is refused: for each place that
        // is tried, a copy of what ten thousand allocations hold would take seconds.
        let (mut placed, mut attempts) = (Vec::new(), Vec::new());
        for (group, indexes) in sought.groups_in_order(indexes) {
            if indexes.is_empty() {
                continue;
            }
            let mut problems = group_problems(group, view);
            for index in indexes.iter().copied() {
                looks::note(1);
                let id = (placing.new_id)(&group.name, index);
                if self.assigned.contains_key(&id) {
                    problems.push(Problem::IdInUse { alloc: id });
                    break;
                }
                let mut instance = Instance { job, group, index, id, problems: Vec::new() };
                let allocation = instance.claim(self, view, placing, reserved);
                if !instance.problems.is_empty() {
                    self.release_alloc(instance.id);
                    problems.append(&mut instance.problems);
                    // The allocation may be in its own way: two of its ports, two of its devices.
                    let Allocation { id, name, .. } = allocation;
                    attempts.push(Attempt { id, name });
                    break;
                }
                placed.push(allocation);
            }
            refusal.add(Some(group.name.clone()), problems);
        }
        if refusal.groups.is_empty() {
            return Ok(placed);
        }
        placed.iter().for_each(|done| self.release_alloc(done.id));
        let attempt = |done: Allocation| Attempt { id: done.id, name: done.name };
        attempts.extend(placed.into_iter().map(attempt));
        refusal.note_attempts(&attempts);
        Err(refusal)
    }

    /// Enter an allocation that runs already, all or nothing. It is not asked whether it still
    /// fits, because it runs.
    ///
    /// # Errors
    /// [`AdoptError`] when the allocation is known already, or when another one has a device, core
    /// or port of it.
    pub fn adopt(&mut self, allocation: &Allocation) -> Result<(), AdoptError> {
        let alloc = allocation.id;
        if self.assigned.contains_key(&alloc) {
            return Err(AdoptError::Known { alloc });
        }
        let group = allocation
            .task_group()
            .ok_or_else(|| AdoptError::UnknownGroup { alloc, group: allocation.group.clone() })?;
        // The claims are made in place: a start restores all allocations of the node one after the
        // other.
        let claimed = self.claim_again(allocation);
        match claimed {
            Ok(()) => {
                let mhz = |task: &Task| u64::from(allocation.cpu_mhz(task));
                self.assign(alloc, &allocation.job, group, &mhz);
            }
            Err(_) => {
                self.devices.release_alloc(alloc);
                self.cores.release(alloc);
            }
        }
        claimed
    }

    fn claim_again(&mut self, allocation: &Allocation) -> Result<(), AdoptError> {
        let alloc = allocation.id;
        for (task, devices) in &allocation.devices {
            let holder = InstanceHolder { alloc, task: task.clone() };
            let claimed = self.devices.claim(&holder, devices);
            claimed.map_err(|source| AdoptError::Device { alloc, source })?;
        }
        let cores = allocation.cores.values().map(|assigned| &assigned.cores);
        if !self.cores.claim(alloc, cores) {
            return Err(AdoptError::Cores { alloc });
        }
        let ports = self.ports.adopt(alloc, &allocation.ports);
        ports.map_err(|source| AdoptError::Port { alloc, source })
    }

    /// Take back everything assigned to an allocation. The second time nothing happens.
    pub fn release_alloc(&mut self, alloc: AllocId) {
        let _nobodys = self.take_alloc(alloc);
    }

    fn assign(&mut self, alloc: AllocId, job: &Job, group: &TaskGroup, mhz: &dyn Fn(&Task) -> u64) {
        self.unassign(alloc);
        let (needs, shares) = (needs::group_needs(group, mhz), cores::shares_cores(group));
        let of = self.live.add(&job.id, &group.name);
        self.assigned.insert(alloc, AllocShare { needs, of, shares });
        self.total = needs::add(self.total, needs);
        self.sharing = self.sharing.saturating_add(usize::from(shares));
    }

    fn unassign(&mut self, alloc: AllocId) -> Option<AllocShare> {
        let had = self.assigned.remove(&alloc)?;
        self.live.remove(&had.of);
        self.total = needs::sub(self.total, had.needs);
        self.sharing = self.sharing.saturating_sub(usize::from(had.shares));
        Some(had)
    }

    /// Every allocation that something is assigned to.
    #[must_use]
    pub fn allocs(&self) -> BTreeSet<AllocId> {
        self.assigned.keys().copied().collect()
    }

    /// The ledger of the devices.
    #[must_use]
    pub fn devices(&self) -> &DeviceLedger {
        &self.devices
    }

    /// The ledger of the ports.
    #[must_use]
    pub fn ports(&self) -> &PortLedger {
        &self.ports
    }

    /// Processor and memory assigned to all allocations together.
    #[must_use]
    pub const fn assigned_totals(&self) -> NodeTotals {
        self.total
    }
}

fn group_problems(group: &TaskGroup, view: &NodeView) -> Vec<Problem> {
    let mut problems: Vec<Problem> =
        unmet_constraints(&group.constraints, &RefusalScope::Group, view).collect();
    let mode = group.network.as_ref().map(|network| &network.mode);
    problems.extend(mode.and_then(|mode| network_problem(mode, view)));
    for (name, request) in &group.volumes {
        let met = request.check_volume(view.host_volumes.get(&request.source));
        problems.extend(met.err().map(|reason| {
            let (volume, source_name) = (name.clone(), request.source.clone());
            Problem::Volume { volume, source_name, reason }
        }));
    }
    for task in &group.tasks {
        problems.extend(driver_problem(task, view).or_else(|| cores_problem(task, view)));
        let scope = RefusalScope::Task(task.name.clone());
        problems.extend(unmet_constraints(&task.constraints, &scope, view));
    }
    problems
}

/// The problem with the network of a group, where the node's attributes say that it cannot be made.
fn network_problem(mode: &NetworkMode, view: &NodeView) -> Option<Problem> {
    let attribute = match mode {
        NetworkMode::Host => return None,
        NetworkMode::None | NetworkMode::Bridge => format!("network.{}", mode.text()),
        NetworkMode::Cni(name) => format!("network.cni.{name}"),
    };
    let is = |name: &str| view.attributes.get(name).map(ToString::to_string);
    if is(&attribute).as_deref() == Some("true") {
        return None;
    }
    let reason = is(&format!("{attribute}.missing")).unwrap_or_else(|| match mode {
        NetworkMode::Cni(name) => format!(
            "there is no CNI configuration named {name}; set client {{ cni_config_dir = … }} to where they are"
        ),
        _ => "this agent makes none".to_owned(),
    });
    Some(Problem::Network { mode: mode.text(), reason })
}

fn unmet_constraints<'a>(
    constraints: &'a [Constraint],
    scope: &'a RefusalScope,
    view: &'a NodeView,
) -> impl Iterator<Item = Problem> + 'a {
    constraints
        .iter()
        .filter_map(|rule| constraint::evaluate(rule, &|name| view.lookup(name)).err())
        .map(|unmet| Problem::Constraint { scope: scope.clone(), unmet })
}

/// The problem of a task that asks for cores, where this node gives it none, however few
/// it asks for.
fn cores_problem(task: &Task, view: &NodeView) -> Option<Problem> {
    task.resources.cores?;
    let (name, driver) = (task.name.clone(), task.driver.clone());
    if !view.drivers.get(&driver).is_some_and(|driver| driver.gives_cores) {
        return Some(Problem::DriverGivesNoCores { task: name, driver });
    }
    let missing = view.cores.missing.clone();
    (view.cores.ids.is_empty()).then_some(Problem::NoCores { task: name, reason: missing })
}

/// A driver that this node does not have, and will not have with its present plugins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoDriver {
    /// The drivers that there are, for people.
    pub message: String,
    /// The loaded driver that may have been meant.
    pub nearest: Option<String>,
}

/// The error for a driver that does not exist. `None` where it exists, where a plugin of this name
/// was refused, or where plugins are still being loaded, because any of them may be it.
#[must_use]
pub fn no_driver(driver: &PluginName, view: &NodeView) -> Option<NoDriver> {
    let known = view.drivers.contains_key(driver)
        || view.refused_plugins.contains_key(driver.as_str())
        || !view.loading.is_empty();
    if known {
        return None;
    }
    let loaded: Vec<String> = view.drivers.keys().map(ToString::to_string).collect();
    let nearest = nearest(driver.as_str(), loaded.iter().map(String::as_str)).map(str::to_owned);
    let others = refusal::other_drivers(driver, &loaded, &view.refused_plugins);
    Some(NoDriver { message: format!("no driver {driver}; {others}"), nearest })
}

fn driver_problem(task: &Task, view: &NodeView) -> Option<Problem> {
    let (task, driver) = (&task.name, &task.driver);
    let Some(found) = view.drivers.get(driver) else {
        if !view.loading.is_empty() {
            let (task, driver, loading) = (task.clone(), driver.clone(), view.loading.clone());
            return Some(Problem::DriverStillLoading { task, driver, loading });
        }
        let loaded = || view.drivers.keys().map(|name| name.as_str());
        return Some(Problem::UnknownDriver {
            task: task.clone(),
            driver: driver.clone(),
            nearest: nearest(driver.as_str(), loaded()).map(str::to_owned),
            loaded: loaded().map(str::to_owned).collect(),
            refused: view.refused_plugins.clone(),
        });
    };
    (found.health.state != HealthState::Healthy).then(|| Problem::DriverNotReady {
        task: task.clone(),
        driver: driver.clone(),
        health: found.health.clone(),
    })
}

#[cfg(test)]
mod tests;
