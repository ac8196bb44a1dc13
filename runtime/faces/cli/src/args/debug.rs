//! `ostler debug …`

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::client::{AddressArgs, examples};

/// Commands that gather what somebody needs who helps.
#[derive(Debug, Subcommand)]
pub(crate) enum DebugCommand {
    /// Write an archive of everything that the agent knows, without secrets
    Bundle(BundleArgs),
}

/// `ostler debug bundle`.
#[derive(Debug, Args)]
#[command(
    long_about = "Write a tar.gz with what the agent knows: versions, node, devices, plugins, jobs, allocations, \
        deployments, events, metrics, the last lines of its log, statistics of its state, and why each job is as it \
        is. A part that cannot be read is replaced by a file that says why; each part is bounded in bytes and \
        time.\n\n\
        Secrets are left out: environments of tasks, the text of templates, meta data, arguments, tokens, and \
        whatever is named like a secret. Variables are not in it at all. Review it before you pass it on: \
        programs may print secrets into messages.",
    after_long_help = examples!("\
Examples:
  ostler debug bundle
  ostler debug bundle --out /tmp/node7.tar.gz
")
)]
pub(crate) struct BundleArgs {
    /// The file to write, which must not exist; default: ostler-debug-TIME.tar.gz here
    #[arg(long, short, value_name = "FILE")]
    pub out: Option<PathBuf>,

    /// Print what was written as JSON
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub agent: AddressArgs,
}
