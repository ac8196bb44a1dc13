//! Reading plugins, their signatures and the trust file from disk: each file once, and bounded.

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
    /// The system refused.
    #[error("{}: {source}; check the path and its permissions", path.display())]
    System {
        /// The file.
        path: PathBuf,
        /// Its reason.
        source: io::Error,
    },
    /// A directory, a pipe, a device.
    #[error("{} is no regular file", path.display())]
    NotAFile {
        /// The file.
        path: PathBuf,
    },
    /// More than is ever read of such a file.
    #[error("{} is larger than {max} bytes", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Bytes read at most.
        max: u64,
    },
    /// A trust file with mistakes.
    #[error("{0}")]
    Trust(ostler_jobspec::Diagnostics),
}

/// A plugin's bytes and what lies beside them, read and not yet trusted.
#[derive(Clone, Debug)]
pub struct Unverified {
    /// The component.
    pub bytes: Arc<[u8]>,
    /// Its signature; `None` when there is none.
    pub signature: Option<Result<Signature, SignatureError>>,
}

/// Where the signature of a plugin file is: its name and `.minisig`.
#[must_use]
pub fn signature_path(plugin: &Path) -> PathBuf {
    let mut path = plugin.as_os_str().to_owned();
    path.push(".minisig");
    PathBuf::from(path)
}

/// Read a plugin file and the signature beside it.
///
/// # Errors
/// When the plugin cannot be read. A signature that cannot be is an error inside.
pub fn component(path: &Path) -> Result<Unverified, ReadError> {
    let bytes = bounded(path, PLUGIN_FILE_BYTES_MAX)?;
    let signature = match bounded(&signature_path(path), SIGNATURE_FILE_BYTES_MAX) {
        Ok(text) => Some(Signature::parse(&text)),
        Err(ReadError::System { source, .. }) if source.kind() == io::ErrorKind::NotFound => None,
        Err(error) => Some(Err(SignatureError::Unread { reason: error.to_string() })),
    };
    Ok(Unverified { bytes: bytes.into(), signature })
}

/// What the configuration demands, its trust file read.
#[must_use]
pub fn policy(config: &TrustConfig) -> Policy {
    let file = config
        .file
        .as_deref()
        .map(|path| trust_file(path).map(Arc::new).map_err(|error| error.to_string()));
    Policy { file, require: config.require_signature.clone() }
}

fn trust_file(path: &Path) -> Result<TrustFile, ReadError> {
    let bytes = bounded(path, TRUST_FILE_BYTES_MAX)?;
    ostler_jobspec::parse_trust_file(&bytes, path).map_err(ReadError::Trust)
}

fn bounded(path: &Path, max: u64) -> Result<Vec<u8>, ReadError> {
    let failed = |source| ReadError::System { path: path.to_owned(), source };
    // Opening a pipe nobody writes to waits for ever without this flag; files do not mind it.
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
