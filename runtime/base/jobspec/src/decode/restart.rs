//! Decodes restart policies. Each value is the task's, or else the group's, or else the default of the job's kind.

use std::time::Duration;

use crate::keys::FieldBounds::Whole;
use crate::keys::{Context, MOST, Setting, keys, keyword};
use ostler_model::job::{RestartMode, RestartPolicy};

/// The shortest window in which attempts are counted.
const INTERVAL_MIN: Duration = Duration::from_secs(5);

keys! {
    struct RestartKeys: "restart", for RestartPolicy {
        /// Restarts in one interval.
        attempts / Attempts: Setting<u32> [Whole(0, MOST)], "the group's; 2, for batch jobs 3";
        /// Window that attempts are counted in, at least `5s`.
        interval / Interval: Setting<Duration>, "the group's; `30m`, for batch jobs `24h`";
        /// Wait before each restart, and up to a quarter of it more.
        delay / Delay: Setting<Duration>, "the group's; `15s`";
        /// After the last attempt, the task fails, or waits for the rest of the interval.
        mode / Mode: Setting<RestartMode>, "the group's; `fail`";
    }
    not_yet {
        "render_templates" / RenderTemplates;
    }
}

keyword! {
    RestartMode, "restart mode": "fail" = Fail, "delay" = Delay;
}

/// The policy of a group or a task: `inherited`, with the values of its `restart` block.
pub(super) fn policy(
    keys: Option<RestartKeys>,
    inherited: RestartPolicy,
    cx: &mut Context<'_>,
) -> RestartPolicy {
    let Some(keys) = keys else { return inherited };
    let (interval_at, mode_at) = (keys.interval.at, keys.mode.at);
    let sum_at = keys.attempts.place().or(keys.delay.place()).unwrap_or(interval_at);
    let policy = keys.apply_to(inherited);
    if policy.interval < INTERVAL_MIN {
        cx.error(interval_at, "the restart interval must be at least 5s");
    } else if policy.delay.checked_mul(policy.attempts).is_none_or(|sum| sum > policy.interval) {
        let [delay, interval] = [policy.delay, policy.interval].map(humantime::format_duration);
        let message = format!(
            "{} restarts with a delay of {delay} do not fit into an interval of {interval}",
            policy.attempts,
        );
        cx.error(sum_at, message);
    }
    if policy.attempts == 0 && policy.mode == RestartMode::Delay {
        cx.error(mode_at, "no attempts and mode delay contradict each other; use mode fail");
    }
    policy
}
