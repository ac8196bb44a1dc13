//! `ostler job …`

mod change;
mod plan;
mod plan_devices;
mod run;
mod status;
mod validate;
mod watch;

use super::args::job::JobCommand;
use super::asking::ended;
use super::exit::Exit;
use super::input;
use super::output;
use super::terminal::Terminal;
use crate::model::job::Job;

/// Do what is asked about jobs.
pub(super) async fn run(command: &JobCommand, terminal: &Terminal) -> Exit {
    match command {
        JobCommand::Run(args) => ended(run::run(args, terminal).await, terminal),
        JobCommand::Stop(args) => ended(change::stop(args, terminal).await, terminal),
        JobCommand::Status(args) => ended(status::status(args, terminal).await, terminal),
        JobCommand::Plan(args) => ended(plan::plan(args, terminal).await, terminal),
        JobCommand::Validate(args) => validate::validate(args, terminal).await,
    }
}

/// Read a job file; says everything that is wrong with it.
fn read(file: &std::path::Path, terminal: &Terminal) -> Result<Job, Exit> {
    input::job(file).map_err(|error| {
        output::input_error(terminal, &error);
        Exit::Input
    })
}
