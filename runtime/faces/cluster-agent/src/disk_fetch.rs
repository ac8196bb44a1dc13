//! Fetches the disk of an allocation from another node, over HTTP.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONNECTION, HOST, HeaderValue, USER_AGENT};
use hyper::{Request, StatusCode};
use ostler_api::routes::endpoints::ReadAllocSnapshot;
use ostler_cluster::client::DiskDoor;
use ostler_cluster::dial;
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
use ostler_net::{ExchangeError, HttpAnswer, HttpBounds, Stream};
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
        let bounds = HttpBounds {
            head_bytes: Some(DISK_ANSWER_HEAD_BYTES_MAX),
            headers: Some(DISK_SERVED_HEADERS_MAX),
            head_wait: Some(DISK_FETCH_SILENCE_MAX),
            silence: Some(DISK_FETCH_SILENCE_MAX),
        };
        let answer = HttpAnswer::ask(socket, request, bounds).await.map_err(|error| {
            NoDisk::Now(match error {
                ExchangeError::TimedOut { .. } => format!("node {} does not answer", from.node),
                error => causes::chain(&error),
            })
        })?;
        let status = answer.status();
        let mut pieces = HttpPieces { answer };
        if status == StatusCode::OK {
            return Ok(Box::new(pieces));
        }
        let said = pieces.reason().await;
        Err(no_disk_of_status(status.as_u16(), &said))
    }

    async fn connect(&self, from: &DiskSource) -> Result<Box<dyn Stream>, NoDisk> {
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

fn request(from: &DiskSource) -> Result<Request<Full<Bytes>>, NoDisk> {
    let cannot = |_| NoDisk::Ever("its token or address cannot be part of a request".to_owned());
    let mut token = HeaderValue::from_str(&from.token).map_err(|_| cannot(()))?;
    token.set_sensitive(true);
    Request::get(ReadAllocSnapshot::request([&from.alloc]).target())
        .header(HOST, from.address.to_string())
        .header(USER_AGENT, ostler_net::USER_AGENT)
        .header(CONNECTION, "close")
        .header(TOKEN, token)
        .body(Full::default())
        .map_err(|_| cannot(()))
}

struct HttpPieces {
    answer: HttpAnswer,
}

impl HttpPieces {
    async fn piece(&mut self) -> Result<Option<Bytes>, String> {
        self.answer.next_piece().await.map_err(|error| match error {
            ExchangeError::TimedOut { limit, .. } => {
                format!("the other node sent nothing for {} s", limit.as_secs())
            }
            error => causes::chain(&error),
        })
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
