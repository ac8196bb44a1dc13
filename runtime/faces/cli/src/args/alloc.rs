//! `ostler alloc …`

use clap::{Args, Subcommand};

use super::client::{AddressArgs, AgreeArgs, AnswerArgs, examples};

/// Commands on allocations.
#[derive(Debug, Subcommand)]
pub(crate) enum AllocCommand {
    /// List the allocations, or show one
    Status(AllocStatusArgs),
    /// Show what a task printed
    Logs(AllocLogsArgs),
    /// Run a command inside a task
    Exec(AllocExecArgs),
    /// Show the files of an allocation
    Fs(AllocFsArgs),
    /// Stop an allocation; its job puts a new one in its place
    Stop(AllocStopArgs),
    /// Restart tasks where they are
    Restart(AllocRestartArgs),
    /// Send a signal to tasks
    Signal(AllocSignalArgs),
}

/// `ostler alloc status`.
#[derive(Debug, Args)]
#[command(
    long_about = "List the allocations, or show one: its tasks with what happened to them (newest \
        last), restarts, health, ports and devices, and why it is as it is.",
    after_long_help = examples!("\
Examples:
  ostler alloc status
  ostler alloc status 0f01c0de               the beginning of an id is enough
  ostler alloc status --verbose 0f01c0de     whole ids and times
  ostler alloc status --stats 0f01c0de       with what the tasks and their devices use now
  ostler alloc status --json 0f01c0de | jq '.TaskStates'
")
)]
pub(crate) struct AllocStatusArgs {
    /// The allocation: its id or the beginning of it; default: all
    #[arg(value_name = "ALLOC")]
    pub alloc: Option<String>,

    /// Show what the tasks use now, and what their devices measure; all of it with --verbose
    #[arg(long, requires = "alloc")]
    pub stats: bool,

    #[command(flatten)]
    pub answer: AnswerArgs,
}

/// `ostler alloc logs`.
#[derive(Debug, Args)]
#[command(
    long_about = "Show what a task printed on its standard output, or with --stderr on its standard \
        error, as far as it is kept. With -f new output is shown too, across restarts of the task, \
        until the allocation has ended or Ctrl-C.",
    after_long_help = examples!("\
Examples:
  ostler alloc logs 0f01c0de                 the allocation has one task
  ostler alloc logs 0f01c0de web
  ostler alloc logs -f -n 20 0f01c0de web    the last 20 lines, then new output
  ostler alloc logs --stderr 0f01c0de web > errors
")
)]
pub(crate) struct AllocLogsArgs {
    /// The allocation: its id or the beginning of it
    #[arg(value_name = "ALLOC")]
    pub alloc: String,

    /// The task; may be left out when there is only one
    #[arg(value_name = "TASK")]
    pub task: Option<String>,

    /// The task, as an option
    #[arg(long = "task", value_name = "TASK", conflicts_with = "task")]
    pub task_option: Option<String>,

    /// Show new output as it comes
    #[arg(short, long)]
    pub follow: bool,

    /// Begin with the last lines only
    #[arg(short = 'n', long = "lines", value_name = "LINES", value_parser = clap::value_parser!(u32).range(..=100_000))]
    pub lines: Option<u32>,

    /// Show the standard error instead
    #[arg(long)]
    pub stderr: bool,

    #[command(flatten)]
    pub agent: AddressArgs,
}

/// `ostler alloc fs`.
#[derive(Debug, Args)]
#[command(
    long_about = "Show what lies in the directory of an allocation: the entries of a directory, or a file. \
        `alloc` is shared by its tasks, each task has a directory of its name; its secrets are not shown.",
    after_long_help = examples!("\
Examples:
  ostler alloc fs 0f01c0de                          the allocation's directory
  ostler alloc fs 0f01c0de web/local                a directory in it
  ostler alloc fs 0f01c0de web/local/config.json    a file, to its end
  ostler alloc fs -f -n 20 0f01c0de alloc/data/log  its last 20 lines, then what is appended
  ostler alloc fs --stat --json 0f01c0de alloc/data/log
")
)]
pub(crate) struct AllocFsArgs {
    /// The allocation: its id or the beginning of it
    #[arg(value_name = "ALLOC")]
    pub alloc: String,

    /// The directory or file in it; default: all of it
    #[arg(value_name = "PATH")]
    pub path: Option<String>,

    /// Show what it is: mode, size, time; not what is in it
    #[arg(long, conflicts_with_all = ["follow", "lines"])]
    pub stat: bool,

    /// Show what is appended to a file as it comes
    #[arg(short, long)]
    pub follow: bool,

    /// Begin with the last lines of a file only
    #[arg(short = 'n', long = "lines", value_name = "LINES", value_parser = clap::value_parser!(u32).range(..=100_000))]
    pub lines: Option<u32>,

    #[command(flatten)]
    pub answer: AnswerArgs,
}

/// `ostler alloc exec`.
#[derive(Debug, Args)]
#[command(
    override_usage = "ostler alloc exec [OPTIONS] ALLOC COMMAND [ARGS]...\n       \
        ostler alloc exec [OPTIONS] --job JOB COMMAND [ARGS]...",
    long_about = "Run a command inside a running task, kept apart exactly as the task is: with its user, its \
        files, its network and its limits. It ends with the task and with this command, whose exit code is \
        that of the command inside. Options stand before ALLOC: what follows is the command's own.",
    after_long_help = "\
Examples:
  ostler alloc exec 0f01c0de ls -l /local         the allocation has one task
  ostler alloc exec --task web 0f01c0de sh        a shell, in a terminal where this is one
  ostler alloc exec --job web sh -c 'id; pwd'     in a running allocation of the job
  ostler alloc exec 0f01c0de sh < script          what is read is the input
  ostler alloc exec -i=false 0f01c0de tail -f x   without an input

Exit codes:
  that of the command; 128 and the signal's number where a signal ended it; or
  2    the usage is wrong, or an id matches nothing or several things
  3    no agent runs there, or it cannot do it
  4    only the beginning of a name was given, and its meaning was not confirmed
  130  Ctrl-C, without a terminal inside the task; the command is ended
  141  the reader of standard output closed it; the command is ended"
)]
pub(crate) struct AllocExecArgs {
    /// The allocation (its id or the beginning of it; none with --job), then the command and its arguments
    #[arg(value_name = "WORDS", required = true, trailing_var_arg = true, num_args = 1..)]
    pub words: Vec<String>,

    /// The task; may be left out when there is only one
    #[arg(long, value_name = "TASK")]
    pub task: Option<String>,

    /// In a running allocation of this job; there is no ALLOC then
    #[arg(long, value_name = "JOB")]
    pub job: Option<String>,

    /// Pass the standard input on [default: true]
    #[arg(short = 'i', long = "stdin", value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", hide_possible_values = true)]
    pub stdin: Option<bool>,

    /// Give the command a terminal [default: true where standard input and output are terminals]
    #[arg(short = 't', long = "tty", value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", hide_possible_values = true)]
    pub tty: Option<bool>,

    #[command(flatten)]
    pub agree: AgreeArgs,

    #[command(flatten)]
    pub agent: AddressArgs,
}

/// `ostler alloc stop`.
#[derive(Debug, Args)]
#[command(
    long_about = "Stop one allocation in order and wait for its end. Its job puts a new one in its \
        place; to end both, stop the job.",
    after_long_help = examples!(agreed "\
Examples:
  ostler alloc stop 0f01c0de
  ostler alloc stop --no-shutdown-delay 0f01c0de
  ostler alloc stop --detach 0f01c0de        without waiting
")
)]
pub(crate) struct AllocStopArgs {
    /// The allocation: its id or the beginning of it
    #[arg(value_name = "ALLOC")]
    pub alloc: String,

    /// Do not wait for the shutdown_delay of group and tasks
    #[arg(long)]
    pub no_shutdown_delay: bool,

    /// Do not wait for the end of the tasks
    #[arg(long)]
    pub detach: bool,

    #[command(flatten)]
    pub agree: AgreeArgs,

    #[command(flatten)]
    pub answer: AnswerArgs,
}

/// `ostler alloc restart`.
#[derive(Debug, Args)]
#[command(
    long_about = "Restart tasks of an allocation where they are: the running ones, one of them, or \
        all, those that ended and those of the lifecycle included, and wait until they started \
        anew. Such a restart does not count against the restart policy.",
    after_long_help = examples!(agreed "\
Examples:
  ostler alloc restart 0f01c0de              the tasks that run
  ostler alloc restart 0f01c0de web          this one
  ostler alloc restart --all 0f01c0de        everything from the beginning
  ostler alloc restart --detach 0f01c0de     without waiting
")
)]
pub(crate) struct AllocRestartArgs {
    /// The allocation: its id or the beginning of it
    #[arg(value_name = "ALLOC")]
    pub alloc: String,

    /// The task; default: all that run
    #[arg(value_name = "TASK")]
    pub task: Option<String>,

    /// The task, as an option
    #[arg(long = "task", value_name = "TASK", conflicts_with = "task")]
    pub task_option: Option<String>,

    /// Every task, also those that ended and those of the lifecycle
    #[arg(long, conflicts_with_all = ["task", "task_option"])]
    pub all: bool,

    /// Do not wait until the tasks started anew
    #[arg(long)]
    pub detach: bool,

    #[command(flatten)]
    pub agree: AgreeArgs,

    #[command(flatten)]
    pub agent: AddressArgs,
}

/// `ostler alloc signal`.
#[derive(Debug, Args)]
#[command(
    long_about = "Send a signal to the running tasks of an allocation, or to one of them. What the \
        signal does is the task's; it does not count as a stop.",
    after_long_help = examples!(agreed "\
Examples:
  ostler alloc signal -s SIGHUP 0f01c0de web
  ostler alloc signal -s USR1 0f01c0de
")
)]
pub(crate) struct AllocSignalArgs {
    /// The allocation: its id or the beginning of it
    #[arg(value_name = "ALLOC")]
    pub alloc: String,

    /// The task; default: all that run
    #[arg(value_name = "TASK")]
    pub task: Option<String>,

    /// The task, as an option
    #[arg(long = "task", value_name = "TASK", conflicts_with = "task")]
    pub task_option: Option<String>,

    /// The signal's name, with or without SIG
    #[arg(short, long, value_name = "SIGNAL")]
    pub signal: String,

    #[command(flatten)]
    pub agree: AgreeArgs,

    #[command(flatten)]
    pub agent: AddressArgs,
}
