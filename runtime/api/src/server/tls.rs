//! TLS of the API: its certificate, and whether its clients need one.
//!
//! ```text
//! files ─ read ─► rustls configuration ─► accept
//!            └─ reload: the next connection has the new one; what cannot be read changes nothing
//! ```

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{self, RootCertStore, ServerConfig};
use tokio_rustls::server::TlsStream;

use ostler_model::limits::CLUSTER_PEM_BYTES_MAX;

/// The files of the API's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiTlsFiles {
    /// Its chain (PEM).
    pub certificate: PathBuf,
    /// Its key (PEM).
    pub key: PathBuf,
    /// Who vouches for clients (PEM), where they need a certificate.
    pub clients: Option<PathBuf>,
}

/// Why the API has no TLS.
#[derive(Debug, thiserror::Error)]
pub enum ApiTlsError {
    /// A file cannot be read.
    #[error("cannot read {}", file.display())]
    Read {
        /// Which.
        file: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file has something else in it.
    #[error("{} has no {what} (PEM) that can be read", file.display())]
    Content {
        /// Which.
        file: PathBuf,
        /// What it should have.
        what: &'static str,
    },
    /// The certificate and the key are not one, or not to be used.
    #[error("the certificate {} cannot be used with its key", file.display())]
    Own {
        /// The certificate.
        file: PathBuf,
        /// Why.
        source: rustls::Error,
    },
    /// The authorities are not to be used.
    #[error("clients cannot be known by {}: {why}", file.display())]
    Clients {
        /// The authorities.
        file: PathBuf,
        /// Why.
        why: String,
    },
}

/// TLS that is ready to be used. Clones share it.
#[derive(Clone)]
pub struct ApiTls {
    files: ApiTlsFiles,
    config: Arc<RwLock<Arc<ServerConfig>>>,
}

impl std::fmt::Debug for ApiTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiTls").field("files", &self.files).finish_non_exhaustive()
    }
}

impl ApiTls {
    /// Read the files.
    ///
    /// # Errors
    /// When a file cannot be read, or what it has not be used.
    pub fn read(files: ApiTlsFiles) -> Result<Self, ApiTlsError> {
        let config = Arc::new(RwLock::new(Arc::new(config(&files)?)));
        Ok(Self { files, config })
    }

    /// Read the files again: connections that begin from now on have what is in them.
    ///
    /// # Errors
    /// As [`ApiTls::read`]; all stays as it was then.
    pub fn reload(&self) -> Result<(), ApiTlsError> {
        let read = Arc::new(config(&self.files)?);
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = read;
        Ok(())
    }

    pub(super) async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let config = Arc::clone(&self.config.read().unwrap_or_else(PoisonError::into_inner));
        TlsAcceptor::from(config).accept(stream).await
    }
}

fn config(files: &ApiTlsFiles) -> Result<ServerConfig, ApiTlsError> {
    let provider = Arc::new(ring::default_provider());
    let own = |source| ApiTlsError::Own { file: files.certificate.clone(), source };
    let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(own)?;
    let config = match &files.clients {
        None => config.with_no_client_auth(),
        Some(file) => {
            let refused = |why: String| ApiTlsError::Clients { file: file.clone(), why };
            let mut roots = RootCertStore::empty();
            for certificate in certificates(file)? {
                roots.add(certificate).map_err(|error| refused(error.to_string()))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .build()
                .map_err(|error| refused(error.to_string()))?;
            config.with_client_cert_verifier(verifier)
        }
    };
    let key = PrivateKeyDer::from_pem_slice(&bytes(&files.key)?)
        .map_err(|_| ApiTlsError::Content { file: files.key.clone(), what: "key" })?;
    config.with_single_cert(certificates(&files.certificate)?, key).map_err(own)
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, ApiTlsError> {
    let content = || ApiTlsError::Content { file: file.to_owned(), what: "certificate" };
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes(file)?).collect();
    let read = read.map_err(|_| content())?;
    if read.is_empty() { Err(content()) } else { Ok(read) }
}

fn bytes(file: &Path) -> Result<Vec<u8>, ApiTlsError> {
    let failed = |source| ApiTlsError::Read { file: file.to_owned(), source };
    let mut bytes = Vec::new();
    // A pipe must not hold up the agent.
    let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or_default();
    let opened = File::options().read(true).custom_flags(flags).open(file).map_err(failed)?;
    if !opened.metadata().map_err(failed)?.is_file() {
        return Err(failed(io::Error::other("it is no file")));
    }
    opened.take(CLUSTER_PEM_BYTES_MAX).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn a_pipe_in_place_of_a_certificate_holds_nothing_up() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("cert.pem");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let files = ApiTlsFiles { certificate: pipe.clone(), key: pipe, clients: None };
        let error = ApiTls::read(files).unwrap_err();
        assert!(matches!(error, ApiTlsError::Read { .. }), "{error}");
    }
}
