//! TLS towards the servers: whom to trust, and the certificate of this node.
//!
//! ```text
//! ca_file ─► who may vouch for a server      cert_file, key_file ─► who this node is
//! region ─► the name a server must have: `server.REGION.nomad`
//! ```

use std::path::PathBuf;
use std::sync::Arc;

use ostler_net::{OwnCertificate, ServerTrust, TlsFileError};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

/// The files of certificates that the configuration names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The authorities that may vouch for a server (PEM).
    pub authorities: PathBuf,
    /// The certificate chain of this node and its key (PEM).
    pub own: Option<(PathBuf, PathBuf)>,
    /// Whether a server must have the name of its region in its certificate. Otherwise any
    /// certificate of the authorities is accepted, even that of another node.
    pub verify_name: bool,
}

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be used.
    #[error(transparent)]
    Files(#[from] TlsFileError),
    /// No certificate can name the region.
    #[error("the region {0:?} cannot be part of a server's name in a certificate")]
    Region(String),
}

/// TLS that is ready to be used, towards the servers of one region.
#[derive(Clone)]
pub struct ServerTls {
    pub(super) connector: TlsConnector,
    pub(super) name: ServerName<'static>,
}

impl std::fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerTls").field("name", &self.name).finish_non_exhaustive()
    }
}

impl ServerTls {
    /// Read the files. They are read only now, so a renewed certificate counts from the next start.
    ///
    /// # Errors
    /// When a file cannot be read or has the wrong content, or the region cannot be part of a name.
    pub fn read(files: &TlsFiles, region: &str) -> Result<Self, TlsError> {
        let name = certificate_name("server", region)?;
        Ok(Self { connector: TlsConnector::from(Arc::new(files.client_config()?)), name })
    }
}

/// The name that a server or a client of a region has in its certificate.
pub(super) fn certificate_name(role: &str, region: &str) -> Result<ServerName<'static>, TlsError> {
    ServerName::try_from(format!("{role}.{region}.nomad"))
        .map_err(|_| TlsError::Region(region.to_owned()))
}

impl TlsFiles {
    /// The client configuration from the files: whom to trust, and the own certificate.
    pub(super) fn client_config(&self) -> Result<ClientConfig, TlsFileError> {
        let roots = ostler_net::read_roots(&self.authorities)?;
        let trust =
            if self.verify_name { ServerTrust::Named(roots) } else { ServerTrust::AnyName(roots) };
        ostler_net::client_config(trust, self.own_certificate()?)
    }

    /// The certificate of this node, if it has one.
    pub(super) fn own_certificate(&self) -> Result<Option<OwnCertificate>, TlsFileError> {
        let own = self.own.as_ref().map(|(chain, key)| OwnCertificate::read(chain, key));
        Ok(own.transpose()?)
    }
}
