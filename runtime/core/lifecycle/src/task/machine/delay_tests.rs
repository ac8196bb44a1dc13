//! The wait before a run is told to end, for good or to start again.

use super::*;

const DELAY: Duration = Duration::from_secs(60);

fn running() -> TaskMachine {
    let mut machine = TaskMachine::new(rules(3, Some(DELAY)), at().now);
    to_running(&mut machine);
    machine
}

fn restarts() -> [TaskInput; 3] {
    let reason = || "wanted".to_owned();
    [
        TaskInput::Restart { reason: reason(), failure: false },
        TaskInput::Restart { reason: events::unhealthy_reason("up"), failure: true },
        TaskInput::ForceRestart { reason: reason() },
    ]
}

fn later(seconds: u64) -> StepContext {
    StepContext { now: at().now.plus(Duration::from_secs(seconds)), random: 0 }
}

/// What is waited for now.
fn waits(effects: &[TaskEffect]) -> Option<Duration> {
    effects.iter().find_map(|effect| match effect {
        TaskEffect::Timer(time) => Some(*time),
        _ => None,
    })
}

fn stops(effects: &[TaskEffect]) -> bool {
    effects.iter().any(|effect| matches!(effect, TaskEffect::Stop(_)))
}

#[test]
fn every_restart_of_a_run_waits_for_the_delay_and_an_exit_by_itself_does_not() {
    for restart in restarts() {
        let mut machine = running();
        let effects = drive(&mut machine, [restart]);
        assert_eq!((machine.state(), waits(&effects)), (MachineState::ShutdownDelay, Some(DELAY)));
        assert!(!stops(&effects), "{effects:?}");
        assert_eq!(kinds(&machine)[3..], ["Restart Signaled", "Waiting for shutdown delay"]);
        assert_eq!(machine.public().status, TaskStatus::Running);
        assert!(stops(&drive(&mut machine, [TaskInput::TimerFired])));
        let exit = TaskInput::ExitRead(ExitResult::default());
        drive(&mut machine, [TaskInput::WorkloadEnded, exit, TaskInput::Forgotten]);
        assert_eq!((machine.state(), machine.public().restarts), (MachineState::Delaying, 1));
    }
    let mut machine = running();
    let exit = TaskInput::ExitRead(ExitResult { exit_code: 1, ..ExitResult::default() });
    drive(&mut machine, [TaskInput::WorkloadEnded, exit, TaskInput::Forgotten]);
    assert_eq!(machine.state(), MachineState::Delaying);
    assert!(!kinds(&machine).contains(&"Waiting for shutdown delay"));
}

#[test]
fn a_kill_while_a_restart_waits_ends_with_the_rest_of_the_wait_or_at_once_and_nothing_follows() {
    for skip_delay in [false, true] {
        let mut machine = running();
        let [restart, ..] = restarts();
        drive(&mut machine, [restart]);
        let kill = TaskInput::Kill { event: None, reason: "enough".to_owned(), skip_delay };
        let effects = machine.step(later(20), kill);
        let said = machine.public().events.last().unwrap().message.clone();
        if skip_delay {
            assert!(stops(&effects), "{effects:?}");
            assert_eq!(said, "Skipping shutdown_delay");
        } else {
            assert_eq!((&effects[..], machine.state()), (&[][..], MachineState::ShutdownDelay));
            assert!(said.contains("shutdown_delay of 40s"), "{said}");
            assert!(stops(&machine.step(later(60), TaskInput::TimerFired)));
        }
        let exit = TaskInput::ExitRead(ExitResult::default());
        drive(&mut machine, [TaskInput::WorkloadEnded, exit, TaskInput::Forgotten]);
        assert_eq!(machine.state(), MachineState::Ending, "skips: {skip_delay}");
    }
}

#[test]
fn a_restart_that_waits_when_its_agent_goes_is_carried_out_by_the_next_one() {
    for restart in restarts() {
        let failure = matches!(restart, TaskInput::Restart { failure: true, .. });
        let mut machine = running();
        drive(&mut machine, [restart]);
        let state = Some((**machine.public()).clone());
        // An agent that leaves does not wait.
        assert!(drive(&mut machine, [TaskInput::Shutdown]).contains(&TaskEffect::Leave));
        let run = KnownRun::Started;
        let found =
            RecordedTask { state, tracker: None, run, complete: false, delayed_until: None };
        let (mut next, first) = TaskMachine::restore(rules(3, Some(DELAY)), at().now, found);
        assert_eq!(first, [TaskEffect::Recover]);
        let effects = drive(&mut next, [TaskInput::Recovered { ended: false }]);
        assert_eq!((next.state(), waits(&effects)), (MachineState::ShutdownDelay, Some(DELAY)));
        assert_eq!(next.intent, Some(EndIntent::Restart { failure }));
        drive(&mut next, [TaskInput::TimerFired, TaskInput::WorkloadEnded]);
        let exit = TaskInput::ExitRead(ExitResult::default());
        drive(&mut next, [exit, TaskInput::Forgotten]);
        assert_eq!((next.state(), next.public().restarts), (MachineState::Delaying, 1));
        // It was carried out: an agent after that one restarts nothing.
        drive(&mut next, [TaskInput::TimerFired]);
        to_running(&mut next);
        let state = Some((**next.public()).clone());
        let found =
            RecordedTask { state, tracker: None, run, complete: false, delayed_until: None };
        let (mut last, _) = TaskMachine::restore(rules(3, Some(DELAY)), at().now, found);
        drive(&mut last, [TaskInput::Recovered { ended: false }]);
        assert_eq!(last.state(), MachineState::Running);
    }
}
