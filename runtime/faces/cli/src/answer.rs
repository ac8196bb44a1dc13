//! How commands answer: as JSON where the command line asks for that, else as text for people.
//!
//! ```text
//! get, put ─► agent ─┬─ --json ─► the agent's answer, with all that it has ─► standard output
//!                    └─ else ───► the type that the command knows ─► its text
//! show ─ a value of this program ─┬─ --json ─► the value
//!                                 └─ else ───► its text
//! ```

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::connect::CliError;
use super::exit::Exit;
use super::output;
use super::terminal::TerminalInfo;
use ostler_api::client::ApiClient;
use ostler_api::request::ApiRequest;

/// Print a value: as JSON if that is asked for, else as text for people.
pub(super) fn show<T: Serialize + ?Sized>(
    value: &T,
    text: impl FnOnce() -> String,
    terminal: &TerminalInfo,
) -> Result<Exit, CliError> {
    if terminal.json {
        output::print_json(value, terminal)?;
    } else {
        output::print(&text(), terminal)?;
    }
    Ok(Exit::Success)
}

/// Print a value if JSON is asked for; without that the command has already said what it did.
pub(super) fn show_json<T: Serialize>(
    value: impl FnOnce() -> T,
    terminal: &TerminalInfo,
) -> Result<Exit, CliError> {
    if terminal.json {
        output::print_json(&value(), terminal)?;
    }
    Ok(Exit::Success)
}

/// Ask the agent, and print its answer.
pub(super) async fn get<T: DeserializeOwned>(
    client: &ApiClient,
    request: ApiRequest<(), T>,
    text: impl FnOnce(T) -> String,
    terminal: &TerminalInfo,
) -> Result<Exit, CliError> {
    if terminal.json {
        output::print_json(&client.send(&request.read_as::<Value>()).await?, terminal)?;
    } else {
        output::print(&text(client.send(&request).await?), terminal)?;
    }
    Ok(Exit::Success)
}

/// Send a change to the agent, and print its answer as JSON if that is asked for. Else `report` says
/// what was done.
pub(super) async fn put<B: Serialize, T: DeserializeOwned>(
    client: &ApiClient,
    request: ApiRequest<B, T>,
    body: &B,
    report: impl FnOnce(T),
    terminal: &TerminalInfo,
) -> Result<Exit, CliError> {
    if terminal.json {
        let answer = client.send_body(&request.read_as::<Value>(), body).await?;
        output::print_json(&answer, terminal)?;
    } else {
        report(client.send_body(&request, body).await?);
    }
    Ok(Exit::Success)
}
