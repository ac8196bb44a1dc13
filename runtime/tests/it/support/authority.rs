//! An authority of certificates, and servers that it vouches for.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{BasicConstraints, Certificate, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Its own certificate in a file.
    pub fn file(&self, dir: &Path) -> PathBuf {
        let file = dir.join("ca.pem");
        std::fs::write(&file, self.0.pem()).unwrap();
        file
    }

    /// A certificate with these names, and its key.
    pub fn issue(&self, names: &[&str]) -> (Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let params = CertificateParams::new(names).unwrap();
        (params.signed_by(&key, &self.0).unwrap(), key)
    }

    /// Who serves with a certificate with this name.
    pub fn acceptor(&self, name: &str) -> TlsAcceptor {
        let (certificate, key) = self.issue(&[name]);
        serve(certificate.der(), &key)
    }

    /// Who serves with the authority's own certificate, which no server may have.
    pub fn acceptor_as_authority(&self) -> TlsAcceptor {
        serve(self.0.der(), self.0.key())
    }
}

fn serve(certificate: &CertificateDer<'static>, key: &KeyPair) -> TlsAcceptor {
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)
        .unwrap();
    TlsAcceptor::from(Arc::new(config))
}
