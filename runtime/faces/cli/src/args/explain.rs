//! `ostler explain`

use clap::{Args, ValueEnum};

use super::client::{AddressArgs, examples};

/// `ostler explain`.
#[derive(Debug, Args)]
#[command(
    long_about = "Say why something is as it is, in sentences with times: why a job waits, an \
        allocation failed, was restarted, killed, is slow to start or healthy, a plugin is in \
        quarantine or refused, a device is held or ill; since when, what led to it, and what would \
        change it.\n\n\
        The thing is found by its name or the beginning of its id; --kind decides if several things have that name.",
    after_long_help = examples!("\
Examples:
  ostler explain 0f01c0de                an allocation
  ostler explain web                     a job
  ostler explain nvidia                  a plugin
  ostler explain 0000:3b:00.0            a device
  ostler explain --json web | jq -r '.next[]'
")
)]
pub(crate) struct ExplainArgs {
    /// The allocation, job, plugin or device: its name or id, or the beginning of it
    #[arg(value_name = "WHAT")]
    pub what: String,

    /// What kind of thing it is
    #[arg(long, value_name = "KIND")]
    pub kind: Option<ExplainKind>,

    /// Print the explanation as JSON
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub agent: AddressArgs,
}

/// What may be explained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExplainKind {
    /// An allocation
    Allocation,
    /// A job
    Job,
    /// A plugin
    Plugin,
    /// A device
    Device,
}
