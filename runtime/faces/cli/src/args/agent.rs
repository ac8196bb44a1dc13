//! `ostler agent`

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::key_help;
use super::servers::ServersArgs;
use ostler_model::log_config::LogLevel;

/// How long tasks may take to end when the agent drains, unless a flag says otherwise.
const DRAIN_DEADLINE: &str = "60s";

/// `ostler agent`.
#[derive(Debug, Args)]
#[command(
    long_about = "Run the agent: it keeps the jobs it is given, restarts what fails, and answers \
        the other commands.\n\n\
        With a data directory it keeps what it has: what ran when an earlier agent on the same one \
        ended is taken over, and tasks go on as they are, native ones each with a supervisor, WASM \
        tasks in a worker process. Without one jobs are kept in memory: they are stopped in order when the \
        agent ends, and nothing of them is left; only compiled plugins stay, in the user's cache directory. \
        Commands reach the agent through a socket in the data directory \
        that only this user can open. With a jobs directory every job file in \
        it runs: a changed file updates its job, a removed one stops it, and a wrong one is reported and \
        leaves its job as it is.\n\n\
        With --servers it is a node of a cluster of Nomad's servers: what they place on it runs, and jobs that \
        are given to it are refused. `ostler node join-check` says whether it can join.\n\n\
        The agent logs to standard error, and says there when it is ready (and tells systemd, if started with \
        Type=notify).",
    after_long_help = "\
Examples:
  ostler agent                                         try it: no jobs are left at its end
  ostler agent --data-dir ./data                       keep jobs
  ostler agent --data-dir ./data --jobs-dir ./jobs     run every job file of ./jobs
  ostler agent --config /etc/ostler.hcl                with plugins, servers and limits of your own
  ostler agent --data-dir ./data --servers 10.0.0.7    run what the servers of a cluster say
  ostler -v agent --data-dir ./data                    log more
  ostler agent --dev                                   try raw_exec too; it prints how to reach it
  ostler agent --dev --socket-dir /tmp/try             the same beside another agent, which has the usual directory
  ostler agent --http 127.0.0.1:4646                   with a page at http://127.0.0.1:4646/ui/

Signals:
  SIGTERM, SIGINT   end: tasks go on and the next agent takes them over; with --drain, or without a
                    data directory, they are stopped first. A second one ends the agent at once
  SIGHUP            read the configuration and the jobs directory again, and say of each changed key
                    whether it holds now or needs a restart

Exit codes:
  0    ended as asked by SIGTERM or SIGINT
  2    the configuration or the usage is wrong
  3    the agent cannot start; another one on the same data directory is named with its pid
  130  ended at once by a second Ctrl-C
  143  ended at once by a second SIGTERM"
)]
pub(crate) struct AgentCommandArgs {
    /// The agent's configuration (HCL): node name, plugins, grants, limits
    #[arg(long, value_name = "FILE", env = "OSTLER_CONFIG", hide_env_values = true)]
    pub config: Option<PathBuf>,

    #[arg(long, value_name = "DIR", env = "OSTLER_DATA_DIR", hide_env_values = true, help = key_help("data_dir",
        "Created if missing. Default: that of the configuration. The socket of an agent in memory is where \
         commands look for it: in /var/lib/ostler for root, else ~/.local/state/ostler"))]
    pub data_dir: Option<PathBuf>,

    /// Where commands find an agent without a data directory: its socket is made there. In place of
    /// /var/lib/ostler for root, else ~/.local/state/ostler, so that it can be there beside another agent
    #[arg(long, value_name = "DIR", conflicts_with = "data_dir")]
    pub socket_dir: Option<PathBuf>,

    #[arg(long, value_name = "DIR", env = "OSTLER_JOBS_DIR", hide_env_values = true,
        help = key_help("jobs_dir", "Overrides the configuration"))]
    pub jobs_dir: Option<PathBuf>,

    #[arg(long, value_name = "DIR", help = key_help("plugin_dir", "Overrides the configuration"))]
    pub plugin_dir: Option<PathBuf>,

    /// For development: keep everything in memory, switch raw_exec on, and say how to reach the agent
    #[arg(long, conflicts_with_all = ["data_dir", "servers", "drain"])]
    pub dev: bool,

    /// Answer over TCP too, as 127.0.0.1:4646; overrides addresses and ports of the configuration. Beyond
    /// this machine that needs TLS and tokens
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with = "servers")]
    pub http: Option<SocketAddr>,

    #[arg(long, value_name = "LEVEL", value_parser = log_level, help = key_help("log_level",
        "trace, debug, info, warn or error; overrides the configuration"))]
    pub log_level: Option<LogLevel>,

    /// How lines of the log are written; overrides log_json of the configuration
    #[arg(long, value_name = "FORM", value_enum)]
    pub log_format: Option<LogFormat>,

    #[command(flatten)]
    pub to: ServersArgs,

    /// Class of the node in the cluster, for constraints of jobs; overrides the configuration
    #[arg(long, value_name = "NAME")]
    pub node_class: Option<String>,

    /// What introduces the node to servers that do not know it, where they ask for that: what
    /// `nomad node intro create` printed. Default: the file intro_token.jwt in the data directory
    #[arg(long, value_name = "TOKEN", env = "OSTLER_INTRO_TOKEN", hide_env_values = true)]
    pub intro_token: Option<String>,

    /// At the end stop all tasks in order instead of leaving them running
    #[arg(long)]
    pub drain: bool,

    /// How long tasks may take to end with --drain; those that still run then are killed
    #[arg(long, value_name = "TIME", default_value = DRAIN_DEADLINE, value_parser = duration, requires = "drain")]
    pub drain_deadline: Duration,
}

/// How lines of the log are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// For people
    Text,
    /// One object a line, in Nomad's form
    Json,
}

pub(super) fn log_level(text: &str) -> Result<LogLevel, String> {
    LogLevel::from_name(text).ok_or_else(|| "trace, debug, info, warn or error".to_owned())
}

pub(super) fn duration(text: &str) -> Result<Duration, String> {
    ostler_text::duration::parse_duration(text)
        .map_err(|_| "a duration such as 90s or 2m".to_owned())
}
