//! `ostler run`: one job, from its file to its exit code.
//!
//! ```text
//! job file ─► agent starts ─► submit ─► Running ── signal, closed output ─► Stopping
//!     │            │             │         │                                  │  │ second signal
//!     ▼            ▼             ▼         ▼ all allocations done             ▼  ▼
//!   exit 2       exit 3        exit 3    drain output ◄────────────────────────  Killing ─► exit
//! ```

mod follow;

use std::future::Future;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::args::RunArgs;
use super::exit::Exit;
use super::input::{self, InputError, JobInput};
use super::interrupt::{Interrupt, Interrupts};
use super::output;
use super::printer::{Printer, ReportFormat};
use super::progress::labels;
use super::report::{RunFailure, RunReport};
use super::start::{AgentSession, AgentStartError, Fallback};
use super::terminal::TerminalInfo;
use follow::follow;
use ostler_agent::{AgentHandle, JobHandle, JobResult, RAW_EXEC, SubmitError};
use ostler_jobspec::Diagnostics;
use ostler_lifecycle::alloc::AllocPhase;
use ostler_model::causes;
use ostler_model::clock;
use ostler_model::limits::RUN_END_WALL_MAX;

/// How long a job that is killed at once may take. What is left after that ends with the program: a
/// user who asks a second time does not want to wait.
const KILL_WAIT: Duration = Duration::from_secs(1);

/// Run a job to its end.
pub(super) async fn run(args: RunArgs, terminal: TerminalInfo) -> Exit {
    let format = if terminal.json { ReportFormat::Json } else { ReportFormat::Human(terminal) };
    let begun = Interrupts::new().and_then(|signals| Ok((signals, Printer::start(format)?)));
    let (interrupts, (reports, printer)) = match begun {
        Ok(begun) => begun,
        Err(error) => {
            output::error(&terminal, &format!("cannot start: {error}"));
            return Exit::Agent;
        }
    };
    let mut run = JobRun { terminal, interrupts, printer, reports, given_up_by: None };
    let exit = run.run_job(&args).await;
    let JobRun { mut interrupts, mut printer, reports, given_up_by, .. } = run;
    drop(reports);
    if given_up_by.is_some() {
        // Reports that are not printed by now wait for a reader that does not read.
        let _given_up = clock::timeout(KILL_WAIT, printer.wait_until_drained()).await;
        return exit;
    }
    // A pipe that is not read holds this up until a signal comes.
    tokio::select! {
        failed = printer.wait_until_drained() => match (exit, failed) {
            (Exit::Job(0), Some(failed)) => failed,
            (exit, _) => exit,
        },
        signal = interrupts.next() => signal.exit(),
    }
}

/// Why the job is ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndCause {
    Interrupt(Interrupt),
    Output(Exit),
}

impl EndCause {
    const fn exit(self) -> Exit {
        match self {
            Self::Interrupt(signal) => signal.exit(),
            Self::Output(exit) => exit,
        }
    }

    const fn reason(self) -> &'static str {
        match self {
            Self::Interrupt(signal) => signal.name(),
            Self::Output(_) => "the reader of the output closed it",
        }
    }
}

/// Whether the job runs, is being stopped or is being killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RunStage {
    Running,
    Stopping(EndCause),
    Killing(EndCause),
}

impl RunStage {
    /// The stage after one more cause to end. A closed output changes nothing while the
    /// job ends anyway.
    const fn advance(self, cause: EndCause) -> Self {
        match (self, cause) {
            (Self::Running, cause) => Self::Stopping(cause),
            (Self::Stopping(_), EndCause::Interrupt(_)) => Self::Killing(cause),
            (stage, _) => stage,
        }
    }

    /// The exit code of the program: the cause that ended the job comes before the
    /// job's own result.
    fn exit(self, result: Option<&JobResult>) -> Exit {
        match self {
            Self::Stopping(cause) | Self::Killing(cause) => cause.exit(),
            Self::Running => result.map_or(Exit::Agent, |result| Exit::Job(result.exit_code())),
        }
    }
}

struct JobRun {
    terminal: TerminalInfo,
    interrupts: Interrupts,
    printer: Printer,
    reports: mpsc::Sender<RunReport>,
    /// The signal by which the user ended a wait. The program waits for nothing after that.
    given_up_by: Option<Interrupt>,
}

impl JobRun {
    async fn run_job(&mut self, args: &RunArgs) -> Exit {
        let input = match input::read_job(&args.source) {
            Ok(input) => input,
            Err(error) => return self.report_input_error(&error).await,
        };
        self.report_warnings(&input).await;
        let start = AgentSession::start_with(&args.agent, Fallback::Configured, |config| {
            if args.raw_exec {
                config.plugins.entry(RAW_EXEC.to_owned()).or_default().enabled = Some(true);
            }
        });
        let session = match run_unless_ended(&mut self.interrupts, &mut self.printer, start).await {
            Err(cause) => return self.report_given_up(cause).await,
            Ok(Err(AgentStartError::Input(error))) => return self.report_input_error(&error).await,
            Ok(Err(AgentStartError::Agent(message))) => {
                return self
                    .report_failure(RunFailure::new(message, Exit::Agent.code()), Exit::Agent)
                    .await;
            }
            Ok(Ok(session)) => session,
        };
        if let Some(message) = session.notice.clone() {
            self.send_report(RunReport::Notice { message }).await;
        }
        if args.raw_exec {
            let message = "driver raw_exec is enabled by --raw-exec: its tasks are not isolated and may do \
                           everything that this user may";
            self.send_report(RunReport::Notice { message: message.to_owned() }).await;
        }
        for message in session.agent.capped_kill_timeouts(input.job()) {
            self.send_report(RunReport::Notice { message }).await;
        }
        self.report_agent(&session.agent).await;
        let exit = self.run_in_agent(&session.agent, &input).await;
        // From here a signal has nothing to stop but the wait for the agent's own end.
        tokio::select! {
            () = session.end() => exit,
            signal = self.interrupts.next() => {
                self.given_up_by = Some(signal);
                signal.exit()
            }
        }
    }

    async fn run_in_agent(&mut self, agent: &AgentHandle, input: &JobInput) -> Exit {
        let submit = agent.submit(input.job().clone());
        match run_unless_ended(&mut self.interrupts, &mut self.printer, submit).await {
            Err(cause) => self.report_given_up(cause).await,
            Ok(Err(error)) => self.report_refusal(error, input).await,
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
            let all_done =
                job.allocs().iter().all(|alloc| *alloc.phase().borrow() == AllocPhase::Done);
            stage = if all_done {
                drained.await
            } else {
                clock::timeout(RUN_END_WALL_MAX, drained).await.unwrap_or(stage)
            };
        }
        followers.abort_all();
        let exit = stage.exit(result.as_ref());
        let last = match result {
            Some(result) => RunReport::Result {
                successful: result.is_successful(),
                exit_code: exit.code(),
                job: result.job,
                allocs: result.allocs,
            },
            None => {
                let message = "the job did not end in time; what is left ends with the program";
                RunReport::Error(RunFailure::new(message, exit.code()))
            }
        };
        self.report_last(last).await;
        exit
    }

    /// Wait for the end of the job, and end it when there is a cause.
    async fn wait(
        &mut self,
        agent: &AgentHandle,
        job: &JobHandle,
    ) -> (RunStage, Option<JobResult>) {
        let mut stage = RunStage::Running;
        let mut requests = JoinSet::new();
        let result = job.wait();
        tokio::pin!(result);
        loop {
            let cause = tokio::select! {
                result = &mut result => return (stage, Some(result)),
                signal = self.interrupts.next() => EndCause::Interrupt(signal),
                exit = self.printer.wait_for_failure(), if stage == RunStage::Running => EndCause::Output(exit),
            };
            let next = stage.advance(cause);
            match next {
                RunStage::Stopping(cause) if next != stage => {
                    self.report_stopping(job, cause);
                    let job = job.clone();
                    requests.spawn(async move { job.stop(cause.reason()).await });
                }
                RunStage::Killing(EndCause::Interrupt(signal)) => {
                    self.given_up_by = Some(signal);
                    requests.spawn(kill(agent.clone(), job.clone()));
                    return (next, clock::timeout(KILL_WAIT, result).await);
                }
                _ => {}
            }
            stage = next;
        }
    }

    /// Wait until everything that the tasks printed was sent to the printer.
    async fn drain(&mut self, followers: &mut JoinSet<()>, stage: RunStage) -> RunStage {
        loop {
            tokio::select! {
                next = followers.join_next() => match next {
                    Some(Ok(())) => {}
                    Some(Err(error)) => tracing::warn!(%error, "output of a task may be missing"),
                    None => return stage,
                },
                signal = self.interrupts.next() => {
                    self.given_up_by = Some(signal);
                    return RunStage::Killing(EndCause::Interrupt(signal));
                }
            }
        }
    }

    async fn send_report(&self, report: RunReport) {
        // The printer ends only when all senders are gone.
        let _ended = self.reports.send(report).await;
    }

    /// Send the last report. The queue may be full because nobody reads; then this waits until the
    /// user sends a signal.
    async fn report_last(&mut self, last: RunReport) {
        if self.given_up_by.is_some() {
            if let Err(full) = self.reports.try_send(last) {
                tracing::debug!(%full, "the result could not be printed");
            }
            return;
        }
        tokio::select! {
            _ended = self.reports.send(last) => {}
            signal = self.interrupts.next() => self.given_up_by = Some(signal),
        }
    }

    /// Report that the job is stopping, without waiting: the queue may be full
    /// because nobody reads.
    fn report_stopping(&self, job: &JobHandle, cause: EndCause) {
        let job = &job.job().id;
        let message = match cause {
            EndCause::Interrupt(signal) => {
                let signal = signal.name();
                format!("{signal}: stopping job {job}; a second signal kills it at once")
            }
            EndCause::Output(_) => format!("the output is closed: stopping job {job}"),
        };
        if let Err(full) = self.reports.try_send(RunReport::Progress { message }) {
            tracing::debug!(%full, "not told");
        }
    }

    async fn report_agent(&self, agent: &AgentHandle) {
        for notice in agent.notices() {
            self.send_report(RunReport::Notice { message: notice.clone() }).await;
        }
        self.send_report(RunReport::Node { node: agent.node() }).await;
        for entry in agent.plugins() {
            self.send_report(RunReport::Plugin(Box::new(entry.clone()))).await;
        }
    }

    /// Report what the job file asks for and the agent does not do.
    async fn report_warnings(&self, input: &JobInput) {
        for warning in input.warnings() {
            let one = Diagnostics { diagnostics: vec![warning.clone()], omitted: 0 };
            let rendered = one.render(input.text(), self.terminal.stderr_colours());
            self.send_report(RunReport::Warning { warning: warning.clone(), rendered }).await;
        }
    }

    async fn report_given_up(&self, cause: EndCause) -> Exit {
        let message = format!("{}: interrupted before the job was placed", cause.reason());
        self.report_failure(RunFailure::new(message, cause.exit().code()), cause.exit()).await
    }

    async fn report_input_error(&self, error: &InputError) -> Exit {
        let mut failure = RunFailure::new(error.to_string(), Exit::Input.code());
        if let InputError::Invalid { text, diagnostics, .. } = error {
            let colours = self.terminal.stderr_colours();
            failure = failure.with_diagnostics(diagnostics, text, colours);
        }
        self.report_failure(failure, Exit::Input).await
    }

    async fn report_refusal(&self, error: SubmitError, input: &JobInput) -> Exit {
        let SubmitError::Config(problems) = error else {
            let failure = RunFailure::new(causes::chain(&error), Exit::Agent.code());
            return self.report_failure(failure, Exit::Agent).await;
        };
        // The user has to correct these, as any other part of the job file.
        let message = input.problem_error(&problems).to_string();
        let (located, colours) = (input.locate_problems(&problems), self.terminal.stderr_colours());
        let failure = RunFailure::new(message, Exit::Input.code());
        let failure = RunFailure { config_problems: problems, ..failure };
        self.report_failure(failure.with_diagnostics(&located, input.text(), colours), Exit::Input)
            .await
    }

    async fn report_failure(&self, failure: RunFailure, exit: Exit) -> Exit {
        self.send_report(RunReport::Error(failure)).await;
        exit
    }
}

/// The result of `work`, unless there is a cause to end before it.
async fn run_unless_ended<T>(
    interrupts: &mut Interrupts,
    printer: &mut Printer,
    work: impl Future<Output = T>,
) -> Result<T, EndCause> {
    tokio::select! {
        done = work => Ok(done),
        signal = interrupts.next() => Err(EndCause::Interrupt(signal)),
        exit = printer.wait_for_failure() => Err(EndCause::Output(exit)),
    }
}

/// End all tasks of a job that is being stopped, without waiting for kill timeouts.
async fn kill(agent: AgentHandle, job: JobHandle) {
    agent.kill_tasks();
    // A second stop also gives up delays and poststop tasks.
    job.stop("killed at once").await;
    agent.kill_tasks();
}

#[cfg(test)]
mod tests;
