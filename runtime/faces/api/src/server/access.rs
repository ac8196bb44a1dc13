//! What the sender of a request may do, and whose share of places it uses.

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};

use axum::extract::Request;

use super::error::RequestFailure;
use ostler_access::Bearer;
use ostler_model::access::{AccessLevel, Rights, TokenId};

/// The caller whose share a place counts against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RequestCaller {
    /// The agent's user, over the socket.
    Operator,
    /// The bearer of this token.
    Token(TokenId),
    /// Programs that send no token over TCP.
    Near,
}

impl RequestCaller {
    /// The caller that sent a request that was let in.
    pub(super) fn from_request(request: &Request) -> Self {
        request.extensions().get::<Access>().map_or(Self::Near, Access::caller)
    }
}

/// Where a connection comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    /// Over the agent's socket.
    Socket,
    /// Over TCP, from this address.
    Tcp(SocketAddr),
}

/// What the sender of a request may do.
#[derive(Clone, Debug)]
pub(super) struct Access {
    rights: Arc<Rights>,
    bearer: Option<Arc<Bearer>>,
    /// Whether the request came over the agent's socket.
    pub socket: bool,
}

static ALL: LazyLock<Arc<Rights>> = LazyLock::new(|| Arc::new(Rights::all()));
static NONE: LazyLock<Arc<Rights>> = LazyLock::new(Arc::default);

impl Default for Access {
    /// An access that allows nothing.
    fn default() -> Self {
        Self { rights: Arc::clone(&NONE), bearer: None, socket: false }
    }
}

impl Access {
    /// An access that allows everything.
    pub(super) fn all() -> Self {
        Self { rights: Arc::clone(&ALL), bearer: None, socket: false }
    }

    /// What the bearer of a token may do.
    pub(super) fn from_bearer(bearer: Bearer) -> Self {
        let rights = Arc::new(bearer.rights.clone());
        Self { rights, bearer: Some(Arc::new(bearer)), socket: false }
    }

    /// The same access, for a request that came over the agent's socket or not.
    pub(super) fn with_socket(self, socket: bool) -> Self {
        Self { socket, ..self }
    }

    /// Whether this level is allowed in a namespace.
    pub(super) fn allow(&self, level: AccessLevel, namespace: &str) -> bool {
        self.is_valid() && self.rights.allow(level, namespace)
    }

    /// Whether this level is allowed everywhere, the node included.
    pub(super) fn allow_everywhere(&self, level: AccessLevel) -> bool {
        self.is_valid() && self.rights.allow_everywhere(level)
    }

    /// Whether this level is allowed in at least one namespace.
    pub(super) fn allow_somewhere(&self, level: AccessLevel) -> bool {
        self.is_valid() && self.rights.allow_somewhere(level)
    }

    /// Whether the token still counts; it may have ended since the request began.
    fn is_valid(&self) -> bool {
        self.bearer.as_ref().is_none_or(|bearer| !bearer.is_ended())
    }

    /// Require that this level is allowed in a namespace.
    pub(super) fn require(
        &self,
        level: AccessLevel,
        namespace: &str,
    ) -> Result<(), RequestFailure> {
        if self.allow(level, namespace) {
            Ok(())
        } else {
            Err(self.refusal(level, &format!("in namespace {}", cut_name(namespace))))
        }
    }

    /// The caller whose share of streams and waiting queries the request counts against.
    pub(super) fn caller(&self) -> RequestCaller {
        match &self.bearer {
            Some(bearer) => RequestCaller::Token(bearer.token.accessor),
            None if self.socket => RequestCaller::Operator,
            None => RequestCaller::Near,
        }
    }

    /// The bearer of the token that was sent, if one was.
    pub(super) fn bearer(&self) -> Option<&Arc<Bearer>> {
        self.bearer.as_ref()
    }

    /// The error about a sender who lacks this level in a place.
    pub(super) fn refusal(&self, level: AccessLevel, place: &str) -> RequestFailure {
        match &self.bearer {
            None => RequestFailure::NeedsToken,
            Some(bearer) => RequestFailure::Forbidden {
                token: if bearer.token.name.is_empty() {
                    bearer.token.accessor.to_string()
                } else {
                    bearer.token.name.clone()
                },
                level,
                place: place.to_owned(),
            },
        }
    }
}

fn cut_name(name: &str) -> String {
    name.chars().take(64).collect()
}
