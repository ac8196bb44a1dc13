//! The artifacts of a task, and the limits of fetching them in the configuration.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::task_path::{TaskPlaces, UNSEEN};
use crate::diagnostic::Span;
use crate::keys::FieldBounds::{Time, Whole};
use crate::keys::{Context, MOST, Setting, Texts, hint, keys, keyword, neutral};
use ostler_model::artifact::{ArtifactConfig, ArtifactMode, ArtifactSource, TaskArtifact};
use ostler_model::limits::{ARTIFACT_TEXT_BYTES_MAX, ARTIFACTS_OF_TASK_MAX};

/// The longest time that the configuration can allow a download to take.
const LONGEST: Duration = Duration::from_secs(12 * 60 * 60);
/// The hint at the keys for getters that Nomad has and Ostler does not.
const NO_GETTER: &str = "such sources are not fetched";

keys! {
    struct ArtifactKeys: "an artifact" {
        /// Where it comes from: `https://…`, `http://…`, `file:///…`, or `oci://…` for a WASM module. `//` and
        /// a path behind the name of an archive mean that part of it.
        source / GetterSource: Setting<String> => (
            "an artifact needs a source, as in source = \"https://host/file\"",
            "an artifact needs a GetterSource"
        );
        /// Where it goes, below the task's directory.
        destination / RelativeDest: Setting<String>, "`local/`; with `mode = \"file\"` the source's last name in it";
        /// `file`: the destination names the file. `dir`: what an archive has in it. `any`: that, or a file of
        /// the source's name.
        mode / GetterMode: Setting<ArtifactMode> = ArtifactMode::Any;
        /// `checksum` (`sha256:…`), `archive` (`false`, or a kind), `filename`; others go into the query.
        options / GetterOptions: BTreeMap<String, String>;
        /// Headers of the HTTP request.
        headers / GetterHeaders: BTreeMap<String, String>;
    }
    not_yet {
        "insecure" / GetterInsecure [neutral("name the authority with SSL_CERT_FILE", &["false"])];
        "chown" / Chown [neutral("", &["false"])];
    }
}

keyword! {
    ArtifactMode, "mode of an artifact": "any" = Any, "file" = File, "dir" = Dir;
}

keys! {
    struct ArtifactLimitKeys: "artifact" {
        /// Longest that one download may take.
        http_read_timeout: Setting<Duration> [Time(Duration::from_secs(1), LONGEST)], "`\"30m\"`";
        /// Largest download: `"2GB"`, `"512MiB"`.
        http_max_size: Setting<String>, "`\"100GB\"`";
        /// Most that one archive may become.
        decompression_size_limit: Setting<String>, "`\"100GB\"`";
        /// Most files, directories and links in one archive.
        decompression_file_count_limit: Setting<u32> [Whole(1, MOST)], "`4096`";
        /// Directories of the node from which `file` sources may be taken.
        file_sources: Texts, "none: there are no such sources";
        /// Most bytes of downloads with a checksum that are kept for later tasks; `"0"`: none.
        cache_size: Setting<String>, "`\"4GiB\"`";
    }
    not_yet {
        "gcs_timeout" [hint(NO_GETTER)]; "git_timeout" [hint(NO_GETTER)]; "hg_timeout" [hint(NO_GETTER)];
        "s3_timeout" [hint(NO_GETTER)]; "disable_filesystem_isolation"; "filesystem_isolation_extra_paths";
        "set_environment_variables"; "disable_artifact_inspection"; "http_max_bytes" [hint("write http_max_size")];
    }
}

/// Decode the artifacts of a task.
pub(super) fn artifacts(
    blocks: Vec<ArtifactKeys>,
    places: TaskPlaces<'_>,
    cx: &mut Context<'_>,
) -> Vec<TaskArtifact> {
    if let Some(more) = blocks.get(ARTIFACTS_OF_TASK_MAX) {
        let many = blocks.len();
        let at = more.at;
        cx.error(at, format!("the task has {many} artifacts; at most {ARTIFACTS_OF_TASK_MAX}"));
    }
    blocks.into_iter().filter_map(|block| artifact(block, places, cx)).collect()
}

fn artifact(
    keys: ArtifactKeys,
    places: TaskPlaces<'_>,
    cx: &mut Context<'_>,
) -> Option<TaskArtifact> {
    let mode = keys.mode.get();
    let (source, source_at) = match keys.source.with_place() {
        Some((text, at)) if !text.trim().is_empty() => (text, at),
        Some((_, at)) => return cx.refuse(at, "the source of an artifact must not be empty"),
        None => return None,
    };
    for (name, value) in &keys.headers {
        let fits = name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':')
            && value.bytes().all(|byte| byte >= b' ' && byte != 0x7f)
            && value.len() <= ARTIFACT_TEXT_BYTES_MAX;
        if !fits {
            cx.error(
                keys.at,
                format!("{name:?} with its value is not a valid header of a request"),
            );
        }
    }
    check_source(&source, source_at, &keys.options, mode, cx);
    let given = keys.destination.with_place();
    let (destination, at) = match given {
        // An empty destination is the directory of the task.
        Some((text, at)) if text.is_empty() => (".".to_owned(), at),
        Some((text, at)) => (text, at),
        None => (TaskArtifact::usual_destination(&source, mode), source_at),
    };
    check_destination(&destination, at, places, mode, cx);
    Some(TaskArtifact { source, options: keys.options, headers: keys.headers, mode, destination })
}

/// Whether a text has references, so that it is known only when the task starts.
fn is_open(text: &str) -> bool {
    text.contains("${")
}

fn check_source(
    source: &str,
    at: Span,
    options: &BTreeMap<String, String>,
    mode: ArtifactMode,
    cx: &mut Context<'_>,
) {
    if is_open(source) || options.values().any(|value| is_open(value)) {
        return;
    }
    let read = ArtifactSource::parse(source, options);
    if let Err(error) = read.and_then(|source| source.outcome(mode)) {
        cx.error(at, format!("the source cannot be used: {error}"));
    }
}

fn check_destination(
    text: &str,
    at: Span,
    places: TaskPlaces<'_>,
    mode: ArtifactMode,
    cx: &mut Context<'_>,
) {
    let Some((place, seen)) = places.destination(text, at, cx) else { return };
    // An archive that is unpacked into the task's directory itself may reach into a directory that the task sees.
    if !seen && !place.is_directory && !places.holds_program(&place) {
        cx.error(at, UNSEEN);
    }
    if mode == ArtifactMode::File && place.is_directory {
        let message = "with mode = \"file\" the destination names the file, as in \"local/file\"";
        cx.error(at, message);
    }
}

/// Decode the limits of the configuration.
pub(super) fn limits(keys: Option<ArtifactLimitKeys>, cx: &mut Context<'_>) -> ArtifactConfig {
    let mut config = ArtifactConfig::default();
    let Some(keys) = keys else { return config };
    let sizes = [
        (keys.http_max_size, &mut config.http_max_size, 1),
        (keys.decompression_size_limit, &mut config.decompression_size_limit, 1),
        (keys.cache_size, &mut config.cache_size, 0),
    ];
    for (given, into, least) in sizes {
        let key = given.key;
        let Some((text, at)) = given.with_place() else { continue };
        match bytes(&text) {
            Some(size) if size >= least => *into = size,
            _ => cx.error(at, format!("{key} must be a size such as \"2GB\" or \"512MiB\"")),
        }
    }
    config.http_read_timeout = keys.http_read_timeout.value.unwrap_or(config.http_read_timeout);
    let count = keys.decompression_file_count_limit.value.map(u64::from);
    config.decompression_file_count_limit = count.unwrap_or(config.decompression_file_count_limit);
    for (text, at) in keys.file_sources.value.into_iter().flatten() {
        if text.starts_with('/') {
            config.file_sources.push(PathBuf::from(text));
        } else {
            cx.error(at, format!("{text:?} must be an absolute path"));
        }
    }
    config
}

/// The bytes of a size as people write it: `2GB` (10⁹), `512MiB` (2²⁰), `1000`.
fn bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number: u64 = number.parse().ok()?;
    let unit = unit.trim().to_ascii_lowercase();
    let factor = match unit.as_str() {
        "" | "b" => 1,
        "k" | "kb" => 1_000,
        "m" | "mb" => 1_000_000,
        "g" | "gb" => 1_000_000_000,
        "t" | "tb" => 1_000_000_000_000,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        "tib" => 1 << 40,
        _ => return None,
    };
    number.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, size) in
            [("100GB", 100_000_000_000), ("512 MiB", 512 << 20), ("7", 7), ("0", 0), ("1k", 1_000)]
        {
            assert_eq!(bytes(text), Some(size), "{text}");
        }
        for text in ["", "GB", "-1", "1.5GB", "1XB", "99999999999TB"] {
            assert_eq!(bytes(text), None, "{text}");
        }
    }
}
