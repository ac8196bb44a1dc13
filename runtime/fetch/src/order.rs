//! What the agent tells the child, and what the child says: one line of JSON each.

use std::io::{self, BufRead, Read as _, Write};
use std::path::PathBuf;
use std::time::Duration;

use ostler_model::artifact::{ArchiveKind, HttpUrl};
use ostler_model::limits::ARTIFACT_LINE_BYTES_MAX;
use serde::{Deserialize, Serialize};

/// Name of the file that a download becomes, in the directory that the child works in.
pub(crate) const DOWNLOAD: &str = "download";
/// Name of the directory that an archive becomes.
pub(crate) const TREE: &str = "tree";
/// Name of the one file, where one is wanted, in that directory.
pub(crate) const ONE: &str = "file";

/// One thing to do.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Get what is at an address.
    Download {
        /// The address.
        url: HttpUrl,
        /// Headers of the request.
        headers: Vec<(String, String)>,
        /// Most bytes.
        bytes_max: u64,
        /// Longest that it may take.
        wall: Duration,
    },
    /// Get the module that a registry has.
    Pull {
        /// The place in the registry.
        reference: String,
        /// Registries that are asked over plain HTTP.
        insecure: Vec<String>,
    },
    /// Copy a file of the node.
    Copy {
        /// The directory that the operator allows.
        root: PathBuf,
        /// The file below it.
        below: PathBuf,
        /// Most bytes.
        bytes_max: u64,
    },
    /// Make a tree of an archive.
    Unpack {
        /// The archive.
        archive: PathBuf,
        /// What it is.
        kind: ArchiveKind,
        /// The part of it that is meant.
        part: Option<Vec<String>>,
        /// The one file in it is meant.
        one_file: bool,
        /// Most bytes that it may become.
        bytes_max: u64,
        /// That is what its allocation may still hold.
        of_alloc: bool,
        /// Most files, directories and links.
        entries_max: u64,
    },
}

/// What is said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Word {
    /// How far it is.
    Progress {
        /// Bytes so far.
        bytes: u64,
        /// Of so many, where that is known.
        of: Option<u64>,
    },
    /// It lives, and has nothing else to say.
    Alive,
    /// It is done.
    Done {
        /// What came.
        bytes: u64,
        /// The text of a module's signature.
        signature: Option<Vec<u8>>,
        /// SHA-256 of a manifest, where one was asked for by its tag.
        manifest: Option<String>,
    },
    /// It is not.
    Failed {
        /// Why, for people.
        reason: String,
        /// May it go better next time?
        recoverable: bool,
    },
}

/// Write one line.
pub(crate) fn say<T: Serialize>(to: &mut impl Write, what: &T) -> io::Result<()> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    to.write_all(&line)?;
    to.flush()
}

/// Read one line; none where nothing comes any more.
pub(crate) fn hear<T: for<'de> Deserialize<'de>>(from: &mut impl BufRead) -> io::Result<Option<T>> {
    let mut line = Vec::new();
    let most = u64::try_from(ARTIFACT_LINE_BYTES_MAX).unwrap_or(u64::MAX);
    from.take(most).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Ok(None);
    }
    Ok(Some(serde_json::from_slice(&line)?))
}
