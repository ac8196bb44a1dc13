//! Where downloads and trees are made: directories that no task sees, gone when they are dropped, and when an
//! agent starts.

use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tempfile::TempDir;

use crate::order::TREE;

/// Who unpacks, where the agent is root.
const NOBODY: u32 = 65_534;

/// The directory of all of them.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    root: PathBuf,
}

impl Work {
    /// Empty what an earlier agent left. Blocking.
    pub(crate) fn begin(root: PathBuf) -> io::Result<Self> {
        match std::fs::remove_dir_all(&root) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        private_dir(&root)?;
        Ok(Self { root })
    }

    /// A new one. Blocking.
    pub(crate) fn place(&self) -> io::Result<Arc<WorkPlace>> {
        let private = std::fs::Permissions::from_mode(0o700);
        let place = tempfile::Builder::new().prefix("").permissions(private).tempdir_in(&self.root);
        place.map(|dir| Arc::new(WorkPlace(Some(dir))))
    }
}

/// A directory to work in. What is left in it goes with it, on a thread that may block.
#[derive(Debug)]
pub(crate) struct WorkPlace(Option<TempDir>);

impl WorkPlace {
    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        self.0.as_ref().map_or(Path::new("."), TempDir::path)
    }
}

impl Drop for WorkPlace {
    fn drop(&mut self) {
        if let Some(dir) = self.0.take() {
            ostler_model::clock::blocking_beside(move || drop(dir));
        }
    }
}

/// A directory of the agent's own, and those above it.
pub(crate) fn private_dir(path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Make the directory that an archive is unpacked in, for who unpacks it.
pub(crate) fn make_tree(place: &Path) -> io::Result<PathBuf> {
    let tree = place.join(TREE);
    std::fs::DirBuilder::new().mode(0o755).create(&tree)?;
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&tree, Some(NOBODY), Some(NOBODY))?;
    }
    Ok(tree)
}
