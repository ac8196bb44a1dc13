//! `ostler var …`

use clap::{Args, Subcommand};

use super::client::{AddressArgs, AnswerArgs, examples};

/// Commands on variables.
#[derive(Debug, Subcommand)]
pub(crate) enum VarCommand {
    /// Write a variable, all of it
    Put(VarPutArgs),
    /// Show a variable with what is in it
    Get(VarGetArgs),
    /// List variables, without what is in them
    List(VarListArgs),
    /// Remove a variable permanently
    Purge(VarPurgeArgs),
}

/// `ostler var put`.
#[derive(Debug, Args)]
#[command(
    long_about = "Write a variable: settings and secrets that the agent keeps by path, for the templates of \
        tasks. The given items replace all earlier ones.\n\n\
        A task reads, by itself, nomad/jobs, nomad/jobs/JOB, nomad/jobs/JOB/GROUP and \
        nomad/jobs/JOB/GROUP/TASK of its own job; other paths are for people and programs. When a variable \
        changes, the tasks whose templates read it get what their change_mode says.\n\n\
        Other users of this machine see the arguments of a command while it runs: give secrets as \
        KEY=@FILE, or on standard input.",
    after_long_help = examples!("\
Examples:
  ostler var put nomad/jobs/web host=db.internal port=5432
  ostler var put nomad/jobs/web password=@password.txt       the file's content as it is
  pass db | ostler var put nomad/jobs/web password=@-        read it from standard input
  ostler var put nomad/jobs/web name=\\\\@text                 a text that begins with @
  ostler var put --check-index 0 nomad/jobs/web a=1          only if there is none yet
  ostler var get --json nomad/jobs/web | jq '.Items.port = \"5433\"' | ostler var put nomad/jobs/web -
                                             change one item; not if it was changed meanwhile
")
)]
pub(crate) struct VarPutArgs {
    /// The path, such as nomad/jobs/web
    #[arg(value_name = "PATH")]
    pub path: String,

    /// KEY=TEXT, KEY=@FILE, KEY=@- for standard input; or - alone: JSON with Items, and with the
    /// ModifyIndex that the variable must have
    #[arg(value_name = "KEY=VALUE", required = true)]
    pub items: Vec<String>,

    /// Only if the variable still has this modify index; 0: only if there is none
    #[arg(long, value_name = "N", conflicts_with = "force")]
    pub check_index: Option<u64>,

    /// Ignore the ModifyIndex of the JSON
    #[arg(long)]
    pub force: bool,

    /// Print the variable as JSON, without what is in it
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub agent: AddressArgs,
}

/// `ostler var get`.
#[derive(Debug, Args)]
#[command(
    long_about = "Show a variable with what is in it.",
    after_long_help = examples!("\
Examples:
  ostler var get nomad/jobs/web
  ostler var get --item password nomad/jobs/web        this text alone, as it is
  ostler var get --json nomad/jobs/web | jq .Items
")
)]
pub(crate) struct VarGetArgs {
    /// The path
    #[arg(value_name = "PATH")]
    pub path: String,

    /// Print this item alone, as it is: no line end is added
    #[arg(long, value_name = "KEY", conflicts_with = "json")]
    pub item: Option<String>,

    #[command(flatten)]
    pub answer: AnswerArgs,
}

/// `ostler var list`.
#[derive(Debug, Args)]
#[command(
    long_about = "List the variables whose paths begin with a prefix, or all: path, index and when they were \
                  written. `ostler var get` shows what is in one.",
    after_long_help = examples!("\
Examples:
  ostler var list
  ostler var list nomad/jobs/web
  ostler var list --json | jq -r '.[].Path'
")
)]
pub(crate) struct VarListArgs {
    /// The prefix of the paths
    #[arg(value_name = "PREFIX")]
    pub prefix: Option<String>,

    #[command(flatten)]
    pub answer: AnswerArgs,
}

/// `ostler var purge`.
#[derive(Debug, Args)]
#[command(
    long_about = "Remove a variable permanently. Nothing happens if there is none. Tasks whose templates read \
                  it keep their files, but cannot start again until it is back.",
    after_long_help = examples!("\
Examples:
  ostler var purge nomad/jobs/web
  ostler var purge --check-index 42 nomad/jobs/web     only if it was not changed since
")
)]
pub(crate) struct VarPurgeArgs {
    /// The path
    #[arg(value_name = "PATH")]
    pub path: String,

    /// Only if the variable still has this modify index
    #[arg(long, value_name = "N")]
    pub check_index: Option<u64>,

    #[command(flatten)]
    pub agent: AddressArgs,
}
