//! `ostler job …`

mod change;
mod history;
mod next_command;
mod plan;
mod plan_devices;
mod run;
mod scale;
mod status;
mod validate;
mod watch;

use serde_json::Value;

use super::args::job::{JobCommand, JobFileArgs};
use super::connect::CliError;
use super::exit::Exit;
use super::input::{self, InputError, JobInput};
use super::output;
use super::terminal::TerminalInfo;
use ostler_agent::TaskConfigProblem;
use ostler_api::client::{ApiClient, ClientError};
use ostler_api::routes::endpoints as routes;
use ostler_jobspec::nomad_json;
use ostler_model::job::Job;
use ostler_wire::{JobRequest, JobValidateResponse};

/// Run one of the commands on jobs.
pub(super) async fn run(command: &JobCommand, terminal: &TerminalInfo) -> Result<Exit, CliError> {
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

/// Read a job file, and print warnings about what it asks for and the agent does not do.
fn read_with_warnings(
    source: &JobFileArgs,
    terminal: &TerminalInfo,
) -> Result<JobInput, InputError> {
    let job = input::read_job(source)?;
    output::job_warnings(terminal, &job);
    Ok(job)
}

/// The body of a request about a job.
fn job_request(job: &Job) -> JobRequest<Value> {
    JobRequest { job: nomad_json(job), ..JobRequest::default() }
}

/// The problems of the tasks' configurations, from the agent's answer.
fn config_problems(checked: JobValidateResponse) -> Vec<TaskConfigProblem> {
    let problem = |wrong| {
        let ostler_wire::WireConfigProblem { group, task, path, message, suggestion, of_driver } =
            wrong;
        TaskConfigProblem { group, task, path, message, suggestion, of_driver }
    };
    checked.config_problems.into_iter().map(problem).collect()
}

/// The agent's answer to a request with a job. Where the agent refuses the job as wrong, it is
/// asked for the problems of the tasks' configurations: those have places in the file.
async fn check_answer<T>(
    answer: Result<T, ClientError>,
    client: &ApiClient,
    job: &JobInput,
) -> Result<T, CliError> {
    let error = match answer {
        Ok(answer) => return Ok(answer),
        Err(error) if error.is_wrong_input() => error,
        Err(error) => return Err(error.into()),
    };
    let checked =
        client.send_body(&routes::ValidateJob::request([]), &job_request(job.job())).await;
    let problems = checked.map(config_problems).unwrap_or_default();
    if problems.is_empty() {
        return Err(error.into());
    }
    Err(job.problem_error(&problems).into())
}
