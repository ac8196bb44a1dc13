//! Restart policies: each attribute is the task's, else the group's, else the job kind's default.

use std::time::Duration;

use super::super::tree::Block;
use super::{Context, Reader};
use ostler_model::job::{RestartMode, RestartPolicy};

/// Shortest window attempts are counted in.
const INTERVAL_MIN: Duration = Duration::from_secs(5);
const MODES: [(&str, RestartMode); 2] =
    [("fail", RestartMode::Fail), ("delay", RestartMode::Delay)];

/// The policy of a group or task: `inherited`, with what its `restart` block says.
pub(super) fn policy(
    block: Option<Block>,
    inherited: RestartPolicy,
    cx: &mut Context<'_>,
) -> RestartPolicy {
    let Some(block) = block else {
        return inherited;
    };
    let header = block.key.span;
    let group = super::group::inner(&super::super::schema::JOB, "group");
    let Some(schema) = group.and_then(|group| super::group::inner(group, "restart")) else {
        return inherited;
    };
    let mut reader = Reader::new(block.body, schema, cx);
    let attempts = reader.integer("attempts", 0..=i64::from(u32::MAX), cx);
    let interval = reader.duration("interval", cx);
    let delay = reader.duration("delay", cx);
    let mode = reader.text("mode", cx);
    let mode_at = mode.as_ref().map(|(_, at)| *at);
    let mode = cx.choice("restart mode", mode, &MODES);
    reader.finish();
    let policy = RestartPolicy {
        attempts: attempts
            .and_then(|(attempts, _)| u32::try_from(attempts).ok())
            .unwrap_or(inherited.attempts),
        interval: interval.map_or(inherited.interval, |(interval, _)| interval),
        delay: delay.map_or(inherited.delay, |(delay, _)| delay),
        mode: mode.unwrap_or(inherited.mode),
    };
    let interval_at = interval.map_or(header, |(_, at)| at);
    if policy.interval < INTERVAL_MIN {
        cx.error(interval_at, "the restart interval must be at least 5s");
    } else if policy.delay.checked_mul(policy.attempts).is_none_or(|sum| sum > policy.interval) {
        let message = format!(
            "{} restarts with a delay of {} do not fit into an interval of {}",
            policy.attempts,
            humantime::format_duration(policy.delay),
            humantime::format_duration(policy.interval),
        );
        let at = attempts.map(|(_, at)| at).or(delay.map(|(_, at)| at));
        cx.error(at.unwrap_or(interval_at), message);
    }
    if policy.attempts == 0 && policy.mode == RestartMode::Delay {
        let message = "no attempts and mode delay contradict each other; use mode fail";
        cx.error(mode_at.unwrap_or(header), message);
    }
    policy
}
