//! Tells the service manager regularly that the agent works, and only while it does.
//!
//! ```text
//! WATCHDOG_USEC ─► each half of it: does the owner of jobs answer? ─ yes ─► WATCHDOG=1
//!                     │ the runtime gives nobody a turn: not asked  └ no ─► an error in the log, no message
//!                     └──────────────► the service manager ends the agent and starts it anew; tasks live on
//! ```

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::notify;
use ostler_agent::AgentHandle;
use ostler_model::clock::{self, Stopwatch};

/// Shortest time between two messages, for a manager that wants them more often.
const INTERVAL_MIN: Duration = Duration::from_millis(10);

/// Tell the service manager that the agent works, until `ended` is cancelled. Returns at once where
/// no manager asks for it.
pub(super) async fn watch(agent: AgentHandle, ended: CancellationToken) {
    let variable = |name| std::env::var(name).ok();
    let (time, pid) = (variable("WATCHDOG_USEC"), variable("WATCHDOG_PID"));
    let Some(interval) = interval(time.as_deref(), pid.as_deref(), std::process::id()) else {
        return;
    };
    let watching = async {
        loop {
            let asked = Stopwatch::start();
            match clock::timeout(interval, agent.control().is_answering()).await {
                Some(true) => notify::notify_manager("WATCHDOG=1"),
                // The agent ends. The service manager was told, or sees the end of the process.
                Some(false) => return,
                None => tracing::error!(
                    "the owner of jobs has not answered for {interval:?}: the service manager is not told that the \
                     agent works"
                ),
            }
            clock::sleep(interval.saturating_sub(asked.elapsed())).await;
        }
    };
    let _ended = ended.run_until_cancelled(watching).await;
}

/// Half of the time that the manager waits; `None` where it does not wait, or waits
/// for another process.
fn interval(time: Option<&str>, pid: Option<&str>, own: u32) -> Option<Duration> {
    let micros = time?.parse::<u64>().ok().filter(|micros| *micros > 0)?;
    // An empty variable counts as not set.
    let pid = pid.filter(|pid| !pid.is_empty());
    if pid.is_some_and(|pid| pid.parse() != Ok(own)) {
        return None;
    }
    Some(Duration::from_micros(micros / 2).max(INTERVAL_MIN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_what_the_manager_waits_for_where_it_waits_for_this_process() {
        let half = Some(Duration::from_secs(15));
        assert_eq!(interval(Some("30000000"), None, 7), half);
        assert_eq!(interval(Some("30000000"), Some("7"), 7), half);
        assert_eq!(interval(Some("30000000"), Some(""), 7), half);
        assert_eq!(interval(Some("30000000"), Some("8"), 7), None);
        assert_eq!(interval(Some("30000000"), Some("x"), 7), None);
        assert_eq!(interval(Some("1"), None, 7), Some(INTERVAL_MIN));
        for none in [None, Some("0"), Some(""), Some("-1"), Some("soon")] {
            assert_eq!(interval(none, None, 7), None, "{none:?}");
        }
    }
}
