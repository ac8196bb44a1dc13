//! `ostler top`

use std::time::Duration;

use clap::Args;

use super::client::{AddressArgs, examples};

/// `ostler top`.
#[derive(Debug, Args)]
#[command(
    long_about = "Show what the node, its allocations, devices and plugins use now, on the whole terminal, and \
                  keep it up to date. The keys are shown at the bottom; q ends it. With --once everything is \
                  printed once as tables, for scripts and where there is no terminal.",
    after_long_help = examples!("\
Examples:
  ostler top
  ostler top --interval 5s
  ostler top --filter web --sort memory
  ostler top --once
  ostler top --json | jq '.allocations[] | {job, memory_bytes}'
")
)]
pub(crate) struct TopArgs {
    /// How often to look
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = interval)]
    pub interval: Duration,

    /// Only rows with this text
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub filter: String,

    /// What allocations are sorted by
    #[arg(long, value_name = "COLUMN", value_enum, default_value_t = SortBy::Cpu)]
    pub sort: SortBy,

    /// Print tables once
    #[arg(long, conflicts_with = "json")]
    pub once: bool,

    /// Print everything once as one JSON object
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub at: AddressArgs,
}

/// What allocations are sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum SortBy {
    /// The processor they use, most first
    #[default]
    Cpu,
    /// The memory they use, most first
    Memory,
    /// Their names
    Name,
    /// Their status
    Status,
}

impl SortBy {
    /// The order that follows this one when a key goes through all orders.
    pub(crate) const fn next(self) -> Self {
        match self {
            Self::Cpu => Self::Memory,
            Self::Memory => Self::Name,
            Self::Name => Self::Status,
            Self::Status => Self::Cpu,
        }
    }

    /// The name of the order, as people read it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::Name => "name",
            Self::Status => "status",
        }
    }
}

fn interval(text: &str) -> Result<Duration, String> {
    const RANGE: std::ops::RangeInclusive<Duration> =
        Duration::from_millis(500)..=Duration::from_secs(3_600);
    let time = ostler_text::duration::parse_duration(text).ok().filter(|time| RANGE.contains(time));
    time.ok_or_else(|| "a duration from 500ms to 1h, such as 5s".to_owned())
}
