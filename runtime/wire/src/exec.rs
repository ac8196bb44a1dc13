//! The frames of a command inside a task, each one text of a WebSocket.
//!
//! ```text
//! who asked ── ExecInput: stdin, tty_size, nothing (a sign of life) ──► agent
//!           ◄─ ExecOutput: stdout, stderr, at the end exited and result ──
//! ```

use serde::{Deserialize, Serialize};

use crate::{Text, or_empty};

/// `ExecStreamingInput`: what whoever asked says. At most one field is there; without one it is a sign of
/// life.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExecInput<'a> {
    /// Bytes of the command's input, or its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdin: Option<ExecBytes<'a>>,
    /// The terminal has another size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tty_size: Option<ExecSize>,
}

/// `ExecStreamingOutput`: what the command says. At most one of the streams is there, or `exited` with
/// `result`; without any it is a sign of life.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExecOutput<'a> {
    /// Bytes that it printed, or the end of them; of a terminal all of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdout: Option<ExecBytes<'a>>,
    /// Bytes that it printed as errors, or the end of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stderr: Option<ExecBytes<'a>>,
    /// It has ended. Nothing comes after this.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub exited: bool,
    /// How.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<ExecResult>,
}

/// `ExecStreamingIOOperation`: bytes of a stream, or its end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExecBytes<'a> {
    /// Bytes in Base64.
    #[serde(deserialize_with = "or_empty", skip_serializing_if = "str::is_empty")]
    pub data: Text<'a>,
    /// No more come.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub close: bool,
}

/// `TerminalSize`, characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExecSize {
    /// Lines.
    pub height: i64,
    /// Characters of a line.
    pub width: i64,
}

/// `ExecStreamingExitResult`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExecResult {
    /// 128 and the signal's number of a command that a signal ended.
    pub exit_code: i32,
}

/// `wsHandshakeMessage`: the first frame of who asks with `ws_handshake=true`.
// No `Debug`: it has a secret.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExecHandshake {
    /// There is version 1 alone.
    pub version: i64,
    /// The secret of a token, where the agent asks for tokens.
    #[serde(deserialize_with = "crate::or_empty")]
    pub auth_token: String,
}
