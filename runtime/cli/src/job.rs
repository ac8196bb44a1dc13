//! `ostler job …`

mod change;
mod history;
mod plan;
mod plan_devices;
mod proposed;
mod run;
mod scale;
mod status;
mod validate;
mod watch;

use serde_json::Value;

use super::args::job::{JobCommand, JobFileArgs};
use super::connect::Stop;
use super::exit::Exit;
use super::input::{self, InputError, JobInput};
use super::output;
use super::terminal::Terminal;
use ostler_agent::ConfigProblem;
use ostler_api::client::{ApiClient, ClientError};
use ostler_jobspec::nomad_json;
use ostler_model::job::Job;
use ostler_wire::{JobRequest, Validated};

/// Do what is asked about jobs.
pub(super) async fn run(command: &JobCommand, terminal: &Terminal) -> Result<Exit, Stop> {
    match command {
        JobCommand::Run(args) => run::run(args, terminal).await,
        JobCommand::Stop(args) => change::stop(args, terminal).await,
        JobCommand::Status(args) => status::status(args, terminal).await,
        JobCommand::History(args) => history::history(args, terminal).await,
        JobCommand::Revert(args) => history::revert(args, terminal).await,
        JobCommand::Promote(args) => history::promote(args, terminal).await,
        JobCommand::Scale(args) => scale::scale(args, terminal).await,
        JobCommand::Plan(args) => plan::plan(args, terminal).await,
        JobCommand::Validate(args) => Ok(validate::validate(args, terminal).await),
    }
}

/// Read a job file; says everything that is wrong with it, and what of it is not done.
fn read(source: &JobFileArgs, terminal: &Terminal) -> Result<JobInput, InputError> {
    let job = input::job(source)?;
    output::job_warnings(terminal, &job);
    Ok(job)
}

/// What asks something of a job.
fn request(job: &Job) -> JobRequest<Value> {
    JobRequest { job: nomad_json(job), ..JobRequest::default() }
}

/// What is wrong with the tasks' configurations.
fn problems(checked: Validated) -> Vec<ConfigProblem> {
    let problem = |wrong| {
        let ostler_wire::ConfigProblem { group, task, path, message, suggestion, of_driver } =
            wrong;
        ConfigProblem { group, task, path, message, suggestion, of_driver }
    };
    checked.config_problems.into_iter().map(problem).collect()
}

/// The answer to a job that was sent. Where the agent finds the job itself wrong it is asked what in
/// the tasks' configurations is: that has places in the file.
async fn told<T>(
    answer: Result<T, ClientError>,
    client: &ApiClient,
    job: &JobInput,
) -> Result<T, Stop> {
    let error = match answer {
        Ok(answer) => return Ok(answer),
        Err(error) if error.wrong_input() => error,
        Err(error) => return Err(error.into()),
    };
    let checked = client.put("/v1/validate/job", &request(job.job())).await;
    let problems = checked.map(problems).unwrap_or_default();
    if problems.is_empty() {
        return Err(error.into());
    }
    Err(job.refused(&problems).into())
}
