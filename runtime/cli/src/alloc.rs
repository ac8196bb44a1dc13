//! `ostler alloc …` and `ostler gc`

mod act;
mod exec;
mod fs;
pub(super) mod gc;
mod logs;
mod logs_from;
mod restarted;
mod status;

use super::args::alloc::AllocCommand;
use super::connect::Stop;
use super::exit::Exit;
use super::terminal::{Terminal, one_line};
use ostler_api::client::{ApiClient, ClientError, Trouble};
use ostler_model::ids::AllocId;
use ostler_wire::Alloc;

/// Do what is asked about allocations.
pub(super) async fn run(
    command: &AllocCommand,
    verbose: bool,
    terminal: &Terminal,
) -> Result<Exit, Stop> {
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

/// The task that is meant: one the allocation has. `given` by place or as an option.
fn task<'a>(alloc: &Alloc, given: Option<&'a str>) -> Result<Option<&'a str>, Stop> {
    match given {
        Some(name) if !alloc.task_states.contains_key(name) => Err(Stop::Wrong(format!(
            "allocation {} of {} has no task {}; its tasks: {}",
            alloc.id.short(),
            one_line(&alloc.name),
            one_line(name),
            tasks(alloc),
        ))),
        other => Ok(other),
    }
}

fn tasks(alloc: &Alloc) -> String {
    let names: Vec<&str> = alloc.task_states.keys().map(|name| &**name).collect();
    one_line(&names.join(", "))
}

/// What followed an allocation came to its end, and so did the allocation; else the agent did.
async fn still_there(client: &ApiClient, id: AllocId) -> Result<(), Stop> {
    let gone = "the agent ended; what runs goes on, and what it prints is kept";
    match client.get::<Alloc>(&format!("/v1/allocation/{id}")).await {
        Ok(alloc) if alloc.client_status.terminal() => Ok(()),
        // It was collected meanwhile.
        Err(ClientError::Failed { trouble: Trouble::Refused { status: 404, .. }, .. }) => Ok(()),
        Ok(_) | Err(_) => Err(Stop::Cannot(gone.to_owned())),
    }
}
