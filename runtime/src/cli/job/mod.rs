//! `ostler job …`

mod change;
mod plan;
mod plan_devices;
mod run;
mod status;
mod validate;
mod watch;

use serde_json::json;

use super::args::job::JobCommand;
use super::asking::{Stop, ended};
use super::client::shapes::Validated;
use super::client::{Client, ClientError};
use super::exit::Exit;
use super::input::{self, JobInput};
use super::output;
use super::terminal::Terminal;
use ostler_jobspec::nomad_json;

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

/// Read a job file; says everything that is wrong with it, and what of it is not done.
fn read(file: &std::path::Path, terminal: &Terminal) -> Result<JobInput, Exit> {
    let job = input::job(file).map_err(|error| {
        output::input_error(terminal, &error);
        Exit::Input
    })?;
    output::job_warnings(terminal, &job);
    Ok(job)
}

/// The answer to a job that was sent. Where the agent finds the job itself wrong it is asked what in
/// the tasks' configurations is: that has places in the file.
async fn told<T>(
    answer: Result<T, ClientError>,
    client: &Client,
    job: &JobInput,
    terminal: &Terminal,
) -> Result<T, Stop> {
    let error = match answer {
        Ok(answer) => return Ok(answer),
        Err(error) if error.exit() == Exit::Input => error,
        Err(error) => return Err(error.into()),
    };
    let body = json!({ "Job": nomad_json(job.job()) });
    let checked: Result<Validated, _> = client.put("/v1/validate/job", &body).await;
    let problems = checked.map(|checked| checked.problems()).unwrap_or_default();
    if problems.is_empty() {
        return Err(error.into());
    }
    output::input_error(terminal, &job.refused(&problems));
    Err(Stop::Exit(Exit::Input))
}
