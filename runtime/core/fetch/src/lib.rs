//! Fetches what tasks bring along: artifacts, and modules from elsewhere.
//!
//! ```text
//! task hook ─ ArtifactAsk ─► Fetcher ── kept by its checksum? ──────────────► Staged: a file or a tree
//!                              │ not: one download for all who want the same       ▲   (no task sees it)
//!                              ▼                                                   │
//!                    order ─► child: this program with `__fetch` ─► download ─ checked, kept ─┤
//!                             no root, Landlock, filter, bounds                    │
//!                             (download: network, one file;   archive ─► child: no network,
//!                              unpack: no network, one directory)         one directory ─► tree
//! ```
//! Only the child process reads bytes of strangers; the agent computes sums and moves files.
//! Downloads and trees are made below `work`, which is emptied when an agent starts. Start reading
//! with [`Fetcher`], then `child`.

mod cache;
mod child;
mod decompress;
mod fetcher;
mod http;
mod inside;
mod order;
mod pull;
mod run;
mod sums;
mod unpack;
mod work;

pub use child::main;
pub use fetcher::{FetchOptions, Fetcher};

/// The first argument of the child process, which runs the agent's program.
pub const ARGUMENT: &str = "__fetch";

/// The entry points for the fuzz targets and properties of `ostler-fuzz`.
pub mod fuzz {
    use std::path::Path;

    use ostler_model::artifact::ArchiveKind;

    /// Unpack any bytes as `kind` below `dir`, which is empty.
    ///
    /// # Errors
    /// The reason why the bytes are refused.
    pub fn unpack(bytes: &[u8], kind: ArchiveKind, dir: &Path) -> Result<(), String> {
        let bounds = crate::unpack::UnpackLimits { bytes: 1 << 20, of_alloc: false, entries: 64 };
        let dir = std::fs::File::open(dir).map_err(|error| error.to_string())?;
        let from = std::io::Cursor::new(bytes.to_vec());
        let what = crate::unpack::UnpackOptions { kind, part: None, one_file: false };
        let unpacked = crate::unpack::unpack(dir.into(), from, &what, bounds, &mut |_| {});
        unpacked.map(|_| ()).map_err(|error| error.to_string())
    }
}
