//! Fetches the disk of an allocation from another node, over HTTP.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{CONNECTION, HOST, HeaderValue, USER_AGENT};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use ostler_api::routes::endpoints::ReadAllocSnapshot;
use ostler_cluster::client::DiskDoor;
use ostler_cluster::dial::{self, Socket};
use ostler_cluster::previous::{DiskSource, no_disk_of_status};
use ostler_cluster::tls_nodes::NodeTls;
use ostler_model::causes;
use ostler_model::clock;
use ostler_model::limits::{
    CLUSTER_STEP_WALL_DEFAULT, DISK_ANSWER_HEAD_BYTES_MAX, DISK_FETCH_SILENCE_MAX,
    DISK_SERVED_HEADERS_MAX, MOVED_REASON_BYTES_MAX,
};
use ostler_model::other_nodes::{DiskPieces, NoDisk};
use ostler_model::ports::BoxFuture;
use tokio::task::JoinSet;
use tokio_rustls::rustls;

/// The header with the token that allows to fetch a disk.
pub(crate) const TOKEN: &str = "x-nomad-token";

/// Fetches disks over HTTP; see the module.
pub(crate) struct HttpDisks {
    pub(crate) tls: Option<Arc<NodeTls>>,
}

impl DiskDoor for HttpDisks {
    fn fetch<'a>(
        &'a self,
        from: &'a DiskSource,
    ) -> BoxFuture<'a, Result<Box<dyn DiskPieces>, NoDisk>> {
        Box::pin(self.ask(from))
    }
}

impl HttpDisks {
    async fn ask(&self, from: &DiskSource) -> Result<Box<dyn DiskPieces>, NoDisk> {
        let request = request(from)?;
        let socket = self.connect(from).await?;
        let http = |error: hyper::Error| NoDisk::Now(causes::chain(&error));
        let mut builder = http1::Builder::new();
        builder.max_buf_size(DISK_ANSWER_HEAD_BYTES_MAX).max_headers(DISK_SERVED_HEADERS_MAX);
        let (mut sender, connection) =
            builder.handshake(TokioIo::new(socket)).await.map_err(http)?;
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            // An error shows in the answer too.
            let _ended = connection.await;
        });
        let answer = clock::timeout(DISK_FETCH_SILENCE_MAX, sender.send_request(request)).await;
        let silent = || NoDisk::Now(format!("node {} does not answer", from.node));
        let answer = answer.ok_or_else(silent)?.map_err(http)?;
        let status = answer.status();
        let mut pieces = HttpPieces { answer, _driver: driver };
        if status == StatusCode::OK {
            return Ok(Box::new(pieces));
        }
        let said = pieces.reason().await;
        Err(no_disk_of_status(status.as_u16(), &said))
    }

    async fn connect(&self, from: &DiskSource) -> Result<Box<dyn Socket>, NoDisk> {
        let wall = CLUSTER_STEP_WALL_DEFAULT;
        let unreached = |error: dial::DialError| NoDisk::Now(causes::chain(&error));
        let tls = match (&self.tls, from.tls) {
            (_, false) => None,
            (Some(tls), true) => Some(tls),
            (None, true) => {
                let why = format!("node {} speaks TLS, and this one has no tls block", from.node);
                return Err(NoDisk::Ever(why));
            }
        };
        let addresses = dial::resolve(&from.address, wall).await.map_err(unreached)?;
        let stream = dial::connect(&addresses, wall).await.map_err(unreached)?;
        let Some(tls) = tls else { return Ok(Box::new(stream)) };
        let agreed = clock::timeout(wall, tls.connector.connect(tls.name.clone(), stream)).await;
        let late = || {
            NoDisk::Now(format!("node {} did not complete the TLS handshake in time", from.node))
        };
        match agreed.ok_or_else(late)? {
            Ok(stream) => Ok(Box::new(stream)),
            Err(error) => Err(tls_failure(&error)),
        }
    }
}

/// The error of a failed TLS handshake. It is final if a certificate is wrong, because it will be
/// wrong the next time too.
fn tls_failure(error: &io::Error) -> NoDisk {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    let text = format!("the TLS handshake failed: {error}");
    match cause {
        Some(rustls::Error::InvalidCertificate(_) | rustls::Error::AlertReceived(_)) => {
            NoDisk::Ever(text)
        }
        _ => NoDisk::Now(text),
    }
}

fn request(from: &DiskSource) -> Result<Request<Empty<Bytes>>, NoDisk> {
    let cannot = |_| NoDisk::Ever("its token or address cannot be part of a request".to_owned());
    let mut token = HeaderValue::from_str(&from.token).map_err(|_| cannot(()))?;
    token.set_sensitive(true);
    Request::get(ReadAllocSnapshot::request([&from.alloc]).target())
        .header(HOST, from.address.to_string())
        .header(USER_AGENT, concat!("ostler/", env!("CARGO_PKG_VERSION")))
        .header(CONNECTION, "close")
        .header(TOKEN, token)
        .body(Empty::new())
        .map_err(|_| cannot(()))
}

struct HttpPieces {
    answer: Response<Incoming>,
    /// Drives the connection, which ends when this is dropped.
    _driver: JoinSet<()>,
}

impl HttpPieces {
    async fn piece(&mut self) -> Result<Option<Bytes>, String> {
        loop {
            let frame =
                clock::timeout(DISK_FETCH_SILENCE_MAX, self.answer.body_mut().frame()).await;
            let silent = || {
                format!("the other node sent nothing for {} s", DISK_FETCH_SILENCE_MAX.as_secs())
            };
            match frame.ok_or_else(silent)? {
                None => return Ok(None),
                Some(Err(error)) => return Err(causes::chain(&error)),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) if data.is_empty() => {}
                    Ok(data) => return Ok(Some(data)),
                    // These are trailers.
                    Err(_) => {}
                },
            }
        }
    }

    /// The beginning of what the other node sends instead of a disk.
    async fn reason(&mut self) -> String {
        let mut said = Vec::new();
        while said.len() < MOVED_REASON_BYTES_MAX {
            let Ok(Some(piece)) = self.piece().await else { break };
            said.extend_from_slice(&piece);
        }
        said.truncate(2 * MOVED_REASON_BYTES_MAX);
        String::from_utf8_lossy(&said).into_owned()
    }
}

impl DiskPieces for HttpPieces {
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Vec<u8>>, String>> {
        Box::pin(async move { Ok(self.piece().await?.map(Vec::from)) })
    }
}
