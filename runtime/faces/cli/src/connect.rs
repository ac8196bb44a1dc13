//! What all commands that ask a running agent share: the client, ids by prefix, the exit code.
//!
//! ```text
//! arguments ─► connect ─► ApiClient ─► find (prefix) ─► the command ─► report_result ─► Exit
//!                 │                   │                  │ CliError        ▲
//!                 └───────────────────┴──────────────────┴─────────────────┘
//! ```

use std::fmt::{self, Write as _};
use std::io::IsTerminal as _;

use serde::de::DeserializeOwned;

use super::args::AgentArgs;
use super::args::client::AddressArgs;
use super::args::device::AgentSource;
use super::credentials;
use super::exit::Exit;
use super::failure::ErrorReport;
use super::input::InputError;
use super::interrupt::Interrupts;
use super::output;
use super::start::{AgentSession, AgentStartError, Fallback};
use super::terminal::{TerminalInfo, one_line, plain};
use ostler_agent::AgentHandle;
use ostler_api::client::{AddressError, AgentAddress, default_data_dir};
use ostler_api::client::{ApiClient, ClientError};
use ostler_api::request::ApiRequest;
use ostler_api::routes::{QueryKey, endpoints as routes};
use ostler_model::ids::AllocId;

/// Most candidates that are listed for the beginning of several ids.
const CANDIDATES_MAX: usize = 10;

/// Why a command ends early.
#[derive(Debug)]
pub(super) enum CliError {
    /// A request to the agent failed.
    Client(ClientError),
    /// A file is wrong. The message names the places; exit code 2.
    Input(InputError),
    /// The arguments are wrong. The message says why; exit code 2.
    Wrong(String),
    /// The agent cannot do what was asked. The message says why; exit code 3.
    Cannot(String),
    /// Anything else, with its message and exit code.
    Failed(String, Exit),
    /// The message was already printed.
    Exit(Exit),
}

/// The message, where one is still to be printed.
impl fmt::Display for CliError {
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

impl From<ClientError> for CliError {
    fn from(error: ClientError) -> Self {
        Self::Client(error)
    }
}

impl From<Exit> for CliError {
    fn from(exit: Exit) -> Self {
        Self::Exit(exit)
    }
}

impl From<InputError> for CliError {
    fn from(error: InputError) -> Self {
        Self::Input(error)
    }
}

impl From<AgentStartError> for CliError {
    fn from(error: AgentStartError) -> Self {
        match error {
            AgentStartError::Input(error) => Self::Input(error),
            AgentStartError::Agent(message) => Self::Cannot(message),
        }
    }
}

impl From<AddressError> for CliError {
    fn from(error: AddressError) -> Self {
        Self::Wrong(error.to_string())
    }
}

impl CliError {
    /// The exit code of a command that ends with this error.
    pub(super) fn exit(&self) -> Exit {
        match self {
            Self::Exit(exit) | Self::Failed(_, exit) => *exit,
            Self::Input(_) | Self::Wrong(_) => Exit::Input,
            Self::Client(error) => error.into(),
            Self::Cannot(_) => Exit::Agent,
        }
    }
}

/// The exit code of a command. Prints the message of an error.
pub(super) fn report_result(result: Result<Exit, CliError>, terminal: &TerminalInfo) -> Exit {
    let stop = match result {
        Ok(exit) => return exit,
        Err(stop) => stop,
    };
    match &stop {
        CliError::Exit(_) => {}
        stop if terminal.json => output::say_failure(&ErrorReport::from(stop)),
        CliError::Input(error) => output::input_error(terminal, error),
        other => output::error(terminal, &other.to_string()),
    }
    stop.exit()
}

/// Make a client of the addressed agent. No request is made yet.
pub(super) fn connect(args: &AddressArgs) -> Result<ApiClient, CliError> {
    make_client(args, say_waiting)
}

/// As [`connect`], for commands that use the whole screen, or none: no message says that the agent
/// is waited for.
pub(super) fn connect_silent(args: &AddressArgs) -> Result<ApiClient, CliError> {
    make_client(args, |_, _| {})
}

fn make_client(args: &AddressArgs, waiting: fn(&str, bool)) -> Result<ApiClient, CliError> {
    let address = AgentAddress::from_options(args.address.as_deref(), args.data_dir.as_deref())?;
    let client = credentials::add_credentials(ApiClient::new(address, waiting), &args.credentials)?;
    Ok(match args.namespace.as_deref() {
        None | Some("") => client,
        Some(namespace) => client.in_namespace(namespace),
    })
}

/// Say how far the agent's start is: once, or on a terminal whenever it gets further.
fn say_waiting(text: &str, first: bool) {
    if first || std::io::stderr().is_terminal() {
        output::say(&plain(&format!("{text}; waiting")));
    }
}

/// Find the running agent that a command is meant for. `None` where no agent runs, which is
/// printed, or where the command asks for a configuration of its own.
pub(super) async fn find_agent(of: &AgentSource) -> Result<Option<ApiClient>, CliError> {
    if of.address.as_ref().is_some_and(|given| !given.is_empty()) {
        // The agent was named: without it there is nothing to show.
        return connect(&of.address_args()).map(Some);
    }
    let Some(client) = addressed_client(&of.agent)? else { return Ok(None) };
    if client.is_there().await {
        return Ok(Some(client));
    }
    let at = client.endpoint();
    output::say(&format!("no agent runs at {at}: one is started for this command alone"));
    Ok(None)
}

/// The answer of the running agent to a request, else what `own` takes from an agent that is started
/// for this command alone.
pub(super) async fn ask_agent<T: DeserializeOwned>(
    of: &AgentSource,
    request: &ApiRequest<(), T>,
    own: impl FnOnce(&AgentHandle) -> T,
) -> Result<T, CliError> {
    match find_agent(of).await? {
        Some(client) => Ok(client.send(request).await?),
        None => ask_own_agent(of, own).await,
    }
}

/// Start an agent for this command alone, and return what `own` takes from it.
pub(super) async fn ask_own_agent<T>(
    of: &AgentSource,
    own: impl FnOnce(&AgentHandle) -> T,
) -> Result<T, CliError> {
    let session = AgentSession::start_and_say(&of.agent, Fallback::Temporary).await?;
    let told = own(&session.agent);
    session.end().await;
    Ok(told)
}

/// As [`find_agent`], for a command that needs an agent for a part of its work: nothing is printed,
/// unless the environment names an agent that does not answer.
pub(super) async fn find_agent_silent(args: &AgentArgs) -> Result<Option<ApiClient>, CliError> {
    let Some(client) = addressed_client(args)? else { return Ok(None) };
    if client.is_there().await {
        return Ok(Some(client));
    }
    let named =
        AddressArgs::from_words([]).and_then(|at| at.address).is_some_and(|at| !at.is_empty());
    if named && args.data_dir.is_none() {
        let at = client.endpoint();
        output::say(&format!(
            "no agent answers at {at}, which OSTLER_ADDR names: one is started for this command alone"
        ));
    }
    Ok(None)
}

/// A client for the agent of the data directory, or of the environment; `None` where the
/// command asks for a configuration of its own. An error says what is wrong with the address
/// or the credentials.
fn addressed_client(args: &AgentArgs) -> Result<Option<ApiClient>, CliError> {
    if args.config.is_some() || args.plugin_dir.is_some() {
        return Ok(None);
    }
    let at = match &args.data_dir {
        Some(dir) => AddressArgs { data_dir: Some(dir.clone()), ..AddressArgs::default() },
        None => AddressArgs::from_words([]).unwrap_or_default(),
    };
    match connect(&at) {
        // No agent is named, and there is no default place for one.
        Err(CliError::Wrong(_)) if at.address.is_none() && default_data_dir().is_none() => Ok(None),
        client => client.map(Some),
    }
}

/// Wait for the result of `work`. A signal ends the wait; `hint` then says what goes on.
pub(super) async fn run_until_interrupted<T>(
    hint: &str,
    work: impl Future<Output = Result<T, CliError>>,
) -> Result<T, CliError> {
    let mut interrupts = Interrupts::new()
        .map_err(|error| CliError::Cannot(format!("cannot wait for signals: {error}")))?;
    tokio::select! {
        done = work => done,
        signal = interrupts.next() => {
            output::say(&format!("{}: {hint}", signal.name()));
            Err(CliError::Exit(signal.exit()))
        }
    }
}

/// A request for a list of what is in all namespaces.
pub(super) fn in_all_namespaces<T>(request: ApiRequest<(), T>) -> ApiRequest<(), T> {
    request.with(QueryKey::Namespace, "*")
}

/// A request for a list of what is in the namespace of the command, or in all.
pub(super) fn in_namespaces<T>(
    client: &ApiClient,
    request: ApiRequest<(), T>,
) -> ApiRequest<(), T> {
    request.with(QueryKey::Namespace, client.listed_namespace())
}

/// The beginning of an id in the form that the agent compares, without a last dash. `None` where no
/// id begins so.
pub(super) fn id_prefix(given: &str) -> Option<String> {
    let prefix = given.strip_suffix('-').unwrap_or(given).to_ascii_lowercase();
    let fits = prefix.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
    (fits && !prefix.is_empty()).then_some(prefix)
}

/// Find the allocation whose id begins with `given`.
pub(super) async fn find_alloc(client: &ApiClient, given: &str) -> Result<AllocId, CliError> {
    if let Ok(id) = given.parse() {
        return Ok(id);
    }
    let prefix = id_prefix(given).ok_or_else(|| {
        CliError::Wrong(format!(
            "{given:?} is not the id of an allocation; `ostler alloc status` lists them"
        ))
    })?;
    let request =
        in_namespaces(client, routes::ListAllocs::request([])).with(QueryKey::Prefix, &prefix);
    let found = client.send(&request).await?;
    let one = single_match(
        found,
        &format!("no allocation's id begins with {prefix}; `ostler alloc status` lists them"),
        &format!("allocations' ids begin with {prefix}"),
        |alloc| format!("{} {} ({})", alloc.id, alloc.name, alloc.client_status),
    )?;
    Ok(one.id)
}

/// Find the job called `given`, else the only one whose id begins with it, and make a client for
/// its namespace.
pub(super) async fn find_job(
    client: ApiClient,
    given: &str,
) -> Result<(ApiClient, String), CliError> {
    let request =
        in_namespaces(&client, routes::ListJobs::request([])).with(QueryKey::Prefix, given);
    let mut found = client.send(&request).await?;
    if given.is_empty() {
        return Err(CliError::Wrong(
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
        return Err(CliError::Wrong(ambiguity_text(&what, "give its namespace", names)));
    }
    let others =
        found.iter().any(|job| Some(&job.namespace) != found.first().map(|job| &job.namespace));
    let one = single_match(
        found,
        &format!("there is no job {given}; `ostler job status` lists them"),
        &format!("jobs' ids begin with {given}"),
        |job| {
            if others {
                format!("{} ({}, --namespace {})", job.id, job.status, job.namespace)
            } else {
                format!("{} ({})", job.id, job.status)
            }
        },
    )?;
    Ok((client.in_namespace(&one.namespace), one.id.into_owned()))
}

/// The only item that was found. For no item the error is `none`; for several it counts and lists
/// them, and `several` says what they are.
pub(super) fn single_match<T>(
    found: Vec<T>,
    none: &str,
    several: &str,
    name: impl Fn(&T) -> String,
) -> Result<T, CliError> {
    match <[T; 1]>::try_from(found) {
        Ok([one]) => Ok(one),
        Err(found) if found.is_empty() => Err(CliError::Wrong(none.to_owned())),
        Err(found) => {
            let what = format!("{} {several}", found.len());
            Err(CliError::Wrong(ambiguity_text(
                &what,
                "give more of the one that you mean",
                found.iter().map(name),
            )))
        }
    }
}

/// A message that lists what could be meant, and says what to add.
fn ambiguity_text(
    what: &str,
    next: &str,
    candidates: impl ExactSizeIterator<Item = String>,
) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ambiguous_id_lists_some_candidates_and_counts_the_others() {
        let names: Vec<String> = (0..12).map(|n| format!("job-{n}\x1b")).collect();
        let text = ambiguity_text("12 jobs' ids begin with job", "give more", names.into_iter());
        assert!(text.contains("\n  job-9\\u{1b}\n  and 2 more"), "{text}");
        assert!(!text.contains("job-10"), "{text}");
    }

    #[test]
    fn a_stop_ends_with_its_code() {
        let ended = |stop| report_result(Err(stop), &TerminalInfo::default());
        assert_eq!(ended(CliError::Wrong("a".into())), Exit::Input);
        assert_eq!(ended(CliError::Cannot("a".into())), Exit::Agent);
        assert_eq!(ended(CliError::Exit(Exit::Changes)), Exit::Changes);
    }
}
