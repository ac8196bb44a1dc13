#![allow(clippy::unwrap_used, reason = "tests")]

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::TlsAcceptor;

use super::*;

/// An authority, and the directory of its files.
struct Authority {
    dir: TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("ca.pem"), issuer.pem()).unwrap();
        Self { dir, issuer }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn roots(&self) -> RootCertStore {
        read_roots(&self.file("ca.pem")).unwrap()
    }

    fn certificate(&self, name: &str) -> OwnCertificate {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        std::fs::write(self.file("own.pem"), certificate.pem()).unwrap();
        std::fs::write(self.file("own.key"), key.serialize_pem()).unwrap();
        OwnCertificate::read(&self.file("own.pem"), &self.file("own.key")).unwrap()
    }
}

/// Whether a client that asks for `server.example` and a server hear of each other.
async fn agree(client: ClientConfig, server: ServerConfig) -> bool {
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    let name = ServerName::try_from("server.example").unwrap();
    let asked = async {
        let mut stream = TlsConnector::from(Arc::new(client)).connect(name, ours).await.ok()?;
        stream.write_all(b"ping").await.ok()?;
        let mut heard = [0; 4];
        stream.read_exact(&mut heard).await.ok()
    };
    let served = async {
        let mut stream = TlsAcceptor::from(Arc::new(server)).accept(theirs).await.ok()?;
        let mut heard = [0; 4];
        stream.read_exact(&mut heard).await.ok()?;
        stream.write_all(&heard).await.ok()?;
        stream.flush().await.ok()
    };
    let (asked, served) = tokio::join!(asked, served);
    asked.is_some() && served.is_some()
}

#[tokio::test]
async fn a_client_takes_the_servers_that_it_trusts() {
    let (known, stranger) = (Authority::new(), Authority::new());
    let config = |trust| client_config(trust, None).unwrap();
    let served = |by: &Authority, name| server_config(None, by.certificate(name)).unwrap();
    for (server, name, named, any_name) in [
        (&known, "server.example", true, true),
        (&known, "client.example", false, true),
        (&stranger, "server.example", false, false),
    ] {
        let trusts = [
            (ServerTrust::Named(known.roots()), named),
            (ServerTrust::AnyName(known.roots()), any_name),
            (ServerTrust::Anybody, true),
        ];
        for (trust, agreed) in trusts {
            assert_eq!(agree(config(trust), served(server, name)).await, agreed, "{name}");
        }
    }
}

#[tokio::test]
async fn a_server_takes_the_clients_that_its_authorities_know() {
    let (known, stranger) = (Authority::new(), Authority::new());
    let server =
        || server_config(Some(known.roots()), known.certificate("server.example")).unwrap();
    for (own, agreed) in [
        (Some(known.certificate("me")), true),
        (Some(stranger.certificate("me")), false),
        (None, false),
    ] {
        let client = client_config(ServerTrust::Named(known.roots()), own).unwrap();
        assert_eq!(agree(client, server()).await, agreed);
    }
}

#[test]
fn a_certificate_that_does_not_fit_its_key_names_its_file() {
    let (one, other) = (Authority::new(), Authority::new());
    drop((one.certificate("a"), other.certificate("b")));
    let mixed = OwnCertificate::read(&one.file("own.pem"), &other.file("own.key")).unwrap();
    let error = client_config(ServerTrust::Anybody, Some(mixed)).unwrap_err();
    assert!(error.to_string().contains("own.pem cannot be used with its key"), "{error}");
    assert!(usable_roots(Vec::new()).is_none());
}
