//! `ostler plugin check` and `ostler plugin replay`

use std::path::PathBuf;

use clap::Args;

/// `ostler plugin check`.
#[derive(Debug, Args)]
#[command(
    long_about = "Check that a plugin keeps the rules of the interface: that it describes itself \
        the same each time, that its schemas are valid, that it answers within the limits, finds \
        the same ids again, reserves nothing that it never found, and traps on nothing: unknown \
        devices, handles it did not make, calls out of order, odd configurations, missing \
        grants.\n\n\
        It runs in the sandbox, without an agent. Nothing is granted that is not given here; what \
        is not granted is refused to the plugin when it uses it, and rules that need it are \
        skipped. With --task-config a driver starts a task, which is killed at the end.",
    after_long_help = "\
Examples:
  ostler plugin check mine.wasm
  ostler plugin check --config '{\"dir\": \"/srv/cards\"}' --grant-file /srv/cards mine.wasm
  ostler plugin check --agent-config ostler.hcl mine.wasm    with its block's grants and limits
  ostler plugin check --grant-process --task-config '{\"command\": \"/bin/true\"}' mine.wasm
  ostler plugin check --json mine.wasm | jq '.findings[] | select(.verdict == \"fail\").id'

Exit codes:
  0    no rule is broken; there may be warnings, and rules that were skipped
  1    a rule is broken
  2    the file cannot be read, a configuration or the usage is wrong
  3    the sandbox cannot be set up
  141  the reader of standard output closed it"
)]
pub(crate) struct PluginCheckArgs {
    /// The plugin, a WebAssembly component
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// The plugin's configuration: a JSON object, or a file that holds one
    #[arg(long, value_name = "JSON|FILE")]
    pub config: Option<String>,

    /// Take configuration, grants and limits from the plugin's block of an agent's configuration
    #[arg(long, value_name = "FILE")]
    pub agent_config: Option<PathBuf>,

    /// Name of the plugin's block; default: the file's name without .wasm
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,

    /// Let it read this directory; can be given several times
    #[arg(long, value_name = "DIR")]
    pub grant_file: Vec<PathBuf>,

    /// Let it run this program with any arguments; can be given several times
    #[arg(long, value_name = "PROGRAM")]
    pub grant_command: Vec<PathBuf>,

    /// Let a driver start processes
    #[arg(long)]
    pub grant_process: bool,

    /// Let a driver start WASM tasks
    #[arg(long)]
    pub grant_wasm_task: bool,

    /// Start a task with this config, for the rules that need one: a JSON object, or a file
    #[arg(long, value_name = "JSON|FILE")]
    pub task_config: Option<String>,

    /// Print the report as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `ostler plugin replay`.
#[derive(Debug, Args)]
#[command(
    long_about = "Make a recorded call of a plugin again: the same component with the same \
        arguments, the recorded answers in place of the host. Nothing is granted, nothing outside \
        is touched, and no agent is needed: a recording and the component are enough, on any \
        machine.\n\n\
        An agent writes a recording when a call of a plugin traps, runs into a limit or its \
        deadline, or answers against the rules: DATA_DIR/recordings/*.rec, readable by its user \
        alone, at most 64, with the calls before the failed one. Secrets are taken out: what \
        stands under keys like password, secret or token, what the plugin's schema marks \
        writeOnly, and the environment of tasks. What a deadline ended depends on the machine.",
    after_long_help = "\
Examples:
  ostler plugin replay 0178-mine-fingerprint.rec --component mine.wasm
  ostler plugin replay --list 0178-mine-fingerprint.rec
  ostler plugin replay --call 1 x.rec --component mine.wasm         an earlier call of it
  ostler plugin replay --any-component x.rec --component fixed.wasm where a new one differs
  ostler plugin replay --json x.rec --component mine.wasm | jq .verdict

Exit codes:
  0    the call ended as the recorded one did
  1    it ended otherwise, or asked the host for something else
  2    the recording or the component cannot be used, or the usage is wrong
  3    the sandbox cannot be set up
  141  the reader of standard output closed it"
)]
pub(crate) struct PluginReplayArgs {
    /// The recording
    #[arg(value_name = "RECORDING")]
    pub file: PathBuf,

    /// The plugin, a WebAssembly component
    #[arg(long, value_name = "FILE", required_unless_present = "list")]
    pub component: Option<PathBuf>,

    /// Which of its calls, from 1; default: the last one, which failed
    #[arg(long, value_name = "NUMBER")]
    pub call: Option<usize>,

    /// Take a component of another digest too
    #[arg(long)]
    pub any_component: bool,

    /// Show the calls in the recording, and make none
    #[arg(long)]
    pub list: bool,

    /// Print what is shown as JSON
    #[arg(long)]
    pub json: bool,
}
