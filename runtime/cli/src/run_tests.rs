#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::args::job::JobFileArgs;
use ostler_model::ids::JobId;

const INT: Cause = Cause::Interrupt(Interrupt::Int);
const TERM: Cause = Cause::Interrupt(Interrupt::Term);
const CLOSED: Cause = Cause::Output(Exit::OutputClosed);

fn ended() -> JobResult {
    JobResult { job: JobId::new("a").unwrap(), allocs: Vec::new() }
}

#[test]
fn the_first_signal_stops_and_the_second_kills() {
    let stopping = Stage::Running.ending(INT);
    assert_eq!(stopping, Stage::Stopping(INT));
    assert_eq!(stopping.ending(TERM), Stage::Killing(TERM));
    assert_eq!(stopping.ending(CLOSED), stopping);
    assert_eq!(Stage::Running.ending(CLOSED), Stage::Stopping(CLOSED));
    assert_eq!(Stage::Stopping(CLOSED).ending(INT), Stage::Killing(INT));
}

#[test]
fn the_exit_code_says_what_ended_the_job() {
    let result = ended();
    assert_eq!(Stage::Running.exit(Some(&result)).code(), 0);
    assert_eq!(Stage::Stopping(INT).exit(Some(&result)).code(), 130);
    assert_eq!(Stage::Stopping(TERM).exit(Some(&result)).code(), 143);
    assert_eq!(Stage::Stopping(CLOSED).exit(Some(&result)).code(), 141);
    assert_eq!(Stage::Killing(INT).exit(None).code(), 130);
}

#[tokio::test]
async fn a_job_file_that_is_not_there_is_an_input_error() {
    let dir = tempfile::tempdir().unwrap();
    let args = RunArgs {
        source: JobFileArgs { file: dir.path().join("gone.hcl"), ..JobFileArgs::default() },
        raw_exec: false,
        json: false,
        agent: super::super::args::AgentArgs::default(),
    };
    assert_eq!(run(args, Terminal::default()).await, Exit::Input);
}
