//! The disk of an allocation as one stream of bytes, for another node of a cluster: a tar archive as
//! Nomad's clients send and take it.
//!
//! ```text
//! pack:    alloc/data, <task>/local ─► entries ─► bytes ─► whoever fetches
//!             └─ cannot be read ─► an entry that says so, in the place of the rest
//! unpack:  bytes ─► archive (headers) ─► place (what becomes of an entry; pure) ─► below one directory
//! ```
//! What comes is hostile: the other node may have been taken over, and a task wrote the files.
//! So each name is opened by itself in an open directory, without following links, and
//! everything is counted.
//!
//! | in an archive | what becomes of it |
//! |---|---|
//! | a name with `..`, from the root, or elsewhere than in what moves | refused, with all of it |
//! | files of a task that is not in the new group | left out |
//! | a symbolic link that leads out of the allocation's directory | left out, and said |
//! | a hard link, a device, a named pipe | left out, and said: Nomad's clients send none |
//! | a name that is there already, or below a link | refused, with all of it |
//! | set-user-id, extended attributes | left out; other modes stay, owners where the agent is root |
//! | a length that is not sent, bytes or entries without end | refused, with all of it |
//!
//! An archive that is refused is not used at all: half of the data is worse than none.

mod archive;
mod pack;
mod place;
mod unpack;

pub use archive::{ArchiveEntry, ArchiveEntryKind, ArchiveError, ArchiveReader};
pub use pack::{PackError, PackedDisk, pack};
pub use unpack::{DiskUnpackError, LeftOutEntries, UnpackBounds, UnpackReport, unpack_into};

use ostler_model::ids::AllocId;

/// Name of the entry by which a node says that it could not send the rest. The content of the entry
/// is the reason.
fn error_entry(from: AllocId) -> String {
    format!("NOMAD-{from}-ERROR.log")
}
