//! Reads certificates and keys from PEM files.
//!
//! ```text
//! file ─ a regular one? ─ within CLUSTER_PEM_BYTES_MAX? ─► certificates, at least one │ a private key
//! ```

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use ostler_model::limits::CLUSTER_PEM_BYTES_MAX;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Why a file has no certificate or key.
#[derive(Debug, thiserror::Error)]
pub enum PemError {
    /// The file cannot be read.
    #[error("cannot read {}", file.display())]
    Read {
        /// The path of the file.
        file: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The file has something else in it.
    #[error("{} has no readable {what} (PEM)", file.display())]
    Content {
        /// The path of the file.
        file: PathBuf,
        /// The name of what the file should have.
        what: &'static str,
    },
}

/// All certificates of a file, of which there is at least one.
///
/// # Errors
/// See [`PemError`].
pub fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read_bounded(file)?).collect();
    let found = read.ok().filter(|found| !found.is_empty());
    found.ok_or_else(|| PemError::Content { file: file.to_owned(), what: "certificate" })
}

/// The private key of a file.
///
/// # Errors
/// See [`PemError`].
pub fn key(file: &Path) -> Result<PrivateKeyDer<'static>, PemError> {
    PrivateKeyDer::from_pem_slice(&read_bounded(file)?)
        .map_err(|_| PemError::Content { file: file.to_owned(), what: "private key" })
}

fn read_bounded(file: &Path) -> Result<Vec<u8>, PemError> {
    let failed = |source| PemError::Read { file: file.to_owned(), source };
    let mut bytes = Vec::new();
    let opened = open_regular(file).map_err(failed)?;
    opened.take(CLUSTER_PEM_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length > CLUSTER_PEM_BYTES_MAX) {
        let why = format!("it has more than {CLUSTER_PEM_BYTES_MAX} bytes");
        return Err(failed(io::Error::other(why)));
    }
    Ok(bytes)
}

/// Open a regular file. Opening a pipe that nobody writes to would wait for ever.
fn open_regular(file: &Path) -> io::Result<File> {
    let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
    let opened = File::options().read(true).custom_flags(flags).open(file)?;
    if opened.metadata()?.is_file() {
        Ok(opened)
    } else {
        Err(io::Error::other("it is not a regular file"))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn a_pipe_and_a_file_that_is_too_large_are_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let (pipe, large) = (dir.path().join("pipe"), dir.path().join("large"));
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let bytes = usize::try_from(CLUSTER_PEM_BYTES_MAX).unwrap() + 1;
        std::fs::write(&large, vec![b' '; bytes]).unwrap();
        for file in [pipe, large, dir.path().join("none")] {
            let error = certificates(&file).unwrap_err();
            assert!(matches!(error, PemError::Read { .. }), "{error}");
        }
    }

    #[test]
    fn what_has_no_certificate_and_no_key_says_what_is_missing() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.pem");
        std::fs::write(&file, "nothing").unwrap();
        assert!(
            certificates(&file).unwrap_err().to_string().contains("no readable certificate (PEM)")
        );
        assert!(key(&file).unwrap_err().to_string().contains("no readable private key (PEM)"));
    }
}
