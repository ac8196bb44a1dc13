//! Sends one request to one host: connect, TLS if it is used, head, body. Redirects are not
//! followed here.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Body as _, Incoming};
use hyper::header::{ACCEPT, AUTHORIZATION, HOST, USER_AGENT};
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

use super::client::{ClientOptions, Timeouts};
use super::error::RegistryError;
use ostler_model::clock;
use ostler_model::limits::{REGISTRY_HEAD_BYTES_MAX, REGISTRY_HEADERS_MAX};

/// The scheme of an address: encrypted or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheme {
    Http,
    Https,
}

/// The address of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RegistryAddress {
    scheme: Scheme,
    /// The host, and the port if it is not the default of the scheme.
    authority: String,
    path: String,
}

impl RegistryAddress {
    /// The address of something at a registry. `path` begins with a slash.
    pub(super) fn for_registry(registry: &str, path: &str, plain: bool) -> Self {
        let scheme = if plain { Scheme::Http } else { Scheme::Https };
        Self { scheme, authority: registry.to_owned(), path: path.to_owned() }
    }

    /// The address in a text that `from` sent: absolute, or from the root of the same host.
    pub(super) fn from_redirect(from: &Self, text: &str) -> Result<Self, RegistryError> {
        let wrong = |reason| RegistryError::Address { host: from.authority.clone(), reason };
        if text.starts_with('/') && !text.starts_with("//") {
            let path = text.parse::<Uri>().map_err(|_| wrong("it is not an address"))?.to_string();
            return Ok(Self { path, ..from.clone() });
        }
        let uri: Uri = text.parse().map_err(|_| wrong("it is not an address"))?;
        let scheme = match uri.scheme_str() {
            Some("https") => Scheme::Https,
            Some("http") => Scheme::Http,
            _ => return Err(wrong("it is neither http nor https")),
        };
        let authority = uri.authority().ok_or_else(|| wrong("it has no host"))?.as_str();
        if authority.contains('@') {
            return Err(wrong("it has a user name"));
        }
        let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        Ok(Self { scheme, authority: authority.to_ascii_lowercase(), path })
    }

    /// The host and the port, as they stand in credentials and messages.
    pub(super) fn host(&self) -> &str {
        &self.authority
    }

    /// The same address with a query at its end.
    pub(super) fn with_query(mut self, query: &str) -> Self {
        let joint = if self.path.contains('?') { '&' } else { '?' };
        self.path = format!("{}{joint}{query}", self.path);
        self
    }

    /// Whether `next`, to which this address redirects, is as safe: never from encrypted to plain.
    pub(super) fn can_redirect_to(&self, next: &Self) -> bool {
        self.scheme == Scheme::Http || next.scheme == Scheme::Https
    }

    /// Whether the other address has the same host and scheme, so that what was meant for one may
    /// go to the other.
    pub(super) fn is_same_place(&self, other: &Self) -> bool {
        self.scheme == other.scheme && self.authority == other.authority
    }

    fn name_and_port(&self) -> (&str, u16) {
        let own = if self.scheme == Scheme::Https { 443 } else { 80 };
        let (name, port) = match self.authority.rsplit_once(':') {
            Some((name, port)) if !port.contains(']') => (name, port.parse().unwrap_or(own)),
            _ => (self.authority.as_str(), own),
        };
        (name.trim_start_matches('[').trim_end_matches(']'), port)
    }

    fn is_this_machine(&self) -> bool {
        is_this_machine(self.name_and_port().0)
    }
}

/// Whether plain HTTP with a host reaches only this machine. `registry` is host and port.
pub(super) fn is_local(registry: &str) -> bool {
    RegistryAddress::for_registry(registry, "/", true).is_this_machine()
}

fn is_this_machine(name: &str) -> bool {
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// An answer whose body has not arrived yet.
pub(super) struct RegistryAnswer {
    pub(super) response: Response<Incoming>,
    host: String,
    timeouts: Timeouts,
    /// Drives the connection, which ends when this is dropped.
    _connection: JoinSet<()>,
}

impl RegistryAnswer {
    /// The next piece of the body; `None` at its end.
    pub(super) async fn chunk(&mut self) -> Result<Option<Bytes>, RegistryError> {
        let limit = self.timeouts.silence;
        loop {
            let frame = clock::timeout(limit, self.response.body_mut().frame()).await;
            let frame = frame.ok_or_else(|| RegistryError::TimedOut {
                host: self.host.clone(),
                what: "send more of its answer",
                limit,
            })?;
            match frame {
                None => return Ok(None),
                Some(Err(source)) => {
                    return Err(RegistryError::Http { host: self.host.clone(), source });
                }
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) if data.is_empty() => {}
                    Ok(data) => return Ok(Some(data)),
                    // Trailers are ignored.
                    Err(_) => {}
                },
            }
        }
    }

    /// The whole body, of at most `max` bytes. `what` is for the message.
    pub(super) async fn body(&mut self, max: u64, what: &str) -> Result<Vec<u8>, RegistryError> {
        let too_large = |host: &str| RegistryError::TooLarge {
            host: host.to_owned(),
            what: what.to_owned(),
            max,
        };
        if self.response.body().size_hint().lower() > max {
            return Err(too_large(&self.host));
        }
        let mut body = Vec::new();
        while let Some(chunk) = self.chunk().await? {
            if (body.len() as u64).saturating_add(chunk.len() as u64) > max {
                return Err(too_large(&self.host));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }

    /// The value of a header as text.
    pub(super) fn header(&self, name: hyper::header::HeaderName) -> Option<&str> {
        self.response.headers().get(name)?.to_str().ok()
    }
}

/// Sends requests to registries.
pub(super) struct Transport {
    options: ClientOptions,
    tls: OnceLock<TlsConnector>,
}

trait RegistryStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> RegistryStream for T {}

impl Transport {
    pub(super) const fn new(options: ClientOptions) -> Self {
        Self { options, tls: OnceLock::new() }
    }

    /// Send a GET request to `to`.
    pub(super) async fn get(
        &self,
        to: &RegistryAddress,
        accept: Option<&'static str>,
        authorization: Option<&str>,
    ) -> Result<RegistryAnswer, RegistryError> {
        let host = to.authority.clone();
        let timeouts = self.options.timeouts;
        let stream = self.connect(to).await?;
        let http = |source| RegistryError::Http { host: host.clone(), source };
        let late =
            |what, limit: Duration| RegistryError::TimedOut { host: host.clone(), what, limit };
        let mut builder = hyper::client::conn::http1::Builder::new();
        builder.max_buf_size(REGISTRY_HEAD_BYTES_MAX).max_headers(REGISTRY_HEADERS_MAX);
        let shaken = builder.handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = shaken.map_err(http)?;
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            let _ = connection.await;
        });
        let mut request = Request::get(&to.path)
            .header(HOST, &to.authority)
            .header(USER_AGENT, concat!("ostler/", env!("CARGO_PKG_VERSION")));
        if let Some(accept) = accept {
            request = request.header(ACCEPT, accept);
        }
        if let Some(authorization) = authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let reason = "it cannot be part of a request";
        let request = request
            .body(Empty::<Bytes>::new())
            .map_err(|_| RegistryError::Address { host: host.clone(), reason })?;
        let response = clock::timeout(timeouts.head, sender.send_request(request)).await;
        let response = response.ok_or_else(|| late("answer", timeouts.head))?.map_err(http)?;
        Ok(RegistryAnswer { response, host, timeouts, _connection: driver })
    }

    async fn connect(
        &self,
        to: &RegistryAddress,
    ) -> Result<Box<dyn RegistryStream>, RegistryError> {
        let (name, port) = to.name_and_port();
        let host = || to.authority.clone();
        let plain = to.scheme == Scheme::Http;
        if plain && !to.is_this_machine() && !self.options.insecure.contains(&to.authority) {
            return Err(RegistryError::Plain { host: host() });
        }
        let limit = self.options.timeouts.connect;
        let late = |what| RegistryError::TimedOut { host: host(), what, limit };
        let stream = clock::timeout(limit, TcpStream::connect((name, port))).await;
        let stream = stream
            .ok_or_else(|| late("accept a connection"))?
            .map_err(|source| RegistryError::Connect { host: host(), source })?;
        if plain {
            return Ok(Box::new(stream));
        }
        let server = ServerName::try_from(name.to_owned()).map_err(|_| RegistryError::Address {
            host: host(),
            reason: "it is not a host name",
        })?;
        let tls = self.tls().await?;
        let stream = clock::timeout(limit, tls.connect(server, stream)).await;
        let stream = stream
            .ok_or_else(|| late("agree on TLS"))?
            .map_err(|source| RegistryError::Tls { host: host(), source })?;
        Ok(Box::new(stream))
    }

    /// The TLS connector. It is made when it is first needed, because reading the machine's
    /// authorities takes milliseconds.
    async fn tls(&self) -> Result<TlsConnector, RegistryError> {
        if let Some(tls) = self.tls.get() {
            return Ok(tls.clone());
        }
        let own = self.options.authorities.clone();
        let made = tokio::task::spawn_blocking(move || connector(own)).await;
        let tls = made.ok().flatten().ok_or(RegistryError::NoRoots)?;
        Ok(self.tls.get_or_init(|| tls).clone())
    }
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

/// A TLS connector that trusts the machine's authorities; `None` if the machine has none. Blocking,
/// because it takes milliseconds.
#[must_use]
pub fn machine_tls() -> Option<TlsConnector> {
    connector(None)
}

fn connector(own: Option<Vec<CertificateDer<'static>>>) -> Option<TlsConnector> {
    let authorities = own.unwrap_or_else(machine_authorities);
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(authorities);
    if added == 0 {
        return None;
    }
    let config = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .ok()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Some(TlsConnector::from(Arc::new(config)))
}

impl std::fmt::Debug for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transport").field("options", &self.options).finish_non_exhaustive()
    }
}
