//! `ostler job …`

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::AgentArgs;
use super::client::{AddressArgs, AgreeArgs, AnswerArgs, examples};
use super::deployment::{JobHistoryArgs, JobPromoteArgs, JobRevertArgs};

/// As a rule, a task that fails at once takes at most this long to do so: a program that cannot read its
/// configuration, a service that finds its port in use.
const SETTLE: &str = "5s";

/// Commands on jobs.
#[derive(Debug, Subcommand)]
pub(crate) enum JobCommand {
    /// Give a job to the agent, or a new version of it
    Run(JobRunArgs),
    /// Stop a job
    Stop(JobStopArgs),
    /// List the jobs, or show one
    Status(JobStatusArgs),
    /// List the versions of a job
    History(JobHistoryArgs),
    /// Go back to an earlier version of a job
    Revert(JobRevertArgs),
    /// Accept the canaries of a job's newest version
    Promote(JobPromoteArgs),
    /// Change how many allocations a group of a job has
    Scale(JobScaleArgs),
    /// Say what a job file would change
    Plan(JobPlanArgs),
    /// Say everything that is wrong with a job file
    Validate(ValidateArgs),
}

/// A job file and the values of its variables.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct JobFileArgs {
    /// The job: HCL or JSON; - is the standard input
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// A value of a variable of the file; more than one may be given, and the last one counts
    #[arg(long, value_name = "NAME=VALUE")]
    pub var: Vec<String>,

    /// A file of such values, HCL or JSON; --var goes before it, NOMAD_VAR_NAME in the environment
    /// after it
    #[arg(long, value_name = "FILE")]
    pub var_file: Vec<PathBuf>,
}

/// `ostler job run`.
#[derive(Debug, Args)]
#[command(
    long_about = "Give a job to the agent, or a new version of a job it has.\n\n\
        The file is read here, so that paths in it are those of this machine and everything wrong is \
        shown with its place. What can be changed without a restart is; what cannot is stopped and \
        replaced. What does not fit on the node now waits until it does, and what it would replace \
        runs on. Then the job is followed: a service with an update block until its deployment is \
        successful or has failed (and, with auto_revert, an earlier version comes back), or until its \
        canaries are healthy and wait for `ostler job promote`; anything else until its allocations \
        are complete, or have run without a break for the time of --settle, or one has failed for \
        good. Ctrl-C ends the following, not the job.",
    after_long_help = "\
Examples:
  ostler job run web.hcl
  ostler job run --detach web.hcl              print the ids and do not wait
  ostler job run --check-index 42 web.hcl      only if the job is as `ostler job plan` saw it
  ostler job run --check-index 0 web.hcl       only if there is no such job yet
  ostler job run --rerun nightly.hcl           what has ended of it runs again
  ostler job run --var image=web:2 web.hcl     with a value for a variable of the file
  generate-job | ostler job run -              read the job from standard input

Exit codes:
  0    the job runs (and is healthy) or is complete, or its deployment waits for somebody; with
       --detach it was registered
  1    an allocation of it or its deployment failed, or the job was changed while it was followed
  2    the job file or the usage is wrong
  3    no agent runs there, --check-index does not hold, or something of the job does not fit on
       the node: the job is registered, and that waits (`ostler job status` says why)
  130  Ctrl-C ended the following; the job goes on
  141  the reader of standard output closed it"
)]
pub(crate) struct JobRunArgs {
    #[command(flatten)]
    pub source: JobFileArgs,

    /// Do not wait until it runs; print the ids of what was done
    #[arg(long)]
    pub detach: bool,

    /// Only if the job is still at this job modify index; 0: only if there is no such job
    #[arg(long, value_name = "N")]
    pub check_index: Option<u64>,

    /// Make it a new version even if nothing of it changed: what has ended of it runs again, and what runs
    /// goes on
    #[arg(long)]
    pub rerun: bool,

    /// How long allocations that nobody judges must run until the job counts as running
    #[arg(long, value_name = "TIME", default_value = SETTLE, value_parser = super::agent::duration)]
    pub settle: Duration,

    /// Print the result as one JSON object
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub agent: AddressArgs,
}

/// `ostler job stop`.
#[derive(Debug, Args)]
#[command(
    long_about = "Stop a job: its tasks end in order, with their kill_signal and kill_timeout, and \
        are waited for. The job stays known, so that `ostler job status` shows how it ended. A job \
        of the jobs directory is stopped by removing its file.",
    after_long_help = examples!(agreed "\
Examples:
  ostler job stop web
  ostler job stop --purge web                remove it and its allocations too
  ostler job stop --no-shutdown-delay web    without the delays that let others notice
  ostler job stop --detach web               without waiting
")
)]
pub(crate) struct JobStopArgs {
    /// The job: its id or the beginning of it
    #[arg(value_name = "JOB")]
    pub job: String,

    /// Remove the job at once, and its allocations as soon as they have ended
    #[arg(long)]
    pub purge: bool,

    /// Do not wait for the shutdown_delay of groups and tasks
    #[arg(long)]
    pub no_shutdown_delay: bool,

    /// Do not wait for the end of the tasks
    #[arg(long)]
    pub detach: bool,

    #[command(flatten)]
    pub agree: AgreeArgs,

    /// Print what was done as JSON
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub agent: AddressArgs,
}

/// `ostler job status`.
#[derive(Debug, Args)]
#[command(
    long_about = "List the jobs, or show one: its allocations, and why those that cannot be placed \
        wait.",
    after_long_help = examples!("\
Examples:
  ostler job status
  ostler job status web
  ostler job status --all-allocs web         those of older versions too
  ostler job status --json | jq '.[].ID'
  ostler job status --json web | jq '.allocations[].ClientStatus'
")
)]
pub(crate) struct JobStatusArgs {
    /// The job: its id or the beginning of it; default: all
    #[arg(value_name = "JOB")]
    pub job: Option<String>,

    /// Show allocations of older versions that have ended, too
    #[arg(long, requires = "job")]
    pub all_allocs: bool,

    /// Print the agent's answers as JSON
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub agent: AddressArgs,
}

/// `ostler job scale`.
#[derive(Debug, Args)]
#[command(
    long_about = "Change how many allocations a group of a job has: a new version of the job, with this \
        count. Where the group has a scaling block, the count must be from its min to its max. While \
        a deployment of the job goes on it is refused. A job of the jobs directory is changed by its \
        file.",
    after_long_help = examples!(agreed "\
Examples:
  ostler job scale web 3                     of a job that has one group
  ostler job scale web frontend 3
  ostler job scale --check-index 42 web 3    only if the job is still at this job modify index
")
)]
pub(crate) struct JobScaleArgs {
    /// The job: its id or the beginning of it
    #[arg(value_name = "JOB")]
    pub job: String,

    /// The group, where the job has several; and the count
    #[arg(value_name = "[GROUP] COUNT", required = true, num_args = 1..=2)]
    pub group_and_count: Vec<String>,

    /// Only if the job is still at this job modify index
    #[arg(long, value_name = "N")]
    pub check_index: Option<u64>,

    #[command(flatten)]
    pub agree: AgreeArgs,

    #[command(flatten)]
    pub answer: AnswerArgs,
}

/// `ostler job plan`.
#[derive(Debug, Args)]
#[command(
    long_about = "Say what `ostler job run` would do with a job file, and change nothing: what \
        differs, what would be placed, updated in place, replaced or stopped, and what would not \
        fit and wait, and why.",
    after_long_help = "\
Examples:
  ostler job plan web.hcl
  ostler job plan web.hcl; test $? -eq 1 && ostler job run web.hcl     run it if it changes something
  ostler job plan --json web.hcl | jq '.Changes'

Exit codes:
  0    nothing would change
  1    something would change
  2    the job file or the usage is wrong
  3    no agent runs there, or something of the job would wait: it does not fit on the node
  141  the reader of standard output closed it"
)]
pub(crate) struct JobPlanArgs {
    #[command(flatten)]
    pub source: JobFileArgs,

    #[command(flatten)]
    pub answer: AnswerArgs,
}

/// `ostler job validate`.
#[derive(Debug, Args)]
#[command(
    long_about = "Say everything that is wrong with a job file.\n\n\
        The file is read, and each task's config is checked against the schema of its driver; for \
        that the drivers are loaded (they start nothing). Whether the job fits on this node is not \
        checked: that is decided when it is run.",
    after_long_help = "\
Examples:
  ostler job validate hello.hcl
  ostler job validate --syntax-only hello.hcl  without loading drivers
  ostler job validate --json hello.hcl         the problems as JSON

Exit codes:
  0    the file is valid
  2    the job file, the configuration or the usage is wrong
  3    the drivers cannot be loaded to check the file
  141  the reader of standard output closed it"
)]
pub(crate) struct ValidateArgs {
    #[command(flatten)]
    pub source: JobFileArgs,

    /// Do not load the drivers, and do not check what is theirs
    #[arg(long)]
    pub syntax_only: bool,

    /// Print the result as one JSON object
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub agent: AgentArgs,
}
