//! What both ends of a WebSocket use: the answer to a key, and the bounds of frames.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ostler_model::limits::EXEC_FRAME_BYTES_MAX;
use sha1::{Digest as _, Sha1};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;

/// The one version of the protocol.
pub(crate) const VERSION: &str = "13";
/// The text that a server appends to a client's key (RFC 6455, 1.3).
const ADDED: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// The number of bytes that are read at once.
const READ_BYTES: usize = 16 * 1024;

/// The answer to a client's key.
pub(crate) fn accept_key(key: &[u8]) -> String {
    STANDARD.encode(Sha1::new().chain_update(key).chain_update(ADDED).finalize())
}

/// The bounds of frames and buffers. Nothing is held back: a frame is written at once.
pub(crate) fn config() -> WebSocketConfig {
    WebSocketConfig::default()
        .read_buffer_size(READ_BYTES)
        .write_buffer_size(0)
        .max_write_buffer_size(2 * EXEC_FRAME_BYTES_MAX)
        .max_message_size(Some(EXEC_FRAME_BYTES_MAX))
        .max_frame_size(Some(EXEC_FRAME_BYTES_MAX))
}
