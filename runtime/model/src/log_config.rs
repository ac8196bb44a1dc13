//! What the agent's own log is: how much, in what form, and where besides standard error.

use std::path::PathBuf;
use std::time::Duration;

/// How much the agent logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// What goes wrong.
    Error,
    /// What is not as it should be.
    Warn,
    /// What the agent does.
    Info,
    /// Why.
    Debug,
    /// Everything.
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

    /// Its name.
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

    /// That of a name, in large or small letters.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        let found = Self::ALL.into_iter().find(|(known, _)| name.eq_ignore_ascii_case(known));
        found.map(|(_, level)| level)
    }
}

/// The `log_…` keys of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentLogConfig {
    /// How much; what the agent does unless given.
    pub level: Option<LogLevel>,
    /// One JSON object a line in place of text.
    pub json: Option<bool>,
    /// Also written to this file.
    pub file: Option<LogFileConfig>,
}

/// A file of the agent's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFileConfig {
    /// The file; of a directory, the file [`LogFileConfig::NAME`] in it.
    pub path: PathBuf,
    /// Bytes from which on another one is begun; 0: however large.
    pub rotate_bytes: u64,
    /// How long one is written before another one is begun.
    pub rotate_after: Duration,
    /// Earlier ones that are kept; 0: all.
    pub files_max: u32,
}

impl LogFileConfig {
    /// Name of the file where only a directory is given.
    pub const NAME: &str = "ostler.log";
    /// How long one file is written, unless given.
    pub const ROTATE_AFTER: Duration = Duration::from_secs(24 * 3_600);
}
