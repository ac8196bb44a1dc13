//! Fetches the artifacts of the task.
//!
//! An artifact that was fetched stays: a later run of the task does not fetch it again, and a task
//! that runs on under a new agent has it. If the task ended while no agent was there, its directory
//! may be another one by now ([`crate::alloc::hooks`]), so the next run fetches its artifacts
//! again. Each artifact is made where no task sees it, and moved into the task's directory when it
//! is whole, so that a kill leaves nothing half done.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{HookError, Preparation, TaskHook, config};
use tokio_util::sync::CancellationToken;

use crate::alloc::bring::bring;
use crate::alloc::size;
use crate::task::env::TaskEnv;
use crate::task::{TaskScope, events, notes};
use ostler_model::artifact::{
    ArtifactError, ArtifactRequest, ArtifactSource, Artifacts, FetchProgress, TaskArtifact,
    public_source,
};
use ostler_model::causes;
use ostler_model::clock::{self, Stopwatch};
use ostler_model::limits::{ARTIFACT_EVENT_INTERVAL, ARTIFACTS_WALL_MAX, MIB};
use ostler_model::ports::{BoxFuture, FsIsolation};
use ostler_model::task_path::{TaskPath, TaskView, destination};

pub(super) struct ArtifactsHook;

/// Which artifacts of a task are in its directory.
#[derive(Clone, Debug, Default)]
pub struct FetchedArtifacts(Arc<Mutex<FetchedArtifactsInner>>);

#[derive(Debug, Default)]
struct FetchedArtifactsInner {
    /// Device and inode of the directory that has the artifacts. Another directory has
    /// none of them.
    dir: Option<(u64, u64)>,
    /// The numbers of the artifacts in the task.
    artifacts: BTreeSet<usize>,
}

impl FetchedArtifacts {
    /// The artifacts in the directory `dir`; none where it is not the known directory.
    fn lock_for_dir(&self, dir: &Path) -> MutexGuard<'_, FetchedArtifactsInner> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = std::fs::symlink_metadata(dir).ok().map(|meta| (meta.dev(), meta.ino()));
        if known.dir != now {
            *known = FetchedArtifactsInner { dir: now, artifacts: BTreeSet::new() };
        }
        known
    }
}

/// One artifact with its references replaced.
struct ResolvedArtifact {
    number: usize,
    shown: String,
    ask: ArtifactRequest,
    destination: TaskPath,
}

impl TaskHook for ArtifactsHook {
    fn name(&self) -> &'static str {
        "artifacts"
    }

    fn wall(&self) -> Duration {
        ARTIFACTS_WALL_MAX
    }

    fn prestart<'a>(
        &'a self,
        scope: &'a TaskScope,
        preparation: &'a mut Preparation,
    ) -> BoxFuture<'a, Result<(), HookError>> {
        if scope.task.artifacts.is_empty() {
            return Box::pin(std::future::ready(Ok(())));
        }
        Box::pin(async move {
            let Some(task_dir) = &preparation.task_dir else {
                return Err(HookError::setup("the task directory comes before its artifacts"));
            };
            if preparation.goes_on {
                // The run was started with its artifacts, and no directory is made anew under
                // a live run.
                if !preparation.ended {
                    let mut known = scope.fetched.lock_for_dir(&task_dir.path);
                    known.artifacts.extend(0..scope.task.artifacts.len());
                }
                return Ok(());
            }
            let have = scope.fetched.lock_for_dir(&task_dir.path).artifacts.clone();
            let wanted = missing_artifacts(scope, preparation, &have).await?;
            if wanted.is_empty() {
                return Ok(());
            }
            preparation.say(events::downloading_artifacts(scope.node.clock.now()));
            for one in wanted {
                fetch(scope, preparation, one).await?;
            }
            Ok(())
        })
    }
}

/// The artifacts that are not in the task's directory yet.
async fn missing_artifacts(
    scope: &TaskScope,
    preparation: &Preparation,
    have: &BTreeSet<usize>,
) -> Result<Vec<ResolvedArtifact>, HookError> {
    let (dirs, env) = (config::dirs(preparation)?, config::environment(scope, preparation).await?);
    let sees = preparation.driver.as_ref().map(|driver| driver.capabilities().fs_isolation);
    let view = dirs.view(&scope.task.name, sees.unwrap_or(FsIsolation::None));
    let missing = scope.task.artifacts.iter().enumerate().filter(|(n, _)| !have.contains(n));
    missing.map(|(number, artifact)| resolve_artifact(number, artifact, &env, view)).collect()
}

fn resolve_artifact(
    number: usize,
    artifact: &TaskArtifact,
    env: &TaskEnv,
    view: TaskView<'_>,
) -> Result<ResolvedArtifact, HookError> {
    let shown = public_source(&artifact.source);
    let refused = |error: &(dyn std::error::Error + 'static)| {
        download_error(&shown, &ArtifactError::permanent(causes::chain(error)))
    };
    let filled = |text: &str| env.interpolate(text).map_err(|error| refused(&error));
    let map = |texts: &std::collections::BTreeMap<String, String>| {
        let filled = texts.iter().map(|(name, text)| Ok((name.clone(), filled(text)?)));
        filled.collect::<Result<Vec<(String, String)>, HookError>>()
    };
    let options = map(&artifact.options)?.into_iter().collect();
    let source = ArtifactSource::parse(&filled(&artifact.source)?, &options);
    let source = source.map_err(|error| refused(&error))?;
    let place = destination(&filled(&artifact.destination)?, view);
    let place = place.map_err(|error| refused(&error))?;
    let headers = map(&artifact.headers)?;
    let ask = ArtifactRequest { source, headers, mode: artifact.mode, room_bytes: None };
    Ok(ResolvedArtifact { number, shown, ask, destination: place })
}

async fn fetch(
    scope: &TaskScope,
    preparation: &Preparation,
    wanted: ResolvedArtifact,
) -> Result<(), HookError> {
    let ResolvedArtifact { number, shown, ask, destination } = wanted;
    let artifacts = fetcher(scope).map_err(|error| download_error(&shown, &error))?;
    let room_bytes = room(scope).await?;
    let ask = ArtifactRequest { room_bytes, ..ask };
    let watch = Stopwatch::start();
    let progress = progress_reporter(scope, preparation, shown.clone());
    let staged =
        artifacts.fetch(ask, progress).await.map_err(|error| download_error(&shown, &error))?;
    let (root, alloc, owner) =
        (scope.node.alloc_root.clone(), scope.allocation.id, preparation.owner);
    let found = staged.path.symlink_metadata().map_err(HookError::passing_setup)?;
    // The size of an archive's content was bounded while it was unpacked.
    if let Some(room) = room_bytes.filter(|room| found.is_file() && found.len() > *room) {
        let reason = format!(
            "it has {} bytes, and the allocation's ephemeral_disk.size leaves {room}; a larger size allows more",
            found.len()
        );
        return Err(download_error(&shown, &ArtifactError::permanent(reason)));
    }
    let brought = clock::run_blocking(move || {
        bring(&root, alloc, &destination, &staged.path, &staged.outcome, owner)
    });
    let brought = brought.await.map_err(HookError::passing_setup)?;
    brought.map_err(|error| match HookError::on_disk(&error) {
        HookError::Setup { error, recoverable } => {
            download_error(&shown, &ArtifactError { reason: error, recoverable })
        }
        other => other,
    })?;
    tracing::debug!(task = %scope.task.name, artifact = %shown, elapsed = ?watch.elapsed(), "artifact fetched");
    if let Some(task_dir) = &preparation.task_dir {
        scope.fetched.lock_for_dir(&task_dir.path).artifacts.insert(number);
    }
    Ok(())
}

/// How many bytes the allocation may still write; `None` where its job states no size.
async fn room(scope: &TaskScope) -> Result<Option<u64>, HookError> {
    let disk = scope.allocation.task_group().map(|group| group.ephemeral_disk);
    let Some(disk) = disk.filter(|disk| disk.size_stated) else { return Ok(None) };
    let (root, alloc) = (scope.node.alloc_root.clone(), scope.allocation.id);
    let measured = clock::run_blocking(move || {
        let cancel = CancellationToken::new();
        size::measure(&root, alloc, &cancel)
    });
    let used = measured.await.map_err(HookError::passing_setup)?;
    let used = used.map_err(|error| HookError::on_disk(&error))?;
    Ok(Some(u64::from(disk.size_mb).saturating_mul(MIB).saturating_sub(used.bytes)))
}

pub(super) fn fetcher(scope: &TaskScope) -> Result<Arc<dyn Artifacts>, ArtifactError> {
    let none = || ArtifactError::permanent("this agent fetches nothing");
    scope.node.artifacts.clone().ok_or_else(none)
}

pub(super) fn download_error(shown: &str, error: &ArtifactError) -> HookError {
    HookError::Artifact {
        error: format!("failed to download artifact {shown:?}: {}", error.reason),
        recoverable: error.recoverable,
    }
}

/// A function that reports the progress of a long download.
pub(super) fn progress_reporter(
    scope: &TaskScope,
    preparation: &Preparation,
    shown: String,
) -> FetchProgress {
    let (channel, clock) = (preparation.notes.clone(), scope.node.clock.clone());
    let (watch, last) = (Stopwatch::start(), AtomicU64::new(0));
    Arc::new(move |bytes, of| {
        let now = u64::try_from(watch.elapsed().as_millis()).unwrap_or(u64::MAX);
        let next = last.load(Ordering::Relaxed).saturating_add(interval_ms());
        if now < next {
            return;
        }
        last.store(now, Ordering::Relaxed);
        let event = events::artifact_progress(clock.now(), &shown, bytes, of);
        notes::tell(channel.as_ref(), event);
    })
}

fn interval_ms() -> u64 {
    u64::try_from(ARTIFACT_EVENT_INTERVAL.as_millis()).unwrap_or(u64::MAX)
}
