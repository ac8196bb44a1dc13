//! The clock was set back since the records were written.
#![allow(clippy::panic, reason = "tests")]

use super::*;
use ostler_model::job::{RestartMode, RestartPolicy};

const HOUR: Duration = Duration::from_secs(3_600);
const NOW: Timestamp = Timestamp::from_nanos(1_000);

fn rules(mode: RestartMode) -> TaskRules {
    let delay = Duration::from_secs(15);
    TaskRules {
        policy: RestartPolicy { attempts: 0, interval: Duration::from_secs(60), delay, mode },
        restart_on_success: false,
        kill_timeout: Duration::from_secs(5),
        shutdown_delay: None,
        restartable: false,
    }
}

/// How long a task waits whose next start is recorded for an hour from now.
fn wait(mode: RestartMode, tracker: RestartTracker) -> Duration {
    let (state, run) = (Some(TaskState::default()), KnownRun::None);
    let delayed_until = Some(NOW.plus(HOUR));
    let tracker = Some(tracker);
    let found = RecordedTask { state, tracker, run, complete: false, delayed_until };
    let (machine, first) = TaskMachine::restore(rules(mode), NOW, found);
    assert_eq!(machine.state(), MachineState::Delaying);
    match first.first() {
        Some(TaskEffect::Timer(wait)) => *wait,
        other => panic!("a timer first: {other:?}"),
    }
}

#[test]
fn a_restart_delay_on_record_is_never_longer_than_the_policy_could_ask_for() {
    let fresh = RestartTracker::new(NOW);
    let (longest, most) = (Duration::from_secs(15), Duration::from_secs(19));
    for mode in [RestartMode::Fail, RestartMode::Delay] {
        let wait = wait(mode, fresh);
        assert!(wait >= longest && wait <= most, "{mode:?}: {wait:?}");
    }
}
