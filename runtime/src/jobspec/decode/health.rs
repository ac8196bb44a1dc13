//! `update` and `migrate`: when an allocation counts as healthy.
//!
//! Of each block the group's keys go before the job's. Both blocks say the same thing about the one
//! kind of allocation there is here, so they must not contradict each other; Nomad's defaults in
//! `migrate` contradict nothing, because Nomad always fills them in.

use std::time::Duration;

use super::super::Format;
use super::super::diagnostic::Span;
use super::super::schema::Schema;
use super::super::tree::Block;
use super::group::inner;
use super::{Context, Reader};
use crate::model::job::{HealthCheck, HealthPolicy, JobKind};

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
}

/// Take both blocks out of a job or, with the job's rules in `outer`, a group.
pub(super) fn rules(
    reader: &mut Reader,
    schema: &'static Schema,
    kind: JobKind,
    outer: Rules,
    cx: &mut Context<'_>,
) -> Rules {
    let mut one = |name, outer| {
        let said = reader.block(name).and_then(|block| said(block, inner(schema, name)?, kind, cx));
        let said = said.map(|own| (own, own.within(outer)));
        if let Some((own, all)) = said {
            check_times(own, all.policy(), cx);
        }
        said.map(|(_, all)| all).or(outer)
    };
    Rules { update: one("update", outer.update), migrate: one("migrate", outer.migrate) }
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
    cx: &mut Context<'_>,
) -> Option<Said> {
    let key = block.key.clone();
    let mut reader = Reader::new(block.body, schema, cx);
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
