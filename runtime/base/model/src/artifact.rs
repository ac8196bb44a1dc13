//! Artifacts: files, archives and modules that are fetched for a task before it starts.

mod checksum;
mod kinds;
mod port;
mod source;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use checksum::{Checksum, ChecksumError, ChecksumKind};
pub use kinds::{ArchiveCompression, ArchiveKind};
pub use port::{
    ArtifactError, ArtifactRequest, Artifacts, FetchProgress, PinnedFile, StagedArtifact,
};
pub use source::{
    ArtifactOutcome, ArtifactSource, HttpUrl, SourceError, SourcePlace, public_source,
};

use crate::limits::{
    ARTIFACT_CACHE_BYTES_DEFAULT, ARTIFACT_HTTP_BYTES_DEFAULT, ARTIFACT_HTTP_READ_WALL_DEFAULT,
    ARTIFACT_UNPACKED_BYTES_DEFAULT, ARTIFACT_UNPACKED_ENTRIES_DEFAULT,
};

/// One artifact of a task. The texts are as the job has them, with `${…}` not yet replaced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskArtifact {
    /// Where it comes from.
    pub source: String,
    /// Options of the source: `checksum`, `archive`, `filename`. All others go into the query of
    /// the address.
    pub options: BTreeMap<String, String>,
    /// Headers of the HTTP request.
    pub headers: BTreeMap<String, String>,
    /// Whether a file or a directory comes of it, or what the source makes of it.
    pub mode: ArtifactMode,
    /// Destination below the task's directory.
    pub destination: String,
}

/// What a job wants an artifact to become.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ArtifactMode {
    /// The entries of an archive below the destination, or a file that keeps its name there.
    #[default]
    Any,
    /// A file at the destination itself.
    File,
    /// The entries of an archive below the destination.
    Dir,
}

/// Destination of artifacts whose job names none.
pub const DESTINATION: &str = "local/";

impl TaskArtifact {
    /// Destination of an artifact whose block names none.
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
    /// Longest time that one download may take.
    pub http_read_timeout: Duration,
    /// Largest download, bytes.
    pub http_max_size: u64,
    /// Most bytes that one archive may have once it is unpacked.
    pub decompression_size_limit: u64,
    /// Most files, directories and links in one archive.
    pub decompression_file_count_limit: u64,
    /// Directories of the node that sources of the kind `file` may name. With none, there are no
    /// such sources.
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
