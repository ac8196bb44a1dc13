//! `ostler events` and `ostler monitor`

use clap::Args;

use super::agent::log_level;
use super::client::{AddressArgs, examples};
use ostler_model::log_config::LogLevel;

/// `ostler events`.
#[derive(Debug, Args)]
#[command(
    long_about = "Show what happened on the node: to its jobs, allocations, tasks, deployments, plugins and \
        devices. A repeated event is one line with a count, at the time it happened last. The agent keeps a \
        bounded number of events, also over restarts; with -f new ones are shown as they come.",
    after_long_help = examples!("\
Examples:
  ostler events                          the last 50
  ostler events -f --job web             of a job with its allocations and tasks, as they come
  ostler events --alloc 0f01c0de -n 500
  ostler events --plugin nvidia --since 2h
  ostler events --trouble                only trouble
  ostler events --json | jq -r .message
")
)]
pub(crate) struct EventsArgs {
    /// Show new events as they come
    #[arg(short, long)]
    pub follow: bool,

    /// Only of this job, its allocations and their tasks
    #[arg(long, value_name = "JOB")]
    pub job: Option<String>,

    /// Only of this allocation: its id or the beginning of it
    #[arg(long, value_name = "ALLOC")]
    pub alloc: Option<String>,

    /// Only of tasks of this name
    #[arg(long, value_name = "TASK")]
    pub task: Option<String>,

    /// Only of this plugin
    #[arg(long, value_name = "PLUGIN")]
    pub plugin: Option<String>,

    /// Only of this device: vendor/type/name/id
    #[arg(long, value_name = "DEVICE", conflicts_with = "plugin")]
    pub device: Option<String>,

    /// Only what happened in this time: 30s, 15m, 2h
    #[arg(long, value_name = "TIME", value_parser = ostler_text::duration::parse_duration)]
    pub since: Option<std::time::Duration>,

    /// Only trouble
    #[arg(long)]
    pub trouble: bool,

    /// How many of the last events to begin with [default: 50; all with --since]
    #[arg(short = 'n', long = "lines", value_name = "LINES", value_parser = clap::value_parser!(u32).range(..=100_000))]
    pub lines: Option<u32>,

    /// Print one JSON object per line
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub agent: AddressArgs,
}

/// `ostler monitor`.
#[derive(Debug, Args)]
#[command(
    long_about = "Follow the agent's own log as it grows, until Ctrl-C or the agent's end. The level is that of \
        this command alone: what the agent writes elsewhere stays as it is.",
    after_long_help = examples!("\
Examples:
  ostler monitor
  ostler monitor --log-level debug
  ostler monitor -n 100 --json
")
)]
pub(crate) struct MonitorArgs {
    /// What is logged from here on: trace, debug, info, warn or error
    #[arg(long, value_name = "LEVEL", default_value = "info", value_parser = log_level)]
    pub log_level: LogLevel,

    /// Begin with this many of the last lines that the agent keeps
    #[arg(short = 'n', long = "lines", value_name = "LINES", default_value_t = 0)]
    pub lines: u32,

    /// Print one JSON object per line
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub agent: AddressArgs,
}
