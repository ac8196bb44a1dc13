//! Commands inside tasks, as Nomad asks for them: with streams, or with the whole output
//! within a time.

use std::pin::pin;
use std::time::Duration;

use futures_util::{Stream, stream};
use tokio::sync::mpsc;
use tonic::{Status, Streaming};

use crate::proto::driver as wire;
use ostler_agent::session::{QUEUE_MAX, SessionInput, SessionOutput, drive};
use ostler_model::clock;
use ostler_model::limits::{DRIVER_CALL_WALL_MAX, EXEC_OUTPUT_BYTES_MAX};
use ostler_model::session::{ExecSession, TerminalSize};

/// What Nomad wants to run: the task, the command and, where it has one, its terminal.
type ExecSetup = (String, Vec<String>, Option<TerminalSize>);

/// Read the first message of a stream, which says what to run.
pub(crate) async fn setup(
    asked: &mut Streaming<wire::ExecTaskStreamingRequest>,
) -> Result<ExecSetup, Status> {
    let first = clock::timeout(DRIVER_CALL_WALL_MAX, asked.message()).await;
    let first = first.ok_or_else(|| Status::deadline_exceeded("nothing is asked for"))??;
    let setup = first.and_then(|first| first.setup);
    let setup =
        setup.ok_or_else(|| Status::invalid_argument("the first message is not a setup"))?;
    let wire::exec_task_streaming_request::Setup { task_id, command, tty } = setup;
    Ok((task_id, command, tty.then(TerminalSize::default)))
}

/// What a command prints and how it ends. The command is ended when nobody reads its
/// output any more.
pub(crate) fn stream(
    session: ExecSession,
    mut asked: Streaming<wire::ExecTaskStreamingRequest>,
) -> impl Stream<Item = Result<wire::ExecTaskStreamingResponse, Status>> + Send {
    let (inputs, of_inputs) = mpsc::channel(QUEUE_MAX);
    let (of_outputs, outputs) = mpsc::channel(QUEUE_MAX);
    let heard = async move {
        while let Ok(Some(message)) = asked.message().await {
            if inputs.send(input(message)).await.is_err() {
                break;
            }
        }
        // Nomad half-closes the stream when it has no more input. The command goes on until it
        // ends, or until the stream of its output is dropped.
        inputs.closed().await;
    };
    let driven = async move {
        let driven = drive(session, of_inputs, of_outputs);
        tokio::select! {
            driven = driven => driven,
            () = async { heard.await; std::future::pending().await } => Ok(()),
        }
    };
    // The session is driven while the stream is read, and dropped with it.
    let state = (Box::pin(driven), outputs, false);
    stream::unfold(state, |(mut driven, mut outputs, over)| async move {
        if over {
            let output = outputs.recv().await?;
            return Some((Ok(wire_output(output)), (driven, outputs, true)));
        }
        tokio::select! {
            biased;
            Some(output) = outputs.recv() => Some((Ok(wire_output(output)), (driven, outputs, false))),
            ended = driven.as_mut() => match ended {
                Ok(()) => {
                    let output = outputs.recv().await?;
                    Some((Ok(wire_output(output)), (driven, outputs, true)))
                }
                Err(why) => Some((Err(Status::unavailable(why)), (driven, outputs, true))),
            },
        }
    })
}

/// All that a command prints within `wall`; zero sets no limit.
pub(crate) async fn collect_output(
    session: ExecSession,
    wall: Duration,
) -> Result<wire::ExecTaskResponse, Status> {
    let (inputs, of_inputs) = mpsc::channel(QUEUE_MAX);
    let (of_outputs, mut outputs) = mpsc::channel(QUEUE_MAX);
    let kept = async move {
        let mut said = wire::ExecTaskResponse::default();
        // The command gets no input. An error means that it has ended.
        let _gone = inputs.send(SessionInput::End).await;
        while let Some(output) = outputs.recv().await {
            match output {
                SessionOutput::Stdout(bytes) => keep(&mut said.stdout, &bytes),
                SessionOutput::Stderr(bytes) => keep(&mut said.stderr, &bytes),
                SessionOutput::Exited(code) => said.result = Some(result(code)),
                SessionOutput::StdoutEnd | SessionOutput::StderrEnd => {}
            }
        }
        said
    };
    let mut both = pin!(async { tokio::join!(drive(session, of_inputs, of_outputs), kept) });
    let ended = if wall.is_zero() {
        Some(both.as_mut().await)
    } else {
        clock::timeout(wall, both.as_mut()).await
    };
    let late = || Status::deadline_exceeded(format!("the command did not end within {wall:?}"));
    let (ended, said) = ended.ok_or_else(late)?;
    ended.map_err(Status::unavailable)?;
    Ok(said)
}

/// Append bytes to the output. What is beyond the limit is dropped.
fn keep(kept: &mut Vec<u8>, bytes: &[u8]) {
    let room = EXEC_OUTPUT_BYTES_MAX.saturating_sub(kept.len());
    kept.extend(bytes.iter().take(room));
}

fn result(exit_code: i32) -> wire::ExitResult {
    wire::ExitResult { exit_code, ..wire::ExitResult::default() }
}

fn input(message: wire::ExecTaskStreamingRequest) -> SessionInput {
    if let Some(stdin) = message.stdin {
        return if stdin.close { SessionInput::End } else { SessionInput::Bytes(stdin.data) };
    }
    let size = message.tty_size.map(|size| {
        let number = |number| u16::try_from(number).unwrap_or_default();
        TerminalSize { rows: number(size.height), columns: number(size.width) }
    });
    // A message with neither is a sign of life.
    size.map_or(SessionInput::Bytes(Vec::new()), SessionInput::Resize)
}

fn wire_output(output: SessionOutput) -> wire::ExecTaskStreamingResponse {
    let data = |data| Some(wire::ExecTaskStreamingIoOperation { data, close: false });
    let end = || Some(wire::ExecTaskStreamingIoOperation { data: Vec::new(), close: true });
    let mut said = wire::ExecTaskStreamingResponse::default();
    match output {
        SessionOutput::Stdout(bytes) => said.stdout = data(bytes),
        SessionOutput::StdoutEnd => said.stdout = end(),
        SessionOutput::Stderr(bytes) => said.stderr = data(bytes),
        SessionOutput::StderrEnd => said.stderr = end(),
        SessionOutput::Exited(code) => {
            said.exited = true;
            said.result = Some(result(code));
        }
    }
    said
}
