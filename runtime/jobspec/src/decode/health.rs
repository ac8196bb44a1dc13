//! `update` and `migrate`: when an allocation counts as healthy.
//!
//! Of each block the group's keys go before the job's. Both blocks say the same thing about the one
//! kind of allocation there is here, so they must not contradict each other; Nomad's defaults in
//! `migrate` contradict nothing, because Nomad always fills them in.

use std::time::Duration;

use super::super::Format;
use super::super::diagnostic::Span;
use super::super::schema::{Schema, is_neutral};
use super::super::tree::{Block, Key, Value, ValueKind};
use super::group::inner;
use super::{Context, Reader};
use ostler_model::job::{HealthCheck, HealthPolicy, JobKind};

const CHECKS: [(&str, HealthCheck); 3] = [
    ("checks", HealthCheck::Checks),
    ("task_states", HealthCheck::TaskStates),
    ("manual", HealthCheck::Manual),
];

/// What one block says; absent is what it does not.
#[derive(Clone, Copy)]
struct Said {
    check: Option<HealthCheck>,
    min_healthy_time: Option<(Duration, Span)>,
    healthy_deadline: Option<(Duration, Span)>,
    header: Span,
}

impl Said {
    /// The same, with what only `outer` says.
    fn within(self, outer: Option<Self>) -> Self {
        Self {
            check: self.check.or(outer.and_then(|outer| outer.check)),
            min_healthy_time: self
                .min_healthy_time
                .or(outer.and_then(|outer| outer.min_healthy_time)),
            healthy_deadline: self
                .healthy_deadline
                .or(outer.and_then(|outer| outer.healthy_deadline)),
            header: self.header,
        }
    }

    fn policy(self) -> HealthPolicy {
        let defaults = HealthPolicy::default();
        let or = |given: Option<(Duration, Span)>, default| given.map_or(default, |(d, _)| d);
        HealthPolicy {
            check: self.check.unwrap_or(defaults.check),
            min_healthy_time: or(self.min_healthy_time, defaults.min_healthy_time),
            healthy_deadline: or(self.healthy_deadline, defaults.healthy_deadline),
        }
    }
}

/// The two blocks of a job or a group.
#[derive(Clone, Copy, Default)]
pub(super) struct Rules {
    update: Option<Said>,
    migrate: Option<Said>,
    /// Where `update` asks for one allocation after the other.
    one_by_one: Option<Span>,
}

/// Take both blocks out of a job or, with the job's rules in `outer`, a group.
pub(super) fn rules(
    reader: &mut Reader,
    schema: &'static Schema,
    kind: JobKind,
    outer: Rules,
    cx: &mut Context<'_>,
) -> Rules {
    let mut one_by_one = outer.one_by_one;
    let mut one = |name, outer| {
        let said = reader
            .block(name)
            .and_then(|block| said(block, inner(schema, name)?, kind, &mut one_by_one, cx));
        let said = said.map(|own| (own, own.within(outer)));
        if let Some((own, all)) = said {
            check_times(own, all.policy(), cx);
        }
        said.map(|(_, all)| all).or(outer)
    };
    let (update, migrate) = (one("update", outer.update), one("migrate", outer.migrate));
    Rules { update, migrate, one_by_one }
}

/// Say that nothing is replaced one after the other. In JSON clients fill the key in: there only
/// where there is something to be replaced together.
pub(super) fn told_at_once(rules: Rules, kind: JobKind, count: u32, cx: &mut Context<'_>) {
    let noise = kind.runs_to_completion() || (cx.format == Format::Json && count < 2);
    if let Some(at) = rules.one_by_one.filter(|_| !noise) {
        let key = cx.name("max_parallel", "MaxParallel");
        let message =
            format!("{key} has no effect yet: all allocations of a group are replaced at once");
        cx.sink.warn(at, message);
    }
}

/// What a group's allocations are judged by.
pub(super) fn policy(rules: Rules, kind: JobKind, cx: &mut Context<'_>) -> Option<HealthPolicy> {
    match (rules.update, rules.migrate) {
        (Some(update), Some(migrate)) => {
            let (policy, other) = (update.policy(), migrate.policy());
            if other != policy && other != HealthPolicy::default() {
                let message = cx.name(
                    "migrate says otherwise than update, and Ostler judges all allocations alike; leave migrate out",
                    "Migrate says otherwise than Update, and Ostler judges all allocations alike; leave Migrate out",
                );
                cx.error(migrate.header, message);
            }
            Some(policy)
        }
        (Some(said), None) | (None, Some(said)) => Some(said.policy()),
        (None, None) => (kind == JobKind::Service).then(HealthPolicy::default),
    }
}

/// Read one block. `None` when it says nothing, as in what servers fill in.
fn said(
    block: Block,
    schema: &'static Schema,
    kind: JobKind,
    one_by_one: &mut Option<Span>,
    cx: &mut Context<'_>,
) -> Option<Said> {
    let key = block.key.clone();
    let mut reader = Reader::new(block.body, schema, cx);
    if let Some((key, value)) = reader.value("max_parallel") {
        max_parallel(&key, &value, one_by_one, cx);
    }
    let check = reader.text("health_check", cx);
    let check_given = check.is_some();
    let check = cx.choice("health_check", check, &CHECKS);
    // A JSON block without a way of checking has zeros for the times: they are not given either.
    let unsaid = cx.format == Format::Json && !check_given;
    let given = |(time, _): &(Duration, Span)| !(unsaid && time.is_zero());
    let min_healthy_time = reader.duration("min_healthy_time", cx).filter(given);
    let healthy_deadline = reader.duration("healthy_deadline", cx).filter(given);
    reader.finish();
    if cx.format == Format::Json
        && !check_given
        && min_healthy_time.is_none()
        && healthy_deadline.is_none()
    {
        return None;
    }
    if kind.runs_to_completion() {
        let name = key.written();
        let message = format!(
            "{name} is for jobs of type service and system: a batch allocation ends and is not judged; leave it out"
        );
        cx.error(key.span, message);
        return None;
    }
    Some(Said { check, min_healthy_time, healthy_deadline, header: key.span })
}

/// Only one after the other is accepted, and not done.
fn max_parallel(key: &Key, value: &Value, one_by_one: &mut Option<Span>, cx: &mut Context<'_>) {
    let none = |number: &serde_json::Number| number.as_u64() == Some(0);
    match &value.kind {
        // Not given, as programs write it.
        ValueKind::Number(number) if cx.format == Format::Json && none(number) => {}
        _ if is_neutral(value, &["1"]) => *one_by_one = Some(key.span),
        _ => {
            let name = key.written();
            let message =
                format!("{name} is valid in Nomad, not supported by Ostler yet; leave it out");
            cx.error(key.span, message);
        }
    }
}

/// The healthy time has to fit before the deadline. Reported where one of the two is written.
fn check_times(own: Said, policy: HealthPolicy, cx: &mut Context<'_>) {
    let Some((_, at)) = own.min_healthy_time.or(own.healthy_deadline) else {
        return;
    };
    if policy.min_healthy_time >= policy.healthy_deadline {
        let message = format!(
            "{} ({}) must be below {} ({})",
            cx.name("min_healthy_time", "MinHealthyTime"),
            humantime::format_duration(policy.min_healthy_time),
            cx.name("healthy_deadline", "HealthyDeadline"),
            humantime::format_duration(policy.healthy_deadline),
        );
        cx.error(at, message);
    }
}
