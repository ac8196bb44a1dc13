//! Reads plugins, their signatures and the trust file from disk: each file once, and bounded.

use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::signature::{Signature, SignatureError};
use super::verdict::Policy;
use ostler_model::limits::{PLUGIN_FILE_BYTES_MAX, SIGNATURE_FILE_BYTES_MAX, TRUST_FILE_BYTES_MAX};
use ostler_model::trust::{TrustConfig, TrustFile};

/// Why a file could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The system refused to read the file.
    #[error("{}: {source}; check the path and its permissions", path.display())]
    System {
        /// The path of the file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// It is a directory, a pipe or a device.
    #[error("{} is not a regular file", path.display())]
    NotAFile {
        /// The path of the file.
        path: PathBuf,
    },
    /// It is larger than any such file may be.
    #[error("{} is larger than {max} bytes", path.display())]
    TooLarge {
        /// The path of the file.
        path: PathBuf,
        /// The largest number of bytes that are read.
        max: u64,
    },
    /// The trust file has mistakes.
    #[error("{0}")]
    Trust(ostler_jobspec::Diagnostics),
}

/// The bytes of a plugin and its signature, read but not yet trusted.
#[derive(Clone, Debug)]
pub struct UnverifiedComponent {
    /// The bytes of the component.
    pub bytes: Arc<[u8]>,
    /// The signature beside the plugin; `None` if there is none.
    pub signature: Option<Result<Signature, SignatureError>>,
}

/// The path of the signature of a plugin file: its name and `.minisig`.
#[must_use]
pub fn signature_path(plugin: &Path) -> PathBuf {
    let mut path = plugin.as_os_str().to_owned();
    path.push(".minisig");
    PathBuf::from(path)
}

/// Read a plugin file and the signature beside it.
///
/// # Errors
/// When the plugin cannot be read. A signature that cannot be read is an error in the result.
pub fn read_component(path: &Path) -> Result<UnverifiedComponent, ReadError> {
    let bytes = read_bounded(path, PLUGIN_FILE_BYTES_MAX)?;
    let signature = match read_bounded(&signature_path(path), SIGNATURE_FILE_BYTES_MAX) {
        Ok(text) => Some(Signature::parse(&text)),
        Err(ReadError::System { source, .. }) if source.kind() == io::ErrorKind::NotFound => None,
        Err(error) => Some(Err(SignatureError::Unread { reason: error.to_string() })),
    };
    Ok(UnverifiedComponent { bytes: bytes.into(), signature })
}

/// Read the trust file, and return the demands of the configuration with it.
#[must_use]
pub fn read_policy(config: &TrustConfig) -> Policy {
    let file = config
        .file
        .as_deref()
        .map(|path| trust_file(path).map(Arc::new).map_err(|error| error.to_string()));
    Policy { file, require: config.require_signature.clone() }
}

fn trust_file(path: &Path) -> Result<TrustFile, ReadError> {
    let bytes = read_bounded(path, TRUST_FILE_BYTES_MAX)?;
    ostler_jobspec::parse_trust_file(&bytes, path).map_err(ReadError::Trust)
}

fn read_bounded(path: &Path, max: u64) -> Result<Vec<u8>, ReadError> {
    let failed = |source| ReadError::System { path: path.to_owned(), source };
    // Without this flag, opening a pipe that nobody writes to waits for ever. It makes no
    // difference for files.
    let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(ReadError::NotAFile { path: path.to_owned() });
    }
    let mut bytes = Vec::new();
    file.take(max.saturating_add(1)).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > max {
        return Err(ReadError::TooLarge { path: path.to_owned(), max });
    }
    Ok(bytes)
}
