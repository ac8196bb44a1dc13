//! `ostler node drain` and `node eligibility`.

use std::time::Duration;

use clap::Args;

use super::client::{AnswerArgs, examples};

/// `ostler node drain`.
#[derive(Debug, Args)]
#[command(
    long_about = "Drain this node, or end its drain. A node that is being drained takes no new allocations; \
        those of each group of a service are stopped as many at a time as its migrate block says, batch jobs \
        may finish, and system jobs are stopped last. At the deadline the rest is stopped at once. The jobs \
        wait, and run here again when the node is eligible.\n\n\
        The command shows what is stopped until the drain is complete. The drain and the eligibility of the \
        node outlast the agent.",
    after_long_help = examples!("\
Examples:
  ostler node drain --enable                     empty it, within an hour
  ostler node drain --enable --deadline 10m      the rest is stopped after ten minutes
  ostler node drain --enable --force             everything at once
  ostler node drain --enable --no-deadline       however long batch jobs take
  ostler node drain --monitor                    follow a drain that was begun before
  ostler node drain --disable                    end it, and take new allocations
")
)]
pub(crate) struct DrainArgs {
    /// Empty the node
    #[arg(long, group = "what")]
    pub enable: bool,

    /// End the drain, and take new allocations again
    #[arg(long, group = "what")]
    pub disable: bool,

    /// Follow a drain that was begun before
    #[arg(long, group = "what")]
    pub monitor: bool,

    /// Stop what is left after this time
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = super::agent::duration,
        conflicts_with_all = ["force", "no_deadline", "disable", "monitor"])]
    pub deadline: Duration,

    /// Stop everything at once
    #[arg(long, conflicts_with_all = ["no_deadline", "disable", "monitor"])]
    pub force: bool,

    /// Wait for batch jobs however long they take
    #[arg(long, conflicts_with_all = ["disable", "monitor"])]
    pub no_deadline: bool,

    /// Keep system jobs running
    #[arg(long, conflicts_with_all = ["disable", "monitor"])]
    pub ignore_system: bool,

    /// With --disable: take no new allocations yet
    #[arg(long, conflicts_with_all = ["enable", "monitor"])]
    pub keep_ineligible: bool,

    /// Do not wait for the end of the drain
    #[arg(long, conflicts_with_all = ["disable", "monitor"])]
    pub detach: bool,

    #[command(flatten)]
    pub answer: AnswerArgs,
}

/// `ostler node eligibility`.
#[derive(Debug, Args)]
#[command(
    group(clap::ArgGroup::new("whether").required(true).args(["enable", "disable"])),
    long_about = "Say whether new allocations are placed on this node. What runs goes on either way; jobs \
        that need a place wait, and `ostler job status` says why. It outlasts the agent.",
    after_long_help = examples!("\
Examples:
  ostler node eligibility --disable
  ostler node eligibility --enable
")
)]
pub(crate) struct EligibilityArgs {
    /// Take new allocations
    #[arg(long)]
    pub enable: bool,

    /// Take no new allocations
    #[arg(long)]
    pub disable: bool,

    #[command(flatten)]
    pub answer: AnswerArgs,
}
