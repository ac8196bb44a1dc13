//! Sends one request to a collector: connect, TLS if it is used, head, body. The caller limits
//! the time.

use std::fmt;
use std::sync::{Mutex, OnceLock, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{HOST, HeaderValue};
use hyper::{Request, Response, Uri};
use opentelemetry_http::{HttpClient, HttpError};
use ostler_net::{HttpAnswer, HttpBounds, Stream};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use ostler_model::limits::TRACE_ANSWER_BYTES_MAX;

/// Sends requests, each over its own connection: there are two a second at most.
#[derive(Default)]
pub(super) struct CollectorClient {
    tls: OnceLock<Option<TlsConnector>>,
    /// Why the last request was not answered. The exporter only learns that it was not.
    trouble: Mutex<Option<String>>,
}

impl fmt::Debug for CollectorClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CollectorClient")
    }
}

impl CollectorClient {
    /// Take the reason why the last request was not answered.
    pub(super) fn take_trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    async fn connect(&self, uri: &Uri) -> Result<Box<dyn Stream>, HttpError> {
        let encrypted = uri.scheme_str() == Some("https");
        let host = uri.host().ok_or("its address has no host")?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let port = uri.port_u16().unwrap_or(if encrypted { 443 } else { 80 });
        let stream = TcpStream::connect((host, port)).await?;
        if !encrypted {
            return Ok(Box::new(stream));
        }
        // This runs on the sending thread, which nobody waits for.
        let tls = self.tls.get_or_init(ostler_net::machine_connector).as_ref();
        let tls = tls.ok_or("this machine has no certificate authorities")?;
        let name = ServerName::try_from(host.to_owned())?;
        let connected = tls.connect(name, stream).await;
        let stream = connected.map_err(|error| {
            format!(
                "TLS failed with {host}: {error}; its certificate must be signed by an authority of this \
                 machine, or by one in the file that SSL_CERT_FILE names"
            )
        })?;
        Ok(Box::new(stream))
    }

    async fn ask(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (mut head, body) = request.into_parts();
        let stream = self.connect(&head.uri).await?;
        let authority = head.uri.authority().map_or("", |authority| authority.as_str());
        head.headers.insert(HOST, HeaderValue::from_str(authority)?);
        head.uri = head.uri.path_and_query().map_or("/", |path| path.as_str()).parse()?;
        let request = Request::from_parts(head, Full::new(body));
        let mut answer = HttpAnswer::ask(stream, request, HttpBounds::default()).await?;
        let body = answer.read_body(TRACE_ANSWER_BYTES_MAX as u64).await?;
        let mut response = Response::new(Bytes::from(body));
        *response.status_mut() = answer.status();
        *response.headers_mut() = answer.headers().clone();
        Ok(response)
    }
}

#[async_trait]
impl HttpClient for CollectorClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let answer = self.ask(request).await;
        let trouble = answer.as_ref().err().map(ToString::to_string);
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
        answer
    }
}
