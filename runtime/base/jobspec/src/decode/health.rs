//! `update` and `migrate`: when an allocation counts as healthy.
//!
//! In each block, the group's keys override the job's. Allocations are judged by `update`. The keys of `migrate`
//! about health concern successors on other nodes, as in Nomad. There are none here, so these keys are read and
//! have no effect. Default values there cause no warning, because Nomad always fills them in.

use std::time::Duration;

use super::update;
use crate::Syntax;
use crate::diagnostic::Span;
use crate::keys::FieldBounds::Whole;
use crate::keys::{Context, MOST, Setting, keys, keyword};
use ostler_model::job::{HealthCheck, HealthPolicy, JobKind};
use ostler_model::rollout::UpdatePolicy;

keys! {
    struct UpdateKeys: "update" {
        /// By what an allocation is judged: all checks pass, the tasks run, or somebody says so.
        health_check / HealthCheck: Setting<HealthCheck>, "the job's; `checks`";
        /// It is healthy without a break for this long.
        min_healthy_time / MinHealthyTime: Setting<Duration>, "the job's; `10s`";
        /// It is unhealthy when it is not healthy this long after it was placed.
        healthy_deadline / HealthyDeadline: Setting<Duration>, "the job's; `5m`";
        /// Allocations of a group that are replaced at the same time; 0: all of them, and nobody waits
        /// for their health.
        max_parallel / MaxParallel: Setting<u32> [Whole(0, MOST)], "the job's; 1";
        /// Of system jobs: from one replacement to the next.
        stagger / Stagger: Setting<Duration>, "the job's; `30s`";
        /// The deployment fails when nothing becomes healthy for this long; `0s`: as soon as something
        /// is unhealthy.
        progress_deadline / ProgressDeadline: Setting<Duration>, "the job's; `10m`";
        /// Allocations of the new version that run beside the old ones until they are promoted.
        canary / Canary: Setting<u32> [Whole(0, MOST)], "the job's; 0";
        /// When the deployment fails, the last stable version comes back.
        auto_revert / AutoRevert: Setting<bool>, "the job's; `false`";
        /// Canaries are promoted as soon as all are healthy.
        auto_promote / AutoPromote: Setting<bool>, "the job's; `false`";
    }
}

keys! {
    struct MigrateKeys: "migrate", for MigratePolicy (MigratePolicy::default()) {
        /// Allocations of the group that a drain of the node stops at the same time; 0: none before its
        /// deadline.
        max_parallel / MaxParallel: Setting<u32> [Whole(0, MOST)], "the job's; 1";
        /// Of no effect on one node: allocations are judged by `update`.
        check "health_check" / HealthCheck: Setting<HealthCheck>, "the job's; `checks`";
        /// As `health_check`.
        min_healthy_time / MinHealthyTime: Setting<Duration>, "the job's; `10s`";
        /// As `health_check`.
        healthy_deadline / HealthyDeadline: Setting<Duration>, "the job's; `5m`";
    }
}

/// The values of a `migrate` block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MigratePolicy {
    pub max_parallel: u32,
    pub check: HealthCheck,
    pub min_healthy_time: Duration,
    pub healthy_deadline: Duration,
}

impl MigratePolicy {
    /// The values of a health policy, with the number of allocations that are stopped at the same time.
    pub(crate) const fn new(health: HealthPolicy, max_parallel: u32) -> Self {
        let HealthPolicy { check, min_healthy_time, healthy_deadline } = health;
        Self { max_parallel, check, min_healthy_time, healthy_deadline }
    }

    const fn health(self) -> HealthPolicy {
        let Self { max_parallel: _, check, min_healthy_time, healthy_deadline } = self;
        HealthPolicy { check, min_healthy_time, healthy_deadline }
    }
}

impl Default for MigratePolicy {
    fn default() -> Self {
        Self::new(HealthPolicy::default(), 1)
    }
}

keyword! {
    HealthCheck, "health_check":
        "checks" = Checks, "task_states" = TaskStates, "manual" = Manual;
}

/// A policy, and the place where its innermost block begins.
type PlacedPolicy = (MigratePolicy, Span);

/// The values of the `update` and `migrate` blocks of a job or a group.
#[derive(Clone, Copy, Default)]
pub(super) struct HealthRules {
    update: Option<PlacedPolicy>,
    migrate: Option<PlacedPolicy>,
    /// The policy by which a new version takes over.
    rollout: Option<UpdatePolicy>,
    /// The place where the innermost block says how canaries are promoted.
    promotion_at: Option<Span>,
}

impl HealthRules {
    /// The place that says how canaries are promoted.
    pub(super) const fn promotion_at(&self) -> Option<Span> {
        self.promotion_at
    }
}

/// Decode both blocks of a job or of a group. For a group, `outer` has the rules of the job.
pub(super) fn rules(
    update: Option<UpdateKeys>,
    migrate: Option<MigrateKeys>,
    kind: JobKind,
    outer: HealthRules,
    cx: &mut Context<'_>,
) -> HealthRules {
    let mut rules = outer;
    if let Some(keys) = update {
        let said = MigrateKeys {
            at: keys.at,
            check: keys.health_check.clone(),
            min_healthy_time: keys.min_healthy_time.clone(),
            healthy_deadline: keys.healthy_deadline.clone(),
            ..MigrateKeys::default()
        };
        // Where servers fill in times of zero, they also fill in the other keys.
        let more = update::says_something(&keys) && !keys.min_healthy_time.was_given;
        rules.update =
            merge_policy(outer.update, cx.name("update", "Update"), (said, more), kind, cx);
        let deadline = rules.update.map(|(policy, _)| policy.healthy_deadline);
        let deadline = deadline.map(|time| (time, keys.healthy_deadline.place()));
        rules.rollout = update::merge_rollout(outer.rollout, &keys, deadline, kind, cx);
        rules.promotion_at = update::promotion_at(&keys).or(outer.promotion_at);
    }
    if let Some(said) = migrate {
        rules.migrate =
            merge_policy(outer.migrate, cx.name("migrate", "Migrate"), (said, false), kind, cx);
    }
    rules
}

/// The policy by which a new version of a group takes over, if its allocations are judged.
pub(super) fn rollout(rules: HealthRules, kind: JobKind) -> Option<UpdatePolicy> {
    let judged = kind == JobKind::Service || rules.update.is_some();
    rules.rollout.or_else(|| judged.then(UpdatePolicy::default))
}

/// The number of allocations of a group that a drain of the node stops at the same time.
pub(super) fn migrate_parallel(rules: HealthRules) -> u32 {
    rules.migrate.map_or(1, |(policy, _)| policy.max_parallel)
}

/// The policy by which a group's allocations are judged, if they are.
pub(super) fn policy(
    rules: HealthRules,
    kind: JobKind,
    cx: &mut Context<'_>,
) -> Option<HealthPolicy> {
    let of_update = rules.update.map(|(policy, _)| policy.health());
    let judged = of_update.or_else(|| (kind == JobKind::Service).then(HealthPolicy::default));
    if let Some((migrate, at)) = rules.migrate {
        let same = [of_update, Some(HealthPolicy::default())].contains(&Some(migrate.health()));
        if !same {
            let message = cx.name(
                "health_check, min_healthy_time and healthy_deadline of migrate have no effect: on one node \
                 nothing moves, and allocations are judged by update",
                "HealthCheck, MinHealthyTime and HealthyDeadline of Migrate have no effect: on one node \
                 nothing moves, and allocations are judged by Update",
            );
            cx.sink.warn(at, message);
        }
    }
    judged
}

/// The policy of a block, with the values of `outer` for the keys that are not given. A JSON block may give no
/// value at all, as servers fill it in. `more` tells that the block gives values of other keys.
fn merge_policy(
    outer: Option<PlacedPolicy>,
    name: &str,
    (mut keys, more): (MigrateKeys, bool),
    kind: JobKind,
    cx: &mut Context<'_>,
) -> Option<PlacedPolicy> {
    // In a JSON block that has no `HealthCheck`, times of zero count as not given.
    let unsaid = cx.syntax == Syntax::Json && !keys.check.was_given;
    keys.max_parallel.value.take_if(|most| unsaid && *most == 0);
    for time in [&mut keys.min_healthy_time, &mut keys.healthy_deadline] {
        time.value = time.value.filter(|time| !(unsaid && time.is_zero()));
    }
    let times_at = keys.min_healthy_time.place().or(keys.healthy_deadline.place());
    let header = keys.at;
    let parallel = keys.max_parallel.value.is_some();
    if unsaid && times_at.is_none() && !parallel && !(more && kind.runs_to_completion()) {
        return outer;
    }
    if kind.runs_to_completion() {
        let message = format!(
            "{name} is for jobs of type service and system: a batch allocation ends and is not judged; leave it out"
        );
        cx.error(header, message);
        return outer;
    }
    let policy = keys.apply_to(outer.map(|(policy, _)| policy).unwrap_or_default());
    // The problem is reported at one of the two times, if either is written.
    if let Some(at) = times_at.filter(|_| policy.min_healthy_time >= policy.healthy_deadline) {
        let times = [policy.min_healthy_time, policy.healthy_deadline];
        let [min, deadline] = times.map(humantime::format_duration);
        let key = cx.name("min_healthy_time", "MinHealthyTime");
        let than = cx.name("healthy_deadline", "HealthyDeadline");
        cx.error(at, format!("{key} ({min}) must be below {than} ({deadline})"));
    }
    Some((policy, header))
}
