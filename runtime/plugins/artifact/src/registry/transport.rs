//! Sends one request to one host: connect, TLS if it is used, head, body. Redirects are not
//! followed here.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{ACCEPT, AUTHORIZATION, HOST, HeaderMap, USER_AGENT};
use hyper::{Request, StatusCode, Uri};
use ostler_net::{HttpAnswer, HttpBounds, ServerTrust, Stream};
use tokio_rustls::TlsConnector;

use super::client::ClientOptions;
use super::error::RegistryError;
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
    answer: HttpAnswer,
    host: String,
}

impl RegistryAnswer {
    pub(super) fn status(&self) -> StatusCode {
        self.answer.status()
    }

    pub(super) fn headers(&self) -> &HeaderMap {
        self.answer.headers()
    }

    /// The next piece of the body; `None` at its end.
    pub(super) async fn chunk(&mut self) -> Result<Option<Bytes>, RegistryError> {
        let piece = self.answer.next_piece().await;
        piece.map_err(|error| RegistryError::from_exchange(&self.host, "its answer", error))
    }

    /// The whole body, of at most `max` bytes. `what` is for the message.
    pub(super) async fn body(&mut self, max: u64, what: &str) -> Result<Vec<u8>, RegistryError> {
        let body = self.answer.read_body(max).await;
        body.map_err(|error| RegistryError::from_exchange(&self.host, what, error))
    }

    /// The value of a header as text.
    pub(super) fn header(&self, name: hyper::header::HeaderName) -> Option<&str> {
        self.headers().get(name)?.to_str().ok()
    }
}

/// Sends requests to registries.
pub(super) struct Transport {
    options: ClientOptions,
    tls: OnceLock<TlsConnector>,
}

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
        let host = &to.authority;
        let timeouts = self.options.timeouts;
        let stream = self.connect(to).await?;
        let mut request =
            Request::get(&to.path).header(HOST, host).header(USER_AGENT, ostler_net::USER_AGENT);
        if let Some(accept) = accept {
            request = request.header(ACCEPT, accept);
        }
        if let Some(authorization) = authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let reason = "it cannot be part of a request";
        let request = request
            .body(Full::default())
            .map_err(|_| RegistryError::Address { host: host.clone(), reason })?;
        let bounds = HttpBounds {
            head_bytes: Some(REGISTRY_HEAD_BYTES_MAX),
            headers: Some(REGISTRY_HEADERS_MAX),
            head_wait: Some(timeouts.head),
            silence: Some(timeouts.silence),
        };
        let answer = HttpAnswer::ask(stream, request, bounds).await;
        let answer =
            answer.map_err(|error| RegistryError::from_exchange(host, "an answer", error))?;
        Ok(RegistryAnswer { answer, host: host.clone() })
    }

    async fn connect(&self, to: &RegistryAddress) -> Result<Box<dyn Stream>, RegistryError> {
        let (name, port) = to.name_and_port();
        let host = &to.authority;
        let plain = to.scheme == Scheme::Http;
        if plain && !to.is_this_machine() && !self.options.insecure.contains(host) {
            return Err(RegistryError::Plain { host: host.clone() });
        }
        let limit = self.options.timeouts.connect;
        let failed = |error| RegistryError::from_exchange(host, "a connection", error);
        let stream = ostler_net::connect(name, port, limit).await.map_err(failed)?;
        if plain {
            return Ok(Box::new(stream));
        }
        ostler_net::secure(&self.tls().await?, name, stream, limit).await.map_err(failed)
    }

    /// The TLS connector. It is made when it is first needed, because reading the machine's
    /// authorities takes milliseconds.
    async fn tls(&self) -> Result<TlsConnector, RegistryError> {
        if let Some(tls) = self.tls.get() {
            return Ok(tls.clone());
        }
        let own = self.options.authorities.clone();
        let made = tokio::task::spawn_blocking(move || {
            let own = own.unwrap_or_else(ostler_net::machine_authorities);
            let roots = ostler_net::usable_roots(own)?;
            ostler_net::client_config(ServerTrust::Named(roots), None).ok()
        });
        let config = made.await.ok().flatten().ok_or(RegistryError::NoRoots)?;
        Ok(self.tls.get_or_init(|| TlsConnector::from(Arc::new(config))).clone())
    }
}

impl std::fmt::Debug for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transport").field("options", &self.options).finish_non_exhaustive()
    }
}
