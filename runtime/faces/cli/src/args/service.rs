//! `ostler service …`

use clap::{Args, Subcommand};

use super::client::{AnswerArgs, examples};

/// Commands on services.
#[derive(Debug, Subcommand)]
pub(crate) enum ServiceCommand {
    /// List the services that run, with their tags
    List(ServiceListArgs),
    /// Show where the services of one name are reached
    Info(ServiceInfoArgs),
}

/// `ostler service list`.
#[derive(Debug, Args)]
#[command(
    long_about = "List the services that run on this node, by name, with the tags of all that have \
        it. A service is there as long as its task runs; one of a group, as long as a main task does.",
    after_long_help = examples!("\
Examples:
  ostler service list
  ostler service list --json | jq -r '.[].Services[].ServiceName'
")
)]
pub(crate) struct ServiceListArgs {
    #[command(flatten)]
    pub answer: AnswerArgs,
}

/// `ostler service info`.
#[derive(Debug, Args)]
#[command(
    long_about = "Show the services of one name: address and port, tags, job and allocation. \
        `ostler alloc status` shows what the checks of an allocation say.",
    after_long_help = examples!("\
Examples:
  ostler service info web
  ostler service info web --json | jq -r '.[0] | \"\\(.Address):\\(.Port)\"'
")
)]
pub(crate) struct ServiceInfoArgs {
    /// The name of the service
    #[arg(value_name = "NAME")]
    pub name: String,

    #[command(flatten)]
    pub answer: AnswerArgs,
}
