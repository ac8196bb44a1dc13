//! Files of an allocation, and the output of its tasks.

use serde::{Deserialize, Serialize};

use crate::message::time;
use crate::{Text, or_empty};

/// Nomad's `AllocFileInfo`: a file or directory.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct FileInfo<'a> {
    /// The name of the file, without the directory.
    pub name: Text<'a>,
    /// Whether it is a directory.
    pub is_dir: bool,
    /// The size, bytes.
    pub size: u64,
    /// The kind and the permissions, as Go writes them.
    pub file_mode: Text<'a>,
    /// The time of the last change, RFC 3339.
    #[serde(serialize_with = "time")]
    pub mod_time: Text<'a>,
    /// The media type of one file, text or bytes, judged by its beginning. It is bytes for anything
    /// else, and empty in lists.
    pub content_type: Text<'a>,
}

/// Nomad's `StreamFrame`: a piece of a file. An empty frame is a sign of life.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Frame<'a> {
    /// The bytes, in Base64.
    #[serde(deserialize_with = "or_empty")]
    pub data: Text<'a>,
    /// The path of the file.
    pub file: Text<'a>,
    /// The position in the file at which these bytes end.
    pub offset: u64,
    /// A change of the file: `file truncated` or `file deleted`.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub file_event: Text<'a>,
    /// Ours: the number of bytes before these that were lost to pruning.
    #[serde(skip_serializing_if = "is_zero")]
    pub skipped: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
const fn is_zero(count: &u64) -> bool {
    *count == 0
}
