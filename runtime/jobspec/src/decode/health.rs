//! `update` and `migrate`: when an allocation counts as healthy.
//!
//! Of each block the group's keys go before the job's. Both blocks say the same thing about the one
//! kind of allocation there is here, so they must not contradict each other; Nomad's defaults in
//! `migrate` contradict nothing, because Nomad always fills them in.

use std::time::Duration;

use crate::Syntax;
use crate::diagnostic::Span;
use crate::keys::{
    Context, Given, Missed, Shape, hint, is_neutral, keys, keyword, missed, neutral, unsupported,
};
use crate::tree::{Value, ValueKind};
use ostler_model::job::{HealthCheck, HealthPolicy, JobKind};

keys! {
    struct UpdateKeys: "update" {
        /// By what an allocation is judged: all checks pass, the tasks run, or somebody says so.
        health_check / HealthCheck: Given<HealthCheck>, "the job's; `checks`";
        /// It is healthy without a break for this long.
        min_healthy_time / MinHealthyTime: Given<Duration>, "the job's; `10s`";
        /// It is unhealthy when it is not healthy this long after it was placed.
        healthy_deadline / HealthyDeadline: Given<Duration>, "the job's; `5m`";
        /// Only 1 is accepted, and has no effect: all allocations are replaced at once.
        max_parallel / MaxParallel: Given<Value>, "all at once";
        /// Only `30s` is accepted, and has no effect.
        stagger / Stagger: Given<Value>, "none";
        /// Only `10m` is accepted, and has no effect: `healthy_deadline` says it alone.
        progress_deadline / ProgressDeadline: Given<Value>, "none";
    }
    not_yet {
        "canary" / Canary [neutral("leave it out", &["0"])] => 0;
        "auto_revert" / AutoRevert [neutral("leave it out", &["false"])] => false;
        "auto_promote" / AutoPromote [neutral("leave it out", &["false"])] => false;
    }
}

keys! {
    struct MigrateKeys: "migrate", for HealthPolicy {
        /// As in `update`.
        check "health_check" / HealthCheck: Given<HealthCheck>, "the job's; `checks`";
        /// As in `update`.
        min_healthy_time / MinHealthyTime: Given<Duration>, "the job's; `10s`";
        /// As in `update`.
        healthy_deadline / HealthyDeadline: Given<Duration>, "the job's; `5m`";
    }
    not_yet {
        "max_parallel" / MaxParallel [missed(&MIGRATE_PARALLEL)] => 1;
    }
}

keyword! {
    HealthCheck, "health_check":
        "checks" = Checks, "task_states" = TaskStates, "manual" = Manual;
}

/// What asks for no rescheduling, which is what happens.
pub(super) const NO_RESCHEDULE: &[&str] = &[r#"{"Attempts": 0, "Unlimited": false}"#];

/// What Nomad fills in for rescheduling, by kind of job.
pub(super) static RESCHEDULE: Missed = Missed {
    values: &[
        r#"{"Attempts": 0, "Interval": 0, "Delay": 30000000000, "DelayFunction": "exponential",
        "MaxDelay": 3600000000000, "Unlimited": true}"#,
        r#"{"Attempts": 1, "Interval": 86400000000000, "Delay": 5000000000,
        "DelayFunction": "constant", "MaxDelay": 0, "Unlimited": false}"#,
    ],
    instead: "an allocation that failed is not placed again",
    in_json: true,
};

static STAGGER: Missed = Missed::new(&["30s"], "all allocations of a group are replaced at once");
static PROGRESS_DEADLINE: Missed =
    Missed::new(&["10m"], "healthy_deadline alone says how long an allocation has");
static MIGRATE_PARALLEL: Missed = Missed::new(&["1"], "a drain stops all allocations at once");

/// A policy, and where the innermost block of it begins.
type Placed = (HealthPolicy, Span);

/// What the two blocks of a job or a group say.
#[derive(Clone, Copy, Default)]
pub(super) struct Rules {
    update: Option<Placed>,
    migrate: Option<Placed>,
    /// Where `update` asks for one allocation after the other.
    one_by_one: Option<Span>,
}

/// What both blocks of a job or, with the job's rules in `outer`, a group say.
pub(super) fn rules(
    update: Option<UpdateKeys>,
    migrate: Option<MigrateKeys>,
    kind: JobKind,
    outer: Rules,
    cx: &mut Context<'_>,
) -> Rules {
    let mut rules = outer;
    if let Some(keys) = update {
        max_parallel_is_one(keys.max_parallel, &mut rules.one_by_one, cx);
        unsupported_but(keys.stagger, missed(&STAGGER), cx);
        unsupported_but(keys.progress_deadline, missed(&PROGRESS_DEADLINE), cx);
        let said = MigrateKeys {
            at: keys.at,
            check: keys.health_check,
            min_healthy_time: keys.min_healthy_time,
            healthy_deadline: keys.healthy_deadline,
            ..MigrateKeys::default()
        };
        rules.update = within(outer.update, cx.name("update", "Update"), said, kind, cx);
    }
    if let Some(said) = migrate {
        rules.migrate = within(outer.migrate, cx.name("migrate", "Migrate"), said, kind, cx);
    }
    rules
}

/// Say that nothing is replaced one after the other. In JSON clients fill the key in: there only
/// where there is something to be replaced together.
pub(super) fn told_at_once(rules: Rules, kind: JobKind, count: u32, cx: &mut Context<'_>) {
    let noise = kind.runs_to_completion() || (cx.syntax == Syntax::Json && count < 2);
    if let Some(at) = rules.one_by_one.filter(|_| !noise) {
        let key = cx.name("max_parallel", "MaxParallel");
        let message =
            format!("{key} has no effect yet: all allocations of a group are replaced at once");
        cx.sink.warn(at, message);
    }
}

/// What a group's allocations are judged by.
pub(super) fn policy(rules: Rules, kind: JobKind, cx: &mut Context<'_>) -> Option<HealthPolicy> {
    let Some((policy, _)) = rules.update.or(rules.migrate) else {
        return (kind == JobKind::Service).then(HealthPolicy::default);
    };
    if let Some((other, at)) = rules.migrate
        && ![policy, HealthPolicy::default()].contains(&other)
    {
        let message = cx.name(
            "migrate says otherwise than update, and Ostler judges all allocations alike; leave migrate out",
            "Migrate says otherwise than Update, and Ostler judges all allocations alike; leave Migrate out",
        );
        cx.error(at, message);
    }
    Some(policy)
}

/// What a block says, and where it says nothing, `outer`. A JSON block may say nothing at all, as
/// servers fill it in.
fn within(
    outer: Option<Placed>,
    name: &str,
    mut keys: MigrateKeys,
    kind: JobKind,
    cx: &mut Context<'_>,
) -> Option<Placed> {
    // A JSON block without a way of checking has zeros for the times: they are not given either.
    let unsaid = cx.syntax == Syntax::Json && !keys.check.was_given;
    for time in [&mut keys.min_healthy_time, &mut keys.healthy_deadline] {
        time.value = time.value.filter(|time| !(unsaid && time.is_zero()));
    }
    let times_at = keys.min_healthy_time.place().or(keys.healthy_deadline.place());
    if unsaid && times_at.is_none() {
        return outer;
    }
    let header = keys.at;
    if kind.runs_to_completion() {
        let message = format!(
            "{name} is for jobs of type service and system: a batch allocation ends and is not judged; leave it out"
        );
        cx.error(header, message);
        return outer;
    }
    let policy = keys.over(outer.map(|(policy, _)| policy).unwrap_or_default());
    // Told where one of the two is written.
    if let Some(at) = times_at.filter(|_| policy.min_healthy_time >= policy.healthy_deadline) {
        let times = [policy.min_healthy_time, policy.healthy_deadline];
        let [min, deadline] = times.map(humantime::format_duration);
        let key = cx.name("min_healthy_time", "MinHealthyTime");
        let than = cx.name("healthy_deadline", "HealthyDeadline");
        cx.error(at, format!("{key} ({min}) must be below {than} ({deadline})"));
    }
    Some((policy, header))
}

/// Only one after the other is accepted, and not done.
fn max_parallel_is_one(given: Given<Value>, one_by_one: &mut Option<Span>, cx: &mut Context<'_>) {
    match given.value.as_ref().map(|value| &value.kind) {
        // Not given, as programs write it.
        Some(ValueKind::Number(number))
            if cx.syntax == Syntax::Json && number.as_u64() == Some(0) => {}
        None => {}
        Some(_) if given.value.as_ref().is_some_and(|value| is_neutral(value, &["1"])) => {
            *one_by_one = Some(given.key_at);
        }
        Some(_) => unsupported(given.key, given.key_at, None, hint("leave it out"), cx),
    }
}

/// Only what a warning says to do nothing is accepted.
fn unsupported_but(given: Given<Value>, accepted: Shape, cx: &mut Context<'_>) {
    if let Some(value) = given.value {
        unsupported(given.key, given.key_at, Some(&value), accepted, cx);
    }
}
