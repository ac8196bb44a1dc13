//! `ostler job validate`

use std::path::Path;

use serde::Serialize;

use crate::args::job::ValidateArgs;
use crate::connect;
use crate::exit::Exit;
use crate::input::{self, InputError};
use crate::output::{self, warning};
use crate::start::{AgentSession, AgentStartError, Fallback};
use crate::terminal::TerminalInfo;
use ostler_agent::{RAW_EXEC, TaskConfigProblem};
use ostler_api::routes::endpoints as routes;
use ostler_jobspec::FileDiagnostic;
use ostler_model::job::Job;
use ostler_model::words::count_noun;

/// The result of a validation, as `--json` prints it.
#[derive(Debug, Default, Serialize)]
struct ValidationReport {
    /// Whether the file is free of problems.
    valid: bool,
    /// The path of the file, as it was given.
    file: String,
    /// Why the file could not be read, or why the drivers could not be loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// Problems, and warnings about what is accepted but not done, with places.
    diagnostics: Vec<FileDiagnostic>,
    /// Number of problems beyond the bound, which are not listed.
    omitted: usize,
    /// Task configurations that do not fit their drivers' schemas.
    config_problems: Vec<TaskConfigProblem>,
    /// What keeps a valid job from running on this node.
    warnings: Vec<String>,
    /// Whether the tasks' configurations were checked.
    drivers_checked: bool,
}

/// What an agent finds when it checks a job against its drivers.
#[derive(Debug, Default)]
struct DriverCheck {
    problems: Vec<TaskConfigProblem>,
    warnings: Vec<String>,
    /// Whether the configuration of some task was not checked, because not every agent
    /// has its driver.
    partly: bool,
}

/// Say everything that is wrong with a job file.
pub(crate) async fn validate(args: &ValidateArgs, terminal: &TerminalInfo) -> Exit {
    let mut verdict = ValidationReport {
        file: args.source.file.display().to_string(),
        ..ValidationReport::default()
    };
    let input = match input::read_job(&args.source) {
        Ok(input) => input,
        Err(error) => {
            if !terminal.json {
                output::input_error(terminal, &error);
            }
            match error {
                InputError::Invalid { diagnostics, .. } => {
                    verdict.omitted = diagnostics.omitted;
                    verdict.diagnostics = diagnostics.diagnostics;
                }
                other => verdict.error = Some(other.to_string()),
            }
            return print_verdict(&verdict, "", terminal, Exit::Input);
        }
    };
    if !terminal.json {
        output::job_warnings(terminal, &input);
    }
    verdict.diagnostics.clone_from(&input.warnings().diagnostics);
    if !args.syntax_only {
        match check(args, input.job()).await {
            Ok(DriverCheck { problems, warnings, partly }) => {
                (verdict.config_problems, verdict.warnings) = (problems, warnings);
                verdict.drivers_checked = !partly;
            }
            Err(error) => return report_unchecked(verdict, &error, terminal),
        }
    }
    for text in verdict.warnings.iter().filter(|_| !terminal.json) {
        warning(terminal, text);
    }
    verdict.valid = verdict.config_problems.is_empty();
    if verdict.valid {
        return print_verdict(
            &verdict,
            &summary(&args.source.file, input.job()),
            terminal,
            Exit::Success,
        );
    }
    if !terminal.json {
        output::input_error(terminal, &input.problem_error(&verdict.config_problems));
    }
    let located = input.locate_problems(&verdict.config_problems);
    verdict.omitted = located.omitted;
    verdict.diagnostics.extend(located.diagnostics);
    print_verdict(&verdict, "", terminal, Exit::Input)
}

/// Check the tasks' configurations against the schemas of their drivers: those of the running
/// agent, else of an agent that is started for this command alone.
async fn check(args: &ValidateArgs, job: &Job) -> Result<DriverCheck, AgentStartError> {
    let running = connect::find_agent_silent(&args.agent).await;
    if let Some(client) = running.map_err(|stop| AgentStartError::Agent(stop.to_string()))? {
        let asked =
            client.send_body(&routes::ValidateJob::request([]), &super::job_request(job)).await;
        let mut checked = asked.map_err(|error| AgentStartError::Agent(error.to_string()))?;
        let warnings = std::mem::take(&mut checked.agent_warnings);
        return Ok(DriverCheck {
            problems: super::config_problems(checked),
            warnings,
            partly: false,
        });
    }
    let session = AgentSession::start_and_say(&args.agent, Fallback::Temporary).await?;
    let mut checked = DriverCheck {
        problems: session.agent.check(job),
        warnings: session.agent.driver_warnings(job),
        partly: false,
    };
    // A configuration that was given says whether raw_exec is on.
    if args.agent.config.is_none() {
        checked.leave_open(job);
    }
    checked.warnings.extend(session.agent.capped_kill_timeouts(job));
    session.end().await;
    Ok(checked)
}

impl DriverCheck {
    /// Turn problems of raw_exec into warnings: the agent that will run the job may have it
    /// switched on though it is off here.
    fn leave_open(&mut self, job: &Job) {
        let open = |problem: &TaskConfigProblem| problem.of_driver && is_of_raw_exec(job, problem);
        let all = std::mem::take(&mut self.problems).into_iter();
        let (open, problems): (Vec<_>, Vec<_>) = all.partition(open);
        self.problems = problems;
        self.partly = !open.is_empty();
        self.warnings.extend(open.iter().map(|TaskConfigProblem { group, task, .. }| {
            format!(
                "group {group}, task {task}: no agent was asked, and the config of the task was not checked: \
                 {RAW_EXEC} is off unless the agent's configuration switches it on by plugin \"{RAW_EXEC}\" {{ \
                 enabled = true }}; --config FILE checks the job with that configuration"
            )
        }));
    }
}

fn is_of_raw_exec(job: &Job, problem: &TaskConfigProblem) -> bool {
    let mut tasks =
        job.groups.iter().flat_map(|group| group.tasks.iter().map(move |task| (group, task)));
    tasks.any(|(group, task)| {
        group.name.as_str() == problem.group
            && task.name.as_str() == problem.task
            && task.driver.as_str() == RAW_EXEC
    })
}

fn report_unchecked(
    mut verdict: ValidationReport,
    error: &AgentStartError,
    terminal: &TerminalInfo,
) -> Exit {
    let why = match error {
        AgentStartError::Input(error) => {
            if !terminal.json {
                output::input_error(terminal, error);
            }
            error.to_string()
        }
        AgentStartError::Agent(message) => message.clone(),
    };
    let message =
        format!("the job file can be read, but the drivers could not be loaded to check it: {why}");
    if !terminal.json {
        output::error(terminal, &format!("{message}\n(--syntax-only does without them)"));
    }
    verdict.error = Some(message);
    print_verdict(&verdict, "", terminal, error.exit())
}

/// Print the verdict: always as JSON, for people only when the file is valid, since its problems
/// were already printed.
fn print_verdict(
    verdict: &ValidationReport,
    summary: &str,
    terminal: &TerminalInfo,
    exit: Exit,
) -> Exit {
    let printed = match (terminal.json, verdict.valid) {
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
        count_noun(groups, "group"),
        count_noun(tasks, "task"),
        count_noun(allocs, "allocation"),
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::args::AgentArgs;
    use crate::args::job::JobFileArgs;

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
            assert_eq!(validate(&args(&file), &TerminalInfo::default()).await, exit, "{text}");
        }
        let gone = dir.path().join("gone.hcl");
        assert_eq!(validate(&args(&gone), &TerminalInfo::default()).await, Exit::Input);
        let parsed = ostler_jobspec::parse(job.as_bytes(), &file, None).unwrap();
        let text = summary(Path::new("job.hcl"), &parsed);
        assert_eq!(
            text,
            "job.hcl is valid: job a with 1 group, 1 task and 1 allocation to place\n"
        );
    }

    #[test]
    fn where_no_agent_is_asked_it_is_said_that_raw_exec_may_be_off() {
        let task =
            |name: &str, driver: &str| format!("task \"{name}\" {{\n driver = \"{driver}\"\n }}\n");
        let tasks = task("a", RAW_EXEC) + &task("b", "docker");
        let text = format!("job \"j\" {{\n group \"g\" {{\n {tasks} }}\n}}\n");
        let job = ostler_jobspec::parse(text.as_bytes(), Path::new("j.hcl"), None).unwrap();
        let problem = |task: &str| TaskConfigProblem {
            group: "g".to_owned(),
            task: task.to_owned(),
            path: String::new(),
            message: "no such driver".to_owned(),
            suggestion: None,
            of_driver: true,
        };
        let mut checked =
            DriverCheck { problems: vec![problem("a"), problem("b")], ..DriverCheck::default() };
        checked.leave_open(&job);
        let left: Vec<_> = checked.problems.iter().map(|problem| problem.task.as_str()).collect();
        assert_eq!((left, checked.partly), (vec!["b"], true));
        let [warning] = checked.warnings.as_slice() else { panic!("{:?}", checked.warnings) };
        let expected =
            ["group g, task a: no agent was asked", "raw_exec is off unless", "--config FILE"];
        assert!(expected.iter().all(|part| warning.contains(part)), "{warning}");
    }
}
