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
  141  the reader of standard output closed it"
        )
    };
}

/// Commands on the state of an agent that does not run.
#[derive(Debug, Subcommand)]
pub(crate) enum StateCommand {
    /// Say whether everything in the state file can be read
    #[command(
        long_about = "Say whether everything in the state file can be read.\n\n\
            The storage engine checks the file, and every record is read as what it should be. \
            Damaged records are listed with the reason, and so are those that an agent put into \
            quarantine earlier (these no longer count as damage). The file is not changed, not even \
            when an agent was killed while it wrote: what the next agent would recover on disk is \
            recovered in memory. It is also compared with what its directory knows: how many changes \
            were acknowledged, and which runs live. Files of older agents are read too. No agent may run meanwhile.",
        after_long_help = examples!("\
Examples:
  ostler state check --data-dir /var/lib/ostler
  ostler state check --file state.redb.schema-3      a copy that an upgrade left
  ostler state check --data-dir ./data --json | jq '.damaged'

What to do when something is damaged: a damaged record costs what it described; the next agent puts
it into quarantine and uses the rest. A file that is damaged as a whole stops the agent: put back the
newest copy there is, or keep the file under another name to start with an empty state. What a copy
does not know is not done again by itself; jobs whose tasks still run are held back until these are
ended (ostler state runs).
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
    /// Give the free space in the state file back to the file system
    #[command(
        long_about = "Give the free space in the state file back to the file system.\n\n\
            An agent reuses free space, so this is only worth it after the file held much more than it does \
            now. A crash in the middle leaves every record. No agent may run meanwhile.",
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
    /// List runs that are alive and that no agent owns
    #[command(
        long_about = "List runs that are alive and that no agent owns.\n\n\
            Native tasks have supervisors that outlive the agent. When the state file does not know \
            one of them (an older copy was put back, the file is gone or damaged), the agent neither \
            ends it nor starts another in its place: the run is held back, and its place in its job \
            waits. It is listed with the reason and with the command that ends it. While no agent \
            runs, every run that lives is listed, also those that the next agent owns again.",
        after_long_help = examples!("\
Examples:
  ostler state runs
  ostler state runs --data-dir /var/lib/ostler
  ostler state runs --json | jq '.runs[].end_with'
")
    )]
    Runs(RunsArgs),
    /// End a run that is alive and that no agent owns
    #[command(
        long_about = "End a run that is alive and that no agent owns: its task and everything that the \
            task started are killed. What was held back for it goes on then. It is given by the process of its \
            supervisor, as `ostler state runs` lists it. While an agent runs, this works for runs that it \
            holds back; while none runs, for any.",
        after_long_help = examples!("\
Examples:
  ostler state end-run 4711
  ostler state end-run 4711 --data-dir /var/lib/ostler
")
    )]
    EndRun(EndRunArgs),
}

/// Whose runs.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct StateDirArgs {
    /// The data directory of the agent
    #[arg(long, value_name = "DIR", env = "OSTLER_DATA_DIR", hide_env_values = true)]
    pub data_dir: Option<PathBuf>,
}

/// `ostler state runs`.
#[derive(Debug, Args)]
pub(crate) struct RunsArgs {
    /// Print the result as one JSON object
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub which: StateDirArgs,
}

/// `ostler state end-run`.
#[derive(Debug, Args)]
pub(crate) struct EndRunArgs {
    /// The run, as `state runs` names it: the process id of its supervisor, or the run of a WASM task
    #[arg(value_name = "RUN")]
    pub run: String,

    /// Print what was ended as one JSON object
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub which: StateDirArgs,
}

/// Which state file.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct StateFileArgs {
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
pub(crate) struct CheckArgs {
    /// Print the result as one JSON object
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub which: StateFileArgs,
}

/// `ostler state dump`.
#[derive(Debug, Args)]
pub(crate) struct DumpArgs {
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
pub(crate) struct CompactArgs {
    /// Print the result as one JSON object
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub which: StateFileArgs,
}

/// `ostler state stats`.
#[derive(Debug, Args)]
pub(crate) struct StatsArgs {
    /// Print the result as one JSON object
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub which: StateFileArgs,
}
