//! The agent's own log: the `log_…` keys.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value as Json;

use crate::diagnostic::shown;
use crate::keys::{Context, Field, Given, Scalar, Shape, text};
use crate::tree::Value;
use ostler_model::log_config::{AgentLogConfig, LogFileConfig, LogLevel};

/// Longest that one file is written.
pub(super) const ROTATE_AFTER_MAX: Duration = Duration::from_secs(366 * 24 * 3_600);
/// Largest file, bytes: 1 TiB.
pub(super) const ROTATE_BYTES_MAX: i64 = 1 << 40;
/// Most earlier files that are counted.
pub(super) const FILES_MAX: i64 = 100_000;

/// In large or small letters, as Nomad takes them.
impl Scalar for LogLevel {
    const SHAPE: Shape = Shape::Word(&["trace", "debug", "info", "warn", "error"]);
    const ABSENT: Option<&'static str> = Some("");

    fn read(value: Value, field: &Field, cx: &mut Context<'_>) -> Option<Self> {
        let at = value.span;
        let given = text(value, field, cx)?;
        let level = Self::of(&given);
        if level.is_none() {
            let names = Self::ALL.map(|(name, _)| name);
            let nearest = cx.sink.nearest(&given, names);
            let message = format!("{} is no level; valid are {}", shown(&given), names.join(", "));
            cx.sink.suggest(at, message, nearest);
        }
        level
    }

    fn json(&self) -> Json {
        self.name().into()
    }
}

/// The keys of the file.
pub(super) struct FileKeys {
    pub path: Given<PathBuf>,
    pub rotate_bytes: Given<u64>,
    pub rotate_after: Given<Duration>,
    pub files_max: Given<u32>,
}

/// Put them together; keys of a file without one are wrong.
pub(super) fn log(
    level: Given<LogLevel>,
    json: Given<bool>,
    file: FileKeys,
    cx: &mut Context<'_>,
) -> AgentLogConfig {
    if !file.path.was_given {
        let places = [
            ("log_rotate_bytes", file.rotate_bytes.place()),
            ("log_rotate_duration", file.rotate_after.place()),
            ("log_rotate_max_files", file.files_max.place()),
        ];
        for (key, at) in places {
            if let Some(at) = at {
                cx.error(at, format!("{key} is about a file; write log_file, or leave it out"));
            }
        }
    }
    let path = file.path.value;
    AgentLogConfig {
        level: level.value,
        json: json.value,
        file: path.map(|path| LogFileConfig {
            path,
            rotate_bytes: file.rotate_bytes.value.unwrap_or(0),
            rotate_after: file.rotate_after.value.unwrap_or(LogFileConfig::ROTATE_AFTER),
            files_max: file.files_max.value.unwrap_or(0),
        }),
    }
}
