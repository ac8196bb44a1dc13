//! Files of an allocation, and what its tasks print.

use serde::{Deserialize, Serialize};

use crate::{Text, or_empty};

/// `AllocFileInfo`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct FileInfo<'a> {
    /// Its name.
    pub name: Text<'a>,
    /// It is a directory.
    pub is_dir: bool,
    /// Bytes.
    pub size: u64,
    /// Kind and permissions as Go writes them.
    pub file_mode: Text<'a>,
    /// When it was changed, RFC 3339.
    pub mod_time: Text<'a>,
    /// Of one file, by what it begins with: text or bytes; of anything else, bytes; empty in lists.
    pub content_type: Text<'a>,
}

/// `StreamFrame`: a piece of a file. An empty one is a sign of life.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Frame<'a> {
    /// Bytes in Base64.
    #[serde(deserialize_with = "or_empty")]
    pub data: Text<'a>,
    /// The file they are of.
    pub file: Text<'a>,
    /// Where they end in it.
    pub offset: u64,
    /// What became of the file: `file truncated`, `file deleted`.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub file_event: Text<'a>,
    /// Ours: bytes lost to pruning before them.
    #[serde(skip_serializing_if = "is_zero")]
    pub skipped: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
const fn is_zero(count: &u64) -> bool {
    *count == 0
}
