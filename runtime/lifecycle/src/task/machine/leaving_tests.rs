//! What becomes of a task whose agent leaves.

use super::*;

#[test]
fn a_start_that_fails_because_the_agent_leaves_is_the_next_agents_to_try() {
    let mut machine = TaskMachine::new(rules(0, None), at().now);
    drive(&mut machine, [TaskInput::GateOpened, TaskInput::Prepared, TaskInput::Shutdown]);
    assert_eq!(machine.state(), State::Starting, "it is waited for");
    let failed = TaskInput::StartFailed { error: "interrupted".to_owned(), recoverable: true };
    drive(&mut machine, [failed]);
    assert_eq!(machine.state(), State::Detached);
    assert_ne!(machine.public().status, TaskStatus::Dead);
}

#[test]
fn an_agent_that_leaves_leaves_what_does_not_end_to_the_next_one() {
    let mut machine = TaskMachine::new(rules(1, None), at().now);
    to_running(&mut machine);
    undead(&mut machine, kill());
    assert_eq!(drive(&mut machine, [TaskInput::Shutdown])[1], TaskEffect::Leave);
    assert_eq!(machine.state(), State::Detached);
    assert_eq!(machine.public().status, TaskStatus::Running);
}
