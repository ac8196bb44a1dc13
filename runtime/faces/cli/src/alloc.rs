//! `ostler alloc …` and `ostler gc`

mod act;
mod exec;
mod fs;
pub(super) mod gc;
mod logs;
mod logs_from;
mod restart_watch;
mod status;

use super::args::alloc::AllocCommand;
use super::connect::CliError;
use super::exit::Exit;
use super::terminal::{TerminalInfo, one_line};
use ostler_api::client::{ApiClient, ClientError, ClientTrouble};
use ostler_api::routes::endpoints as routes;
use ostler_model::ids::AllocId;
use ostler_wire::Alloc;

/// Run one of the commands on allocations.
pub(super) async fn run(
    command: &AllocCommand,
    verbose: bool,
    terminal: &TerminalInfo,
) -> Result<Exit, CliError> {
    match command {
        AllocCommand::Status(args) => status::status(args, verbose, terminal).await,
        AllocCommand::Logs(args) => logs::logs(args, terminal).await,
        AllocCommand::Exec(args) => exec::exec(args, terminal).await,
        AllocCommand::Fs(args) => fs::fs(args, terminal).await,
        AllocCommand::Stop(args) => act::stop(args, terminal).await,
        AllocCommand::Restart(args) => act::restart(args, terminal).await,
        AllocCommand::Signal(args) => act::signal(args, terminal).await,
    }
}

/// Check that the allocation has the task that the command line names, if it names one.
fn check_task<'a>(alloc: &Alloc, given: Option<&'a str>) -> Result<Option<&'a str>, CliError> {
    match given {
        Some(name) if !alloc.task_states.contains_key(name) => Err(CliError::Wrong(format!(
            "allocation {} of {} has no task {}; its tasks: {}",
            alloc.id.short(),
            one_line(&alloc.name),
            one_line(name),
            task_names(alloc),
        ))),
        other => Ok(other),
    }
}

fn task_names(alloc: &Alloc) -> String {
    let names: Vec<&str> = alloc.task_states.keys().map(|name| &**name).collect();
    one_line(&names.join(", "))
}

/// Find out why a stream about an allocation has ended: the allocation ended, which is fine, or the
/// agent did, which is an error.
async fn check_alloc_ended(client: &ApiClient, id: AllocId) -> Result<(), CliError> {
    let gone = "the agent ended; what runs goes on, and what it prints is kept";
    match client.send(&routes::ReadAlloc::request([&id])).await {
        Ok(alloc) if alloc.client_status.is_terminal() => Ok(()),
        // The allocation was removed meanwhile.
        Err(ClientError::Failed {
            trouble: ClientTrouble::Refused { status: 404, .. }, ..
        }) => Ok(()),
        Ok(_) | Err(_) => Err(CliError::Cannot(gone.to_owned())),
    }
}
