//! `ostler run`: one job, from its file to its exit code.
//!
//! ```text
//! job file ─► agent starts ─► submit ─► Running ── signal, closed output ─► Stopping
//!     │            │             │         │                                  │  │ second signal
//!     ▼            ▼             ▼         ▼ all allocations done             ▼  ▼
//!   exit 2       exit 3        exit 3    drain output ◄────────────────────────  Killing ─► exit
//! ```

use std::future::Future;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::args::RunArgs;
use super::exit::Exit;
use super::follow::follow;
use super::input::{self, InputError, JobInput};
use super::interrupt::{Interrupt, Interrupts};
use super::output;
use super::printer::{Format, Printer};
use super::progress::labels;
use super::report::{Failure, Report};
use super::start::{Fallback, Session, StartError};
use super::terminal::Terminal;
use ostler_agent::{AgentHandle, JobHandle, JobResult, RAW_EXEC, SubmitError};
use ostler_jobspec::Diagnostics;
use ostler_lifecycle::alloc::AllocPhase;
use ostler_model::causes;
use ostler_model::clock;
use ostler_model::limits::RUN_END_WALL_MAX;

/// How long a job killed at once may take; what is left then ends with the program. Who asks a
/// second time does not want to wait.
const KILL_WAIT: Duration = Duration::from_secs(1);

/// Run a job to its end.
pub(super) async fn run(args: RunArgs, terminal: Terminal) -> Exit {
    let format = if args.json { Format::Json } else { Format::Human(terminal) };
    let begun = Interrupts::new().and_then(|signals| Ok((signals, Printer::start(format)?)));
    let (interrupts, (reports, printer)) = match begun {
        Ok(begun) => begun,
        Err(error) => {
            output::error(&terminal, &format!("cannot start: {error}"));
            return Exit::Agent;
        }
    };
    let mut run = Run { terminal, interrupts, printer, reports, given_up_by: None };
    let exit = run.job(&args).await;
    let Run { mut interrupts, mut printer, reports, given_up_by, .. } = run;
    drop(reports);
    if given_up_by.is_some() {
        // What is not printed by now waits for a reader that does not read.
        let _given_up = clock::timeout(KILL_WAIT, printer.drained()).await;
        return exit;
    }
    // A pipe that is not read holds this up until a signal comes.
    tokio::select! {
        failed = printer.drained() => match (exit, failed) {
            (Exit::Job(0), Some(failed)) => failed,
            (exit, _) => exit,
        },
        signal = interrupts.next() => signal.exit(),
    }
}

/// Why the job is ended before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Interrupt(Interrupt),
    Output(Exit),
}

impl Cause {
    const fn exit(self) -> Exit {
        match self {
            Self::Interrupt(signal) => signal.exit(),
            Self::Output(exit) => exit,
        }
    }

    const fn reason(self) -> &'static str {
        match self {
            Self::Interrupt(signal) => signal.name(),
            Self::Output(_) => "nobody reads the output any more",
        }
    }
}

/// How far the end is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Running,
    Stopping(Cause),
    Killing(Cause),
}

impl Stage {
    /// One more reason to end. A closed output is none while the job ends anyway.
    const fn ending(self, cause: Cause) -> Self {
        match (self, cause) {
            (Self::Running, cause) => Self::Stopping(cause),
            (Self::Stopping(_), Cause::Interrupt(_)) => Self::Killing(cause),
            (stage, _) => stage,
        }
    }

    /// How the program ends: what ended the job comes before the job's own result.
    fn exit(self, result: Option<&JobResult>) -> Exit {
        match self {
            Self::Stopping(cause) | Self::Killing(cause) => cause.exit(),
            Self::Running => result.map_or(Exit::Agent, |result| Exit::Job(result.exit_code())),
        }
    }
}

struct Run {
    terminal: Terminal,
    interrupts: Interrupts,
    printer: Printer,
    reports: mpsc::Sender<Report>,
    /// The signal by which the user ended a wait: nothing else is waited for.
    given_up_by: Option<Interrupt>,
}

impl Run {
    async fn job(&mut self, args: &RunArgs) -> Exit {
        let input = match input::job(&args.source) {
            Ok(input) => input,
            Err(error) => return self.input_failed(&error).await,
        };
        self.tell_warnings(&input).await;
        let start = Session::start_with(&args.agent, Fallback::Configured, |config| {
            if args.raw_exec {
                config.plugins.entry(RAW_EXEC.to_owned()).or_default().enabled = Some(true);
            }
        });
        let session = match unless_ended(&mut self.interrupts, &mut self.printer, start).await {
            Err(cause) => return self.given_up(cause).await,
            Ok(Err(StartError::Input(error))) => return self.input_failed(&error).await,
            Ok(Err(StartError::Agent(message))) => {
                return self.failed(Failure::new(message, Exit::Agent.code()), Exit::Agent).await;
            }
            Ok(Ok(session)) => session,
        };
        if let Some(message) = session.notice.clone() {
            self.tell(Report::Notice { message }).await;
        }
        if args.raw_exec {
            let message = "driver raw_exec is enabled by --raw-exec: its tasks are not isolated, \
                           they may do all that this user may";
            self.tell(Report::Notice { message: message.to_owned() }).await;
        }
        for message in session.agent.not_as_written(input.job()) {
            self.tell(Report::Notice { message }).await;
        }
        self.tell_agent(&session.agent).await;
        let exit = self.in_agent(&session.agent, &input).await;
        // From here a signal has nothing to stop but the wait for the agent's own end.
        tokio::select! {
            () = session.end() => exit,
            signal = self.interrupts.next() => {
                self.given_up_by = Some(signal);
                signal.exit()
            }
        }
    }

    async fn in_agent(&mut self, agent: &AgentHandle, input: &JobInput) -> Exit {
        let submit = agent.submit(input.job().clone());
        match unless_ended(&mut self.interrupts, &mut self.printer, submit).await {
            Err(cause) => self.given_up(cause).await,
            Ok(Err(error)) => self.refused(error, input).await,
            Ok(Ok(job)) => self.run_to_end(agent, &job).await,
        }
    }

    async fn run_to_end(&mut self, agent: &AgentHandle, job: &JobHandle) -> Exit {
        let mut followers = JoinSet::new();
        let mut labels = labels(job.job());
        for alloc in job.allocs() {
            let labels = labels.remove(&alloc.allocation().name).unwrap_or_default();
            follow(alloc, labels, &self.reports, &mut followers);
        }
        let (mut stage, result) = self.wait(agent, job).await;
        if self.given_up_by.is_none() {
            let drained = self.drain(&mut followers, stage);
            // Logs that were not ended in order, on a disk that is full, have no end to wait for.
            stage = match job
                .allocs()
                .iter()
                .all(|alloc| *alloc.phase().borrow() == AllocPhase::Done)
            {
                true => drained.await,
                false => clock::timeout(RUN_END_WALL_MAX, drained).await.unwrap_or(stage),
            };
        }
        followers.abort_all();
        let exit = stage.exit(result.as_ref());
        let last = match result {
            Some(result) => Report::Result {
                successful: result.successful(),
                exit_code: exit.code(),
                job: result.job,
                allocs: result.allocs,
            },
            None => {
                let message = "the job did not end in time; what is left ends with the program";
                Report::Error(Failure::new(message, exit.code()))
            }
        };
        self.tell_last(last).await;
        exit
    }

    /// Wait for the job, ending it when there is a cause.
    async fn wait(&mut self, agent: &AgentHandle, job: &JobHandle) -> (Stage, Option<JobResult>) {
        let mut stage = Stage::Running;
        let mut requests = JoinSet::new();
        let result = job.wait();
        tokio::pin!(result);
        loop {
            let cause = tokio::select! {
                result = &mut result => return (stage, Some(result)),
                signal = self.interrupts.next() => Cause::Interrupt(signal),
                exit = self.printer.failed(), if stage == Stage::Running => Cause::Output(exit),
            };
            let next = stage.ending(cause);
            match next {
                Stage::Stopping(cause) if next != stage => {
                    self.tell_stopping(job, cause);
                    let job = job.clone();
                    requests.spawn(async move { job.stop(cause.reason()).await });
                }
                Stage::Killing(Cause::Interrupt(signal)) => {
                    self.given_up_by = Some(signal);
                    requests.spawn(kill(agent.clone(), job.clone()));
                    return (next, clock::timeout(KILL_WAIT, result).await);
                }
                _ => {}
            }
            stage = next;
        }
    }

    /// Let everything that was printed be told.
    async fn drain(&mut self, followers: &mut JoinSet<()>, stage: Stage) -> Stage {
        loop {
            tokio::select! {
                next = followers.join_next() => match next {
                    Some(Ok(())) => {}
                    Some(Err(error)) => tracing::warn!(%error, "output of a task may be missing"),
                    None => return stage,
                },
                signal = self.interrupts.next() => {
                    self.given_up_by = Some(signal);
                    return Stage::Killing(Cause::Interrupt(signal));
                }
            }
        }
    }

    async fn tell(&self, report: Report) {
        // The printer ends only when all senders are gone.
        let _ended = self.reports.send(report).await;
    }

    /// The queue may be full because nobody reads; then this waits as long as the user does.
    async fn tell_last(&mut self, last: Report) {
        if self.given_up_by.is_some() {
            if let Err(full) = self.reports.try_send(last) {
                tracing::debug!(%full, "the result is not told");
            }
            return;
        }
        tokio::select! {
            _ended = self.reports.send(last) => {}
            signal = self.interrupts.next() => self.given_up_by = Some(signal),
        }
    }

    /// Without waiting: the queue may be full because nobody reads.
    fn tell_stopping(&self, job: &JobHandle, cause: Cause) {
        let job = &job.job().id;
        let message = match cause {
            Cause::Interrupt(signal) => {
                let signal = signal.name();
                format!("{signal}: stopping job {job}; once more kills it at once")
            }
            Cause::Output(_) => format!("the output is closed: stopping job {job}"),
        };
        if let Err(full) = self.reports.try_send(Report::Progress { message }) {
            tracing::debug!(%full, "not told");
        }
    }

    async fn tell_agent(&self, agent: &AgentHandle) {
        for notice in agent.notices() {
            self.tell(Report::Notice { message: notice.clone() }).await;
        }
        self.tell(Report::Node { node: agent.node() }).await;
        for entry in agent.plugins() {
            self.tell(Report::Plugin(Box::new(entry.clone()))).await;
        }
    }

    /// What the job asks for that is not done.
    async fn tell_warnings(&self, input: &JobInput) {
        for warning in input.warnings() {
            let one = Diagnostics { diagnostics: vec![warning.clone()], omitted: 0 };
            let rendered = one.render(input.text(), self.terminal.stderr_colours());
            self.tell(Report::Warning { warning: warning.clone(), rendered }).await;
        }
    }

    async fn given_up(&self, cause: Cause) -> Exit {
        let message = format!("{}: given up before the job was placed", cause.reason());
        self.failed(Failure::new(message, cause.exit().code()), cause.exit()).await
    }

    async fn input_failed(&self, error: &InputError) -> Exit {
        let mut failure = Failure::new(error.to_string(), Exit::Input.code());
        if let InputError::Invalid { text, diagnostics, .. } = error {
            let colours = self.terminal.stderr_colours();
            failure = failure.with_diagnostics(diagnostics, text, colours);
        }
        self.failed(failure, Exit::Input).await
    }

    async fn refused(&self, error: SubmitError, input: &JobInput) -> Exit {
        let SubmitError::Config(problems) = error else {
            let failure = Failure::new(causes::chain(&error), Exit::Agent.code());
            return self.failed(failure, Exit::Agent).await;
        };
        // The user's to correct, as any part of the job file.
        let message = input.refused(&problems).to_string();
        let (located, colours) = (input.located(&problems), self.terminal.stderr_colours());
        let failure = Failure::new(message, Exit::Input.code());
        let failure = Failure { config_problems: problems, ..failure };
        self.failed(failure.with_diagnostics(&located, input.text(), colours), Exit::Input).await
    }

    async fn failed(&self, failure: Failure, exit: Exit) -> Exit {
        self.tell(Report::Error(failure)).await;
        exit
    }
}

/// The result of `work`, unless there is a cause to end before.
async fn unless_ended<T>(
    interrupts: &mut Interrupts,
    printer: &mut Printer,
    work: impl Future<Output = T>,
) -> Result<T, Cause> {
    tokio::select! {
        done = work => Ok(done),
        signal = interrupts.next() => Err(Cause::Interrupt(signal)),
        exit = printer.failed() => Err(Cause::Output(exit)),
    }
}

/// End everything of a job that is being stopped, without waiting for kill timeouts.
async fn kill(agent: AgentHandle, job: JobHandle) {
    agent.kill_tasks();
    // A second stop also gives up delays and poststop tasks.
    job.stop("killed at once").await;
    agent.kill_tasks();
}

#[cfg(test)]
#[path = "run_tests.rs"]
mod tests;
