//! The agent's side of a child process: it sends the order and reads the messages.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ostler_model::artifact::{ArtifactError, FetchProgress};
use ostler_model::clock;
use ostler_model::limits::{
    ARTIFACT_CHILD_ADDRESS_SPACE_BYTES_MAX, ARTIFACT_CHILD_SILENCE_WALL_MAX,
    ARTIFACT_LINE_BYTES_MAX, ARTIFACT_REASON_BYTES_MAX, MIB,
};
use ostler_model::printable::printable_line;
use ostler_process::limited_process::{self, LimitedSpec};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};

use crate::order::{ChildMessage, FetchOrder};

/// Variables of the agent that the child needs: for certificates, and for the credentials of
/// registries.
const PASSED: [&str; 7] = [
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "HOME",
    "DOCKER_CONFIG",
    "OSTLER_REGISTRY",
    "OSTLER_REGISTRY_USERNAME",
    "OSTLER_REGISTRY_PASSWORD",
];

/// The result of an order.
#[derive(Clone, Debug, Default)]
pub(crate) struct OrderResult {
    pub(crate) bytes: u64,
    pub(crate) signature: Option<Vec<u8>>,
    pub(crate) manifest: Option<String>,
}

/// Why an order has no result.
pub(crate) enum OrderFailure {
    /// The child hung and was killed. Another child may succeed, in a directory of its own.
    Hung,
    /// The file cannot be had at all, or not now.
    Failed(ArtifactError),
}

impl From<ArtifactError> for OrderFailure {
    fn from(error: ArtifactError) -> Self {
        Self::Failed(error)
    }
}

impl OrderFailure {
    /// The error to report after the last try.
    pub(crate) fn into_artifact_error(self) -> ArtifactError {
        match self {
            Self::Failed(error) => error,
            Self::Hung => ArtifactError::transient(format!(
                "the process that fetches reported nothing for {} and was killed",
                humantime(ARTIFACT_CHILD_SILENCE_WALL_MAX)
            )),
        }
    }
}

/// Let a child process carry out an order in `dir`. Dropping the future kills the child.
pub(crate) async fn carry_out(
    program: &Path,
    dir: PathBuf,
    order: &FetchOrder,
    wall: Duration,
    progress: &FetchProgress,
) -> Result<OrderResult, OrderFailure> {
    let late = || {
        let text = format!("it was not done within {}", humantime(wall));
        OrderFailure::Failed(ArtifactError::transient(text))
    };
    clock::timeout(wall, run_child(program, &dir, order, progress))
        .await
        .unwrap_or_else(|| Err(late()))
}

fn humantime(wall: Duration) -> String {
    format!("{} s", wall.as_secs())
}

async fn run_child(
    program: &Path,
    dir: &Path,
    order: &FetchOrder,
    progress: &FetchProgress,
) -> Result<OrderResult, OrderFailure> {
    let not_run = |error: std::io::Error| {
        ArtifactError::transient(format!("the process that fetches cannot be run: {error}"))
    };
    let env: Vec<(String, OsString)> = PASSED
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), std::env::var_os(name)?)))
        .collect();
    let spec = LimitedSpec { program, argument: crate::ARGUMENT, dir, env: &env };
    let mut child = limited_process::start_limited(&spec).map_err(not_run)?;
    let mut line = serde_json::to_vec(order).map_err(ArtifactError::permanent)?;
    line.push(b'\n');
    if let Some(stdin) = &mut child.stdin {
        stdin.write_all(&line).await.map_err(not_run)?;
        stdin.flush().await.map_err(not_run)?;
    }
    let mut last = None;
    if let Some(stdout) = child.stdout.take() {
        let mut stdout = BufReader::new(stdout);
        loop {
            let word = clock::timeout(ARTIFACT_CHILD_SILENCE_WALL_MAX, next_message(&mut stdout));
            let Some(word) = word.await else {
                tracing::warn!("a process that fetches hangs, and is killed");
                return Err(OrderFailure::Hung);
            };
            let Some(word) = word? else { break };
            match word {
                ChildMessage::Alive => {}
                ChildMessage::Progress { bytes, of } => progress(bytes, of),
                other => {
                    last = Some(other);
                    break;
                }
            }
        }
    }
    match last {
        Some(ChildMessage::Done { bytes, signature, manifest }) => {
            Ok(OrderResult { bytes, signature, manifest })
        }
        Some(ChildMessage::Failed { reason, recoverable }) => {
            let reason = printable_line(reason, ARTIFACT_REASON_BYTES_MAX);
            Err(ArtifactError { reason, recoverable }.into())
        }
        Some(ChildMessage::Progress { .. } | ChildMessage::Alive) | None => {
            let status = child.wait_for_end().await.map_err(not_run)?;
            let failed = ArtifactError::transient(match status.signal() {
                Some(signal) => format!(
                    "the process that fetches was ended by signal {signal}: it needed more than {} MiB of memory or \
                     too much processor time, or it was killed",
                    ARTIFACT_CHILD_ADDRESS_SPACE_BYTES_MAX / MIB
                ),
                None => format!("the process that fetches ended without a result ({status})"),
            });
            Err(failed.into())
        }
    }
}

async fn next_message(
    from: &mut BufReader<tokio::process::ChildStdout>,
) -> Result<Option<ChildMessage>, ArtifactError> {
    let most = u64::try_from(ARTIFACT_LINE_BYTES_MAX).unwrap_or(u64::MAX);
    let mut line = Vec::new();
    let read = from.take(most).read_until(b'\n', &mut line).await;
    if read.map_err(ArtifactError::transient)? == 0 {
        return Ok(None);
    }
    let word = serde_json::from_slice(&line);
    word.map(Some)
        .map_err(|_| ArtifactError::transient("the process that fetches sent an invalid message"))
}
