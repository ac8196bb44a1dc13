//! TLS towards the servers: whom to trust, and the certificate of this node.
//!
//! ```text
//! ca_file ─► who may vouch for a server      cert_file, key_file ─► who this node is
//! region ─► the name a server must have: `server.REGION.nomad`
//! ```

use std::path::PathBuf;
use std::sync::Arc;

use ostler_pem::{self as pem, PemError, certificates};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};

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
    /// A file has no certificate or key.
    #[error(transparent)]
    Pem(#[from] PemError),
    /// The certificate and the key do not match.
    #[error("the certificate {} cannot be used with its key", file.display())]
    Own {
        /// The path of the certificate.
        file: PathBuf,
        /// The error of the TLS library.
        source: Error,
    },
    /// The content of the files cannot be used.
    #[error("TLS cannot be set up with the authorities of {}", file.display())]
    Authorities {
        /// The path of the authorities.
        file: PathBuf,
        /// What is wrong with them.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
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
        Ok(Self { connector: TlsConnector::from(Arc::new(client_config(files)?)), name })
    }
}

/// The name that a server or a client of a region has in its certificate.
pub(super) fn certificate_name(role: &str, region: &str) -> Result<ServerName<'static>, TlsError> {
    ServerName::try_from(format!("{role}.{region}.nomad"))
        .map_err(|_| TlsError::Region(region.to_owned()))
}

/// The client configuration from the files: whom to trust, and the own certificate.
pub(super) fn client_config(files: &TlsFiles) -> Result<ClientConfig, TlsError> {
    let unusable = |source| unusable(files, source);
    let provider = Arc::new(ring::default_provider());
    let verifier =
        WebPkiServerVerifier::builder_with_provider(roots(files)?, Arc::clone(&provider))
            .build()
            .map_err(|error| unusable(error.into()))?;
    let verifier: Arc<dyn ServerCertVerifier> =
        if files.verify_name { verifier } else { Arc::new(AnyName(verifier)) };
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable(error.into()))?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    match &files.own {
        None => Ok(config.with_no_client_auth()),
        Some((chain, key)) => {
            let own = |source| TlsError::Own { file: chain.clone(), source };
            config.with_client_auth_cert(certificates(chain)?, pem::key(key)?).map_err(own)
        }
    }
}

/// Read the authorities that vouch for servers.
pub(super) fn roots(files: &TlsFiles) -> Result<Arc<RootCertStore>, TlsError> {
    let mut roots = RootCertStore::empty();
    for authority in certificates(&files.authorities)? {
        roots.add(authority).map_err(|error| unusable(files, error.into()))?;
    }
    Ok(Arc::new(roots))
}

pub(super) fn unusable(
    files: &TlsFiles,
    source: Box<dyn std::error::Error + Send + Sync>,
) -> TlsError {
    TlsError::Authorities { file: files.authorities.clone(), source }
}

/// A verifier that checks everything but the name.
#[derive(Debug)]
struct AnyName(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        status: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        // The name is checked last, so everything else is in order at this point.
        match self.0.verify_server_cert(certificate, intermediates, name, status, now) {
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
