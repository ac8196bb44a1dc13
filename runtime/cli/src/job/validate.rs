//! `ostler job validate`

use std::path::Path;

use serde::Serialize;

use super::super::args::job::ValidateArgs;
use super::super::connect;
use super::super::exit::Exit;
use super::super::input::{self, InputError};
use super::super::output::{self, warning};
use super::super::start::{Fallback, Session, StartError};
use super::super::terminal::Terminal;
use ostler_agent::{ConfigProblem, RAW_EXEC};
use ostler_jobspec::FileDiagnostic;
use ostler_model::job::Job;
use ostler_model::words::counted;
use ostler_wire::Validated;

/// The result of a validation, as `--json` prints it.
#[derive(Debug, Default, Serialize)]
struct Verdict {
    /// Nothing is wrong.
    valid: bool,
    /// The file as it was given.
    file: String,
    /// Why the file could not be read, or the drivers not be loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// What is wrong, and what is accepted and not done, with places.
    diagnostics: Vec<FileDiagnostic>,
    /// Problems beyond the bound.
    omitted: usize,
    /// Task configurations that do not fit their drivers' schemas.
    config_problems: Vec<ConfigProblem>,
    /// What keeps a right job from running here.
    warnings: Vec<String>,
    /// The tasks' configurations were checked.
    drivers_checked: bool,
}

/// What an agent says of a job.
#[derive(Debug, Default)]
struct Checked {
    problems: Vec<ConfigProblem>,
    warnings: Vec<String>,
}

/// Say everything that is wrong with a job file.
pub(crate) async fn validate(args: &ValidateArgs, terminal: &Terminal) -> Exit {
    let mut verdict =
        Verdict { file: args.source.file.display().to_string(), ..Verdict::default() };
    let input = match input::job(&args.source) {
        Ok(input) => input,
        Err(error) => {
            if !args.json {
                output::input_error(terminal, &error);
            }
            match error {
                InputError::Invalid { diagnostics, .. } => {
                    verdict.omitted = diagnostics.omitted;
                    verdict.diagnostics = diagnostics.diagnostics;
                }
                other => verdict.error = Some(other.to_string()),
            }
            return tell(args, &verdict, "", terminal, Exit::Input);
        }
    };
    if !args.json {
        output::job_warnings(terminal, &input);
    }
    verdict.diagnostics.clone_from(&input.warnings().diagnostics);
    if !args.syntax_only {
        match check(args, input.job()).await {
            Ok(Checked { problems, warnings }) => {
                (verdict.config_problems, verdict.warnings) = (problems, warnings);
                verdict.drivers_checked = true;
            }
            Err(error) => return not_checked(args, verdict, &error, terminal),
        }
    }
    for text in verdict.warnings.iter().filter(|_| !args.json) {
        warning(terminal, text);
    }
    verdict.valid = verdict.config_problems.is_empty();
    if verdict.valid {
        return tell(
            args,
            &verdict,
            &summary(&args.source.file, input.job()),
            terminal,
            Exit::Success,
        );
    }
    if !args.json {
        output::input_error(terminal, &input.refused(&verdict.config_problems));
    }
    let located = input.located(&verdict.config_problems);
    verdict.omitted = located.omitted;
    verdict.diagnostics.extend(located.diagnostics);
    tell(args, &verdict, "", terminal, Exit::Input)
}

/// The tasks' configurations against the schemas of their drivers: those of the agent that runs, else
/// of one for this alone.
async fn check(args: &ValidateArgs, job: &Job) -> Result<Checked, StartError> {
    let running = connect::running_silent(&args.agent).await;
    if let Some(client) = running.map_err(|stop| StartError::Agent(stop.to_string()))? {
        let asked = client.put::<Validated>("/v1/validate/job", &super::request(job)).await;
        let mut checked = asked.map_err(|error| StartError::Agent(error.to_string()))?;
        let warnings = std::mem::take(&mut checked.agent_warnings);
        return Ok(Checked { problems: super::problems(checked), warnings });
    }
    let session = Session::start_and_say(&args.agent, Fallback::Temporary).await?;
    let (mut problems, mut warnings) =
        (session.agent.check(job), session.agent.without_driver(job));
    // The agent that will run the job may have switched on what every agent has: a warning says so.
    problems.retain(|problem| !(problem.of_driver && is_of_raw_exec(job, problem)));
    warnings.extend(session.agent.not_as_written(job));
    session.end().await;
    Ok(Checked { problems, warnings })
}

fn is_of_raw_exec(job: &Job, problem: &ConfigProblem) -> bool {
    let mut tasks =
        job.groups.iter().flat_map(|group| group.tasks.iter().map(move |task| (group, task)));
    tasks.any(|(group, task)| {
        group.name.as_str() == problem.group
            && task.name.as_str() == problem.task
            && task.driver.as_str() == RAW_EXEC
    })
}

fn not_checked(
    args: &ValidateArgs,
    mut verdict: Verdict,
    error: &StartError,
    terminal: &Terminal,
) -> Exit {
    let why = match error {
        StartError::Input(error) => {
            if !args.json {
                output::input_error(terminal, error);
            }
            error.to_string()
        }
        StartError::Agent(message) => message.clone(),
    };
    let message =
        format!("the job file can be read, but the drivers could not be loaded to check it: {why}");
    if !args.json {
        output::error(terminal, &format!("{message}\n(--syntax-only does without them)"));
    }
    verdict.error = Some(message);
    tell(args, &verdict, "", terminal, error.exit())
}

/// Print the verdict: as JSON always, for people only when the file is valid; what is wrong was
/// said already.
fn tell(
    args: &ValidateArgs,
    verdict: &Verdict,
    summary: &str,
    terminal: &Terminal,
    exit: Exit,
) -> Exit {
    let printed = match (args.json, verdict.valid) {
        (true, _) => output::print_json(verdict, terminal),
        (false, true) => output::print(summary, terminal),
        (false, false) => Ok(()),
    };
    printed.map_or_else(|failed| failed, |()| exit)
}

fn summary(file: &Path, job: &Job) -> String {
    let groups = job.groups.len();
    let allocs: u64 = job.groups.iter().map(|group| u64::from(group.count)).sum();
    let tasks: usize = job.groups.iter().map(|group| group.tasks.len()).sum();
    format!(
        "{} is valid: job {} with {}, {} and {} to place\n",
        file.display(),
        job.id,
        counted(groups, "group"),
        counted(tasks, "task"),
        counted(allocs, "allocation"),
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::super::super::args::AgentArgs;
    use super::super::super::args::job::JobFileArgs;
    use super::*;

    fn args(file: &Path) -> ValidateArgs {
        ValidateArgs {
            source: JobFileArgs { file: file.to_owned(), ..JobFileArgs::default() },
            syntax_only: true,
            json: false,
            agent: AgentArgs::default(),
        }
    }

    #[tokio::test]
    async fn the_exit_code_says_whether_a_file_is_valid() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("job.hcl");
        let job = "job \"a\" {\n group \"g\" {\n task \"t\" {\n driver = \"mock\"\n }\n }\n}\n";
        for (text, exit) in [(job, Exit::Success), ("job \"a\" { grup = 1 }", Exit::Input)] {
            std::fs::write(&file, text).unwrap();
            assert_eq!(validate(&args(&file), &Terminal::default()).await, exit, "{text}");
        }
        let gone = dir.path().join("gone.hcl");
        assert_eq!(validate(&args(&gone), &Terminal::default()).await, Exit::Input);
        let parsed = ostler_jobspec::parse(job.as_bytes(), &file, None).unwrap();
        let text = summary(Path::new("job.hcl"), &parsed);
        assert_eq!(
            text,
            "job.hcl is valid: job a with 1 group, 1 task and 1 allocation to place\n"
        );
    }
}
