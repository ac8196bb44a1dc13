//! What becomes of a task whose agent leaves, of one whose start has to wait, and of one without signals.

use super::*;

#[test]
fn a_start_that_fails_because_the_agent_leaves_is_the_next_agents_to_try() {
    let mut machine = TaskMachine::new(rules(0, None), at().now);
    drive(&mut machine, [TaskInput::GateOpened, TaskInput::Prepared, TaskInput::Shutdown]);
    assert_eq!(machine.state(), MachineState::Starting, "it is waited for");
    let failed = TaskInput::StartFailed { error: "interrupted".to_owned(), recoverable: true };
    drive(&mut machine, [failed]);
    assert_eq!(machine.state(), MachineState::Detached);
    assert_ne!(machine.public().status, TaskStatus::Dead);
}

#[test]
fn an_agent_that_leaves_leaves_what_does_not_end_to_the_next_one() {
    let mut machine = TaskMachine::new(rules(1, None), at().now);
    to_running(&mut machine);
    undead(&mut machine, kill());
    assert_eq!(drive(&mut machine, [TaskInput::Shutdown])[1], TaskEffect::Leave);
    assert_eq!(machine.state(), MachineState::Detached);
    assert_eq!(machine.public().status, TaskStatus::Running);
}

#[test]
fn what_the_node_is_short_of_is_waited_for_and_no_restart_is_counted() {
    let mut machine = TaskMachine::new(rules(0, None), at().now);
    drive(&mut machine, [TaskInput::GateOpened]);
    for _ in 0..5 {
        let short = TaskInput::NodeNotReady { reason: "no space is left".to_owned() };
        drive(&mut machine, [short]);
        assert_eq!(machine.state(), MachineState::AwaitingDriver);
        drive(&mut machine, [TaskInput::TimerFired]);
        assert_eq!(machine.state(), MachineState::Preparing);
    }
    assert_eq!(machine.public().restarts, 0);
    drive(&mut machine, [TaskInput::Prepared, TaskInput::Started]);
    assert_eq!(machine.state(), MachineState::Running);
}

#[test]
fn a_driver_that_is_not_ready_is_asked_again_ever_more_slowly_and_said_once() {
    let mut machine = TaskMachine::new(rules(0, None), at().now);
    let refuse = || TaskInput::DriverNotReady { reason: "warming up".to_owned() };
    drive(&mut machine, [TaskInput::GateOpened]);
    let mut pauses = Vec::new();
    for _ in 0..80 {
        pauses.extend(
            drive(&mut machine, [refuse(), TaskInput::TimerFired]).into_iter().filter_map(|e| {
                match e {
                    TaskEffect::Timer(pause) => Some(pause.as_secs()),
                    _ => None,
                }
            }),
        );
    }
    assert_eq!(pauses[..7], [1, 2, 4, 8, 16, 30, 30]);
    assert_eq!(pauses[79], 30);
    assert_eq!(kinds(&machine).iter().filter(|k| **k == "Driver").count(), 1);
}

#[test]
fn a_task_whose_driver_has_no_signals_is_not_said_to_have_been_sent_one() {
    let said = |signals: Option<Signals>, order: TaskInput| {
        let mut machine = TaskMachine::new(rules(1, None), at().now);
        drive(&mut machine, [TaskInput::GateOpened, TaskInput::Prepared]);
        drive(&mut machine, signals.map(|signals| TaskInput::DriverKnown { signals }));
        drive(&mut machine, [TaskInput::Started, order]);
        let event = machine.public().events.last().unwrap().clone();
        assert_eq!(event.details["kill_timeout"], "5s");
        (event.message, event.details.contains_key(ostler_model::event::NO_SIGNALS))
    };
    let interrupt = ("Sent interrupt. Waiting 5s before force killing".to_owned(), false);
    assert_eq!(said(None, kill()), interrupt);
    assert_eq!(said(Some(Signals::Sent), kill()), interrupt);
    let (text, unheard) = said(Some(Signals::None), kill());
    assert!(unheard && !text.contains("interrupt") && text.contains("no signals"), "{text}");
    let restart = || TaskInput::Restart { reason: "wanted".to_owned(), failure: false };
    assert!(said(Some(Signals::None), restart()).1);
    assert!(!said(Some(Signals::Sent), restart()).1);
}

#[test]
fn a_signal_that_the_driver_cannot_send_leaves_no_event() {
    let sent = |signals: Option<Signals>| {
        let mut machine = TaskMachine::new(rules(1, None), at().now);
        drive(&mut machine, [TaskInput::GateOpened, TaskInput::Prepared]);
        drive(&mut machine, signals.map(|signals| TaskInput::DriverKnown { signals }));
        let signal = TaskInput::Signaled { signal: "SIGUSR1".to_owned() };
        drive(&mut machine, [TaskInput::Started, signal]);
        kinds(&machine).contains(&"Signaling")
    };
    assert_eq!([None, Some(Signals::Sent), Some(Signals::None)].map(sent), [true, true, false]);
}
