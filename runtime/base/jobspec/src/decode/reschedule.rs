//! `reschedule`: when an allocation that failed gets a successor.
//!
//! The group's keys override the job's, and both override the default of the job's kind.

use std::time::Duration;

use crate::Syntax;
use crate::diagnostic::Span;
use crate::keys::FieldBounds::Whole;
use crate::keys::{Context, MOST, Setting, keys, keyword};
use ostler_model::job::JobKind;
use ostler_model::rollout::{DelayFunction, ReschedulePolicy};

/// The shortest wait before a successor.
const DELAY_MIN: Duration = Duration::from_secs(5);
/// The shortest window in which attempts are counted.
const INTERVAL_MIN: Duration = Duration::from_secs(15);

keys! {
    struct RescheduleKeys: "reschedule", for ReschedulePolicy {
        /// Successors in one interval, unless they are `unlimited`.
        attempts / Attempts: Setting<u32> [Whole(0, MOST)], "the job's; 0, for batch jobs 1";
        /// Window that attempts are counted in, at least `15s`.
        interval / Interval: Setting<Duration>, "the job's; none, for batch jobs `24h`";
        /// Wait before the first successor, at least `5s`.
        delay / Delay: Setting<Duration>, "the job's; `30s`, for batch jobs `5s`";
        /// How the wait grows from one successor to the next.
        delay_function / DelayFunction: Setting<DelayFunction>,
            "the job's; `exponential`, for batch jobs `constant`";
        /// The wait grows no longer than this.
        max_delay / MaxDelay: Setting<Duration>, "the job's; `1h`";
        /// However many successors it takes.
        unlimited / Unlimited: Setting<bool>, "the job's; `true`, for batch jobs `false`";
    }
}

keyword! {
    DelayFunction, "delay_function":
        "constant" = Constant, "exponential" = Exponential, "fibonacci" = Fibonacci;
}

/// The policy of a job or a group: `outer`, with the values of its block.
pub(super) fn policy(
    keys: Option<RescheduleKeys>,
    outer: ReschedulePolicy,
    kind: JobKind,
    cx: &mut Context<'_>,
) -> ReschedulePolicy {
    let Some(keys) = keys else { return outer };
    let (header, json) = (keys.at, cx.syntax == Syntax::Json);
    let at = |given: Option<Span>| given.unwrap_or(header);
    let places = PolicySpans {
        attempts: at(keys.attempts.place()),
        interval: at(keys.interval.place()),
        delay: at(keys.delay.place()),
        max_delay: at(keys.max_delay.place()),
        unlimited: at(keys.unlimited.place()),
    };
    let policy = keys.apply_to(outer);
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

/// The places of the values of a policy.
#[derive(Clone, Copy)]
struct PolicySpans {
    attempts: Span,
    interval: Span,
    delay: Span,
    max_delay: Span,
    unlimited: Span,
}

fn check(policy: ReschedulePolicy, places: PolicySpans, cx: &mut Context<'_>) {
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
    } else if let Some(needed) = needed_interval(policy).filter(|_| usable) {
        let (interval, needed) = (shown(interval), shown(needed));
        let than = match policy.delay_function {
            // Nomad also refuses an interval that is equal, where waits double.
            DelayFunction::Exponential => "above",
            _ => "at least",
        };
        let message = format!(
            "{attempts} attempts do not fit into an interval of {interval}; it must be {than} {needed}"
        );
        cx.error(places.attempts, message);
    }
}

/// The time that the waits of all attempts take, if it does not fit into the interval.
fn needed_interval(policy: ReschedulePolicy) -> Option<Duration> {
    let ReschedulePolicy { attempts, interval, delay, max_delay, delay_function, .. } = policy;
    if delay_function == DelayFunction::Constant {
        // A product gives the time at once, however many attempts there are.
        let needed = delay.checked_mul(attempts).unwrap_or(Duration::MAX);
        return (interval < needed).then(|| whole_seconds(needed));
    }
    let (mut needed, mut last, mut before) = (Duration::ZERO, delay, delay);
    for attempt in 0..attempts {
        let next = match (delay_function, attempt) {
            (_, 0) | (DelayFunction::Fibonacci, 1) => delay,
            (DelayFunction::Fibonacci, _) => last.saturating_add(before),
            _ => last.saturating_mul(2),
        };
        if next > max_delay {
            // From here on, every wait is the longest one.
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
    (!fits).then(|| whole_seconds(needed))
}

fn whole_seconds(time: Duration) -> Duration {
    Duration::from_secs(time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0)))
}
