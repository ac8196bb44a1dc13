//! Fetches what the task brings along.
//!
//! What came stays: a later run of the task does not fetch it again, and a task that runs on under a new
//! agent has it. Of one that ended while no agent was there nothing is taken for granted: its directory may be
//! another one by now ([`crate::alloc::hooks`]), and what its next run needs is fetched then. Each thing is made where no task sees it and moved into the task's directory when it is whole,
//! so that a kill in between leaves nothing half.

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
    ArtifactAsk, ArtifactError, ArtifactSource, Artifacts, FetchProgress, TaskArtifact,
    shown_source,
};
use ostler_model::causes;
use ostler_model::clock::{self, Stopwatch};
use ostler_model::limits::{ARTIFACT_EVENT_INTERVAL, ARTIFACTS_WALL_MAX, MIB};
use ostler_model::ports::{BoxFuture, FsIsolation};
use ostler_model::task_path::{TaskPath, TaskView, destination};

pub(super) struct ArtifactsHook;

/// What of a task's artifacts is in its directory.
#[derive(Clone, Debug, Default)]
pub struct Fetched(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    /// The directory that they are in: another one has none of them.
    dir: Option<(u64, u64)>,
    /// By their number in the task.
    artifacts: BTreeSet<usize>,
}

impl Fetched {
    /// What is in the directory `dir`.
    fn of(&self, dir: &Path) -> MutexGuard<'_, Known> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = std::fs::symlink_metadata(dir).ok().map(|meta| (meta.dev(), meta.ino()));
        if known.dir != now {
            *known = Known { dir: now, artifacts: BTreeSet::new() };
        }
        known
    }
}

/// One artifact, its texts replaced.
struct Wanted {
    number: usize,
    shown: String,
    ask: ArtifactAsk,
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
                // It was started with them, and no directory is made anew under a run that lives.
                if !preparation.ended {
                    let mut known = scope.fetched.of(&task_dir.path);
                    known.artifacts.extend(0..scope.task.artifacts.len());
                }
                return Ok(());
            }
            let have = scope.fetched.of(&task_dir.path).artifacts.clone();
            let wanted = wanted(scope, preparation, &have).await?;
            if wanted.is_empty() {
                return Ok(());
            }
            preparation.say(events::downloading_artifacts(scope.clock.now()));
            for one in wanted {
                fetch(scope, preparation, one).await?;
            }
            Ok(())
        })
    }
}

/// The artifacts that are not there yet.
async fn wanted(
    scope: &TaskScope,
    preparation: &Preparation,
    have: &BTreeSet<usize>,
) -> Result<Vec<Wanted>, HookError> {
    let (dirs, env) = (config::dirs(preparation)?, config::environment(scope, preparation).await?);
    let sees = preparation.driver.as_ref().map(|driver| driver.capabilities().fs_isolation);
    let view = dirs.view(&scope.task.name, sees.unwrap_or(FsIsolation::None));
    let missing = scope.task.artifacts.iter().enumerate().filter(|(n, _)| !have.contains(n));
    missing.map(|(number, artifact)| one(number, artifact, &env, view)).collect()
}

fn one(
    number: usize,
    artifact: &TaskArtifact,
    env: &TaskEnv,
    view: TaskView<'_>,
) -> Result<Wanted, HookError> {
    let shown = shown_source(&artifact.source);
    let refused = |error: &(dyn std::error::Error + 'static)| {
        failed(&shown, &ArtifactError::lasting(causes::chain(error)))
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
    let ask = ArtifactAsk { source, headers, mode: artifact.mode, room_bytes: None };
    Ok(Wanted { number, shown, ask, destination: place })
}

async fn fetch(
    scope: &TaskScope,
    preparation: &Preparation,
    wanted: Wanted,
) -> Result<(), HookError> {
    let Wanted { number, shown, ask, destination } = wanted;
    let artifacts = fetcher(scope).map_err(|error| failed(&shown, &error))?;
    let room_bytes = room(scope).await?;
    let ask = ArtifactAsk { room_bytes, ..ask };
    let watch = Stopwatch::start();
    let progress = progress(scope, preparation, shown.clone());
    let staged = artifacts.fetch(ask, progress).await.map_err(|error| failed(&shown, &error))?;
    let (root, alloc, owner) = (scope.alloc_root.clone(), scope.allocation.id, preparation.owner);
    let found = staged.path.symlink_metadata().map_err(HookError::passing)?;
    // What an archive becomes was bounded while it was unpacked.
    if let Some(room) = room_bytes.filter(|room| found.is_file() && found.len() > *room) {
        let reason = format!(
            "it has {} bytes, and the allocation's ephemeral_disk.size leaves {room}; a larger size allows more",
            found.len()
        );
        return Err(failed(&shown, &ArtifactError::lasting(reason)));
    }
    let brought = clock::blocking(move || {
        bring(&root, alloc, &destination, &staged.path, &staged.outcome, owner)
    });
    let brought = brought.await.map_err(HookError::passing)?;
    brought.map_err(|error| match HookError::on_disk(&error) {
        HookError::Setup { error, recoverable } => {
            failed(&shown, &ArtifactError { reason: error, recoverable })
        }
        other => other,
    })?;
    tracing::debug!(task = %scope.task.name, artifact = %shown, elapsed = ?watch.elapsed(), "artifact fetched");
    if let Some(task_dir) = &preparation.task_dir {
        scope.fetched.of(&task_dir.path).artifacts.insert(number);
    }
    Ok(())
}

/// Bytes that the allocation may still hold; none where its job states no size.
async fn room(scope: &TaskScope) -> Result<Option<u64>, HookError> {
    let disk = scope.allocation.task_group().map(|group| group.ephemeral_disk);
    let Some(disk) = disk.filter(|disk| disk.size_stated) else { return Ok(None) };
    let (root, alloc) = (scope.alloc_root.clone(), scope.allocation.id);
    let measured = clock::blocking(move || {
        let cancel = CancellationToken::new();
        size::measure(&root, alloc, &cancel)
    });
    let used = measured.await.map_err(HookError::passing)?;
    let used = used.map_err(|error| HookError::on_disk(&error))?;
    Ok(Some(u64::from(disk.size_mb).saturating_mul(MIB).saturating_sub(used.bytes)))
}

pub(super) fn fetcher(scope: &TaskScope) -> Result<Arc<dyn Artifacts>, ArtifactError> {
    let none = || ArtifactError::lasting("this agent fetches nothing");
    scope.artifacts.clone().ok_or_else(none)
}

pub(super) fn failed(shown: &str, error: &ArtifactError) -> HookError {
    HookError::Artifact {
        error: format!("failed to download artifact {shown:?}: {}", error.reason),
        recoverable: error.recoverable,
    }
}

/// Says how far a download is that takes long.
pub(super) fn progress(
    scope: &TaskScope,
    preparation: &Preparation,
    shown: String,
) -> FetchProgress {
    let (channel, clock) = (preparation.notes.clone(), scope.clock.clone());
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
