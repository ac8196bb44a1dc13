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
    /// The configuration of some task was not checked: its driver is one that an agent may have or not.
    partly: bool,
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
            Ok(Checked { problems, warnings, partly }) => {
                (verdict.config_problems, verdict.warnings) = (problems, warnings);
                verdict.drivers_checked = !partly;
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
        return Ok(Checked { problems: super::problems(checked), warnings, partly: false });
    }
    let session = Session::start_and_say(&args.agent, Fallback::Temporary).await?;
    let mut checked = Checked {
        problems: session.agent.check(job),
        warnings: session.agent.without_driver(job),
        partly: false,
    };
    // Who gives the configuration says with it whether raw_exec is on.
    if args.agent.config.is_none() {
        checked.leave_open(job);
    }
    checked.warnings.extend(session.agent.not_as_written(job));
    session.end().await;
    Ok(checked)
}

impl Checked {
    /// The agent that will run the job may have switched on what every agent has: that it is off here is no problem,
    /// and a warning says so.
    fn leave_open(&mut self, job: &Job) {
        let open = |problem: &ConfigProblem| problem.of_driver && is_of_raw_exec(job, problem);
        let all = std::mem::take(&mut self.problems).into_iter();
        let (open, problems): (Vec<_>, Vec<_>) = all.partition(open);
        self.problems = problems;
        self.partly = !open.is_empty();
        self.warnings.extend(open.iter().map(|ConfigProblem { group, task, .. }| {
            format!(
                "group {group}, task {task}: no agent was asked, and the config of the task was not checked: \
                 {RAW_EXEC} is off unless the agent's configuration switches it on by plugin \"{RAW_EXEC}\" {{ \
                 enabled = true }}; --config FILE checks the job with that configuration"
            )
        }));
    }
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

    #[test]
    fn where_no_agent_is_asked_it_is_said_that_raw_exec_may_be_off() {
        let task =
            |name: &str, driver: &str| format!("task \"{name}\" {{\n driver = \"{driver}\"\n }}\n");
        let tasks = task("a", RAW_EXEC) + &task("b", "docker");
        let text = format!("job \"j\" {{\n group \"g\" {{\n {tasks} }}\n}}\n");
        let job = ostler_jobspec::parse(text.as_bytes(), Path::new("j.hcl"), None).unwrap();
        let problem = |task: &str| ConfigProblem {
            group: "g".to_owned(),
            task: task.to_owned(),
            path: String::new(),
            message: "no such driver".to_owned(),
            suggestion: None,
            of_driver: true,
        };
        let mut checked =
            Checked { problems: vec![problem("a"), problem("b")], ..Checked::default() };
        checked.leave_open(&job);
        let left: Vec<_> = checked.problems.iter().map(|problem| problem.task.as_str()).collect();
        assert_eq!((left, checked.partly), (vec!["b"], true));
        let [warning] = checked.warnings.as_slice() else { panic!("{:?}", checked.warnings) };
        let expected =
            ["group g, task a: no agent was asked", "raw_exec is off unless", "--config FILE"];
        assert!(expected.iter().all(|part| warning.contains(part)), "{warning}");
    }
}
