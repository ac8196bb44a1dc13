//! `ostler deployment …`, and what goes by the job's name of it.

use clap::{Args, Subcommand};

use super::client::{AgreeArgs, AnswerArgs, examples};

/// Commands on deployments.
#[derive(Debug, Subcommand)]
pub(crate) enum DeploymentCommand {
    /// List the deployments
    List(DeploymentListArgs),
    /// Show one: how far each of its groups is, and its allocations
    Status(DeploymentOneArgs),
    /// Accept its canaries: the rest of the new version follows
    Promote(DeploymentPromoteArgs),
    /// Give it up
    Fail(DeploymentChangeArgs),
    /// Halt it
    Pause(DeploymentChangeArgs),
    /// Let it go on
    Resume(DeploymentChangeArgs),
}

/// `ostler deployment list`.
#[derive(Debug, Args)]
#[command(
    long_about = "List the deployments: how each version of a service was rolled out, newest first. The last \
        few of each job are kept.",
    after_long_help = examples!("\
Examples:
  ostler deployment list
  ostler deployment list --json | jq '.[] | select(.Status == \"running\").ID'
")
)]
pub(crate) struct DeploymentListArgs {
    #[command(flatten)]
    pub answer: AnswerArgs,
}

/// `ostler deployment fail`, `pause`, `resume`.
#[derive(Debug, Args)]
#[command(
    after_long_help = examples!(agreed "\
Examples:
  ostler deployment pause 0f01c0de           nothing more is replaced until it is resumed
  ostler deployment resume 0f01c0de
  ostler deployment fail 0f01c0de            with auto_revert the last stable version comes back
")
)]
pub(crate) struct DeploymentChangeArgs {
    /// The deployment: its id or the beginning of it
    #[arg(value_name = "DEPLOYMENT")]
    pub deployment: String,

    #[command(flatten)]
    pub agree: AgreeArgs,

    #[command(flatten)]
    pub answer: AnswerArgs,
}

/// `ostler deployment status`.
#[derive(Debug, Args)]
#[command(
    after_long_help = examples!("\
Examples:
  ostler deployment status 0f01c0de
  ostler deployment status --json 0f01c0de | jq '.TaskGroups'
")
)]
pub(crate) struct DeploymentOneArgs {
    /// The deployment: its id or the beginning of it
    #[arg(value_name = "DEPLOYMENT")]
    pub deployment: String,

    #[command(flatten)]
    pub answer: AnswerArgs,
}

/// `ostler deployment promote`.
#[derive(Debug, Args)]
#[command(
    long_about = "Accept the canaries of a deployment. All of them must be healthy. Those they stand \
        beside are stopped, and the others are replaced as the job's update block says.",
    after_long_help = examples!(agreed "\
Examples:
  ostler deployment promote 0f01c0de
  ostler deployment promote --group web 0f01c0de     of this group alone
")
)]
pub(crate) struct DeploymentPromoteArgs {
    /// The deployment: its id or the beginning of it
    #[arg(value_name = "DEPLOYMENT")]
    pub deployment: String,

    /// Only of this group; may be given more than once
    #[arg(long, value_name = "GROUP")]
    pub group: Vec<String>,

    #[command(flatten)]
    pub agree: AgreeArgs,

    #[command(flatten)]
    pub answer: AnswerArgs,
}

/// `ostler job promote`.
#[derive(Debug, Args)]
#[command(
    long_about = "Accept the canaries of a job's newest deployment. All of them must be healthy.",
    after_long_help = examples!(agreed "\
Examples:
  ostler job promote web
  ostler job promote --group frontend web    of this group alone
")
)]
pub(crate) struct JobPromoteArgs {
    /// The job: its id or the beginning of it
    #[arg(value_name = "JOB")]
    pub job: String,

    /// Only of this group; may be given more than once
    #[arg(long, value_name = "GROUP")]
    pub group: Vec<String>,

    #[command(flatten)]
    pub agree: AgreeArgs,

    #[command(flatten)]
    pub answer: AnswerArgs,
}

/// `ostler job history`.
#[derive(Debug, Args)]
#[command(
    long_about = "List the versions of a job that are kept, newest first: the last six, and the newest \
        that was healthy as a whole (stable). A deployment that fails goes back to that one where \
        its job says auto_revert.",
    after_long_help = examples!("\
Examples:
  ostler job history web
  ostler job history --json web | jq '.Versions[].TaskGroups[0].Tasks[0].Config'
")
)]
pub(crate) struct JobHistoryArgs {
    /// The job: its id or the beginning of it
    #[arg(value_name = "JOB")]
    pub job: String,

    #[command(flatten)]
    pub answer: AnswerArgs,
}

/// `ostler job revert`.
#[derive(Debug, Args)]
#[command(
    long_about = "Go back to an earlier version of a job: its text is registered again, as the job's \
        newest version.",
    after_long_help = examples!(agreed "\
Examples:
  ostler job history web
  ostler job revert web 3
")
)]
pub(crate) struct JobRevertArgs {
    /// The job: its id or the beginning of it
    #[arg(value_name = "JOB")]
    pub job: String,

    /// The version, as `ostler job history` lists them
    #[arg(value_name = "VERSION")]
    pub earlier: u64,

    #[command(flatten)]
    pub agree: AgreeArgs,

    #[command(flatten)]
    pub answer: AnswerArgs,
}
