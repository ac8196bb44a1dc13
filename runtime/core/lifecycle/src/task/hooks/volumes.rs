//! Mounts the volumes of the group that the task names. By offering a volume the operator grants it
//! to whatever driver runs the task, at the path and with the rights that are set here.

use std::path::{Path, PathBuf};

use super::{HookError, Preparation, TaskHook};
use crate::task::TaskScope;
use ostler_model::clock;
use ostler_model::device::Mount;
use ostler_model::ports::{BoxFuture, FsIsolation};
use ostler_model::volume::VolumeMount;

pub(super) struct VolumesHook;

impl TaskHook for VolumesHook {
    fn name(&self) -> &'static str {
        "volumes"
    }

    fn prestart<'a>(
        &'a self,
        scope: &'a TaskScope,
        preparation: &'a mut Preparation,
    ) -> BoxFuture<'a, Result<(), HookError>> {
        Box::pin(async move {
            for mount in &scope.task.volume_mounts {
                let mount = resolve_mount(scope, preparation, mount).await?;
                preparation.reservation.mounts.push(mount);
            }
            Ok(())
        })
    }
}

/// The directories of a task whose driver gives it a root file system of its own.
const OWN_PLACES: [&str; 3] = ["/alloc", "/local", "/secrets"];

/// Would a mount at `destination` hide the whole of `place`?
fn covers(destination: &str, place: &str) -> bool {
    let destination: PathBuf = Path::new(destination).components().collect();
    Path::new(place).starts_with(&destination)
}

async fn resolve_mount(
    scope: &TaskScope,
    preparation: &Preparation,
    mount: &VolumeMount,
) -> Result<Mount, HookError> {
    let name = &mount.volume;
    let group = scope.allocation.task_group();
    let request = group.and_then(|group| group.volumes.get(name));
    let request =
        request.ok_or_else(|| HookError::Invalid(format!("the group has no volume {name}")))?;
    // The node may offer other volumes than when the allocation was placed.
    let volume = scope.context.facts.host_volumes.get(&request.source);
    let volume = request.check_volume(volume).map_err(|why| {
        HookError::setup(format!("volume {name} (source {}): {why}", request.source))
    })?;
    let own_files = preparation
        .driver
        .as_ref()
        .is_some_and(|driver| driver.capabilities().fs_isolation != FsIsolation::None);
    if !own_files {
        return Err(HookError::setup(format!(
            "driver {} mounts nothing: its tasks see the node's own files; use {} there, or another \
             driver",
            scope.task.driver,
            volume.path.display()
        )));
    }
    let env = preparation.env.as_ref();
    let destination = env
        .map_or_else(|| Ok(mount.destination.clone()), |env| env.interpolate(&mount.destination));
    let destination = destination
        .map_err(|error| HookError::Invalid(format!("destination of volume {name}: {error}")))?;
    if !Path::new(&destination).is_absolute() || destination.split('/').any(|part| part == "..") {
        return Err(HookError::Invalid(format!(
            "destination of volume {name} is {destination:?}, which is not an absolute path without \"..\""
        )));
    }
    if let Some(place) = OWN_PLACES.iter().find(|place| covers(&destination, place)) {
        return Err(HookError::Invalid(format!(
            "destination of volume {name} is {destination:?}, which covers {place} of the task; choose another \
             path"
        )));
    }
    let path = volume.path.clone();
    let found = clock::run_blocking(move || directory(&path)).await;
    let found = found.map_err(HookError::passing_setup)?;
    let host_path = found.map_err(|why| {
        HookError::passing_setup(format!(
            "volume {name} is at {}, which {why}",
            volume.path.display()
        ))
    })?;
    let host_path = host_path
        .to_str()
        .map(str::to_owned)
        .ok_or_else(|| HookError::setup(format!("volume {name} is at a path that is not UTF-8")))?;
    let read_only = volume.read_only || request.read_only || mount.read_only;
    Ok(Mount { host_path, task_path: destination, read_only })
}

/// The path of a directory with all links resolved, because a mount follows no links.
fn directory(path: &Path) -> Result<PathBuf, String> {
    let found = path.canonicalize().map_err(|error| format!("cannot be used: {error}"))?;
    if found.is_dir() { Ok(found) } else { Err("is not a directory".to_owned()) }
}
