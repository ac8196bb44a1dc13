//! The agent's side of a child: its order, and what it says until it ends.

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
use ostler_model::shown::shown;
use ostler_process::limited::{self, LimitedSpec};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};

use crate::order::{Order, Word};

/// Variables of the agent that the child needs: for certificates, and for the credentials of registries.
const PASSED: [&str; 7] = [
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "HOME",
    "DOCKER_CONFIG",
    "OSTLER_REGISTRY",
    "OSTLER_REGISTRY_USERNAME",
    "OSTLER_REGISTRY_PASSWORD",
];

/// What a child brought.
#[derive(Clone, Debug, Default)]
pub(crate) struct Brought {
    pub(crate) bytes: u64,
    pub(crate) signature: Option<Vec<u8>>,
    pub(crate) manifest: Option<String>,
}

/// Why nothing was brought.
pub(crate) enum NotBrought {
    /// The child hung and was killed: another one may do it, in a place of its own.
    Hung,
    /// It cannot be had, or not now.
    Failed(ArtifactError),
}

impl From<ArtifactError> for NotBrought {
    fn from(error: ArtifactError) -> Self {
        Self::Failed(error)
    }
}

impl NotBrought {
    /// What is said after the last try.
    pub(crate) fn told(self) -> ArtifactError {
        match self {
            Self::Failed(error) => error,
            Self::Hung => ArtifactError::passing(format!(
                "the process that fetches said nothing for {} and was killed",
                humantime(ARTIFACT_CHILD_SILENCE_WALL_MAX)
            )),
        }
    }
}

/// Have an order carried out in `dir`. Dropping this kills the child.
pub(crate) async fn carry_out(
    program: &Path,
    dir: PathBuf,
    order: &Order,
    wall: Duration,
    progress: &FetchProgress,
) -> Result<Brought, NotBrought> {
    let late = || {
        let text = format!("it was not done within {}", humantime(wall));
        NotBrought::Failed(ArtifactError::passing(text))
    };
    clock::timeout(wall, attended(program, &dir, order, progress))
        .await
        .unwrap_or_else(|| Err(late()))
}

fn humantime(wall: Duration) -> String {
    format!("{} s", wall.as_secs())
}

async fn attended(
    program: &Path,
    dir: &Path,
    order: &Order,
    progress: &FetchProgress,
) -> Result<Brought, NotBrought> {
    let not_run = |error: std::io::Error| {
        ArtifactError::passing(format!("the process that fetches cannot be run: {error}"))
    };
    let env: Vec<(String, OsString)> = PASSED
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), std::env::var_os(name)?)))
        .collect();
    let spec = LimitedSpec { program, argument: crate::ARGUMENT, dir, env: &env };
    let mut child = limited::start(&spec).map_err(not_run)?;
    let mut line = serde_json::to_vec(order).map_err(ArtifactError::lasting)?;
    line.push(b'\n');
    if let Some(stdin) = &mut child.stdin {
        stdin.write_all(&line).await.map_err(not_run)?;
        stdin.flush().await.map_err(not_run)?;
    }
    let mut last = None;
    if let Some(stdout) = child.stdout.take() {
        let mut stdout = BufReader::new(stdout);
        loop {
            let word = clock::timeout(ARTIFACT_CHILD_SILENCE_WALL_MAX, next_word(&mut stdout));
            let Some(word) = word.await else {
                tracing::warn!("a process that fetches hangs, and is killed");
                return Err(NotBrought::Hung);
            };
            let Some(word) = word? else { break };
            match word {
                Word::Alive => {}
                Word::Progress { bytes, of } => progress(bytes, of),
                other => {
                    last = Some(other);
                    break;
                }
            }
        }
    }
    match last {
        Some(Word::Done { bytes, signature, manifest }) => {
            Ok(Brought { bytes, signature, manifest })
        }
        Some(Word::Failed { reason, recoverable }) => {
            let reason = shown(reason, ARTIFACT_REASON_BYTES_MAX);
            Err(ArtifactError { reason, recoverable }.into())
        }
        Some(Word::Progress { .. } | Word::Alive) | None => {
            let status = child.ended().await.map_err(not_run)?;
            let failed = ArtifactError::passing(match status.signal() {
                Some(signal) => format!(
                    "the process that fetches was ended by signal {signal}: it needed more than {} MiB of memory or \
                     too much processor time, or somebody killed it",
                    ARTIFACT_CHILD_ADDRESS_SPACE_BYTES_MAX / MIB
                ),
                None => format!("the process that fetches ended without a word ({status})"),
            });
            Err(failed.into())
        }
    }
}

async fn next_word(
    from: &mut BufReader<tokio::process::ChildStdout>,
) -> Result<Option<Word>, ArtifactError> {
    let most = u64::try_from(ARTIFACT_LINE_BYTES_MAX).unwrap_or(u64::MAX);
    let mut line = Vec::new();
    let read = from.take(most).read_until(b'\n', &mut line).await;
    if read.map_err(ArtifactError::passing)? == 0 {
        return Ok(None);
    }
    let word = serde_json::from_slice(&line);
    word.map(Some).map_err(|_| ArtifactError::passing("the process that fetches talked nonsense"))
}
