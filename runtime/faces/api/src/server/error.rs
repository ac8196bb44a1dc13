//! Why a request was not served: status codes and texts as Nomad's clients expect them.

use axum::http::StatusCode;
use axum::http::header::RETRY_AFTER;
use axum::response::{IntoResponse, Response};

use ostler_access::TokenError;
use ostler_agent::{
    AllocError, DeploymentError, EndRunError, NamespaceError, NodeAskError, SubmitError,
    UpgradeError, VariableError,
};
use ostler_lifecycle::task::RequestError;
use ostler_model::access::{AccessLevel, NotPolicy};
use ostler_model::causes;
use ostler_model::ids::{AllocId, JobId, TaskName, UnknownNamespace};
use ostler_model::limits::{API_BODY_BYTES_MAX, API_COMPUTING_WALL_MAX, EXEC_HANDSHAKES_MAX};
use ostler_model::vars::VarPathError;

/// Why a request was not served.
#[derive(Debug, thiserror::Error)]
pub(super) enum RequestFailure {
    /// A required key is missing from the query.
    #[error("{key} is missing from the query")]
    MissingParam {
        /// The key of the query.
        key: &'static str,
    },
    /// A value in the query cannot be read.
    #[error("{key}={value:?} in the query: it must be {wanted}")]
    BadParam {
        /// The key of the query.
        key: &'static str,
        /// The value that was given, cut to a readable length.
        value: String,
        /// What the value must be.
        wanted: &'static str,
    },
    /// The body is not what the endpoint takes.
    #[error("the request's body cannot be read: {0}")]
    BadBody(#[source] serde_json::Error),
    /// The body is longer than the bound.
    #[error("the request's body is larger than {API_BODY_BYTES_MAX} bytes")]
    BodyTooLarge,
    /// The body ended early.
    #[error("the request's body did not arrive: {0}")]
    BodyLost(String),
    /// The job has errors; the text lists all of them.
    #[error("{0}")]
    BadJob(String),
    /// The path and the body name different jobs.
    #[error("the body has job {body}, the path job {path}: they must be the same")]
    OtherJob {
        /// The id in the path.
        path: JobId,
        /// The id in the body.
        body: JobId,
    },
    /// There is no such object.
    #[error("{0} not found")]
    NotThere(&'static str),
    /// There is no such allocation. The endpoints of Nomad's client use this form.
    #[error("Unknown allocation \"{0}\"")]
    UnknownAlloc(AllocId),
    /// The text is neither an allocation id nor the beginning of one.
    #[error("{0:?} is not an allocation id: a UUID has 36 hex digits and dashes")]
    NotAllocId(String),
    /// No plugin in use has this name.
    #[error("no plugin in use is called {0:?}; `ostler plugin status` lists them")]
    NoPlugin(String),
    /// The allocation has no such task.
    #[error("unknown task name \"{0}\"")]
    UnknownTask(String),
    /// The request is for another region.
    #[error("this node is only in region global, not in {0:?}")]
    OtherRegion(String),
    /// The request is for a namespace that does not exist.
    #[error(transparent)]
    OtherNamespace(UnknownNamespace),
    /// No variable can have this path.
    #[error(transparent)]
    VarPath(#[from] VarPathError),
    /// The body is no variable. The message says nothing about its content.
    #[error(
        "the request's body is not a variable (line {line}, column {column}): expected JSON such as \
         {{\"Items\": {{\"name\": \"text\"}}}}"
    )]
    VarBody {
        /// The line of the mistake.
        line: usize,
        /// The column of the mistake.
        column: usize,
    },
    /// The request and the body name different variables.
    #[error("the body has the {what} {body:?}, the request {request:?}: they must be the same")]
    VarOther {
        /// What differs: the namespace or the path.
        what: &'static str,
        /// The value in the request.
        request: String,
        /// The value in the body.
        body: String,
    },
    /// The request uses Nomad's locks of variables.
    #[error(
        "{0}: this agent does not support locks on variables; use ?cas= with the variable's ModifyIndex"
    )]
    VarLock(String),
    /// A variable was not changed.
    #[error(transparent)]
    Variable(#[from] VariableError),
    /// The agent does not use tokens.
    #[error("ACL support disabled")]
    NoAcl,
    /// The request is for a feature of Nomad Enterprise.
    #[error("this agent has none of the features of Nomad Enterprise")]
    Enterprise,
    /// The request is for CSI volumes; volumes are directories of the node.
    #[error(
        "this agent runs no CSI plugin; a host_volume in its configuration is a volume of this node"
    )]
    NoCsi,
    /// There are no servers to join or to leave.
    #[error(
        "this agent has no servers beside it; set client {{ servers = [...] }} in its configuration to make it \
         a node of a cluster"
    )]
    Alone,
    /// Only the servers of a cluster can do this.
    #[error(
        "only the servers of a cluster do this; client {{ servers = [...] }} in the agent's configuration makes \
         it a node of one"
    )]
    OfClusters,
    /// The agent has no Go runtime to profile. A Nomad without debug mode answers in these words.
    #[error(
        "Permission denied: this agent has no profiles; use `ostler debug bundle` to gather what it knows \
         about itself"
    )]
    NoProfiles,
    /// Something in the body is not what it must be.
    #[error("{0}")]
    BadRequest(String),
    /// A namespace was not created, changed or removed.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// The node refuses the request.
    #[error(transparent)]
    Node(#[from] NodeAskError),
    /// The node that answers cannot be purged.
    #[error(
        "this node is the one that answers: it cannot be purged; end its agent and remove its data directory"
    )]
    OwnNode,
    /// There is no such path.
    #[error("not found")]
    NoPath,
    /// The path exists, but not for this method.
    #[error("Invalid method")]
    Method,
    /// The agent cannot take the job.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// The upgrade was not started.
    #[error(transparent)]
    Upgrade(#[from] UpgradeError),
    /// A run that is held back was not ended.
    #[error(transparent)]
    EndRun(#[from] EndRunError),
    /// The agent cannot do this with the allocation.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// A file of an allocation cannot be read.
    #[error("{path}: {source}")]
    File {
        /// The path of the file in the allocation's directory.
        path: String,
        /// The error of the kernel.
        #[source]
        source: std::io::Error,
    },
    /// Logs cannot be read.
    #[error("the logs of task {task} cannot be read: {why}")]
    Logs {
        /// The name of the task.
        task: TaskName,
        /// The error of the attempt to read them.
        why: String,
    },
    /// The agent is starting and does not answer for this yet.
    #[error("the agent (pid {pid}) is starting: {0}", pid = std::process::id())]
    Starting(String),
    /// The agent is ending and does not answer for this any more.
    #[error("the agent (pid {pid}) is shutting down", pid = std::process::id())]
    Leaving,
    /// All places are taken.
    #[error("too many {what} at once; end one and try again")]
    NoneFree {
        /// The kind of place.
        what: &'static str,
    },
    /// The caller has as many places as it may have while others find some too.
    #[error(
        "one token, or everyone without a token over TCP, may have at most {own} {what} at once, so that some \
         are left for others: end one and try again, or use the agent's socket, whose user has a share of its \
         own"
    )]
    TooManyOfOne {
        /// The kind of place.
        what: &'static str,
        /// The number of places that the caller has.
        own: usize,
    },
    /// Too many clients have not yet said who they are.
    #[error(
        "{EXEC_HANDSHAKES_MAX} clients have asked for commands inside tasks without identifying themselves \
         yet; send the \
         token with the request, or try again in a moment"
    )]
    TooManyUnknown,
    /// The request must be for a WebSocket, which carries frames both ways.
    #[error(
        "a command inside a task is run over a WebSocket: ask with Connection: Upgrade, Upgrade: websocket, \
         Sec-WebSocket-Version: 13 and a Sec-WebSocket-Key, or use `ostler alloc exec`"
    )]
    NotWebSocket,
    /// The request comes from a page of another site in a browser.
    #[error(
        "a page from another origin may not use this agent: Origin and Host differ; a proxy in front of the \
         agent must pass on the Host header"
    )]
    OtherOrigin,
    /// The request addresses the agent by a name that may belong to another site.
    #[error(
        "this agent does not serve requests for the host name {0:?}: use its address, or add the name to \
         http_hosts in the \
         agent's configuration"
    )]
    OtherHost(String),
    /// No token was sent.
    #[error(
        "Permission denied: send a token (NOMAD_TOKEN, OSTLER_TOKEN, or the X-Nomad-Token header)"
    )]
    NeedsToken,
    /// The token does not exist, or does not exist any more.
    #[error("ACL token not found")]
    UnknownToken,
    /// The token does not allow the request.
    #[error("Permission denied: the token {token:?} does not allow {level} {place}")]
    Forbidden {
        /// The name or the public id of the token.
        token: String,
        /// The level that the request needs.
        level: AccessLevel,
        /// The place in which it needs the level.
        place: String,
    },
    /// The first token can only be created over the agent's socket, which only its user can open.
    #[error(
        "the first token can only be made on the machine itself, over the agent's socket: run `ostler token \
         bootstrap`"
    )]
    SocketOnly,
    /// A token was not created, changed or removed.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// A text is no policy.
    #[error(transparent)]
    Policy(#[from] NotPolicy),
    /// Policies cannot be written; they have fixed names.
    #[error(
        "policies cannot be defined here: they are read, submit, operate and admin, of which the first three \
         can be limited to one namespace, as in submit@web"
    )]
    FixedPolicies,
    /// Some of the objects could not be removed.
    #[error("{0}")]
    Stay(String),
    /// The request took longer than it may.
    #[error("the request did not finish in time; what it began may still continue")]
    TooSlow,
    /// The computation for the request took too long.
    #[error(
        "the answer was not computed within {} s; ask for less, or try again when the node is less busy",
        API_COMPUTING_WALL_MAX.as_secs()
    )]
    TooMuch,
    /// Something failed inside the agent.
    #[error("internal error: {0}")]
    Internal(String),
}

impl RequestFailure {
    pub(super) fn bad_param(key: &'static str, value: &str, wanted: &'static str) -> Self {
        Self::BadParam { key, value: value.chars().take(64).collect(), wanted }
    }

    pub(super) fn other_namespace(named: &str) -> Self {
        Self::OtherNamespace(UnknownNamespace::new(named))
    }

    /// The status code of the answer.
    pub(super) fn status(&self) -> StatusCode {
        match self {
            Self::MissingParam { .. }
            | Self::BadParam { .. }
            | Self::BadBody(_)
            | Self::BodyLost(_)
            | Self::BadJob(_)
            | Self::OtherJob { .. }
            | Self::NotAllocId(_)
            | Self::OtherRegion(_)
            | Self::OtherNamespace(_)
            | Self::UnknownTask(_)
            | Self::VarPath(_)
            | Self::Policy(_)
            | Self::FixedPolicies
            | Self::VarBody { .. }
            | Self::VarOther { .. }
            | Self::VarLock(_)
            | Self::NoAcl
            | Self::NoCsi
            | Self::Alone
            | Self::OfClusters
            | Self::BadRequest(_)
            | Self::OwnNode => StatusCode::BAD_REQUEST,
            Self::Namespace(error) => namespace_status(error),
            Self::Node(error) => node_status(error),
            Self::Enterprise => StatusCode::NOT_IMPLEMENTED,
            Self::Variable(error) => variable_status(error),
            Self::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::NotThere(_) | Self::UnknownAlloc(_) | Self::NoPlugin(_) | Self::NoPath => {
                StatusCode::NOT_FOUND
            }
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::Submit(error) => submit_status(error),
            Self::Alloc(error) => alloc_status(error),
            Self::Upgrade(error) => upgrade_status(error),
            Self::EndRun(EndRunError::Unknown { .. }) => StatusCode::NOT_FOUND,
            Self::EndRun(EndRunError::Refused { .. }) => StatusCode::INTERNAL_SERVER_ERROR,
            Self::File { source, .. } => file_status(source),
            Self::TooManyOfOne { .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::NoneFree { .. } | Self::TooManyUnknown | Self::Starting(_) | Self::Leaving => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::NotWebSocket => StatusCode::UPGRADE_REQUIRED,
            Self::OtherOrigin
            | Self::OtherHost(_)
            | Self::NeedsToken
            | Self::UnknownToken
            | Self::Forbidden { .. }
            | Self::NoProfiles
            | Self::SocketOnly => StatusCode::FORBIDDEN,
            Self::Token(error) => token_status(error),
            Self::TooSlow | Self::TooMuch => StatusCode::GATEWAY_TIMEOUT,
            Self::Logs { .. } | Self::Stay(_) | Self::Internal(_) => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
        }
    }
}

const fn namespace_status(error: &NamespaceError) -> StatusCode {
    match error {
        NamespaceError::Unknown { .. } => StatusCode::NOT_FOUND,
        NamespaceError::Configured { .. }
        | NamespaceError::Default
        | NamespaceError::TooMany
        | NamespaceError::Description { .. } => StatusCode::BAD_REQUEST,
        NamespaceError::InUse { .. } => StatusCode::CONFLICT,
        NamespaceError::State(_) | NamespaceError::Unanswered => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

const fn node_status(error: &NodeAskError) -> StatusCode {
    match error {
        NodeAskError::Deadline { .. } => StatusCode::BAD_REQUEST,
        NodeAskError::Draining | NodeAskError::Joined => StatusCode::CONFLICT,
        NodeAskError::Leaving => StatusCode::SERVICE_UNAVAILABLE,
        NodeAskError::State(_) => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// The status code of a token error, as Nomad's servers answer it.
const fn token_status(error: &TokenError) -> StatusCode {
    match error {
        TokenError::Unknown => StatusCode::NOT_FOUND,
        TokenError::Disabled
        | TokenError::Configured(_)
        | TokenError::TooMany
        | TokenError::Policies
        | TokenError::Name
        | TokenError::Bootstrapped(_) => StatusCode::BAD_REQUEST,
        TokenError::Busy => StatusCode::SERVICE_UNAVAILABLE,
        TokenError::State(_) | TokenError::Unanswered => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

impl IntoResponse for RequestFailure {
    fn into_response(self) -> Response {
        let status = self.status();
        if let Self::Starting(_) = &self {
            // This header tells clients that the failure passes.
            return (status, [(RETRY_AFTER, "1")], self.to_string()).into_response();
        }
        if let Self::TooManyOfOne { .. } = &self {
            return (status, [(RETRY_AFTER, "5")], self.to_string()).into_response();
        }
        if status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED {
            // The fault is in the node, not in the request, so the causes help.
            let text = causes::chain(&self);
            tracing::warn!(%status, error = text, "a request to the API failed");
            return (status, text).into_response();
        }
        (status, self.to_string()).into_response()
    }
}

fn submit_status(error: &SubmitError) -> StatusCode {
    match error {
        SubmitError::Unknown { .. } | SubmitError::Deployment(DeploymentError::Unknown) => {
            StatusCode::NOT_FOUND
        }
        SubmitError::Deployment(_)
        | SubmitError::Scale(_)
        | SubmitError::Version { .. }
        | SubmitError::SameVersion { .. }
        | SubmitError::OtherVersion { .. } => StatusCode::BAD_REQUEST,
        SubmitError::Config(_) | SubmitError::TooManyTasks { .. } | SubmitError::Namespace(_) => {
            StatusCode::BAD_REQUEST
        }
        SubmitError::Refused(_)
        | SubmitError::Index { .. }
        | SubmitError::Origin { .. }
        | SubmitError::Joined => StatusCode::CONFLICT,
        SubmitError::Busy | SubmitError::Waited { .. } => StatusCode::TOO_MANY_REQUESTS,
        SubmitError::Leaving => StatusCode::SERVICE_UNAVAILABLE,
        SubmitError::State(_) | SubmitError::Runner(_) | SubmitError::Unanswered { .. } => {
            StatusCode::INTERNAL_SERVER_ERROR
        }
    }
}

fn alloc_status(error: &AllocError) -> StatusCode {
    match error {
        AllocError::Change(error) => submit_status(error),
        AllocError::Unknown { .. } => StatusCode::NOT_FOUND,
        AllocError::Ended { .. } | AllocError::NotOver { .. } => StatusCode::CONFLICT,
        AllocError::Signal(_) | AllocError::Request(RequestError::UnknownTask { .. }) => {
            StatusCode::BAD_REQUEST
        }
        AllocError::Request(
            RequestError::NotRunning { .. }
            | RequestError::NothingRunning
            | RequestError::Stopping
            | RequestError::Restarting
            | RequestError::Gone,
        ) => StatusCode::CONFLICT,
        AllocError::Request(RequestError::NoAnswer { .. }) => StatusCode::GATEWAY_TIMEOUT,
        AllocError::Busy => StatusCode::TOO_MANY_REQUESTS,
        AllocError::Leaving => StatusCode::SERVICE_UNAVAILABLE,
        AllocError::Request(_) | AllocError::Stays { .. } => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

fn variable_status(error: &VariableError) -> StatusCode {
    match error {
        VariableError::Conflict { .. } => StatusCode::CONFLICT,
        VariableError::Items(_) | VariableError::TooMany | VariableError::TooLarge => {
            StatusCode::BAD_REQUEST
        }
        VariableError::Busy => StatusCode::TOO_MANY_REQUESTS,
        VariableError::State(_) | VariableError::Unanswered => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

fn upgrade_status(error: &UpgradeError) -> StatusCode {
    match error {
        UpgradeError::Unknown(_) => StatusCode::NOT_FOUND,
        UpgradeError::NoFile(_) | UpgradeError::Relative(_) => StatusCode::BAD_REQUEST,
        UpgradeError::Leaving => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// The status code of a file error. As in Nomad, a missing file is an error of the server, and a
/// path that leads outside the allocation is an error of the client.
fn file_status(error: &std::io::Error) -> StatusCode {
    match error.kind() {
        std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::InvalidInput => {
            StatusCode::FORBIDDEN
        }
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::sync::Arc;

    use ostler_state::{BackendError, StateError};

    use super::*;

    #[tokio::test]
    async fn a_change_that_the_disk_refuses_is_answered_with_the_reason() {
        let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
        let source = Arc::new(BackendError::DiskFull { source: full });
        let error = StateError::Commit { path: "/d/state.redb".into(), source };
        let answer = RequestFailure::Submit(SubmitError::State(error)).into_response();
        assert_eq!(answer.status(), StatusCode::INTERNAL_SERVER_ERROR);
        let body = axum::body::to_bytes(answer.into_body(), 4096).await.unwrap();
        let text = String::from_utf8(body.to_vec()).unwrap();
        let said = "the change of the job could not be recorded: write to state file /d/state.redb failed: \
                    no space left on the disk";
        assert!(text.starts_with(said), "{text}");
    }
}
