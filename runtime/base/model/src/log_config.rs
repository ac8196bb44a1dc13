//! Configuration of the agent's own log: its level, its form, and its file besides standard error.

use std::path::PathBuf;
use std::time::Duration;

/// How much the agent logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Only failures are logged.
    Error,
    /// Failures, and states that are not as they should be.
    Warn,
    /// Also what the agent does.
    Info,
    /// Also why the agent does it.
    Debug,
    /// All events that the agent can log.
    Trace,
}

impl LogLevel {
    /// The levels with their names.
    pub const ALL: [(&str, Self); 5] = [
        ("error", Self::Error),
        ("warn", Self::Warn),
        ("info", Self::Info),
        ("debug", Self::Debug),
        ("trace", Self::Trace),
    ];

    /// Name of the level in the configuration, in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }

    /// The level of this name, in upper or lower case.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let found = Self::ALL.into_iter().find(|(known, _)| name.eq_ignore_ascii_case(known));
        found.map(|(_, level)| level)
    }
}

/// The `log_…` keys of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentLogConfig {
    /// Level of the log; `Info` unless given.
    pub level: Option<LogLevel>,
    /// One JSON object a line in place of text.
    pub json: Option<bool>,
    /// File that the log is written to in addition.
    pub file: Option<LogFileConfig>,
}

/// A file of the agent's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFileConfig {
    /// Path of the file; for a directory, the file [`LogFileConfig::NAME`] in it.
    pub path: PathBuf,
    /// Bytes after which a new file is begun; 0 for no limit.
    pub rotate_bytes: u64,
    /// Time after which a new file is begun.
    pub rotate_after: Duration,
    /// Earlier files that are kept; 0 for all.
    pub files_max: u32,
}

impl LogFileConfig {
    /// Name of the file where only a directory is given.
    pub const NAME: &str = "ostler.log";
    /// How long one file is written, unless given.
    pub const ROTATE_AFTER: Duration = Duration::from_secs(24 * 3_600);
}
