//! `ostler plugin …` where it changes something.

use std::path::PathBuf;

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
pub(crate) struct PluginLiftArgs {
    /// The plugin, by the name it gives itself or that of its block
    #[arg(value_name = "PLUGIN")]
    pub plugin: String,

    /// Print what was lifted as JSON
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub agent: AddressArgs,
}

/// `ostler plugin record`.
#[derive(Debug, Args)]
#[command(
    long_about = "Write the last calls of a plugin to a file: what it was asked, what the agent answered, and \
                  how it ended. Calls that fail are written automatically. Recognisable secrets are removed; \
                  `ostler plugin replay` makes the calls again, on any machine.",
    after_long_help = examples!("\
Examples:
  ostler plugin record nvidia
  ostler plugin record --json nvidia | jq -r '.[0].file'
")
)]
pub(crate) struct PluginRecordArgs {
    /// The plugin, by the name it gives itself or that of its block
    #[arg(value_name = "PLUGIN")]
    pub plugin: String,

    /// Print what was written as JSON
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub agent: AddressArgs,
}

/// `ostler plugin upgrade`.
#[derive(Debug, Args)]
#[command(
    long_about = "Replace a plugin by another version of it, while tasks run.\n\n\
        The new one is checked, compiled and tried beside the old one: it must have the same name and kind, \
        accept the configuration, answer a fingerprint as well as the old one, and take over every task that \
        runs. Then calls go to it; those under way end on the old one. If it fails within the time of \
        failure.upgrade_window, the old one is put back automatically; `ostler plugin status` \
        says why.\n\nA plugin that asks for more than the old one, or is older, needs --yes.",
    after_long_help = "\
Examples:
  ostler plugin upgrade nvidia                          the plugin's own file changed
  ostler plugin upgrade nvidia --file ./nvidia-2.wasm
  ostler plugin upgrade nvidia --yes                    accept what was shown

Exit codes:
  0    it is in use
  1    it is refused, and the old one stays
  2    the usage is wrong, or there is no such plugin or file
  3    no agent runs there
  4    it needs consent (--yes): it asks for more, or is older
  141  the reader of standard output closed it"
)]
pub(crate) struct PluginUpgradeArgs {
    /// The plugin, by the name it gives itself or that of its block
    #[arg(value_name = "PLUGIN")]
    pub plugin: String,

    /// The new file; default: the file the plugin was loaded from
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,

    /// Accept a plugin that asks for more, or is older
    #[arg(long, short)]
    pub yes: bool,

    /// Print how it went as JSON
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub agent: AddressArgs,
}
