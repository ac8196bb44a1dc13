//! `ostler plugin …` where it changes something.

use clap::Args;

use super::client::{AddressArgs, examples};

/// `ostler plugin lift`.
#[derive(Debug, Args)]
#[command(
    long_about = "End the quarantine of a plugin. Its strikes are forgotten, those of single tasks \
        too, and it is asked for a fingerprint at once; when it answers, it is in use again.",
    after_long_help = examples!("\
Examples:
  ostler plugin lift nvidia
  ostler plugin lift --json nvidia | jq '.[0].was.reason'
")
)]
pub(in crate::cli) struct PluginLiftArgs {
    /// The plugin, by the name it gives itself or that of its block
    #[arg(value_name = "PLUGIN")]
    pub plugin: String,

    /// Print what was lifted as JSON
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub agent: AddressArgs,
}
