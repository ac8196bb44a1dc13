//! Makes TLS connections to a service: with the machine's authorities, or with any certificate if
//! the job says so.

use std::sync::{Arc, OnceLock};

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use super::{CheckTarget, ProbeError};
use ostler_model::service::CheckTls;
use ostler_net::{ServerTrust, Stream};

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
) -> Result<Box<dyn Stream>, ProbeError> {
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
    let trust =
        if any { ServerTrust::Anybody } else { ServerTrust::Named(ostler_net::machine_roots()?) };
    ostler_net::client_config(trust, None).ok().map(Arc::new)
}
