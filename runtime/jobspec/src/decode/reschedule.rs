//! `reschedule`: when an allocation that failed gets a successor.
//!
//! Of the block the group's keys go before the job's, and both before the default of the job's kind.

use std::time::Duration;

use crate::Syntax;
use crate::diagnostic::Span;
use crate::keys::Bounds::Whole;
use crate::keys::{Context, Given, MOST, keys, keyword};
use ostler_model::job::JobKind;
use ostler_model::rollout::{DelayFunction, ReschedulePolicy};

/// Shortest wait before a successor, and shortest window that attempts are counted in.
const DELAY_MIN: Duration = Duration::from_secs(5);
const INTERVAL_MIN: Duration = Duration::from_secs(15);

keys! {
    struct RescheduleKeys: "reschedule", for ReschedulePolicy {
        /// Successors in one interval, unless they are `unlimited`.
        attempts / Attempts: Given<u32> [Whole(0, MOST)], "the job's; 0, for batch jobs 1";
        /// Window that attempts are counted in, at least `15s`.
        interval / Interval: Given<Duration>, "the job's; none, for batch jobs `24h`";
        /// Wait before the first successor, at least `5s`.
        delay / Delay: Given<Duration>, "the job's; `30s`, for batch jobs `5s`";
        /// How the wait grows from one successor to the next.
        delay_function / DelayFunction: Given<DelayFunction>,
            "the job's; `exponential`, for batch jobs `constant`";
        /// The wait grows no longer than this.
        max_delay / MaxDelay: Given<Duration>, "the job's; `1h`";
        /// However many successors it takes.
        unlimited / Unlimited: Given<bool>, "the job's; `true`, for batch jobs `false`";
    }
}

keyword! {
    DelayFunction, "delay_function":
        "constant" = Constant, "exponential" = Exponential, "fibonacci" = Fibonacci;
}

/// The policy of a job or group: `outer`, with what its block says.
pub(super) fn policy(
    keys: Option<RescheduleKeys>,
    outer: ReschedulePolicy,
    kind: JobKind,
    cx: &mut Context<'_>,
) -> ReschedulePolicy {
    let Some(keys) = keys else { return outer };
    let (header, json) = (keys.at, cx.syntax == Syntax::Json);
    let at = |given: Option<Span>| given.unwrap_or(header);
    let places = Places {
        attempts: at(keys.attempts.place()),
        interval: at(keys.interval.place()),
        delay: at(keys.delay.place()),
        max_delay: at(keys.max_delay.place()),
        unlimited: at(keys.unlimited.place()),
    };
    let policy = keys.over(outer);
    if !policy.is_enabled() {
        return policy;
    }
    if matches!(kind, JobKind::System | JobKind::Sysbatch) {
        let name = if json { "the reschedule policy" } else { "reschedule" };
        let message = format!(
            "{name} is for jobs of type service and batch: a system job runs on every node; leave it out"
        );
        cx.error(header, message);
        return outer;
    }
    check(policy, places, cx);
    policy
}

/// Where the values of a policy stand.
#[derive(Clone, Copy)]
struct Places {
    attempts: Span,
    interval: Span,
    delay: Span,
    max_delay: Span,
    unlimited: Span,
}

fn check(policy: ReschedulePolicy, places: Places, cx: &mut Context<'_>) {
    let ReschedulePolicy { attempts, interval, delay, max_delay, unlimited, .. } = policy;
    if attempts > 0 && unlimited {
        let at = if places.unlimited.start > places.attempts.start {
            places.unlimited
        } else {
            places.attempts
        };
        let message = cx.name(
            "attempts and unlimited contradict each other; with attempts write unlimited = false",
            "Attempts and Unlimited contradict each other; with Attempts write \"Unlimited\": false",
        );
        return cx.error(at, message);
    }
    let grows = policy.delay_function != DelayFunction::Constant;
    let shown = humantime::format_duration;
    let mut usable = true;
    if delay < DELAY_MIN {
        usable = false;
        cx.error(places.delay, format!("the delay must be at least {}", shown(DELAY_MIN)));
    } else if grows && max_delay < delay {
        usable = false;
        let (max, delay) = (shown(max_delay), shown(delay));
        cx.error(
            places.max_delay,
            format!("the longest delay ({max}) must not be below the first ({delay})"),
        );
    }
    if unlimited {
        return;
    }
    if interval < INTERVAL_MIN {
        cx.error(places.interval, format!("the interval must be at least {}", shown(INTERVAL_MIN)));
    } else if let Some(needed) = too_long(policy).filter(|_| usable) {
        let (interval, needed) = (shown(interval), shown(needed));
        let than = match policy.delay_function {
            // Nomad is stricter with waits that double.
            DelayFunction::Exponential => "above",
            _ => "at least",
        };
        let message = format!(
            "{attempts} attempts do not fit into an interval of {interval}; it must be {than} {needed}"
        );
        cx.error(places.attempts, message);
    }
}

/// How long the waits of all attempts take, where that is longer than the interval.
fn too_long(policy: ReschedulePolicy) -> Option<Duration> {
    let ReschedulePolicy { attempts, interval, delay, max_delay, delay_function, .. } = policy;
    if delay_function == DelayFunction::Constant {
        // Many attempts are told by one product.
        let needed = delay.checked_mul(attempts).unwrap_or(Duration::MAX);
        return (interval < needed).then(|| whole(needed));
    }
    let (mut needed, mut last, mut before) = (Duration::ZERO, delay, delay);
    for attempt in 0..attempts {
        let next = match (delay_function, attempt) {
            (_, 0) | (DelayFunction::Fibonacci, 1) => delay,
            (DelayFunction::Fibonacci, _) => last.saturating_add(before),
            _ => last.saturating_mul(2),
        };
        if next > max_delay {
            // From here on all are alike, and add up.
            let left = attempts.saturating_sub(attempt);
            let rest = max_delay.checked_mul(left).unwrap_or(Duration::MAX);
            let first =
                if delay_function == DelayFunction::Exponential { needed } else { Duration::ZERO };
            needed = first.saturating_add(rest);
            break;
        }
        needed = next;
        (before, last) = (last, next);
    }
    let fits = match delay_function {
        DelayFunction::Exponential => needed < interval,
        _ => needed <= interval,
    };
    (!fits).then(|| whole(needed))
}

fn whole(time: Duration) -> Duration {
    Duration::from_secs(time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0)))
}
