//! TLS between the nodes of a cluster: the same authorities and certificate as towards the servers.
//!
//! ```text
//! fetching: the other node must be `client.REGION.nomad`, as Nomad's clients ask
//! serving:  who fetches must have a certificate of the authorities, as every node with TLS has
//! ```

use std::sync::Arc;

use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::client::verify_server_name;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::tls::{TlsError, TlsFiles, certificate_name, client_config, roots, unusable};
use ostler_pem::{self as pem, certificates};

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
        let connector = TlsConnector::from(Arc::new(client_config(files)?));
        let Some((chain, key)) = &files.own else {
            return Ok(Self { connector, name, acceptor: None, is_named: false });
        };
        let provider = Arc::new(ring::default_provider());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(roots(files)?, Arc::clone(&provider));
        let verifier = verifier.build().map_err(|error| unusable(files, error.into()))?;
        let own = |source| TlsError::Own { file: chain.clone(), source };
        let own_chain = certificates(chain)?;
        let is_named = own_chain.first().is_some_and(|certificate| {
            let parsed = ParsedCertificate::try_from(certificate);
            parsed.is_ok_and(|parsed| verify_server_name(&parsed, &name).is_ok())
        });
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable(files, error.into()))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(own_chain, pem::key(key)?)
            .map_err(own)?;
        let acceptor = Some(TlsAcceptor::from(Arc::new(config)));
        Ok(Self { connector, name, acceptor, is_named })
    }
}
