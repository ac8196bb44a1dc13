//! TLS of the API: its certificate, and the authorities of its clients.
//!
//! ```text
//! files ─ read ─► rustls configuration ─► accept
//!            └─ reload: the next connection has the new one; what cannot be read changes nothing
//! ```

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::server::TlsStream;

use ostler_model::limits::API_HEADER_BYTES_MAX;
use ostler_net::{OwnCertificate, TlsFileError, pem};

/// The files of the API's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiTlsFiles {
    /// The certificate chain (PEM).
    pub certificate: PathBuf,
    /// The private key (PEM).
    pub key: PathBuf,
    /// The authorities that vouch for clients (PEM), if clients need a certificate.
    pub clients: Option<PathBuf>,
}

/// Why TLS of the API cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum ApiTlsError {
    /// A file cannot be used.
    #[error(transparent)]
    Files(TlsFileError),
    /// The authorities cannot be used.
    #[error("clients cannot be verified with {}: {why}", file.display())]
    Clients {
        /// The path of the authorities.
        file: PathBuf,
        /// What is wrong with them.
        why: String,
    },
}

impl From<TlsFileError> for ApiTlsError {
    fn from(error: TlsFileError) -> Self {
        match error {
            TlsFileError::Authorities { file, source } => {
                Self::Clients { file, why: source.to_string() }
            }
            other => Self::Files(other),
        }
    }
}

/// TLS that is ready to be used. Clones share it.
#[derive(Clone)]
pub struct ApiTls {
    files: ApiTlsFiles,
    state: Arc<RwLock<LoadedTls>>,
}

/// The content of the files, ready to be used.
struct LoadedTls {
    config: Arc<ServerConfig>,
    /// All certificates, to compare them with the next reading.
    certificates: Vec<CertificateDer<'static>>,
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
    /// When a file cannot be read, or its content cannot be used.
    pub fn read(files: ApiTlsFiles) -> Result<Self, ApiTlsError> {
        let state = Arc::new(RwLock::new(load_files(&files)?));
        Ok(Self { files, state })
    }

    /// Read the files again. Connections that begin from now on use the new content. Returns
    /// whether it differs.
    ///
    /// # Errors
    /// As [`ApiTls::read`]. Nothing changes then.
    pub fn reload(&self) -> Result<bool, ApiTlsError> {
        let read = load_files(&self.files)?;
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let differs = read.certificates != state.certificates;
        *state = read;
        Ok(differs)
    }

    pub(super) async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let mut first = [0];
        // A TLS handshake begins with a number, an HTTP request with the name of its method.
        if stream.peek(&mut first).await? == 1 && first.iter().all(u8::is_ascii_uppercase) {
            answer_without_tls(stream).await?;
            return Err(io::Error::other("the client speaks HTTP without TLS, and was told so"));
        }
        let config = Arc::clone(&self.state.read().unwrap_or_else(PoisonError::into_inner).config);
        TlsAcceptor::from(config).accept(stream).await
    }
}

/// The answer to a client that speaks HTTP without TLS.
const SPEAKS_TLS: &str = "this address only speaks TLS: use https:// instead of http://\n";

/// Answer a request that came without TLS. The caller bounds the time.
async fn answer_without_tls(mut stream: TcpStream) -> io::Result<()> {
    let mut some = [0; 4096];
    let mut left = API_HEADER_BYTES_MAX;
    let _begin = stream.read(&mut some).await?;
    let length = SPEAKS_TLS.len();
    let answer = format!(
        "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n{SPEAKS_TLS}"
    );
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await?;
    // If the connection were closed with unread bytes, the answer could be lost on its way.
    loop {
        match stream.read(&mut some).await? {
            0 => return Ok(()),
            read => left = left.checked_sub(read).ok_or(io::ErrorKind::InvalidData)?,
        }
    }
}

fn load_files(files: &ApiTlsFiles) -> Result<LoadedTls, ApiTlsError> {
    let own = OwnCertificate::read(&files.certificate, &files.key).map_err(TlsFileError::from)?;
    let mut all = own.chain.clone();
    let clients = match &files.clients {
        None => None,
        Some(file) => {
            let authorities = pem::certificates(file).map_err(TlsFileError::from)?;
            all.extend_from_slice(&authorities);
            Some(ostler_net::strict_roots(file, authorities)?)
        }
    };
    let config = ostler_net::server_config(clients, own)?;
    Ok(LoadedTls { config: Arc::new(config), certificates: all })
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
        let is_read =
            matches!(error, ApiTlsError::Files(TlsFileError::Pem(pem::PemError::Read { .. })));
        assert!(is_read, "{error}");
    }
}
