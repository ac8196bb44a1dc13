//! The process of a worker: how it is started, killed, and what of it is removed.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::ARGUMENT;
use ostler_model::clock;
use ostler_model::limits::WORKER_END_WALL_MAX;
use ostler_process::WorkerCgroup;
use ostler_process::detached_process::{self, DetachedProcess, DetachedSpec};

/// Make the directory of a worker and start its process.
pub(crate) fn start_process(
    program: &Path,
    dir: &Path,
    cgroup: Option<&WorkerCgroup>,
) -> io::Result<(DetachedProcess, OwnedFd)> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let log = File::options().create(true).append(true).mode(0o600).open(dir.join("log"))?;
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let process = detached_process::start_detached(DetachedSpec {
        program,
        argument: ARGUMENT,
        place: dir,
        name: "ostler-worker",
        stdin: theirs,
        stderr: log,
        cgroup,
    })?;
    Ok((process, ours))
}

/// Kill a process and wait for its end. Returns whether it ended.
pub(crate) async fn kill_process(process: &DetachedProcess) -> bool {
    if let Err(error) = process.kill() {
        tracing::error!(pid = process.pid, %error, "a worker could not be killed");
    }
    let ended = clock::timeout(WORKER_END_WALL_MAX, process.wait_for_end()).await.is_some();
    if !ended {
        tracing::error!(pid = process.pid, "a worker did not end after it was killed");
    }
    ended
}

/// Remove the directory and the cgroup of a worker that is gone.
pub(crate) async fn remove_leftovers(dir: &Path, cgroup: Option<&WorkerCgroup>) {
    remove_worker_dir(dir);
    if let Some(cgroup) = cgroup {
        cgroup.remove().await;
    }
}

/// Remove the directory of a worker that is gone.
pub(crate) fn remove_worker_dir(dir: &Path) {
    if let Err(error) = std::fs::remove_dir_all(dir)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(dir = %dir.display(), %error, "what a worker left was not removed");
    }
}
