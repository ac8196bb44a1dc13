//! Makes TLS connections to a service: with the machine's authorities, or with any certificate if
//! the job says so.

use std::sync::{Arc, OnceLock};

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::crypto::{
    CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature,
};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};

use super::{CheckTarget, ProbeError, ProbeStream};
use ostler_model::service::CheckTls;

/// The protocol that is spoken over TLS, which the other side is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpokenProtocol {
    Http1,
    Http2,
}

impl SpokenProtocol {
    const fn name(self) -> &'static [u8] {
        match self {
            Self::Http1 => b"http/1.1",
            Self::Http2 => b"h2",
        }
    }
}

pub(super) async fn connect_tls(
    stream: TcpStream,
    target: &CheckTarget,
    tls: &CheckTls,
    speaks: SpokenProtocol,
) -> Result<Box<dyn ProbeStream>, ProbeError> {
    let to = target.to_string();
    let none = |why: String| ProbeError::NoTls { to: to.clone(), why };
    let name = tls.server_name.as_deref().unwrap_or(&target.host);
    let name = ServerName::try_from(name.to_owned())
        .map_err(|_| none(format!("{name:?} is not the name of a server")))?;
    let config = client_config(tls.skip_verify).await.ok_or_else(|| {
        none("the machine has no certificate authorities; install ca-certificates".to_owned())
    })?;
    let mut config = ClientConfig::clone(&config);
    config.alpn_protocols = vec![speaks.name().to_vec()];
    let connected = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
    let stream = connected.map_err(|source| ProbeError::Tls { to, source })?;
    Ok(Box::new(stream))
}

/// The configuration. It is made when it is first needed, because reading the machine's authorities
/// takes milliseconds.
async fn client_config(any: bool) -> Option<Arc<ClientConfig>> {
    static VERIFIED: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    static ANY: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    let kept = if any { &ANY } else { &VERIFIED };
    if let Some(config) = kept.get() {
        return Some(Arc::clone(config));
    }
    let made = ostler_model::clock::run_blocking(move || make_config(any)).await;
    let made = made.ok().flatten()?;
    Some(Arc::clone(kept.get_or_init(|| made)))
}

fn make_config(any: bool) -> Option<Arc<ClientConfig>> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .ok()?;
    let config = if any {
        builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
    } else {
        let found = rustls_native_certs::load_native_certs();
        for error in &found.errors {
            tracing::debug!(%error, "a certificate authority of the machine cannot be read");
        }
        let mut roots = RootCertStore::empty();
        let (added, _) = roots.add_parsable_certificates(found.certs);
        if added == 0 {
            return None;
        }
        builder.with_root_certificates(roots)
    };
    Some(Arc::new(config.with_no_client_auth()))
}

/// Accepts any certificate (`tls_skip_verify`), as long as the other side has its key.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _status: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let schemes = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, schemes)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let schemes = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, schemes)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
