//! The frames of a command inside a task. Each frame is one text message of a WebSocket.
//!
//! ```text
//! client ── ExecInput: stdin, tty_size, nothing (a sign of life) ──► agent
//!        ◄─ ExecOutput: stdout, stderr, at the end exited and result ──
//! ```

use serde::{Deserialize, Serialize};

use crate::{Text, or_empty};

/// Nomad's `ExecStreamingInput`: a frame from the client. At most one field is set; a frame without
/// one is a sign of life.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExecInput<'a> {
    /// Bytes of the command's standard input, or its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdin: Option<ExecBytes<'a>>,
    /// The new size of the terminal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tty_size: Option<ExecSize>,
}

/// Nomad's `ExecStreamingOutput`: a frame from the command. At most one of the streams is set, or
/// `exited` with `result`; a frame without any is a sign of life.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExecOutput<'a> {
    /// Bytes of standard output, or its end. With a terminal these are all bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdout: Option<ExecBytes<'a>>,
    /// Bytes of standard error, or its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stderr: Option<ExecBytes<'a>>,
    /// Whether the command has ended. No frame follows this one.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub exited: bool,
    /// The exit code of the command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<ExecResult>,
}

/// Nomad's `ExecStreamingIOOperation`: bytes of a stream, or its end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExecBytes<'a> {
    /// The bytes, in Base64.
    #[serde(deserialize_with = "or_empty", skip_serializing_if = "str::is_empty")]
    pub data: Text<'a>,
    /// Whether the stream ends here.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub close: bool,
}

/// Nomad's `TerminalSize`, characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExecSize {
    /// The number of lines.
    pub height: i64,
    /// The number of characters in a line.
    pub width: i64,
}

/// Nomad's `ExecStreamingExitResult`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExecResult {
    /// The exit code; 128 plus the number of the signal if a signal ended the command.
    pub exit_code: i32,
}

/// Nomad's `wsHandshakeMessage`: the first frame of a client that asks with `ws_handshake=true`.
// It has no `Debug`, because it contains a secret.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExecHandshake {
    /// The version of the handshake; there is only version 1.
    pub version: i64,
    /// The secret of a token, if the agent asks for tokens.
    #[serde(deserialize_with = "crate::or_empty")]
    pub auth_token: String,
}
