//! The connection to an agent: over its socket, or over TCP with or without TLS.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use super::address::AgentEndpoint;
use ostler_net::pem::PemError;
use ostler_net::{OwnCertificate, ServerTrust, Stream, TlsFileError};

/// The files for TLS: how to recognise the agent, and the certificate of the client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientTlsFiles {
    /// The authorities that vouch for the agent (PEM); none for the authorities of the system.
    pub authorities: Option<PathBuf>,
    /// The certificate and the key of the client (PEM), for an agent that asks for them.
    pub own: Option<(PathBuf, PathBuf)>,
    /// The name in the agent's certificate, if it differs from that of the address.
    pub name: Option<String>,
}

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum ClientTlsError {
    /// A file has no certificate or key.
    #[error(transparent)]
    Pem(#[from] PemError),
    /// The system has no authorities.
    #[error(
        "this system has no certificate authorities to verify servers with; give one with --ca-cert FILE"
    )]
    NoAuthorities,
    /// The content of the files cannot be used.
    #[error("TLS cannot be set up: {0}")]
    Unusable(String),
}

impl From<TlsFileError> for ClientTlsError {
    fn from(error: TlsFileError) -> Self {
        match error {
            TlsFileError::Pem(error) => Self::Pem(error),
            TlsFileError::Own { source, .. } | TlsFileError::Authorities { source, .. } => {
                Self::Unusable(source.to_string())
            }
            TlsFileError::Setup(why) => Self::Unusable(why),
        }
    }
}

/// TLS that is ready to be used.
#[derive(Clone)]
pub struct ClientTls {
    connector: TlsConnector,
    name: Option<String>,
}

impl std::fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientTls").field("name", &self.name).finish_non_exhaustive()
    }
}

impl ClientTls {
    /// Read the files.
    ///
    /// # Errors
    /// When a file cannot be read, or its content cannot be used.
    pub fn read(files: &ClientTlsFiles) -> Result<Self, ClientTlsError> {
        let roots = match &files.authorities {
            Some(file) => ostler_net::read_roots(file)?,
            None => ostler_net::machine_roots().ok_or(ClientTlsError::NoAuthorities)?,
        };
        let own = files.own.as_ref().map(|(chain, key)| OwnCertificate::read(chain, key));
        let config = ostler_net::client_config(ServerTrust::Named(roots), own.transpose()?)?;
        Ok(Self { connector: TlsConnector::from(Arc::new(config)), name: files.name.clone() })
    }

    async fn connect(&self, host: &str, stream: TcpStream) -> io::Result<Box<dyn Stream>> {
        let name = self.name.as_deref().unwrap_or(host).to_owned();
        let name = ServerName::try_from(name).map_err(io::Error::other)?;
        Ok(Box::new(self.connector.connect(name, stream).await?))
    }
}

/// Connect to the agent.
pub(super) async fn dial(
    at: &AgentEndpoint,
    tls: Option<&ClientTls>,
) -> io::Result<Box<dyn Stream>> {
    match at {
        AgentEndpoint::Socket(path) => Ok(Box::new(UnixStream::connect(path).await?)),
        AgentEndpoint::Tcp { tls: with_tls, host, port } => {
            let stream = TcpStream::connect((host.as_str(), *port)).await?;
            stream.set_nodelay(true)?;
            match (with_tls, tls) {
                (false, _) => Ok(Box::new(stream)),
                (true, Some(tls)) => tls.connect(host, stream).await,
                (true, None) => {
                    Err(io::Error::other("there are no certificate authorities for TLS"))
                }
            }
        }
    }
}
