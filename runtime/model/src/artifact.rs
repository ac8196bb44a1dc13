//! What a task brings along before it starts: files, archives and modules from elsewhere.

mod checksum;
mod kinds;
mod port;
mod source;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use checksum::{Checksum, ChecksumError, ChecksumKind};
pub use kinds::{ArchiveKind, Packing};
pub use port::{ArtifactAsk, ArtifactError, Artifacts, FetchProgress, KeptFile, Staged};
pub use source::{
    ArtifactOutcome, ArtifactSource, HttpUrl, SourceError, SourcePlace, shown_source,
};

use crate::limits::{
    ARTIFACT_CACHE_BYTES_DEFAULT, ARTIFACT_HTTP_BYTES_DEFAULT, ARTIFACT_HTTP_READ_WALL_DEFAULT,
    ARTIFACT_UNPACKED_BYTES_DEFAULT, ARTIFACT_UNPACKED_ENTRIES_DEFAULT,
};

/// One thing that a task brings along. Texts are as they were written: `${…}` not yet replaced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskArtifact {
    /// Where it comes from.
    pub source: String,
    /// How: `checksum`, `archive`, `filename`; anything else goes into the query of the address.
    pub options: BTreeMap<String, String>,
    /// Headers of the HTTP request.
    pub headers: BTreeMap<String, String>,
    /// File, directory or as the source says.
    pub mode: ArtifactMode,
    /// Where it goes, below the task's directory.
    pub destination: String,
}

/// What comes of an artifact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ArtifactMode {
    /// What an archive has in it; a file keeps its name below the destination.
    #[default]
    Any,
    /// The file that the destination names.
    File,
    /// What an archive has in it.
    Dir,
}

/// Directory that artifacts go to where nothing else is said.
pub const DESTINATION: &str = "local/";

impl TaskArtifact {
    /// Where an artifact goes whose block does not say it.
    #[must_use]
    pub fn usual_destination(source: &str, mode: ArtifactMode) -> String {
        match mode {
            ArtifactMode::File => {
                let name = source.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
                format!("local/{name}")
            }
            ArtifactMode::Any | ArtifactMode::Dir => DESTINATION.to_owned(),
        }
    }
}

/// An `artifact` block of the agent's configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArtifactConfig {
    /// Longest that one download may take.
    pub http_read_timeout: Duration,
    /// Largest download, bytes.
    pub http_max_size: u64,
    /// Most bytes that one archive may become.
    pub decompression_size_limit: u64,
    /// Most files, directories and links in one archive.
    pub decompression_file_count_limit: u64,
    /// Directories of the node that sources of the kind `file` may name; none: there are none.
    pub file_sources: Vec<PathBuf>,
    /// Most bytes of downloads with a checksum that are kept for the next task.
    pub cache_size: u64,
}

impl Default for ArtifactConfig {
    fn default() -> Self {
        Self {
            http_read_timeout: ARTIFACT_HTTP_READ_WALL_DEFAULT,
            http_max_size: ARTIFACT_HTTP_BYTES_DEFAULT,
            decompression_size_limit: ARTIFACT_UNPACKED_BYTES_DEFAULT,
            decompression_file_count_limit: ARTIFACT_UNPACKED_ENTRIES_DEFAULT,
            file_sources: Vec::new(),
            cache_size: ARTIFACT_CACHE_BYTES_DEFAULT,
        }
    }
}
