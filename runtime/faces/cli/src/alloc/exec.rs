//! `ostler alloc exec`
//!
//! ```text
//! stdin ─ thread ─┐
//! SIGWINCH ───────┼─► ExecInputEvent ─► agent ─► ExecOutputEvent ─► stdout, stderr, the exit code
//! every 10 s ─────┘
//! ```

use std::io::{self, IsTerminal as _};

use rustix::termios::{OptionalActions, Termios, Winsize};
use serde_json::json;
use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use super::logs::only_task;
use crate::args::alloc::AllocExecArgs;
use crate::connect::{self, CliError, run_until_interrupted};
use crate::consent::{self, ConsentRequest};
use crate::exit::Exit;
use crate::output;
use crate::terminal::{TerminalInfo, one_line};
use ostler_api::client::{ApiClient, ExecInputEvent, ExecInputs, ExecOutputEvent, ExecOutputs};
use ostler_api::request::{ApiRequest, WebSocketBody};
use ostler_api::routes::{QueryKey, endpoints as routes};
use ostler_model::alloc::ClientStatus;
use ostler_model::clock;
use ostler_model::limits::{API_HEADER_BYTES_MAX, EXEC_SIGN_PERIOD};
use ostler_wire::Alloc;

/// Bytes of the input that are read and sent at once.
const INPUT_BYTES: usize = 16 * 1024;
/// Most pieces of the input that wait to be sent. The thread that reads more of it waits.
const INPUT_QUEUE_MAX: usize = 2;
/// Bytes reserved for everything in the head of a request except its path.
const HEAD_BYTES: usize = 1024;

/// Run a command inside a task.
pub(super) async fn exec(args: &AllocExecArgs, terminal: &TerminalInfo) -> Result<Exit, CliError> {
    let asked =
        ExecInvocation::from_args(args, io::stdin().is_terminal(), io::stdout().is_terminal())?;
    let client = connect::connect(&args.agent)?;
    let change = ConsentRequest { verb: "run a command in", agree: args.agree, terminal };
    let (client, alloc) = match (&args.job, asked.alloc) {
        (Some(job), _) => find_running_alloc(client, job, change).await?,
        (None, given) => {
            let id = consent::find_alloc(&client, given, change).await?;
            let alloc = client.send(&routes::ReadAlloc::request([&id])).await?;
            (client, alloc)
        }
    };
    let task = match super::check_task(&alloc, args.task.as_deref())? {
        Some(task) => task.to_owned(),
        None => only_task(&alloc)?,
    };
    let id = alloc.id;
    let request = routes::ExecInAlloc::request([&id])
        .with(QueryKey::Task, task)
        .with(QueryKey::Tty, asked.tty)
        .with(QueryKey::Command, json!(asked.command));
    let length = request.target().len();
    if length > API_HEADER_BYTES_MAX.saturating_sub(HEAD_BYTES) {
        return Err(CliError::Wrong(format!(
            "the command has {length} bytes as it is sent, more than the {API_HEADER_BYTES_MAX} that the agent \
             takes; give a long script on standard input: `ostler alloc exec {} sh < SCRIPT`",
            id.short()
        )));
    }
    let session = run_session(&client, &request, &asked, terminal);
    run_until_interrupted("the command inside the task is ended", session).await
}

/// What the arguments ask for, with the defaults that depend on the terminal.
#[derive(Debug, PartialEq, Eq)]
struct ExecInvocation<'a> {
    /// Beginning of an id; empty where a job is named.
    alloc: &'a str,
    command: &'a [String],
    stdin: bool,
    tty: bool,
}

impl<'a> ExecInvocation<'a> {
    fn from_args(
        args: &'a AllocExecArgs,
        stdin_tty: bool,
        stdout_tty: bool,
    ) -> Result<Self, CliError> {
        let words = args.words.as_slice();
        let (alloc, command) = match (&args.job, words) {
            (None, [alloc, command @ ..]) => (alloc.as_str(), command),
            (Some(_), command) => ("", command),
            (None, []) => ("", words),
        };
        let command = match command {
            [dashes, command @ ..] if dashes == "--" => command,
            command => command,
        };
        if command.is_empty() {
            return Err(CliError::Wrong(
                "no command is given; give one, as in `ostler alloc exec ALLOC ls -l`".to_owned(),
            ));
        }
        let stdin = args.stdin.unwrap_or(true);
        let tty = args.tty.unwrap_or(stdin && stdin_tty && stdout_tty);
        if tty && !stdin {
            return Err(CliError::Wrong(
                "a terminal (-t) needs the input (-i): leave out -i=false, or give -t=false"
                    .to_owned(),
            ));
        }
        if tty && !stdin_tty {
            return Err(CliError::Wrong(
                "-t needs a terminal on standard input, and there is none: give -t=false"
                    .to_owned(),
            ));
        }
        Ok(Self { alloc, command, stdin, tty })
    }
}

/// Find a running allocation of a job, and make a client for its namespace.
async fn find_running_alloc(
    client: ApiClient,
    job: &str,
    change: ConsentRequest<'_>,
) -> Result<(ApiClient, Alloc<'static>), CliError> {
    let (client, job) = consent::find_job(client, job, change).await?;
    let allocs = client.send(&routes::ListJobAllocs::request([&job])).await?;
    let running = allocs.into_iter().find(|alloc| alloc.client_status == ClientStatus::Running);
    let running = running.ok_or_else(|| {
        let job = one_line(&job);
        CliError::Cannot(format!("no allocation of job {job} runs; see `ostler job status {job}`"))
    })?;
    let whole = client.send(&routes::ReadAlloc::request([&running.id])).await?;
    Ok((client, whole))
}

/// Run the command, from its first byte of input to its exit code.
async fn run_session(
    client: &ApiClient,
    request: &ApiRequest<(), WebSocketBody>,
    asked: &ExecInvocation<'_>,
    terminal: &TerminalInfo,
) -> Result<Exit, CliError> {
    let cannot = |what: &str, why: io::Error| CliError::Cannot(format!("{what}: {why}"));
    let sizes = asked.tty.then(|| signal(SignalKind::window_change())).transpose();
    let sizes =
        sizes.map_err(|why| cannot("changes of the terminal's size cannot be followed", why))?;
    let (inputs, outputs) = client.start_exec(request).await?;
    // The terminal is restored before any message about the end is printed.
    let _raw = asked.tty.then(RawTerminal::new).transpose();
    let _raw = _raw.map_err(|why| cannot("the terminal cannot be given to the command", why))?;
    let (bytes, of_bytes) = mpsc::channel(INPUT_QUEUE_MAX);
    if asked.stdin {
        // The thread cannot be interrupted while it reads, and ends with the program.
        let thread = std::thread::Builder::new().name("stdin".to_owned());
        let read = thread.spawn(move || read_input(io::stdin(), &bytes));
        read.map_err(|why| cannot("a thread for the input cannot be started", why))?;
    } else {
        drop(bytes);
    }
    tokio::select! {
        exit = show_output(outputs, terminal) => exit,
        // When the agent takes no more input, its last output says why.
        () = async { send_input(inputs, of_bytes, sizes).await; std::future::pending().await } => {
            Ok(Exit::Success)
        }
    }
}

/// Send the input in pieces, until it ends or nobody takes more pieces.
fn read_input(mut from: impl io::Read, to: &mpsc::Sender<Vec<u8>>) {
    let mut piece = vec![0; INPUT_BYTES];
    loop {
        match from.read(&mut piece) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // An input that cannot be read has ended.
            Ok(0) | Err(_) => return,
            Ok(length) => {
                let read = piece.get(..length).unwrap_or_default().to_vec();
                if to.blocking_send(read).is_err() {
                    return;
                }
            }
        }
    }
}

/// Send input, window sizes and signs of life, until the agent takes no more of them.
async fn send_input(
    mut to: ExecInputs,
    mut bytes: mpsc::Receiver<Vec<u8>>,
    mut sizes: Option<Signal>,
) {
    let mut ended = false;
    let mut next = sizes.is_some().then(resize_message);
    loop {
        let said = match next.take() {
            Some(said) => said,
            None => {
                let resized = async {
                    match &mut sizes {
                        Some(sizes) => sizes.recv().await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    piece = bytes.recv(), if !ended => match piece {
                        Some(piece) => ExecInputEvent::Bytes(piece),
                        None => {
                            ended = true;
                            ExecInputEvent::End
                        }
                    },
                    _ = resized => resize_message(),
                    () = clock::sleep(EXEC_SIGN_PERIOD) => ExecInputEvent::Alive,
                }
            }
        };
        if !to.send(said).await {
            return;
        }
    }
}

/// A message with the present size of the terminal.
fn resize_message() -> ExecInputEvent {
    let size = rustix::termios::tcgetwinsize(rustix::stdio::stdout())
        .or_else(|_| rustix::termios::tcgetwinsize(rustix::stdio::stdin()));
    match size {
        Ok(Winsize { ws_row: rows, ws_col: columns, .. }) => {
            ExecInputEvent::Resize { rows, columns }
        }
        Err(_) => ExecInputEvent::Alive,
    }
}

/// Show what the command prints until it exits. Nothing of its output is changed.
async fn show_output(mut from: ExecOutputs, terminal: &TerminalInfo) -> Result<Exit, CliError> {
    let (mut stdout, mut stderr) = (tokio::io::stdout(), tokio::io::stderr());
    loop {
        match from.next().await? {
            ExecOutputEvent::Stdout(bytes) => {
                let written = write(&mut stdout, &bytes).await;
                written.map_err(|error| output::report_output_error(&error, terminal))?;
            }
            // A standard error that nobody reads is no reason to end the command.
            ExecOutputEvent::Stderr(bytes) => drop(write(&mut stderr, &bytes).await),
            ExecOutputEvent::Exited(code) => return Ok(Exit::Job(u8::try_from(code).unwrap_or(1))),
        }
    }
}

async fn write(to: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes).await?;
    to.flush().await
}

/// A terminal that passes every key on as it is typed. It is restored when this is dropped.
struct RawTerminal {
    before: Termios,
}

impl RawTerminal {
    fn new() -> io::Result<Self> {
        let stdin = rustix::stdio::stdin();
        let before = rustix::termios::tcgetattr(stdin)?;
        let mut raw = before.clone();
        raw.make_raw();
        rustix::termios::tcsetattr(stdin, OptionalActions::Drain, &raw)?;
        Ok(Self { before })
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        let stdin = rustix::stdio::stdin();
        // A terminal that is gone needs nothing.
        let _gone = rustix::termios::tcsetattr(stdin, OptionalActions::Drain, &self.before);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        exec: AllocExecArgs,
    }

    fn args(line: &[&str]) -> AllocExecArgs {
        let parsed = Line::try_parse_from(["exec"].iter().chain(line));
        parsed.unwrap_or_else(|error| panic!("{error}")).exec
    }

    /// Allocation, command, input and terminal.
    fn read(line: &[&str], terminals: bool) -> Result<(String, Vec<String>, bool, bool), String> {
        let args = args(line);
        match ExecInvocation::from_args(&args, terminals, terminals) {
            Ok(ExecInvocation { alloc, command, stdin, tty }) => {
                Ok((alloc.to_owned(), command.to_vec(), stdin, tty))
            }
            Err(CliError::Wrong(why)) => Err(why),
            Err(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_follows_the_allocation_is_the_commands_own() {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let asked = |line, terminals| read(line, terminals).unwrap();
        assert_eq!(asked(&["0f", "ls"], false), ("0f".to_owned(), words(&["ls"]), true, false));
        let all = ["0f", "ls", "-t", "--task", "--", "-i=false"];
        assert_eq!(asked(&all, false), ("0f".to_owned(), words(&all[1..]), true, false));
        assert_eq!(asked(&["0f", "--", "ls", "-l"], false).1, words(&["ls", "-l"]));
        assert_eq!(asked(&["--task", "t", "0f", "ls"], true).1, words(&["ls"]));
        let of_job = asked(&["--job", "web", "ls", "-i"], false);
        assert_eq!(of_job, (String::new(), words(&["ls", "-i"]), true, false));
    }

    #[test]
    fn a_terminal_is_made_where_there_are_some_and_needs_the_input() {
        let asked = |line, terminals| read(line, terminals).map(|(_, _, stdin, tty)| (stdin, tty));
        assert_eq!(asked(&["0f", "ls"], true), Ok((true, true)));
        assert_eq!(asked(&["-it", "0f", "ls"], true), Ok((true, true)));
        assert_eq!(asked(&["-i=false", "0f", "ls"], true), Ok((false, false)));
        assert_eq!(asked(&["-t=false", "0f", "ls"], true), Ok((true, false)));
        assert_eq!(asked(&["-i=false", "-t=false", "0f", "ls"], true), Ok((false, false)));
        let refused = |line, terminals| asked(line, terminals).unwrap_err();
        assert!(refused(&["-t", "-i=false", "0f", "ls"], true).contains("-i=false"));
        assert!(refused(&["-t", "0f", "ls"], false).contains("needs a terminal"));
        assert!(refused(&["0f"], true).contains("no command"));
        assert!(refused(&["0f", "--"], true).contains("no command"));
    }

    #[tokio::test]
    async fn the_input_is_given_in_pieces_to_its_end() {
        let (to, mut from) = mpsc::channel(INPUT_QUEUE_MAX);
        let input = vec![7; 3 * INPUT_BYTES + 1];
        let given = input.clone();
        let reading = tokio::task::spawn_blocking(move || read_input(&given[..], &to));
        let mut got = Vec::new();
        while let Some(piece) = from.recv().await {
            got.extend(piece);
        }
        reading.await.unwrap();
        assert!(got == input);
    }
}
