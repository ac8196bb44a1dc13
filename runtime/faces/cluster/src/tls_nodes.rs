//! TLS between the nodes of a cluster: the same authorities and certificate as towards the servers.
//!
//! ```text
//! fetching: the other node must be `client.REGION.nomad`, as Nomad's clients ask
//! serving:  who fetches must have a certificate of the authorities, as every node with TLS has
//! ```

use std::sync::Arc;

use tokio_rustls::rustls::client::verify_server_name;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::tls::{TlsError, TlsFiles, certificate_name};

/// TLS between nodes, ready to be used.
#[derive(Clone)]
pub struct NodeTls {
    /// For connections to another node.
    pub connector: TlsConnector,
    /// The name that another node must have in its certificate.
    pub name: ServerName<'static>,
    /// For connections from other nodes; none without a certificate of this node.
    pub acceptor: Option<TlsAcceptor>,
    /// Whether the certificate of this node has the name that other nodes ask for.
    pub is_named: bool,
}

impl std::fmt::Debug for NodeTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeTls")
            .field("name", &self.name)
            .field("serves", &self.acceptor.is_some())
            .finish_non_exhaustive()
    }
}

impl NodeTls {
    /// Read the files.
    ///
    /// # Errors
    /// When a file cannot be read or has the wrong content, or the region cannot be part of a name.
    pub fn read(files: &TlsFiles, region: &str) -> Result<Self, TlsError> {
        let name = certificate_name("client", region)?;
        let connector = TlsConnector::from(Arc::new(files.client_config()?));
        let Some(own) = files.own_certificate()? else {
            return Ok(Self { connector, name, acceptor: None, is_named: false });
        };
        let is_named = own.chain.first().is_some_and(|certificate| {
            let parsed = ParsedCertificate::try_from(certificate);
            parsed.is_ok_and(|parsed| verify_server_name(&parsed, &name).is_ok())
        });
        let roots = ostler_net::read_roots(&files.authorities)?;
        let config = ostler_net::server_config(Some(roots), own)?;
        let acceptor = Some(TlsAcceptor::from(Arc::new(config)));
        Ok(Self { connector, name, acceptor, is_named })
    }
}
