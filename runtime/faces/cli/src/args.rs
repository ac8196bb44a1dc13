//! The commands, their options and their help.

pub(super) mod agent;
pub(super) mod alloc;
pub(super) mod client;
pub(super) mod debug;
pub(super) mod deployment;
pub(super) mod device;
pub(super) mod events;
pub(super) mod explain;
pub(super) mod job;
pub(super) mod join_check;
pub(super) mod node;
pub(super) mod nomad_plugin;
pub(super) mod plugin;
pub(super) mod plugin_check;
pub(super) mod servers;
pub(super) mod service;
pub(super) mod state;
pub(super) mod token;
pub(super) mod top;
pub(super) mod trust;
pub(super) mod vars;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

use agent::AgentCommandArgs;
use alloc::AllocCommand;
use client::GcArgs;
use deployment::DeploymentCommand;
use device::{AgentSource, DeviceCommand};
use job::JobCommand;
use plugin::{PluginLiftArgs, PluginRecordArgs, PluginUpgradeArgs};
use plugin_check::{PluginCheckArgs, PluginReplayArgs};
use state::StateCommand;
use trust::{PullArgs, VerifyArgs};

/// Examples, followed by the exit codes most commands have.
macro_rules! examples {
    ($examples:literal) => {
        concat!(
            $examples,
            "
Exit codes:
  0    all went well
  2    a job file, a configuration, a plugin file or the usage is wrong
  3    the agent cannot start
  141  the reader of standard output closed it"
        )
    };
}

/// The program's arguments.
#[derive(Debug, Parser)]
#[command(
    name = "ostler",
    version,
    about = "Run jobs through sandboxed WebAssembly drivers and device plugins",
    long_about = "Ostler runs jobs on this node. A job file says what to run; drivers run it and \
                  device plugins find the node's devices. Both are WebAssembly components that \
                  can do only what they import and are granted.",
    after_long_help = "\
Examples:
  ostler run hello.hcl                 run a job to its end and show its output
  ostler agent --data-dir ./data       run an agent that keeps the jobs it is given
  ostler job run web.hcl               give it a job; also job status, plan, stop
  ostler alloc logs -f 0f01c0de        follow what a task prints; also alloc status, restart, …
  ostler explain web                   say why a job is as it is; also an allocation, a plugin, a device
  ostler job validate hello.hcl        say everything that is wrong with a job file
  ostler plugin inspect mine.wasm      say what a plugin could do, without running it
  ostler plugin check mine.wasm        say whether it keeps the rules of the interface
  ostler node status                   show what this node has to give
  ostler device list                   show the devices, their health and the tasks that use them
  ostler state check --data-dir ./data say whether an agent's state can be read

Environment:
  OSTLER_ADDR      where the agent is, as --address
  OSTLER_CONFIG    the agent's configuration, as --config
  OSTLER_DATA_DIR  the data directory, as --data-dir
  OSTLER_JOBS_DIR  the agent's jobs directory, as --jobs-dir
  OSTLER_TOKEN     the secret of a token, for an agent that asks for one
  OSTLER_CACERT    certificate authorities of an agent at an https URL, as --ca-cert
  OSTLER_LOG       what is logged, for example debug or ostler_lifecycle=trace
  NO_COLOR         any text switches colours off",
    arg_required_else_help = true,
    propagate_version = true
)]
pub(super) struct Cli {
    /// Log more on standard error: -v what the agent does, -vv why, -vvv everything
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,

    /// What to do.
    #[command(subcommand)]
    pub command: CliCommand,
}

/// The commands of the program.
#[derive(Debug, Subcommand)]
pub(super) enum CliCommand {
    /// Run one job to its end in an agent of its own
    Run(RunArgs),
    /// Run the agent
    Agent(AgentCommandArgs),
    /// Work with jobs and job files
    #[command(subcommand)]
    Job(JobCommand),
    /// Work with deployments: how new versions of services are rolled out
    #[command(subcommand)]
    Deployment(DeploymentCommand),
    /// Work with allocations: the instances of task groups
    #[command(subcommand)]
    Alloc(AllocCommand),
    /// Say why a job, an allocation, a plugin or a device is as it is, and what would change it
    Explain(explain::ExplainArgs),
    /// Show what happened on the node, and with -f what happens
    Events(events::EventsArgs),
    /// Follow the agent's log
    Monitor(events::MonitorArgs),
    /// Gather what someone who helps needs to know
    #[command(subcommand)]
    Debug(debug::DebugCommand),
    /// Show the services that run: names, tags, addresses
    #[command(subcommand)]
    Service(service::ServiceCommand),
    /// Work with variables: settings and secrets that the agent keeps for tasks
    #[command(subcommand)]
    Var(vars::VarCommand),
    /// Work with tokens: who may do what over the API
    #[command(subcommand)]
    Token(token::TokenCommand),
    /// Remove allocations that have ended
    Gc(GcArgs),
    /// Work with plugins
    #[command(subcommand)]
    Plugin(PluginCommand),
    /// Show devices: the tasks that use them, their health, what they measure
    #[command(subcommand)]
    Device(DeviceCommand),
    /// Show this node
    #[command(subcommand)]
    Node(NodeCommand),
    /// Show what the node, allocations, devices and plugins use now
    Top(top::TopArgs),
    /// Serve a plugin to a stock Nomad client, which runs this command
    NomadPlugin(nomad_plugin::NomadPluginArgs),
    /// Inspect the state file of an agent
    #[command(subcommand)]
    State(StateCommand),
    /// Print a completion script for a shell
    #[command(after_long_help = "\
Examples:
  ostler completions bash > /etc/bash_completion.d/ostler
  ostler completions fish > ~/.config/fish/completions/ostler.fish")]
    Completions(CompletionsArgs),
    /// Print the manual page, or write one per command
    #[command(after_long_help = "\
Examples:
  ostler man | man -l -                 read it
  ostler man --dir /usr/share/man/man1  install all pages")]
    Man(ManArgs),
}

/// Commands on plugins.
#[derive(Debug, Subcommand)]
pub(super) enum PluginCommand {
    /// List the plugins an agent would load, with their state
    List(PluginListArgs),
    /// Show the health of plugins: state, strikes, last error, cost of calls
    Status(PluginStatusArgs),
    /// Show what a plugin could do, without running it
    Inspect(InspectArgs),
    /// End a plugin's quarantine: it is tried again at once
    Lift(PluginLiftArgs),
    /// Replace a plugin with another version while tasks run
    Upgrade(PluginUpgradeArgs),
    /// Check that a plugin keeps the rules of the interface, without an agent
    Check(PluginCheckArgs),
    /// Write a plugin's last calls to a file, for `plugin replay`
    Record(PluginRecordArgs),
    /// Make a recorded call of a plugin again, without an agent
    Replay(PluginReplayArgs),
    /// Say who signed a plugin and whether the agent would run it
    Verify(VerifyArgs),
    /// Pull a plugin from a registry and pin its tag
    Pull(PullArgs),
}

/// Commands on the node.
#[derive(Debug, Subcommand)]
pub(super) enum NodeCommand {
    /// Show this node's attributes, drivers and devices
    Status(NodeStatusArgs),
    /// Drain this node, or end its drain
    Drain(node::DrainArgs),
    /// Say whether new allocations are placed on this node
    Eligibility(node::EligibilityArgs),
    /// Check the way into a cluster of Nomad's servers, step by step
    JoinCheck(join_check::JoinCheckArgs),
}

/// Help of a flag that sets the same as a key of the agent's configuration: the description of the
/// key, followed by `more`, which is about the flag.
fn key_help(key: &str, more: &str) -> String {
    let text = ostler_jobspec::agent_key(key).unwrap_or_default().replace('`', "");
    format!("{text} {more}")
}

/// Where an agent takes its configuration from.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct AgentArgs {
    /// The agent's configuration (HCL): node name, plugins, grants, limits
    #[arg(long, value_name = "FILE", env = "OSTLER_CONFIG", hide_env_values = true)]
    pub config: Option<PathBuf>,

    #[arg(long, value_name = "DIR", help = key_help("plugin_dir", "Overrides the configuration"))]
    pub plugin_dir: Option<PathBuf>,

    #[arg(long, value_name = "DIR", env = "OSTLER_DATA_DIR", hide_env_values = true, help = key_help("data_dir",
        "Kept at the end, so that the next start is faster. Default: a temporary one, which is removed"))]
    pub data_dir: Option<PathBuf>,
}

/// `ostler run`.
#[derive(Debug, Args)]
#[command(
    long_about = "Run one job to its end in an agent of its own.\n\n\
        What the tasks print goes to standard output (their standard error to standard error), \
        each line after its task's name. Progress goes to standard error. Ctrl-C or SIGTERM stops \
        the job in order, with its kill_signal and kill_timeout; a second one kills it at once. \
        The job is also stopped when the reader of standard output closes it (as with | head).",
    after_long_help = "\
Examples:
  ostler run hello.hcl
  ostler run --data-dir ./data hello.hcl       keep state, logs and files of the job
  ostler run --config ostler.hcl gpu.hcl       with plugins of your own
  ostler run --json hello.hcl | jq .           one JSON object per line
  generate-job | ostler run -                  read the job from standard input

Exit codes:
  0    every task ended well
  1-255  the exit code of the first task that failed (1 when it has none)
  2    the job file, the configuration or the usage is wrong
  3    the agent cannot start, or the job does not fit on this node
  129  stopped by SIGHUP
  130  stopped by Ctrl-C
  141  stopped because the reader of standard output closed it
  143  stopped by SIGTERM

JSON objects have a type: warning, node, plugin, notice, placed, event, output, status, health, progress,
error, result. The last one is result or error; it has the exit code."
)]
pub(super) struct RunArgs {
    #[command(flatten)]
    pub source: job::JobFileArgs,

    /// Print one JSON object per line on standard output, and nothing else there
    #[arg(long)]
    pub json: bool,

    /// Let the job use the driver raw_exec, which isolates nothing: its tasks may do what you may
    #[arg(long)]
    pub raw_exec: bool,

    #[command(flatten)]
    pub agent: AgentArgs,
}

/// `ostler plugin list`.
#[derive(Debug, Args)]
#[command(
    long_about = "List the plugins an agent with this configuration loads: the built-in ones, those \
        of the plugin directory and those of the configuration. A plugin that is refused is listed \
        with the reason.\n\nA running agent is asked; if there is none, one is started for this command alone.",
    after_long_help = examples!("\
Examples:
  ostler plugin list
  ostler plugin list --plugin-dir ./plugins
  ostler plugin list --json | jq '.[].name'
")
)]
pub(super) struct PluginListArgs {
    /// Print the list as JSON
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub of: AgentSource,
}

/// `ostler plugin status`.
#[derive(Debug, Args)]
#[command(
    long_about = "Show the health of plugins. A plugin that traps, hangs, breaks a limit or answers \
        against the rules gets a strike, which expires after a time; one whose fingerprint \
        fails is backing off: it is asked again after a wait that doubles with each failure. One \
        with too many strikes is quarantined: it gets no calls but those that end what it runs, \
        until it is tried again or `ostler plugin lift` lifts it. \
        P99 is the time 99 of 100 calls of the slowest function took at most, IN and OUT are the \
        bytes given to and taken from the plugin.\n\n\
        With a name one plugin is shown, with what each of its functions costs.",
    after_long_help = examples!("\
Examples:
  ostler plugin status
  ostler plugin status nvidia
  ostler plugin status --json | jq '.[] | select(.activity.strikes > 0).name'
")
)]
pub(super) struct PluginStatusArgs {
    /// The plugin, by the name it gives itself or that of its block; default: all
    #[arg(value_name = "PLUGIN")]
    pub plugin: Option<String>,

    /// Print what is shown as JSON
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub of: AgentSource,
}

/// `ostler plugin inspect`.
#[derive(Debug, Args)]
#[command(
    long_about = "Show what a plugin could do, without running or compiling it: its kind and interface \
                  version, and its imports by what they let the plugin do. What needs a grant is marked, with \
                  the lines that would give it.",
    after_long_help = examples!("\
Examples:
  ostler plugin inspect mine.wasm
  ostler plugin inspect --json mine.wasm
")
)]
pub(super) struct InspectArgs {
    /// The plugin, a WebAssembly component
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// Print the result as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `ostler node status`.
#[derive(Debug, Args)]
#[command(
    long_about = "Show this node as jobs see it: what constraints can ask about, the drivers with \
        their health, and the devices that can be assigned.",
    after_long_help = examples!("\
Examples:
  ostler node status
  ostler node status --data-dir ./data      of the agent with this data directory
  ostler node status --stats                with current use, of a running agent
  ostler node status --json | jq '.attributes'
")
)]
pub(super) struct NodeStatusArgs {
    /// Show what the machine uses and what its devices measure now; needs a running agent
    #[arg(long)]
    pub stats: bool,

    /// Print the node as one JSON object
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub of: AgentSource,
}

/// `ostler completions`.
#[derive(Debug, Args)]
pub(super) struct CompletionsArgs {
    /// For which shell
    pub shell: Shell,
}

/// `ostler man`.
#[derive(Debug, Args)]
pub(super) struct ManArgs {
    /// Write one page per command into this directory instead
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

#[cfg(test)]
mod tests;
