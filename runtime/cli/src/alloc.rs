//! `ostler alloc …` and `ostler gc`

mod act;
mod exec;
pub(super) mod gc;
mod logs;
mod logs_from;
mod restarted;
mod status;

use super::args::alloc::AllocCommand;
use super::connect::Stop;
use super::exit::Exit;
use super::terminal::{Terminal, one_line};
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
        AllocCommand::Stop(args) => act::stop(args, terminal).await,
        AllocCommand::Restart(args) => act::restart(args).await,
        AllocCommand::Signal(args) => act::signal(args).await,
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
