//! The node's id: made once, then kept in the data directory for ever.

use std::fmt::Display;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

pub use ostler_model::ids::{NodeId, NotNodeId};
use ostler_model::limits::CLUSTER_TOKEN_BYTES_MAX;
use ostler_model::rng::Rng;

/// Name of the file in the data directory.
pub const FILE: &str = "node-id";
/// Name of the file with the node's secret.
const SECRET_FILE: &str = "node-secret";
/// Name of the file with what servers signed for this node.
const STANDING_FILE: &str = "node-standing";
/// A longer file is not an id: an id is a UUID and a line end.
const FILE_BYTES_MAX: u64 = 64;

/// Why the node's id could not be read or made.
#[derive(Debug, thiserror::Error)]
pub enum NodeIdError {
    /// The file is there and is not an id. It is not replaced: state on the disk belongs to it.
    #[error("{} does not contain a node id; restore it, or remove it to make this a new node", path.display())]
    Corrupt {
        /// Path of the file.
        path: PathBuf,
        /// What was found.
        #[source]
        source: NotNodeId,
    },
    /// The file could not be read.
    #[error("cannot read {}; make it readable for the agent's user", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// What the operating system answered.
        #[source]
        source: io::Error,
    },
    /// The file could not be made.
    #[error("cannot write {}; check that the data directory is writable and not full", path.display())]
    Write {
        /// Path of the file.
        path: PathBuf,
        /// What the operating system answered.
        #[source]
        source: io::Error,
    },
}

impl NodeIdError {
    /// The error for a read of the secret that nobody carries out any more.
    #[must_use]
    pub fn from_secret_read(data_dir: &Path, source: io::Error) -> Self {
        Self::Read { path: data_dir.join(SECRET_FILE), source }
    }
}

/// The id in `data_dir`; it is made there when there is none. The new file appears whole or not at
/// all, and is on the disk when this returns. The caller holds the lock of the data directory.
///
/// # Errors
/// [`NodeIdError`] when the file is corrupt, or cannot be read or written.
pub fn load_or_create(data_dir: &Path, rng: &Rng) -> Result<NodeId, NodeIdError> {
    if let Some(id) = load(data_dir)? {
        return Ok(id);
    }
    let path = data_dir.join(FILE);
    let id = NodeId::new(rng.uuid());
    write(data_dir, FILE, id).map_err(|source| NodeIdError::Write { path, source })?;
    Ok(id)
}

/// The secret by which the node proves its identity to servers. It is kept in the data directory,
/// where only its owner can read it, and is made there when there is none.
///
/// # Errors
/// As [`load_or_create`].
pub fn node_secret(data_dir: &Path, rng: &Rng) -> Result<String, NodeIdError> {
    if let Some(secret) = load_file(data_dir, SECRET_FILE)? {
        return Ok(secret.to_string());
    }
    let path = data_dir.join(SECRET_FILE);
    let secret = NodeId::new(rng.uuid());
    write(data_dir, SECRET_FILE, secret).map_err(|source| NodeIdError::Write { path, source })?;
    Ok(secret.to_string())
}

/// The text that servers signed for this node when they accepted it; empty where servers sign
/// nothing. `None`: no server has accepted this node.
///
/// # Errors
/// [`NodeIdError`] when the file cannot be read.
pub fn load_standing(data_dir: &Path) -> Result<Option<String>, NodeIdError> {
    let path = data_dir.join(STANDING_FILE);
    match read(&path, CLUSTER_TOKEN_BYTES_MAX) {
        Ok(text) => Ok(Some(text.trim().to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(NodeIdError::Read { path, source }),
    }
}

/// Keep the text that servers signed for this node in a file that only its owner can read. `None`
/// removes it: servers do not accept this node any more.
///
/// # Errors
/// [`NodeIdError`] when the file cannot be written.
pub fn keep_standing(data_dir: &Path, standing: Option<&str>) -> Result<(), NodeIdError> {
    let kept = match standing {
        Some(standing) => write(data_dir, STANDING_FILE, standing),
        None => match fs::remove_file(data_dir.join(STANDING_FILE)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        },
    };
    let path = data_dir.join(STANDING_FILE);
    kept.map_err(|source| NodeIdError::Write { path, source })
}

/// The id in `data_dir`, when there is one. Changes nothing.
///
/// # Errors
/// [`NodeIdError`] when the file is corrupt, or cannot be read.
pub fn load(data_dir: &Path) -> Result<Option<NodeId>, NodeIdError> {
    load_file(data_dir, FILE)
}

fn load_file(data_dir: &Path, file: &str) -> Result<Option<NodeId>, NodeIdError> {
    let path = data_dir.join(file);
    match read(&path, FILE_BYTES_MAX) {
        Ok(text) => match text.trim().parse() {
            Ok(id) => Ok(Some(id)),
            Err(source) => Err(NodeIdError::Corrupt { path, source }),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(NodeIdError::Read { path, source }),
    }
}

fn read(path: &Path, most: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    open_no_follow(File::options().read(true), path)?.take(most).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Open a file of the data directory. A link is refused: the file that it leads to would be shown
/// in the error about a wrong id.
fn open_no_follow(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path).map_err(|error| {
        if error.raw_os_error() == Some(libc::ELOOP) {
            return io::Error::new(
                io::ErrorKind::InvalidData,
                "it is a link, which is not followed",
            );
        }
        error
    })
}

fn write(data_dir: &Path, name: &str, text: impl Display) -> io::Result<()> {
    let temporary = data_dir.join(format!("{name}.new"));
    let mut options = File::options();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = open_no_follow(&mut options, &temporary)?;
    writeln!(file, "{text}")?;
    file.sync_all()?;
    fs::rename(&temporary, data_dir.join(name))?;
    File::open(data_dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

    use super::*;

    #[test]
    fn a_link_in_the_place_of_the_id_shows_nothing_of_what_it_leads_to() {
        let dir = tempfile::tempdir().unwrap();
        let secret = dir.path().join("secret");
        fs::write(&secret, "root:$6$hash").unwrap();
        for name in [FILE, "node-id.new"] {
            std::os::unix::fs::symlink(&secret, dir.path().join(name)).unwrap();
            let error = load_or_create(dir.path(), &Rng::from_seed(1)).unwrap_err();
            let said = ostler_model::causes::chain(&error);
            assert!(said.contains("a link, which is not followed"), "{said}");
            assert!(!said.contains("hash"), "{said}");
            fs::remove_file(dir.path().join(name)).unwrap();
        }
        assert_eq!(fs::read(&secret).unwrap(), b"root:$6$hash");
    }

    #[test]
    fn an_id_is_made_once_and_then_read() {
        let dir = tempfile::tempdir().unwrap();
        let made = load_or_create(dir.path(), &Rng::from_seed(1)).unwrap();
        let read = load_or_create(dir.path(), &Rng::from_seed(2)).unwrap();
        assert_eq!(made, read);
        let names: Vec<_> =
            fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, [FILE]);
    }

    #[test]
    fn how_it_stands_with_servers_is_kept_and_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(load_standing(dir.path()).unwrap(), None);
        keep_standing(dir.path(), None).unwrap();
        keep_standing(dir.path(), Some("")).unwrap();
        assert_eq!(load_standing(dir.path()).unwrap().as_deref(), Some(""));
        keep_standing(dir.path(), Some("signed")).unwrap();
        assert_eq!(load_standing(dir.path()).unwrap().as_deref(), Some("signed"));
        let mode = fs::metadata(dir.path().join(STANDING_FILE)).unwrap().permissions();
        assert_eq!(std::os::unix::fs::PermissionsExt::mode(&mode) & 0o777, 0o600);
        keep_standing(dir.path(), None).unwrap();
        assert_eq!(load_standing(dir.path()).unwrap(), None);
    }

    #[test]
    fn a_temporary_file_left_by_a_crash_is_no_obstacle() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("node-id.new"), "half").unwrap();
        let made = load_or_create(dir.path(), &Rng::from_seed(1)).unwrap();
        assert_eq!(load_or_create(dir.path(), &Rng::from_seed(2)).unwrap(), made);
    }

    #[test]
    fn a_corrupt_file_is_an_error_and_stays_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        for text in ["", "not an id", &"0".repeat(10_000)] {
            fs::write(&path, text).unwrap();
            let error = load_or_create(dir.path(), &Rng::from_seed(1)).unwrap_err();
            assert!(matches!(error, NodeIdError::Corrupt { .. }), "{error:?}");
            assert!(error.to_string().contains("remove it"), "{error}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
    }

    #[test]
    fn a_missing_data_directory_is_an_error_that_names_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let error = load_or_create(&dir.path().join("gone"), &Rng::from_seed(1)).unwrap_err();
        assert!(matches!(error, NodeIdError::Write { .. }), "{error:?}");
        assert!(error.to_string().contains("gone/node-id"), "{error}");
    }
}
