//! Connects a command inside a task with its client: bytes go both ways until one of them
//! has ended.
//!
//! ```text
//! asker ── SessionInput ──► drive ── stdin, size ──► ExecSession
//!       ◄─ SessionOutput ───      ◄─ stdout, stderr, end
//! ```

use std::future::Future;
use std::pin::pin;

use ostler_model::clock;
use ostler_model::limits::EXEC_OUTPUT_WALL_MAX;
use ostler_model::session::{ExecSession, Resize, TerminalSize};
use ostler_process::DRAIN_GRACE;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::mpsc::{Receiver, Sender};
use tokio_util::sync::CancellationToken;

/// The number of messages on their way in one direction.
pub const QUEUE_MAX: usize = 8;
/// The largest number of bytes in one message with output.
const PIECE_BYTES: usize = 16 * 1024;
/// The character that a terminal takes for the end of its input.
const END_OF_INPUT: u8 = 4;

/// A message from the client to the command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionInput {
    /// Bytes of the command's input.
    Bytes(Vec<u8>),
    /// The end of the command's input.
    End,
    /// A new size of the command's terminal.
    Resize(TerminalSize),
}

/// A message from the command to the client. Nothing comes after `Exited`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionOutput {
    /// Bytes of the standard output.
    Stdout(Vec<u8>),
    /// The standard output has ended.
    StdoutEnd,
    /// Bytes of the standard error.
    Stderr(Vec<u8>),
    /// The standard error has ended.
    StderrEnd,
    /// The command has ended, with this exit code.
    Exited(i32),
}

/// Carry bytes until the command has ended and its output is delivered, or until the input channel
/// is closed, which ends the command.
///
/// # Errors
/// A text for the client, if the way in which the command ended is unknown.
pub async fn drive(
    session: ExecSession,
    inputs: Receiver<SessionInput>,
    outputs: Sender<SessionOutput>,
) -> Result<(), String> {
    let ExecSession { stdin, stdout, stderr, resize, end } = session;
    let over = CancellationToken::new();
    let printed = async {
        let out = forward_output(
            stdout,
            &over,
            &outputs,
            SessionOutput::Stdout,
            SessionOutput::StdoutEnd,
        );
        let err = async {
            if let Some(stderr) = stderr {
                let (piece, end) = (SessionOutput::Stderr, SessionOutput::StderrEnd);
                forward_output(stderr, &over, &outputs, piece, end).await;
            }
        };
        tokio::join!(out, err);
    };
    let told = async {
        let code = await_exit_code(end, printed, &over, &outputs).await?;
        // A client that does not listen is not waited for.
        let _gone =
            clock::timeout(EXEC_OUTPUT_WALL_MAX, outputs.send(SessionOutput::Exited(code))).await;
        Ok(())
    };
    tokio::select! {
        () = forward_input(stdin, resize, inputs) => Ok(()),
        ended = told => ended,
    }
}

/// The exit code, once the output is delivered. A slow client is waited for, but not longer if
/// descendants go on printing.
async fn await_exit_code(
    end: impl Future<Output = Result<i32, String>>,
    printed: impl Future<Output = ()>,
    over: &CancellationToken,
    outputs: &Sender<SessionOutput>,
) -> Result<i32, String> {
    let (mut end, mut printed) = (pin!(end), pin!(printed));
    let code = tokio::select! {
        code = &mut end => code?,
        () = &mut printed => return end.await,
    };
    over.cancel();
    let told = clock::timeout(EXEC_OUTPUT_WALL_MAX, printed).await.is_some();
    if !told && outputs.capacity() == 0 {
        let waited = EXEC_OUTPUT_WALL_MAX.as_secs();
        return Err(format!(
            "it ended with exit code {code}, and what it printed last was not read in {waited} s"
        ));
    }
    Ok(code)
}

/// Forward input until the channel is closed.
async fn forward_input(
    stdin: impl AsyncWrite + Unpin,
    resize: Option<Resize>,
    mut inputs: Receiver<SessionInput>,
) {
    let mut stdin = Some(stdin);
    while let Some(input) = inputs.recv().await {
        match input {
            SessionInput::Resize(size) => resize.iter().for_each(|resize| resize(size)),
            SessionInput::Bytes(bytes) => {
                if let Some(to) = &mut stdin
                    && to.write_all(&bytes).await.is_err()
                {
                    // The command reads no more. Further input is dropped, as a pipe does.
                    stdin = None;
                }
            }
            SessionInput::End if resize.is_some() => {
                if let Some(to) = &mut stdin {
                    let _gone = to.write_all(&[END_OF_INPUT]).await;
                }
            }
            SessionInput::End => stdin = None,
        }
    }
}

/// Forward output up to its end. Once the command is over, descendants that keep the output open
/// and print nothing are not waited for.
async fn forward_output(
    mut from: impl AsyncRead + Unpin,
    over: &CancellationToken,
    outputs: &Sender<SessionOutput>,
    piece: impl Fn(Vec<u8>) -> SessionOutput,
    end: SessionOutput,
) {
    let mut bytes = vec![0; PIECE_BYTES];
    loop {
        let left = async {
            over.cancelled().await;
            clock::sleep(DRAIN_GRACE).await;
        };
        let count = tokio::select! {
            biased;
            count = from.read(&mut bytes) => count.unwrap_or(0),
            () = left => return,
        };
        let read = bytes.get(..count).unwrap_or_default();
        if read.is_empty() {
            break;
        }
        if outputs.send(piece(read.to_vec())).await.is_err() {
            return;
        }
    }
    // An error means that nobody listens.
    let _gone = outputs.send(end).await;
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use tokio::io::DuplexStream;
    use tokio::sync::{mpsc, oneshot};

    use super::*;

    struct TestCommand {
        stdin: DuplexStream,
        stdout: DuplexStream,
        stderr: Option<DuplexStream>,
        sizes: Arc<Mutex<Vec<TerminalSize>>>,
        end: oneshot::Sender<Result<i32, String>>,
        inputs: mpsc::Sender<SessionInput>,
        outputs: mpsc::Receiver<SessionOutput>,
        driven: tokio::task::JoinHandle<Result<(), String>>,
    }

    fn command(terminal: bool) -> TestCommand {
        let (stdin, of_stdin) = tokio::io::duplex(64);
        let (stdout, of_stdout) = tokio::io::duplex(64);
        let (stderr, of_stderr) = tokio::io::duplex(64);
        let sizes = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&sizes);
        let resize: Resize = Box::new(move |size| seen.lock().unwrap().push(size));
        let (end, ended) = oneshot::channel();
        let session = ExecSession {
            stdin: Box::new(of_stdin),
            stdout: Box::new(of_stdout),
            stderr: if terminal { None } else { Some(Box::new(of_stderr)) },
            resize: terminal.then_some(resize),
            end: Box::pin(async move { ended.await.unwrap() }),
        };
        let (inputs, of_inputs) = mpsc::channel(QUEUE_MAX);
        let (of_outputs, outputs) = mpsc::channel(QUEUE_MAX);
        let driven = tokio::spawn(drive(session, of_inputs, of_outputs));
        let stderr = (!terminal).then_some(stderr);
        TestCommand { stdin, stdout, stderr, sizes, end, inputs, outputs, driven }
    }

    #[tokio::test]
    async fn bytes_go_both_ways_and_the_exit_code_comes_last() {
        let mut command = command(false);
        command.inputs.send(SessionInput::Bytes(b"question".to_vec())).await.unwrap();
        command.inputs.send(SessionInput::End).await.unwrap();
        let mut read = String::new();
        command.stdin.read_to_string(&mut read).await.unwrap();
        assert_eq!(read, "question", "and the end of it");
        command.stdout.write_all(b"answer").await.unwrap();
        command.stderr.take().unwrap().write_all(b"trouble").await.unwrap();
        drop(command.stdout);
        command.end.send(Ok(7)).unwrap();
        let mut told = Vec::new();
        while let Some(output) = command.outputs.recv().await {
            told.push(output);
        }
        assert_eq!(told.pop(), Some(SessionOutput::Exited(7)));
        for wanted in [
            SessionOutput::Stdout(b"answer".to_vec()),
            SessionOutput::StdoutEnd,
            SessionOutput::Stderr(b"trouble".to_vec()),
            SessionOutput::StderrEnd,
        ] {
            assert!(told.contains(&wanted), "{wanted:?} in {told:?}");
        }
        command.driven.await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_descendant_that_keeps_the_output_open_does_not_hold_up_the_exit_code() {
        let mut command = command(false);
        command.end.send(Ok(0)).unwrap();
        assert_eq!(command.outputs.recv().await, Some(SessionOutput::Exited(0)));
        command.driven.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_terminal_hears_its_size_and_the_end_of_its_input_as_a_character() {
        let mut command = command(true);
        let size = TerminalSize { rows: 50, columns: 132 };
        command.inputs.send(SessionInput::Resize(size)).await.unwrap();
        command.inputs.send(SessionInput::End).await.unwrap();
        assert_eq!(command.stdin.read_u8().await.unwrap(), END_OF_INPUT);
        assert_eq!(*command.sizes.lock().unwrap(), [size]);
    }

    #[tokio::test]
    async fn who_has_gone_ends_the_command() {
        let mut command = command(false);
        drop(command.inputs);
        command.driven.await.unwrap().unwrap();
        assert!(command.end.is_closed(), "nobody waits for it");
        assert_eq!(command.outputs.recv().await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn who_reads_slowly_gets_all_that_was_printed() {
        let mut command = command(false);
        let long = vec![b'x'; 3 * QUEUE_MAX * 64];
        // The command has ended before most of its output is read.
        let (mut stdout, wanted) = (command.stdout, long.len());
        let printing = tokio::spawn(async move { stdout.write_all(&long).await.unwrap() });
        command.end.send(Ok(5)).unwrap();
        let mut got = 0;
        loop {
            // This is longer than descendants are waited for.
            clock::sleep(DRAIN_GRACE / 2).await;
            match command.outputs.recv().await.unwrap() {
                SessionOutput::Stdout(bytes) => got += bytes.len(),
                SessionOutput::Exited(code) => break assert_eq!(code, 5),
                SessionOutput::StdoutEnd => {}
                other => panic!("{other:?}"),
            }
        }
        printing.await.unwrap();
        assert_eq!(got, wanted);
    }

    #[tokio::test(start_paused = true)]
    async fn how_it_ended_may_be_unknown_and_who_reads_nothing_is_not_waited_for() {
        let mut command = command(false);
        command.end.send(Err("it was killed".to_owned())).unwrap();
        assert_eq!(command.driven.await.unwrap(), Err("it was killed".to_owned()));
        assert_eq!(command.outputs.recv().await, None);
        let mut silent = super::tests::command(false);
        // This is more than the queue takes.
        for _ in 0..=QUEUE_MAX {
            silent.stdout.write_all(&[b'x'; 64]).await.unwrap();
        }
        silent.end.send(Ok(1)).unwrap();
        let late = Duration::from_secs(3600);
        let ended = clock::timeout(late, silent.driven).await.unwrap().unwrap();
        assert!(ended.unwrap_err().contains("exit code 1"));
    }
}
