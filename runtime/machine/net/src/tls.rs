//! Configurations of TLS: whom this side trusts, and its own certificate.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::WantsClientCert;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::crypto::{
    CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature,
};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, ConfigBuilder, DigitallySignedStruct, Error, RootCertStore,
    ServerConfig, SignatureScheme,
};

use crate::pem::{self, PemError};

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsFileError {
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
    /// The authorities cannot be used.
    #[error("TLS cannot be set up with the authorities of {}", file.display())]
    Authorities {
        /// The path of the authorities.
        file: PathBuf,
        /// The error of the TLS library.
        source: Error,
    },
    /// The TLS library refuses the rest of the configuration.
    #[error("TLS cannot be set up: {0}")]
    Setup(String),
}

impl TlsFileError {
    fn setup(error: impl std::fmt::Display) -> Self {
        Self::Setup(error.to_string())
    }
}

/// The certificate chain of this side, and its key.
pub struct OwnCertificate {
    file: PathBuf,
    /// The certificates, that of this side first.
    pub chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl OwnCertificate {
    /// Read the files (PEM) of a certificate chain and of its key.
    ///
    /// # Errors
    /// See [`PemError`].
    pub fn read(chain: &Path, key: &Path) -> Result<Self, PemError> {
        let certificates = pem::certificates(chain)?;
        Ok(Self { file: chain.to_owned(), chain: certificates, key: pem::key(key)? })
    }
}

/// The servers that a client takes for those that they say they are.
pub enum ServerTrust {
    /// Servers that these authorities vouch for, under the name that the client asks for.
    Named(RootCertStore),
    /// Servers that these authorities vouch for, under any name.
    AnyName(RootCertStore),
    /// All servers, as long as they have the key of their certificate.
    Anybody,
}

/// The certificate authorities of the machine. Blocking, because it takes milliseconds.
#[must_use]
pub fn machine_authorities() -> Vec<CertificateDer<'static>> {
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::debug!(%error, "a certificate authority of the machine cannot be read");
    }
    found.certs
}

/// The machine's authorities that can be used; `None` if there is none. Blocking.
#[must_use]
pub fn machine_roots() -> Option<RootCertStore> {
    usable_roots(machine_authorities())
}

/// Those of some authorities that can be used; `None` if there is none.
#[must_use]
pub fn usable_roots(authorities: Vec<CertificateDer<'static>>) -> Option<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(authorities);
    (added > 0).then_some(roots)
}

/// The authorities of a file (PEM), each of which must be usable.
///
/// # Errors
/// [`TlsFileError::Pem`] and [`TlsFileError::Authorities`].
pub fn read_roots(file: &Path) -> Result<RootCertStore, TlsFileError> {
    strict_roots(file, pem::certificates(file)?)
}

/// Authorities that were read from `file`, each of which must be usable.
///
/// # Errors
/// [`TlsFileError::Authorities`].
pub fn strict_roots(
    file: &Path,
    authorities: Vec<CertificateDer<'static>>,
) -> Result<RootCertStore, TlsFileError> {
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        let unusable = |source| TlsFileError::Authorities { file: file.to_owned(), source };
        roots.add(authority).map_err(unusable)?;
    }
    Ok(roots)
}

/// The configuration of a client.
///
/// # Errors
/// [`TlsFileError::Own`] when the own certificate does not fit its key.
pub fn client_config(
    trust: ServerTrust,
    own: Option<OwnCertificate>,
) -> Result<ClientConfig, TlsFileError> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(TlsFileError::setup)?;
    let chain = match trust {
        ServerTrust::Named(roots) => {
            return with_own_certificate(builder.with_root_certificates(roots), own);
        }
        ServerTrust::AnyName(roots) => {
            let verifier =
                WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
            Some(verifier.build().map_err(TlsFileError::setup)?)
        }
        ServerTrust::Anybody => None,
    };
    let verifier = Arc::new(LenientVerifier { chain, provider });
    with_own_certificate(builder.dangerous().with_custom_certificate_verifier(verifier), own)
}

fn with_own_certificate(
    builder: ConfigBuilder<ClientConfig, WantsClientCert>,
    own: Option<OwnCertificate>,
) -> Result<ClientConfig, TlsFileError> {
    let Some(OwnCertificate { file, chain, key }) = own else {
        return Ok(builder.with_no_client_auth());
    };
    let unusable = |source| TlsFileError::Own { file, source };
    builder.with_client_auth_cert(chain, key).map_err(unusable)
}

/// The configuration of a server. With `clients`, a client needs a certificate that one of these
/// authorities vouches for.
///
/// # Errors
/// [`TlsFileError::Own`] when the own certificate does not fit its key.
pub fn server_config(
    clients: Option<RootCertStore>,
    own: OwnCertificate,
) -> Result<ServerConfig, TlsFileError> {
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(TlsFileError::setup)?;
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(roots) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.build().map_err(TlsFileError::setup)?)
        }
    };
    let OwnCertificate { file, chain, key } = own;
    builder.with_single_cert(chain, key).map_err(|source| TlsFileError::Own { file, source })
}

/// A connector that trusts the machine's authorities; `None` if the machine has none. Blocking.
#[must_use]
pub fn machine_connector() -> Option<TlsConnector> {
    let config = client_config(ServerTrust::Named(machine_roots()?), None).ok()?;
    Some(TlsConnector::from(Arc::new(config)))
}

/// A verifier that checks no name, and without a chain of authorities no certificate either. The
/// other side must have the key of its certificate in any case.
#[derive(Debug)]
struct LenientVerifier {
    chain: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for LenientVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        status: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(chain) = &self.chain else { return Ok(ServerCertVerified::assertion()) };
        // The name is checked last, so everything else is in order at this point.
        match chain.verify_server_cert(certificate, intermediates, name, status, now) {
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
        let schemes = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, schemes)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let schemes = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, schemes)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
#[path = "tls_tests.rs"]
mod tests;
