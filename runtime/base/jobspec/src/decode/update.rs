//! Decodes the keys of `update` that say how a new version of a job takes over. The keys about health are decoded
//! in [`super::health`].

use std::time::Duration;

use super::health::UpdateKeys;
use crate::Syntax;
use crate::diagnostic::Span;
use crate::keys::Context;
use ostler_model::job::JobKind;
use ostler_model::rollout::UpdatePolicy;

/// Whether the block gives a value for one of these keys. Servers fill JSON in with zeros, which count
/// as no value.
pub(super) fn says_something(keys: &UpdateKeys) -> bool {
    let times = [&keys.stagger, &keys.progress_deadline];
    let numbers = [&keys.max_parallel, &keys.canary];
    let truths = [&keys.auto_revert, &keys.auto_promote];
    times.iter().any(|time| time.value.is_some_and(|time| !time.is_zero()))
        || numbers.iter().any(|number| number.value.is_some_and(|number| number > 0))
        || truths.iter().any(|truth| truth.value == Some(true))
}

/// The policy `outer`, with the values of the block. `healthy_deadline` is the deadline that holds with this
/// block, and its place if the block has it.
pub(super) fn merge_rollout(
    outer: Option<UpdatePolicy>,
    keys: &UpdateKeys,
    healthy_deadline: Option<(Duration, Option<Span>)>,
    kind: JobKind,
    cx: &mut Context<'_>,
) -> Option<UpdatePolicy> {
    // This is reported where the block is decoded for health.
    if kind.runs_to_completion() {
        return outer;
    }
    // A JSON block that has no `HealthCheck` has zeros for keys that were not given.
    let unsaid = cx.syntax == Syntax::Json && !keys.health_check.was_given;
    // Servers fill in zeros for all keys. A `max_parallel` of 0 counts as given when it stands alone.
    let filled = keys.min_healthy_time.was_given || keys.max_parallel.value.is_none();
    if unsaid && filled && !says_something(keys) {
        return outer;
    }
    let given = |time: Option<Duration>| time.filter(|time| !(unsaid && time.is_zero()));
    let base = outer.unwrap_or_default();
    let policy = UpdatePolicy {
        max_parallel: keys.max_parallel.value.unwrap_or(base.max_parallel),
        stagger: given(keys.stagger.value).unwrap_or(base.stagger),
        progress_deadline: given(keys.progress_deadline.value).unwrap_or(base.progress_deadline),
        auto_revert: keys.auto_revert.value.unwrap_or(base.auto_revert),
        auto_promote: keys.auto_promote.value.unwrap_or(base.auto_promote),
        canary: keys.canary.value.unwrap_or(base.canary),
    };
    check(&policy, keys, healthy_deadline, cx);
    Some(policy)
}

/// The place where the block says whether canaries are promoted, or how many there are.
pub(super) fn promotion_at(keys: &UpdateKeys) -> Option<Span> {
    keys.auto_promote.place().or(keys.canary.place())
}

/// Report a group that promotes canaries and has none, by its own block or that of its job.
pub(super) fn check_promotion(
    policy: &UpdatePolicy,
    group: &str,
    said_at: Option<Span>,
    cx: &mut Context<'_>,
) {
    if let Some(at) = said_at.filter(|_| policy.auto_promote && policy.canary == 0) {
        let promotes = cx.name("auto_promote", "AutoPromote");
        let canary = cx.name("canary", "Canary");
        cx.error(at, format!("{promotes} promotes canaries, and {canary} of group {group} is 0"));
    }
}

fn check(
    policy: &UpdatePolicy,
    keys: &UpdateKeys,
    healthy_deadline: Option<(Duration, Option<Span>)>,
    cx: &mut Context<'_>,
) {
    if let Some(at) = keys.stagger.place().filter(|_| policy.stagger.is_zero()) {
        let key = cx.name("stagger", "Stagger");
        cx.error(at, format!("{key} must be above zero"));
    }
    let Some((healthy, healthy_at)) = healthy_deadline else { return };
    let progress = policy.progress_deadline;
    // The problem is reported at one of the two keys, if either is written.
    let at = keys.progress_deadline.place().or(healthy_at);
    if let Some(at) = at.filter(|_| !progress.is_zero() && healthy >= progress) {
        let [healthy, progress] = [healthy, progress].map(humantime::format_duration);
        let key = cx.name("healthy_deadline", "HealthyDeadline");
        let than = cx.name("progress_deadline", "ProgressDeadline");
        cx.error(at, format!("{key} ({healthy}) must be below {than} ({progress})"));
    }
}
