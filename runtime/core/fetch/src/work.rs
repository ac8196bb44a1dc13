//! Work directories for downloads and trees. No task sees them. They are removed when they are
//! dropped, and when an agent starts.

use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tempfile::TempDir;

use crate::order::TREE;

/// The user who unpacks, if the agent is root.
const NOBODY: u32 = 65_534;

/// The directory of all work directories.
#[derive(Clone, Debug)]
pub(crate) struct WorkRoot {
    root: PathBuf,
}

impl WorkRoot {
    /// Open the directory, and empty it of what an earlier agent left. Blocking.
    pub(crate) fn open_empty(root: PathBuf) -> io::Result<Self> {
        match std::fs::remove_dir_all(&root) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        private_dir(&root)?;
        Ok(Self { root })
    }

    /// Create a new work directory. Blocking.
    pub(crate) fn new_place(&self) -> io::Result<Arc<WorkPlace>> {
        let private = std::fs::Permissions::from_mode(0o700);
        let place = tempfile::Builder::new().prefix("").permissions(private).tempdir_in(&self.root);
        place.map(|dir| Arc::new(WorkPlace(Some(dir))))
    }
}

/// A work directory. Its content is removed with it, on a thread that may block.
#[derive(Debug)]
pub(crate) struct WorkPlace(Option<TempDir>);

impl WorkPlace {
    /// The path of the directory.
    pub(crate) fn path(&self) -> &Path {
        self.0.as_ref().map_or(Path::new("."), TempDir::path)
    }
}

impl Drop for WorkPlace {
    fn drop(&mut self) {
        if let Some(dir) = self.0.take() {
            ostler_model::clock::spawn_blocking_work(move || drop(dir));
        }
    }
}

/// Create a directory that only the agent may enter, and those above it.
pub(crate) fn private_dir(path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Create the directory into which an archive is unpacked, for the user who unpacks it.
pub(crate) fn make_tree(place: &Path) -> io::Result<PathBuf> {
    let tree = place.join(TREE);
    std::fs::DirBuilder::new().mode(0o755).create(&tree)?;
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&tree, Some(NOBODY), Some(NOBODY))?;
    }
    Ok(tree)
}
