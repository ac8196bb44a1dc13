//! What of `update` says how a new version of a job takes over. When an allocation counts as healthy is
//! read in [`super::health`].

use std::time::Duration;

use super::health::UpdateKeys;
use crate::Syntax;
use crate::diagnostic::Span;
use crate::keys::Context;
use ostler_model::job::JobKind;
use ostler_model::rollout::UpdatePolicy;

/// Does the block say something of this? Servers fill JSON in with zeros, which say nothing.
pub(super) fn says_something(keys: &UpdateKeys) -> bool {
    let times = [&keys.stagger, &keys.progress_deadline];
    let numbers = [&keys.max_parallel, &keys.canary];
    let truths = [&keys.auto_revert, &keys.auto_promote];
    times.iter().any(|time| time.value.is_some_and(|time| !time.is_zero()))
        || numbers.iter().any(|number| number.value.is_some_and(|number| number > 0))
        || truths.iter().any(|truth| truth.value == Some(true))
}

/// `outer`, with what the block says. `healthy_deadline`: what holds with this block, and where it stands
/// if in it.
pub(super) fn within(
    outer: Option<UpdatePolicy>,
    keys: &UpdateKeys,
    healthy_deadline: Option<(Duration, Option<Span>)>,
    kind: JobKind,
    cx: &mut Context<'_>,
) -> Option<UpdatePolicy> {
    // Reported where the block is read for health.
    if kind.runs_to_completion() {
        return outer;
    }
    // A JSON block without a way of checking has zeros for what was not given.
    let unsaid = cx.syntax == Syntax::Json && !keys.health_check.was_given;
    // All of them zero are what servers fill in; 0 at once is said with this key alone.
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

/// Where the block says whether canaries are promoted, or how many there are.
pub(super) fn promotion_at(keys: &UpdateKeys) -> Option<Span> {
    keys.auto_promote.place().or(keys.canary.place())
}

/// Report a group that promotes canaries and has none, with what its job says.
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
    // Told where one of the two is written.
    let at = keys.progress_deadline.place().or(healthy_at);
    if let Some(at) = at.filter(|_| !progress.is_zero() && healthy >= progress) {
        let [healthy, progress] = [healthy, progress].map(humantime::format_duration);
        let key = cx.name("healthy_deadline", "HealthyDeadline");
        let than = cx.name("progress_deadline", "ProgressDeadline");
        cx.error(at, format!("{key} ({healthy}) must be below {than} ({progress})"));
    }
}
