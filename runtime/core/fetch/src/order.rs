//! The messages between the agent and the child process: one line of JSON each.

use std::io::{self, BufRead, Read as _, Write};
use std::path::PathBuf;
use std::time::Duration;

use ostler_model::artifact::{ArchiveKind, HttpUrl};
use ostler_model::limits::ARTIFACT_LINE_BYTES_MAX;
use serde::{Deserialize, Serialize};

/// The name of the downloaded file in the child's directory.
pub(crate) const DOWNLOAD: &str = "download";
/// The name of the directory into which an archive is unpacked.
pub(crate) const TREE: &str = "tree";
/// The name of the one file in that directory, if only one is wanted.
pub(crate) const ONE: &str = "file";

/// An order for the child process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FetchOrder {
    /// Download the file at an address.
    Download {
        /// The address of the file.
        url: HttpUrl,
        /// Headers of the request.
        headers: Vec<(String, String)>,
        /// The largest number of bytes.
        bytes_max: u64,
        /// The longest time for the whole download.
        wall: Duration,
    },
    /// Pull a module from a registry.
    Pull {
        /// The reference of the module in the registry.
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
        /// The largest number of bytes.
        bytes_max: u64,
    },
    /// Unpack an archive into a tree.
    Unpack {
        /// The path of the archive.
        archive: PathBuf,
        /// The format of the archive.
        kind: ArchiveKind,
        /// The part of the archive that is wanted; `None` means all of it.
        part: Option<Vec<String>>,
        /// Whether the one file in the archive is wanted.
        one_file: bool,
        /// The largest number of bytes of the tree.
        bytes_max: u64,
        /// Whether that limit is what the allocation may still hold.
        of_alloc: bool,
        /// The largest number of files, directories and links.
        entries_max: u64,
    },
}

/// A message from the child process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ChildMessage {
    /// The progress of the work.
    Progress {
        /// The number of bytes so far.
        bytes: u64,
        /// The number of bytes in total, if it is known.
        of: Option<u64>,
    },
    /// The child is alive and has nothing else to report.
    Alive,
    /// The order is carried out.
    Done {
        /// The number of bytes of the result.
        bytes: u64,
        /// The text of a module's signature.
        signature: Option<Vec<u8>>,
        /// The SHA-256 of a manifest, if one was asked for by its tag.
        manifest: Option<String>,
    },
    /// The order failed.
    Failed {
        /// The reason, for people.
        reason: String,
        /// Whether another try may succeed.
        recoverable: bool,
    },
}

/// Write a message as one line.
pub(crate) fn write_line<T: Serialize>(to: &mut impl Write, what: &T) -> io::Result<()> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    to.write_all(&line)?;
    to.flush()
}

/// Read a message from one line; `None` at the end of the input.
pub(crate) fn read_line<T: for<'de> Deserialize<'de>>(
    from: &mut impl BufRead,
) -> io::Result<Option<T>> {
    let mut line = Vec::new();
    let most = u64::try_from(ARTIFACT_LINE_BYTES_MAX).unwrap_or(u64::MAX);
    from.take(most).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Ok(None);
    }
    Ok(Some(serde_json::from_slice(&line)?))
}
