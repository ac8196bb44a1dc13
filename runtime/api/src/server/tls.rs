//! TLS of the API: its certificate, and whether its clients need one.
//!
//! ```text
//! files ─ read ─► rustls configuration ─► accept
//!            └─ reload: the next connection has the new one; what cannot be read changes nothing
//! ```

use std::fs::File;
use std::io::{self, Read as _};
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
pub struct ServerTlsFiles {
    /// Its chain (PEM).
    pub certificate: PathBuf,
    /// Its key (PEM).
    pub key: PathBuf,
    /// Who vouches for clients (PEM), where they need a certificate.
    pub clients: Option<PathBuf>,
}

/// Why the API has no TLS.
#[derive(Debug, thiserror::Error)]
pub enum ServerTlsError {
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
pub struct ServerTls {
    files: ServerTlsFiles,
    config: Arc<RwLock<Arc<ServerConfig>>>,
}

impl std::fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerTls").field("files", &self.files).finish_non_exhaustive()
    }
}

impl ServerTls {
    /// Read the files.
    ///
    /// # Errors
    /// When a file cannot be read, or what it has not be used.
    pub fn read(files: ServerTlsFiles) -> Result<Self, ServerTlsError> {
        let config = Arc::new(RwLock::new(Arc::new(config(&files)?)));
        Ok(Self { files, config })
    }

    /// Read the files again: connections that begin from now on have what is in them.
    ///
    /// # Errors
    /// As [`ServerTls::read`]; all stays as it was then.
    pub fn reload(&self) -> Result<(), ServerTlsError> {
        let read = Arc::new(config(&self.files)?);
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = read;
        Ok(())
    }

    pub(super) async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let config = Arc::clone(&self.config.read().unwrap_or_else(PoisonError::into_inner));
        TlsAcceptor::from(config).accept(stream).await
    }
}

fn config(files: &ServerTlsFiles) -> Result<ServerConfig, ServerTlsError> {
    let provider = Arc::new(ring::default_provider());
    let own = |source| ServerTlsError::Own { file: files.certificate.clone(), source };
    let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(own)?;
    let config = match &files.clients {
        None => config.with_no_client_auth(),
        Some(file) => {
            let refused = |why: String| ServerTlsError::Clients { file: file.clone(), why };
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
        .map_err(|_| ServerTlsError::Content { file: files.key.clone(), what: "key" })?;
    config.with_single_cert(certificates(&files.certificate)?, key).map_err(own)
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, ServerTlsError> {
    let content = || ServerTlsError::Content { file: file.to_owned(), what: "certificate" };
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes(file)?).collect();
    let read = read.map_err(|_| content())?;
    if read.is_empty() { Err(content()) } else { Ok(read) }
}

fn bytes(file: &Path) -> Result<Vec<u8>, ServerTlsError> {
    let failed = |source| ServerTlsError::Read { file: file.to_owned(), source };
    let mut bytes = Vec::new();
    let opened = File::open(file).map_err(failed)?;
    opened.take(CLUSTER_PEM_BYTES_MAX).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}
