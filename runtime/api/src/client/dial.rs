//! The connection to an agent: over its socket, or over TCP with or without TLS.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::address::AgentEndpoint;
use crate::duplex::Duplex;
use ostler_pem::{self as pem, PemError, certificates};

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
    #[error("this system has no authorities that vouch for servers; give --ca-cert FILE")]
    NoAuthorities,
    /// The content of the files cannot be used.
    #[error("TLS cannot be set up: {0}")]
    Unusable(String),
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
        let unusable = |error: &dyn std::fmt::Display| ClientTlsError::Unusable(error.to_string());
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable(&error))?
            .with_root_certificates(roots(files.authorities.as_deref())?);
        let config = match &files.own {
            None => config.with_no_client_auth(),
            Some((certificate, key)) => {
                let own = config.with_client_auth_cert(certificates(certificate)?, pem::key(key)?);
                own.map_err(|error| unusable(&error))?
            }
        };
        Ok(Self { connector: TlsConnector::from(Arc::new(config)), name: files.name.clone() })
    }

    async fn connect(&self, host: &str, stream: TcpStream) -> io::Result<Box<dyn Duplex>> {
        let name = self.name.as_deref().unwrap_or(host).to_owned();
        let name = ServerName::try_from(name).map_err(io::Error::other)?;
        Ok(Box::new(self.connector.connect(name, stream).await?))
    }
}

/// Connect to the agent.
pub(super) async fn dial(
    at: &AgentEndpoint,
    tls: Option<&ClientTls>,
) -> io::Result<Box<dyn Duplex>> {
    match at {
        AgentEndpoint::Socket(path) => Ok(Box::new(UnixStream::connect(path).await?)),
        AgentEndpoint::Tcp { tls: with_tls, host, port } => {
            let stream = TcpStream::connect((host.as_str(), *port)).await?;
            stream.set_nodelay(true)?;
            match (with_tls, tls) {
                (false, _) => Ok(Box::new(stream)),
                (true, Some(tls)) => tls.connect(host, stream).await,
                (true, None) => Err(io::Error::other("there are no authorities for TLS")),
            }
        }
    }
}

fn roots(authorities: Option<&Path>) -> Result<RootCertStore, ClientTlsError> {
    let mut roots = RootCertStore::empty();
    match authorities {
        Some(file) => {
            for certificate in certificates(file)? {
                let added = roots.add(certificate);
                added.map_err(|error| ClientTlsError::Unusable(error.to_string()))?;
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if roots.is_empty() {
                return Err(ClientTlsError::NoAuthorities);
            }
        }
    }
    Ok(roots)
}
