//! Turns a connection into a WebSocket (RFC 6455).
//!
//! ```text
//! request: Upgrade, key, version ─► 101 and the key's answer ─► the stream itself ─► frames, bounded
//! ```

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{
    CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE,
};
use axum::http::{HeaderName, StatusCode};
use axum::response::Response;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::connection::{ConnectionHold, TimedStream};
use super::error::RequestFailure;
use crate::websocket::{VERSION, accept_key, config};

/// The connection of a client after the upgrade.
pub(super) type ClientSocket = WebSocketStream<TimedStream>;

/// A WebSocket with its place among connections, which it keeps until it is dropped.
pub(super) struct UpgradedSocket {
    pub(super) socket: ClientSocket,
    pub(super) hold: Option<ConnectionHold>,
}

/// A connection that becomes a WebSocket once its client has read the answer's head.
pub(super) struct PendingUpgrade {
    upgrade: OnUpgrade,
    /// Keeps its place among connections.
    hold: Option<ConnectionHold>,
}

/// The answer to a request for a WebSocket, and the pending upgrade of its connection.
///
/// # Errors
/// When the request is not for a WebSocket.
pub(super) fn start_upgrade(
    mut request: Request,
) -> Result<(Response, PendingUpgrade), RequestFailure> {
    let headers = request.headers();
    let names = |name: HeaderName, wanted: &str| {
        let texts = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
        texts.flat_map(|text| text.split(',')).any(|text| text.trim().eq_ignore_ascii_case(wanted))
    };
    let is_upgrade = names(CONNECTION, "upgrade") && names(UPGRADE, "websocket");
    let key = headers.get(SEC_WEBSOCKET_KEY).map(|key| accept_key(key.as_bytes()));
    let Some(accept) = key.filter(|_| is_upgrade && names(SEC_WEBSOCKET_VERSION, VERSION)) else {
        return Err(RequestFailure::NotWebSocket);
    };
    // The extension is present on every connection that can be upgraded.
    let Some(upgrade) = request.extensions_mut().remove::<OnUpgrade>() else {
        return Err(RequestFailure::NotWebSocket);
    };
    let response = Response::builder()
        .status(StatusCode::SWITCHING_PROTOCOLS)
        .header(CONNECTION, "Upgrade")
        .header(UPGRADE, "websocket")
        .header(SEC_WEBSOCKET_ACCEPT, accept)
        .body(Body::empty());
    let response = response.map_err(|error| RequestFailure::Internal(error.to_string()))?;
    let hold = request.extensions_mut().remove::<ConnectionHold>();
    Ok((response, PendingUpgrade { upgrade, hold }))
}

impl PendingUpgrade {
    /// Wait for the WebSocket; none when its client is gone.
    pub(super) async fn socket(self) -> Option<UpgradedSocket> {
        let Self { upgrade, hold } = self;
        let upgraded = match upgrade.await {
            Ok(upgraded) => upgraded,
            Err(error) => {
                tracing::debug!(%error, "a client left before its connection was a WebSocket");
                return None;
            }
        };
        let Ok(parts) = upgraded.downcast::<TokioIo<TimedStream>>() else {
            tracing::error!("a connection of another kind than the API serves became a WebSocket");
            return None;
        };
        let mut stream = parts.io.into_inner();
        // A client may pause the output of a command for as long as it likes. The number of
        // sessions is bounded, and a client that is gone is noticed.
        stream.as_mut().set_timeout_pinned(None);
        let begun = parts.read_buf.to_vec();
        let config = Some(config());
        let socket = WebSocketStream::from_partially_read(stream, begun, Role::Server, config);
        Some(UpgradedSocket { socket: socket.await, hold })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    const GOOD: [(&str, &str); 5] = [
        ("host", "127.0.0.1:4646"),
        ("connection", "keep-alive, Upgrade"),
        ("upgrade", "WebSocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];

    fn asked(headers: &[(&str, &str)]) -> Result<(), String> {
        let mut request = Request::builder();
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut request = request.body(Body::empty()).unwrap();
        let upgrade = hyper::upgrade::on(Request::new(Body::empty()));
        request.extensions_mut().insert(upgrade);
        upgrade_of(request)
    }

    fn upgrade_of(request: Request) -> Result<(), String> {
        let (response, _) = start_upgrade(request).map_err(|failure| failure.to_string())?;
        assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
        // The example of RFC 6455.
        assert_eq!(response.headers()[SEC_WEBSOCKET_ACCEPT], "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        Ok(())
    }

    #[test]
    fn a_request_for_a_websocket_is_told_from_others() {
        assert_eq!(asked(&GOOD), Ok(()));
        for missing in 1..GOOD.len() {
            let mut headers = GOOD.to_vec();
            headers.remove(missing);
            assert!(asked(&headers).unwrap_err().contains("WebSocket"), "{headers:?}");
        }
    }
}
