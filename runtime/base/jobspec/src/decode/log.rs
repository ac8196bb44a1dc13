//! Decodes the `log_…` keys, which configure the agent's own log.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value as Json;

use crate::diagnostic::quote_text;
use crate::keys::{Context, Field, FieldShape, ScalarType, Setting, text};
use crate::tree::SpannedValue;
use ostler_model::log_config::{AgentLogConfig, LogFileConfig, LogLevel};

/// The longest time after which another file is begun.
pub(super) const ROTATE_AFTER_MAX: Duration = Duration::from_secs(366 * 24 * 3_600);
/// The largest size of a file in bytes: 1 TiB.
pub(super) const ROTATE_BYTES_MAX: i64 = 1 << 40;
/// The largest number of earlier files that can be kept.
pub(super) const FILES_MAX: i64 = 100_000;

/// Levels are written in capital or small letters, as in Nomad.
impl ScalarType for LogLevel {
    const SHAPE: FieldShape = FieldShape::Word(&["trace", "debug", "info", "warn", "error"]);
    const ABSENT: Option<&'static str> = Some("");

    fn read(value: SpannedValue, field: &Field, cx: &mut Context<'_>) -> Option<Self> {
        let at = value.span;
        let given = text(value, field, cx)?;
        let level = Self::from_name(&given);
        if level.is_none() {
            let names = Self::ALL.map(|(name, _)| name);
            let nearest = cx.sink.nearest(&given, names);
            let message = format!(
                "{} is not a log level; valid levels are {}",
                quote_text(&given),
                names.join(", ")
            );
            cx.sink.suggest(at, message, nearest);
        }
        level
    }

    fn json(&self) -> Json {
        self.name().into()
    }
}

/// The keys that are about the log file.
pub(super) struct LogFileKeys {
    pub path: Setting<PathBuf>,
    pub rotate_bytes: Setting<u64>,
    pub rotate_after: Setting<Duration>,
    pub files_max: Setting<u32>,
}

/// Decode the configuration of the log. Keys about the file are refused where there is no file.
pub(super) fn log(
    level: Setting<LogLevel>,
    json: Setting<bool>,
    file: LogFileKeys,
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
