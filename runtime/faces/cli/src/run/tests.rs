#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::args::job::JobFileArgs;
use ostler_model::ids::JobId;

const INT: EndCause = EndCause::Interrupt(Interrupt::Int);
const TERM: EndCause = EndCause::Interrupt(Interrupt::Term);
const CLOSED: EndCause = EndCause::Output(Exit::OutputClosed);

fn ended() -> JobResult {
    JobResult { job: JobId::new("a").unwrap(), allocs: Vec::new() }
}

#[test]
fn the_first_signal_stops_and_the_second_kills() {
    let stopping = RunStage::Running.advance(INT);
    assert_eq!(stopping, RunStage::Stopping(INT));
    assert_eq!(stopping.advance(TERM), RunStage::Killing(TERM));
    assert_eq!(stopping.advance(CLOSED), stopping);
    assert_eq!(RunStage::Running.advance(CLOSED), RunStage::Stopping(CLOSED));
    assert_eq!(RunStage::Stopping(CLOSED).advance(INT), RunStage::Killing(INT));
}

#[test]
fn the_exit_code_says_what_ended_the_job() {
    let result = ended();
    assert_eq!(RunStage::Running.exit(Some(&result)).code(), 0);
    assert_eq!(RunStage::Stopping(INT).exit(Some(&result)).code(), 130);
    assert_eq!(RunStage::Stopping(TERM).exit(Some(&result)).code(), 143);
    assert_eq!(RunStage::Stopping(CLOSED).exit(Some(&result)).code(), 141);
    assert_eq!(RunStage::Killing(INT).exit(None).code(), 130);
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
    assert_eq!(run(args, TerminalInfo::default()).await, Exit::Input);
}
