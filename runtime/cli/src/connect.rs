//! What the commands that ask a running agent share: the client, ids by prefix, the exit code.
//!
//! ```text
//! arguments ─► connect ─► ApiClient ─► find (prefix) ─► the command ─► ended ─► Exit
//!                 │                   │                  │ Stop        ▲
//!                 └───────────────────┴──────────────────┴─────────────┘
//! ```

use std::fmt::{self, Write as _};
use std::io::IsTerminal as _;
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::args::AgentArgs;
use super::args::client::AddressArgs;
use super::args::device::AgentSource;
use super::credentials;
use super::exit::Exit;
use super::failure::Failure;
use super::input::InputError;
use super::interrupt::Interrupts;
use super::output;
use super::start::{Fallback, Session, StartError};
use super::terminal::{Terminal, one_line, plain};
use ostler_agent::AgentHandle;
use ostler_api::client::{Address, AddressError, default_data_dir};
use ostler_api::client::{ApiClient, ClientError, segment};
use ostler_model::ids::AllocId;
use ostler_model::time::Timestamp;
use ostler_wire::{Alloc, JobStub};

/// Most candidates that are listed for an id that means several.
const CANDIDATES_MAX: usize = 10;

/// Why a command ends before its end.
#[derive(Debug)]
pub(super) enum Stop {
    /// The agent did not do it.
    Client(ClientError),
    /// A file is wrong: said with the places, exit 2.
    Input(InputError),
    /// What was given is wrong: said, exit 2.
    Wrong(String),
    /// The agent cannot do it: said, exit 3.
    Cannot(String),
    /// Something else: said, and how the program ends.
    Failed(String, Exit),
    /// The message was printed already.
    Exit(Exit),
}

/// What is said of it, where something still is.
impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client(error) => error.fmt(f),
            Self::Input(error) => error.fmt(f),
            Self::Wrong(message) | Self::Cannot(message) | Self::Failed(message, _) => {
                f.write_str(message)
            }
            Self::Exit(_) => f.write_str("it was ended"),
        }
    }
}

impl From<ClientError> for Stop {
    fn from(error: ClientError) -> Self {
        Self::Client(error)
    }
}

impl From<Exit> for Stop {
    fn from(exit: Exit) -> Self {
        Self::Exit(exit)
    }
}

impl From<InputError> for Stop {
    fn from(error: InputError) -> Self {
        Self::Input(error)
    }
}

impl From<StartError> for Stop {
    fn from(error: StartError) -> Self {
        match error {
            StartError::Input(error) => Self::Input(error),
            StartError::Agent(message) => Self::Cannot(message),
        }
    }
}

impl From<AddressError> for Stop {
    fn from(error: AddressError) -> Self {
        Self::Wrong(error.to_string())
    }
}

/// How a command ended; says why when it did not end well.
pub(super) fn ended(result: Result<Exit, Stop>, terminal: &Terminal) -> Exit {
    let stop = match result {
        Ok(exit) => return exit,
        Err(stop) => stop,
    };
    let exit = match &stop {
        Stop::Exit(exit) => return *exit,
        Stop::Input(_) | Stop::Wrong(_) => Exit::Input,
        Stop::Client(error) => Exit::from(error),
        Stop::Cannot(_) => Exit::Agent,
        Stop::Failed(_, exit) => *exit,
    };
    match &stop {
        _ if terminal.json => output::failure(&Failure::of_stop(&stop, exit)),
        Stop::Input(error) => output::input_error(terminal, error),
        other => output::error(terminal, &other.to_string()),
    }
    exit
}

/// A client of the addressed agent. No request is made yet.
pub(super) fn connect(args: &AddressArgs) -> Result<ApiClient, Stop> {
    client(args, say_waiting)
}

/// The same for whoever has the whole screen, or none: nothing is written that the agent is waited for.
pub(super) fn connect_unsaid(args: &AddressArgs) -> Result<ApiClient, Stop> {
    client(args, |_, _| {})
}

fn client(args: &AddressArgs, waiting: fn(&str, bool)) -> Result<ApiClient, Stop> {
    let address = Address::of(args.address.as_deref(), args.data_dir.as_deref())?;
    let client = credentials::given(ApiClient::new(address, waiting), &args.credentials)?;
    Ok(match args.namespace.as_deref() {
        None | Some("") => client,
        Some(namespace) => client.within(namespace),
    })
}

/// The agent starts: how far it is, on a terminal each time that it is further.
fn say_waiting(text: &str, first: bool) {
    if first || std::io::stderr().is_terminal() {
        output::say(&plain(&format!("{text}; waiting")));
    }
}

/// The agent to ask in place of one that is started for the command alone; none when none runs, or
/// when another configuration is wanted than it has. That there is none is said.
pub(super) async fn running(of: &AgentSource) -> Result<Option<ApiClient>, Stop> {
    if of.address.as_ref().is_some_and(|given| !given.is_empty()) {
        // It was named: without it there is nothing to show.
        return connect(&of.at()).map(Some);
    }
    let Some(client) = addressed(&of.agent)? else { return Ok(None) };
    if client.is_there().await {
        return Ok(Some(client));
    }
    let at = client.at();
    output::say(&format!("no agent runs at {at}: one is started for this command alone"));
    Ok(None)
}

/// What the agent answers at `path`, or `own` says of one that is started for this command alone.
pub(super) async fn ask<T: DeserializeOwned>(
    of: &AgentSource,
    path: &str,
    own: impl FnOnce(&AgentHandle) -> T,
) -> Result<T, Stop> {
    match running(of).await? {
        Some(client) => Ok(client.get(path).await?),
        None => alone(of, own).await,
    }
}

/// What there is to say of an agent that is started for this command alone.
pub(super) async fn alone<T>(
    of: &AgentSource,
    own: impl FnOnce(&AgentHandle) -> T,
) -> Result<T, Stop> {
    let session = Session::start_and_say(&of.agent, Fallback::Temporary).await?;
    let told = own(&session.agent);
    session.end().await;
    Ok(told)
}

/// As [`running`], for a command that needs an agent for a part of its work: nothing is said, unless the environment
/// names one that is not there.
pub(super) async fn running_silent(args: &AgentArgs) -> Result<Option<ApiClient>, Stop> {
    let Some(client) = addressed(args)? else { return Ok(None) };
    if client.is_there().await {
        return Ok(Some(client));
    }
    let named =
        AddressArgs::of_words([]).and_then(|at| at.address).is_some_and(|at| !at.is_empty());
    if named && args.data_dir.is_none() {
        let at = client.at();
        output::say(&format!(
            "no agent answers at {at}, which OSTLER_ADDR names: one is started for this command alone"
        ));
    }
    Ok(None)
}

/// The agent of the data directory, or of the environment, unless another configuration is wanted than it may
/// have; an error is what is wrong with the address or the credentials.
fn addressed(args: &AgentArgs) -> Result<Option<ApiClient>, Stop> {
    if args.config.is_some() || args.plugin_dir.is_some() {
        return Ok(None);
    }
    let at = match &args.data_dir {
        Some(dir) => AddressArgs { data_dir: Some(dir.clone()), ..AddressArgs::default() },
        None => AddressArgs::of_words([]).unwrap_or_default(),
    };
    match connect(&at) {
        // Nobody names one, and there is no place where one would be.
        Err(Stop::Wrong(_)) if at.address.is_none() && default_data_dir().is_none() => Ok(None),
        client => client.map(Some),
    }
}

/// The result of `work`, unless a signal comes first; `hint` then says what goes on.
pub(super) async fn until_interrupted<T>(
    hint: &str,
    work: impl Future<Output = Result<T, Stop>>,
) -> Result<T, Stop> {
    let mut interrupts = Interrupts::new()
        .map_err(|error| Stop::Cannot(format!("signals cannot be waited for: {error}")))?;
    tokio::select! {
        done = work => done,
        signal = interrupts.next() => {
            output::say(&format!("{}: {hint}", signal.name()));
            Err(Stop::Exit(signal.exit()))
        }
    }
}

/// The allocation whose id begins with `given`.
pub(super) async fn find_alloc(client: &ApiClient, given: &str) -> Result<AllocId, Stop> {
    if let Ok(id) = given.parse() {
        return Ok(id);
    }
    let prefix = given.strip_suffix('-').unwrap_or(given).to_ascii_lowercase();
    let fits = prefix.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
    if prefix.is_empty() || !fits {
        let message =
            format!("{given:?} is no id of an allocation; `ostler alloc status` lists them");
        return Err(Stop::Wrong(message));
    }
    let path =
        format!("/v1/allocations?namespace={}&prefix={}", client.namespaces(), segment(&prefix));
    let found: Vec<Alloc> = client.get(&path).await?;
    let one = only(
        found,
        &format!("no allocation's id begins with {prefix}; `ostler alloc status` lists them"),
        &format!("allocations' ids begin with {prefix}"),
        |alloc| format!("{} {} ({})", alloc.id, alloc.name, alloc.client_status),
    )?;
    Ok(one.id)
}

/// The job called `given`, else the one whose id begins with it, and a client for its namespace.
pub(super) async fn find_job(client: ApiClient, given: &str) -> Result<(ApiClient, String), Stop> {
    let path = format!("/v1/jobs?namespace={}&prefix={}", client.namespaces(), segment(given));
    let mut found: Vec<JobStub> = client.get(&path).await?;
    if given.is_empty() {
        return Err(Stop::Wrong(
            "the job's id is empty; `ostler job status` lists them".to_owned(),
        ));
    }
    if found.iter().any(|job| job.id == given) {
        found.retain(|job| job.id == given);
    }
    if found.len() > 1 && found.iter().all(|job| job.id == given) {
        let what = format!("{} jobs are called {given}", found.len());
        let names =
            found.iter().map(|job| format!("--namespace {} ({})", job.namespace, job.status));
        return Err(Stop::Wrong(ambiguous(&what, "say in which namespace it is", names)));
    }
    let others =
        found.iter().any(|job| Some(&job.namespace) != found.first().map(|job| &job.namespace));
    let one = only(
        found,
        &format!("there is no job {given}; `ostler job status` lists them"),
        &format!("jobs' ids begin with {given}"),
        |job| match others {
            true => format!("{} ({}, --namespace {})", job.id, job.status, job.namespace),
            false => format!("{} ({})", job.id, job.status),
        },
    )?;
    Ok((client.within(&one.namespace), one.id.into_owned()))
}

/// The one that was found. Otherwise `none` is said, or how many `several` are and which.
pub(super) fn only<T>(
    found: Vec<T>,
    none: &str,
    several: &str,
    name: impl Fn(&T) -> String,
) -> Result<T, Stop> {
    match <[T; 1]>::try_from(found) {
        Ok([one]) => Ok(one),
        Err(found) if found.is_empty() => Err(Stop::Wrong(none.to_owned())),
        Err(found) => {
            let what = format!("{} {several}", found.len());
            Err(Stop::Wrong(ambiguous(
                &what,
                "say more of the one that is meant",
                found.iter().map(name),
            )))
        }
    }
}

/// A message that lists what could be meant, and says what to add.
fn ambiguous(what: &str, next: &str, candidates: impl ExactSizeIterator<Item = String>) -> String {
    let mut text = format!("{what}; {next}:");
    let more = candidates.len().saturating_sub(CANDIDATES_MAX);
    for candidate in candidates.take(CANDIDATES_MAX) {
        let _ = write!(text, "\n  {}", one_line(&candidate));
    }
    if more > 0 {
        let _ = write!(text, "\n  and {more} more");
    }
    text
}

/// How long ago something was, as people say it.
pub(super) fn ago(at: Timestamp, now: Timestamp) -> String {
    if at == Timestamp::default() {
        return String::new();
    }
    format!("{} ago", span(now.since(at)))
}

/// A span of time by its largest unit, and the next below where it matters.
pub(super) fn span(time: Duration) -> String {
    let seconds = time.as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600, seconds / 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m{:02}s", seconds % 60),
        (0, _, _) => format!("{hours}h{:02}m", minutes % 60),
        _ => format!("{days}d{:02}h", hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_by_their_largest_units() {
        let texts = [0, 59, 60, 3_599, 3_600, 86_399, 86_400, 864_061];
        let texts = texts.map(|seconds| span(Duration::from_secs(seconds)));
        let expected = ["0s", "59s", "1m00s", "59m59s", "1h00m", "23h59m", "1d00h", "10d00h"];
        assert_eq!(texts, expected);
        let (at, now) =
            (Timestamp::from_nanos(5_000_000_000), Timestamp::from_nanos(9_000_000_000));
        assert_eq!(ago(at, now), "4s ago");
        assert_eq!(ago(now, at), "0s ago", "clocks differ");
        assert_eq!(ago(Timestamp::default(), now), "", "never");
    }

    #[test]
    fn an_ambiguous_id_lists_some_candidates_and_counts_the_others() {
        let names: Vec<String> = (0..12).map(|n| format!("job-{n}\x1b")).collect();
        let text = ambiguous("12 jobs' ids begin with job", "say more", names.into_iter());
        assert!(text.contains("\n  job-9\\u{1b}\n  and 2 more"), "{text}");
        assert!(!text.contains("job-10"), "{text}");
    }

    #[test]
    fn a_stop_ends_with_its_code() {
        let ended = |stop| ended(Err(stop), &Terminal::default());
        assert_eq!(ended(Stop::Wrong("a".into())), Exit::Input);
        assert_eq!(ended(Stop::Cannot("a".into())), Exit::Agent);
        assert_eq!(ended(Stop::Exit(Exit::Changes)), Exit::Changes);
    }
}
