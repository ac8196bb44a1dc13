//! `ostler state …`

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Examples, followed by the exit codes of the commands on state files.
macro_rules! examples {
    ($examples:literal) => {
        concat!(
            $examples,
            "
Exit codes:
  0    all went well, nothing is damaged
  1    the file, or a record in it, is damaged
  2    the usage is wrong, or there is no such file
  3    an agent runs, or the file cannot be read or written
  141  nobody reads the standard output any more"
        )
    };
}

/// Commands on the state of an agent that does not run.
#[derive(Debug, Subcommand)]
pub(in crate::cli) enum StateCommand {
    /// Say whether everything in the state file can be read
    #[command(
        long_about = "Say whether everything in the state file can be read.\n\n\
            The storage engine checks the file, and every record is read as what it should be. \
            Damaged records are listed with the reason, and so are those that an agent put into \
            quarantine earlier (these are no damage any more). The file is not changed, not even \
            when an agent was killed while it wrote: what the next agent would recover on disk is \
            recovered in memory. Files of older agents are read too. No agent may run meanwhile.",
        after_long_help = examples!("\
Examples:
  ostler state check --data-dir /var/lib/ostler
  ostler state check --file state.redb.schema-1      a copy that an upgrade left
  ostler state check --data-dir ./data --json | jq '.damaged'

What to do when something is damaged: a damaged record costs what it described; the next agent puts
it into quarantine and uses the rest. A file that is damaged as a whole stops the agent: restore a
copy of it, or keep it under another name to start with an empty state.
")
    )]
    Check(CheckArgs),
    /// Show the records of the state file
    #[command(
        long_about = "Show the records of the state file: each key with its value as JSON.\n\n\
            A record that cannot be read is shown with the reason and its first bytes, and does not \
            stop the others. Records in quarantine come last. Values are shown as this agent knows \
            them, also those of an older one's file. The file is not changed. No agent may run \
            meanwhile.",
        after_long_help = examples!("\
Examples:
  ostler state dump --data-dir /var/lib/ostler
  ostler state dump --data-dir ./data --prefix allocation/0f01c0de     one allocation and its tasks
  ostler state dump --data-dir ./data --prefix plugin/                 all plugins
  ostler state dump --data-dir ./data --prefix meta                    about the file itself
  ostler state dump --data-dir ./data --json | jq '.records[] | select(.kind == \"task-state\")'

The object of --json has path, schema, records and quarantined. A record has key, kind, bytes and
either value or error and first_bytes.
")
    )]
    Dump(DumpArgs),
    /// Give the free room in the state file back to the file system
    #[command(
        long_about = "Give the free room in the state file back to the file system.\n\n\
            An agent uses free room again, so this is worth it only after it held much more than \
            it does now. A crash in the middle leaves every record. No agent may run meanwhile.",
        after_long_help = examples!("\
Examples:
  ostler state compact --data-dir /var/lib/ostler
")
    )]
    Compact(CompactArgs),
    /// Show how large the state is and what was written
    #[command(
        long_about = "Show how large the state is and what was written: records and bytes by kind, \
            the size of the file against what it holds, and what agents did since the file was made \
            (values given, those that were durable already, transactions and their sizes). The \
            counts are saved every 256 transactions and when an agent ends. The file is not \
            changed. While an agent runs it is asked instead, and tells what it did since it \
            started; the object of --json then has running and since_start.",
        after_long_help = examples!("\
Examples:
  ostler state stats --data-dir /var/lib/ostler
  ostler state stats --data-dir ./data --json | jq '.counted.duplicate_ratio'
")
    )]
    Stats(StatsArgs),
}

/// Which state file.
#[derive(Clone, Debug, Default, Args)]
pub(in crate::cli) struct StateFileArgs {
    /// The data directory of the agent
    #[arg(long, value_name = "DIR", env = "OSTLER_DATA_DIR", hide_env_values = true)]
    pub data_dir: Option<PathBuf>,

    /// The agent's configuration (HCL), whose data_dir is used when none is given
    #[arg(long, value_name = "FILE", env = "OSTLER_CONFIG", hide_env_values = true)]
    pub config: Option<PathBuf>,

    /// A state file by itself, for example a copy; no data directory is looked at then
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
}

/// `ostler state check`.
#[derive(Debug, Args)]
pub(in crate::cli) struct CheckArgs {
    /// Print the result as one JSON object
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub which: StateFileArgs,
}

/// `ostler state dump`.
#[derive(Debug, Args)]
pub(in crate::cli) struct DumpArgs {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,

    /// Only records whose key starts so, as it is shown: allocation/0f01, plugin/, device
    #[arg(long, value_name = "KEY", default_value = "", hide_default_value = true)]
    pub prefix: String,

    #[command(flatten)]
    pub which: StateFileArgs,
}

/// `ostler state compact`.
#[derive(Debug, Args)]
pub(in crate::cli) struct CompactArgs {
    /// Print the result as one JSON object
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub which: StateFileArgs,
}

/// `ostler state stats`.
#[derive(Debug, Args)]
pub(in crate::cli) struct StatsArgs {
    /// Print the result as one JSON object
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub which: StateFileArgs,
}
