//! An allocation that is being made: what it claims, and which problems it has.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Admission, Placing, Problem, Resource, cores, needs};
use crate::ports::PortRules;
use ostler_device::ledger::InstanceHolder;
use ostler_device::matching::{self, TaskRequest};
use ostler_model::alloc::{Allocation, DesiredStatus};
use ostler_model::cores::CoreSet;
use ostler_model::ids::{AllocId, TaskName};
use ostler_model::job::{Job, Task, TaskGroup};
use ostler_model::resources::{AllocatedCores, AllocatedDevice, AllocatedPort};
use ostler_node::NodeView;

/// An allocation that is being made.
pub(super) struct Instance<'a> {
    pub(super) job: &'a Arc<Job>,
    pub(super) group: &'a TaskGroup,
    pub(super) index: u32,
    pub(super) id: AllocId,
    pub(super) problems: Vec<Problem>,
}

impl Instance<'_> {
    /// Claim what the allocation needs. The result has no meaning when problems were noted.
    pub(super) fn claim(
        &mut self,
        next: &mut Admission,
        view: &NodeView,
        placing: &mut Placing<'_>,
        reserved: &BTreeSet<u16>,
    ) -> Allocation {
        self.problems.extend(next.live.problems(self.job, self.group, self.index));
        self.claim_resources(next, view);
        let cores = self.claim_cores(next, view);
        let devices = self.claim_devices(next, view, placing);
        let ports = self.claim_ports(next, view, placing, reserved);
        Allocation {
            id: self.id,
            name: format!("{}.{}[{}]", self.job.id, self.group.name, self.index),
            job: Arc::clone(self.job),
            group: self.group.name.clone(),
            index: self.index,
            created_at: placing.now,
            desired: DesiredStatus::Run,
            ports,
            devices,
            cores,
            modify_index: 1,
            create_index: 1,
            job_version: 0,
            previous: None,
            deployment: None,
            reschedules: Vec::new(),
            desired_description: String::new(),
        }
    }

    fn claim_resources(&mut self, next: &mut Admission, view: &NodeView) {
        let mhz = |task: &Task| match task.resources.cores {
            Some(cores) => view.mhz_of_cores(cores.count),
            None => task.resources.cpu_mhz.into(),
        };
        let wanted = needs::group_needs(self.group, &mhz);
        let assigned = next.assigned_totals();
        let totals = [
            (Resource::Cpu, wanted.cpu_mhz, assigned.cpu_mhz, view.resources.cpu_mhz),
            (Resource::Memory, wanted.memory_mb, assigned.memory_mb, view.resources.memory_mb),
        ];
        for (resource, wanted, assigned, total) in totals {
            if wanted > total.saturating_sub(assigned) {
                let (index, holders) = (self.index, next.assigned.len());
                self.problems.push(Problem::Resource {
                    resource,
                    index,
                    wanted,
                    total,
                    assigned,
                    holders,
                });
            }
        }
        next.assign(self.id, self.job, self.group, &mhz);
    }

    fn claim_cores(
        &mut self,
        next: &mut Admission,
        view: &NodeView,
    ) -> BTreeMap<TaskName, AllocatedCores> {
        let (index, total) = (self.index, &view.cores.ids);
        let held = next.cores.held_cores();
        let chosen = cores::choose(self.group, &total.without(&held), &|| view.numa_nodes());
        let chosen = match chosen {
            Ok(chosen) => chosen,
            // The problem that the node can give no cores is noted once for the group.
            Err(_) if total.is_empty() => return BTreeMap::new(),
            Err(short) => {
                self.problems.push(cores::problem(index, short, total));
                return BTreeMap::new();
            }
        };
        next.cores.claim(self.id, chosen.values());
        let held = chosen.values().fold(held, |held, cores| held.union(cores));
        if next.sharing > 0 && !total.is_empty() && held.contains_all(total) {
            self.problems.push(Problem::NoSharedCore { index, total: total.clone() });
        }
        let assigned = |(task, cores): (TaskName, CoreSet)| {
            let mhz = u32::try_from(cores.len()).map(|count| view.mhz_of_cores(count));
            let cpu_mhz = mhz.ok().and_then(|mhz| mhz.try_into().ok()).unwrap_or(u32::MAX);
            (task, AllocatedCores { cores, cpu_mhz })
        };
        chosen.into_iter().map(assigned).collect()
    }

    fn claim_devices(
        &mut self,
        next: &mut Admission,
        view: &NodeView,
        placing: &mut Placing<'_>,
    ) -> BTreeMap<TaskName, Vec<AllocatedDevice>> {
        let group = self.group;
        let wanted: Vec<TaskRequest<'_>> = group
            .tasks
            .iter()
            .flat_map(|task| {
                let requests = task.resources.devices.iter();
                requests.map(|request| TaskRequest { task: &task.name, request })
            })
            .collect();
        let mut all: BTreeMap<TaskName, Vec<AllocatedDevice>> = BTreeMap::new();
        if wanted.is_empty() {
            return all;
        }
        let chosen = matching::choose_all(&view.devices, &next.devices, self.id, &wanted);
        for (TaskRequest { task, request }, chosen) in wanted.into_iter().zip(chosen) {
            if let Some(plan) = placing.explain.as_deref_mut() {
                let chosen = chosen.as_ref().ok();
                let explain = || matching::explain(&view.devices, &next.devices, request, chosen);
                plan.add(&group.name, self.index, task, explain);
            }
            let refused = match chosen {
                Ok(device) => {
                    let holder = InstanceHolder { alloc: self.id, task: task.clone() };
                    let claimed = next.devices.claim(&holder, std::slice::from_ref(&device));
                    all.entry(task.clone()).or_default().push(device);
                    claimed.err().map(|error| Problem::DeviceHeld { task: task.clone(), error })
                }
                Err(refusal) => {
                    let refused = if refusal.has_named_group() {
                        BTreeMap::new()
                    } else {
                        view.refused_plugins.clone()
                    };
                    let (task, index) = (task.clone(), self.index);
                    Some(Problem::Device { task, index, refusal, refused })
                }
            };
            self.problems.extend(refused);
        }
        all
    }

    fn claim_ports(
        &mut self,
        next: &mut Admission,
        view: &NodeView,
        placing: &Placing<'_>,
        reserved: &BTreeSet<u16>,
    ) -> Vec<AllocatedPort> {
        let rules = PortRules {
            host_ip: view.host_ip,
            host_networks: &view.host_networks,
            rng: placing.rng,
            reserved,
            in_use: placing.port_in_use,
        };
        let of_group = self.group.network.as_ref().map(|network| (None, &network.ports));
        let of_tasks =
            self.group.tasks.iter().map(|task| (Some(&task.name), &task.resources.ports));
        let mut all = Vec::new();
        for (task, ports) in of_group.into_iter().chain(of_tasks) {
            match next.ports.assign(self.id, ports, task, &rules) {
                Ok(assigned) => all.extend(assigned),
                Err(errors) => {
                    let index = self.index;
                    let problems = errors.into_iter().map(|error| Problem::Port { index, error });
                    self.problems.extend(problems);
                }
            }
        }
        all
    }
}
