//! Decodes a task group: its network, and what concerns all its tasks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::accept_name;
use super::constraint::{AffinityKeys, ConstraintKeys, constraints_on_allocs};
use super::health::{self, MigrateKeys, UpdateKeys};
use super::network::{self, NetworkKeys};
use super::placement::{self, ScalingKeys, SpreadKeys};
use super::reschedule::{self, RescheduleKeys};
use super::restart::{self, RestartKeys};
use super::service::{self, ServiceKeys};
use super::task::{self, TaskKeys};
use super::update;
use super::volume::{self, VolumeKeys};
use crate::Syntax;
use crate::keys::FieldBounds::Whole;
use crate::keys::{ByName, CONSUL, Context, MOST, Setting, VAULT, keys, left_out};
use ostler_model::cow_arc::CowArc;
use ostler_model::ids::{GroupName, JobId};
use ostler_model::job::{EphemeralDisk, JobKind, RestartPolicy, Service, Task, TaskGroup};
use ostler_model::limits::{
    EPHEMERAL_DISK_MB_MIN, GROUP_CHECKS_MAX, GROUP_SERVICES_MAX, KILL_TIMEOUT_MAX,
};
use ostler_model::rollout::{ReschedulePolicy, UpdatePolicy};

/// The count of a group that gives none.
pub(super) const COUNT: u32 = 1;

keys! {
    struct GroupKeys: "a group", label Name {
        /// Allocations to make of it; a system job has at most one.
        count / Count: Setting<u32> [Whole(0, MOST)] = COUNT;
        /// For people, and as `NOMAD_META_*` for tasks.
        meta / Meta: BTreeMap<String, String>;
        /// What has to hold of the node.
        constraints "constraint" / Constraints: Vec<ConstraintKeys>;
        /// What is preferred of a node: kept, and without effect where there is one node.
        affinities "affinity" / Affinities: Vec<AffinityKeys>;
        /// Over which nodes it is spread: kept, and without effect where there is one node.
        spreads "spread" / Spreads: Vec<SpreadKeys>;
        /// Between which counts it may be scaled.
        scaling / Scaling: Option<ScalingKeys>;
        /// When its tasks are started again, unless they say it themselves.
        restart / RestartPolicy: Option<RestartKeys>;
        /// The network of its allocations, and ports; one block.
        networks "network" / Networks: Vec<NetworkKeys>;
        /// What runs.
        tasks "task" / Tasks: Vec<TaskKeys> => (
            "a group needs at least one task; write task \"name\" { … }",
            "Tasks must hold at least one task"
        );
        /// From the end of its services to the stop of its first task.
        shutdown_delay / ShutdownDelay: Setting<Duration>, "none";
        /// How an allocation is judged when jobs change.
        update / Update: Option<UpdateKeys>;
        /// How many allocations a drain of the node stops at the same time.
        migrate / Migrate: Option<MigrateKeys>;
        /// When an allocation that failed gets a successor.
        reschedule / ReschedulePolicy: Option<RescheduleKeys>;
        /// The directory that its tasks share.
        ephemeral_disk / EphemeralDisk: Option<DiskKeys>;
        /// What it offers as a whole.
        services "service" / Services: Vec<ServiceKeys>;
        /// A volume of the node that its tasks may mount.
        volumes "volume" / Volumes: ByName<VolumeKeys>;
        /// An allocation is stopped as complete this long after it was placed.
        max_run_duration / MaxRunDuration: Setting<Duration>, "no limit";
    }
    not_yet {
        "vault" / Vault [left_out(VAULT)]; "consul" / Consul [left_out(CONSUL)];
        "disconnect" / Disconnect; "stop_after_client_disconnect" / StopAfterClientDisconnect => null;
        "max_client_disconnect" / MaxClientDisconnect;
        "prevent_reschedule_on_lost" / PreventRescheduleOnLost;
    }
}

keys! {
    struct DiskKeys: "ephemeral_disk", for EphemeralDisk (EphemeralDisk::default()) {
        /// The next allocation of the same index on this node gets its data.
        sticky / Sticky: Setting<bool>;
        /// As `sticky`, and from another node of the cluster too.
        migrate / Migrate: Setting<bool>;
        /// MiB that the shared directory and those of the tasks may hold together: with more, the
        /// allocation fails. The default only warns.
        size_mb "size" / SizeMB: Setting<u32> [Whole(EPHEMERAL_DISK_MB_MIN as i64, MOST)];
        /// In JSON, where clients fill in 300: it was written.
        size_stated "" / SizeStated: Setting<bool>;
    }
}

/// The settings of a job that its groups take over.
#[derive(Clone, Copy)]
pub(super) struct GroupScope<'a> {
    /// The job's id; absent when it is wrong.
    pub job: Option<&'a JobId>,
    /// The job's kind.
    pub kind: JobKind,
    /// The job's `update` and `migrate`.
    pub rules: health::HealthRules,
    /// The job's `reschedule`.
    pub reschedule: ReschedulePolicy,
}

/// Decode a group.
pub(super) fn group(
    keys: GroupKeys,
    outer: GroupScope<'_>,
    cx: &mut Context<'_>,
) -> Option<TaskGroup> {
    let (kind, at, label) = (outer.kind, keys.at, keys.label);
    let name = accept_name(GroupName::new(label.name), label.span, cx);
    let of = (outer.job, name.as_ref());
    let (scaling, count) = placement::scaling(keys.scaling, &keys.count, of, cx);
    if count > 1 && matches!(kind, JobKind::System | JobKind::Sysbatch) {
        cx.error(keys.count.at, "a system job runs once on each node; count must be 0 or 1");
    }
    let constraints = constraints_on_allocs(keys.constraints, cx);
    let placement = placement::placement(keys.affinities, keys.spreads, kind, cx);
    let policy = restart::policy(keys.restart, RestartPolicy::default_for(kind), cx);
    let rules = health::rules(keys.update, keys.migrate, kind, outer.rules, cx);
    let health = health::policy(rules, kind, cx);
    let reschedule = reschedule::policy(keys.reschedule, outer.reschedule, kind, cx);
    let network = network::network(keys.networks, cx);
    let task_names: Vec<String> = keys.tasks.iter().map(|task| task.label.name.clone()).collect();
    let scope = service::ServiceScope {
        job: outer.job.map(JobId::as_str),
        group: name.as_ref().map(GroupName::as_str),
        network: network.as_ref(),
        task: None,
        tasks: &task_names,
    };
    let mut services = service::services(keys.services, scope, cx);
    let update = health::rollout(rules, kind);
    if let Some(update) = &update {
        let shown = name.as_ref().map_or_else(|| "?".to_owned(), ToString::to_string);
        update::check_promotion(update, &shown, rules.promotion_at(), cx);
        if update.max_parallel > count && count > 0 && kind == JobKind::Service {
            let key = cx.name("max_parallel", "MaxParallel");
            let most = update.max_parallel;
            let message = format!(
                "{key} ({most}) is above the count of the group ({count}): a change replaces all its \
                 allocations at once"
            );
            cx.sink.warn(at, message);
        }
        warn_slow_stops(&keys.tasks, keys.shutdown_delay.value, update, cx);
    }
    let volumes = volume::volumes(keys.volumes, cx);
    volume::check_mounts(&keys.tasks, &volumes, cx);
    let preferring = keys.tasks.iter().flat_map(|task| task.affinities.iter().map(|of| of.at));
    placement::refuse_for_system(kind, preferring, "an affinity", cx);
    let tasks = tasks(keys.tasks, policy, scope, &mut services, cx);
    if services.len() > GROUP_SERVICES_MAX {
        let count = services.len();
        let message =
            format!("the group has {count} services; at most {GROUP_SERVICES_MAX} are allowed");
        cx.error(at, message);
    }
    // A single asynchronous task of the agent runs all checks of an allocation.
    let checks: usize = services.iter().map(|service| service.checks.len()).sum();
    if checks > GROUP_CHECKS_MAX {
        let message =
            format!("the group has {checks} checks; at most {GROUP_CHECKS_MAX} are allowed");
        cx.error(at, message);
    }
    Some(TaskGroup {
        name: name?,
        count,
        meta: keys.meta,
        constraints,
        placement,
        scaling,
        network,
        tasks,
        shutdown_delay: keys.shutdown_delay.value.filter(|time| !time.is_zero()),
        ephemeral_disk: disk(keys.ephemeral_disk.unwrap_or_default(), cx),
        health,
        update,
        reschedule,
        services,
        max_run_duration: keys.max_run_duration.value.filter(|time| !time.is_zero()),
        stop_after_disconnect: None,
        migrate_parallel: health::migrate_parallel(rules),
        volumes,
    })
}

/// Warn of tasks whose stop may take longer than a deployment waits for progress.
fn warn_slow_stops(
    tasks: &[TaskKeys],
    group_delay: Option<Duration>,
    update: &UpdatePolicy,
    cx: &mut Context<'_>,
) {
    let progress = update.progress_deadline;
    for task in tasks {
        let delays = [group_delay, task.shutdown_delay.value];
        let given = task.kill_timeout.value.unwrap_or_default();
        let longest = delays.into_iter().flatten().fold(given, Duration::saturating_add);
        if progress.is_zero() || longest <= progress {
            continue;
        }
        let [stop, progress] = [longest, progress].map(humantime::format_duration);
        let (timeout, delay) = (task.kill_timeout.key, task.shutdown_delay.key);
        let deadline = cx.name("progress_deadline", "ProgressDeadline");
        let said = format!(
            "{timeout} and {delay} let a stop take {stop}, longer than {deadline} ({progress}): a deployment \
             that waits for such a stop fails"
        );
        // A node with the default configuration cuts the timeout, and reports that itself.
        let cut = given.saturating_sub(KILL_TIMEOUT_MAX);
        let message = if longest.saturating_sub(cut) > update.progress_deadline {
            said
        } else {
            let most = humantime::format_duration(KILL_TIMEOUT_MAX);
            format!("on a node whose max_kill_timeout ({most} unless configured) allows it, {said}")
        };
        let at = if task.kill_timeout.was_given { task.kill_timeout.at } else { task.label.span };
        cx.sink.warn(at, message);
    }
}

/// Decode the disk. Clients fill the default size in where the job gives none, so a size in JSON that is the
/// default counts as not written.
fn disk(mut keys: DiskKeys, cx: &Context<'_>) -> EphemeralDisk {
    let other = keys.size_mb.value.is_some_and(|size| size != EphemeralDisk::default().size_mb);
    let written = cx.syntax == Syntax::Hcl && keys.size_mb.was_given;
    if written || other {
        keys.size_stated.value = Some(true);
    }
    keys.apply_to(EphemeralDisk::default())
}

/// Decode the tasks. Their services are added to those of the group.
fn tasks(
    blocks: Vec<TaskKeys>,
    policy: RestartPolicy,
    scope: service::ServiceScope<'_>,
    services: &mut Vec<Service>,
    cx: &mut Context<'_>,
) -> Vec<CowArc<Task>> {
    let mut names = BTreeSet::new();
    let mut tasks = Vec::with_capacity(blocks.len());
    let mut leaders = 0_usize;
    for keys in blocks {
        let at = keys.label.span;
        cx.add_unique(&mut names, "a task", &keys.label);
        if keys.leader.value == Some(true) {
            leaders += 1;
            if leaders == 2 {
                cx.error(at, "the group already has a leader; only one task can lead");
            }
            if keys.lifecycle.is_some() {
                let message = "a task with a lifecycle cannot lead; the leader must be a main task";
                cx.error(at, message);
            }
        }
        tasks.extend(task::task(keys, policy, scope, services, cx).map(CowArc::from));
    }
    tasks
}
