//! `ostler plugin check`

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
  141  nobody reads the standard output any more"
)]
pub(in crate::cli) struct PluginCheckArgs {
    /// The plugin, a WebAssembly component
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// The plugin's configuration: a JSON object, or a file that holds one
    #[arg(long, value_name = "JSON|FILE")]
    pub config: Option<String>,

    /// Take configuration, grants and limits from the plugin's block of an agent's configuration
    #[arg(long, value_name = "FILE")]
    pub agent_config: Option<PathBuf>,

    /// Name of the plugin's block; the file's name without .wasm unless given
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
