//! Gives a task a `resolv.conf` of its own in place of the node's, where its group asks for that.

use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use super::{HookError, Preparation, TaskHook};
use crate::task::TaskScope;
use ostler_model::clock;
use ostler_model::device::Mount;
use ostler_model::ids::TaskName;
use ostler_model::ports::{BoxFuture, FsIsolation};
use ostler_model::saved::DnsConfig;

/// Name of the file. It lies beside the directories of the tasks, where no task can write, and no
/// task can have its name.
const FILE: &str = "resolv.conf of tasks";
const PLACE: &str = "/etc/resolv.conf";

pub(super) struct DnsHook;

impl TaskHook for DnsHook {
    fn name(&self) -> &'static str {
        "dns"
    }

    fn prestart<'a>(
        &'a self,
        scope: &'a TaskScope,
        preparation: &'a mut Preparation,
    ) -> BoxFuture<'a, Result<(), HookError>> {
        Box::pin(async move {
            let network = scope.allocation.task_group().and_then(|group| group.network.as_ref());
            let asked = network.and_then(|network| network.dns.clone());
            let of_network = || scope.context.network.get()?.status.dns.clone();
            let has_root = preparation
                .driver
                .as_ref()
                .is_some_and(|driver| driver.capabilities().fs_isolation == FsIsolation::Chroot);
            let dns = match (asked, has_root) {
                (Some(_), false) => {
                    return Err(HookError::setup(format!(
                        "driver {} shows its tasks no /etc/resolv.conf of their own, so dns of the group's \
                         network has no effect; use exec, or leave dns out",
                        scope.task.driver
                    )));
                }
                (Some(dns), true) => dns,
                (None, true) => match of_network() {
                    Some(dns) => dns,
                    None => return Ok(()),
                },
                (None, false) => return Ok(()),
            };
            let Some(dir) = preparation.alloc_dir.parent().map(Path::to_owned) else {
                return Err(HookError::setup("the allocation has no directory"));
            };
            let task = scope.task.name.clone();
            let written = clock::run_blocking(move || write(&dir, &task, &dns)).await;
            let path =
                written.map_err(HookError::passing_setup)?.map_err(|e| HookError::on_disk(&e))?;
            let host_path = path.to_str().map(str::to_owned);
            let host_path = host_path
                .ok_or_else(|| HookError::setup("the path of the data directory is not UTF-8"))?;
            let mount = Mount { host_path, task_path: PLACE.to_owned(), read_only: true };
            preparation.reservation.mounts.push(mount);
            Ok(())
        })
    }
}

/// Write the file. All tasks of an allocation share it, and several may write it at the same time.
fn write(dir: &Path, task: &TaskName, dns: &DnsConfig) -> std::io::Result<PathBuf> {
    let (path, new) = (dir.join(FILE), dir.join(format!("{FILE}, new for {task}")));
    let mut file =
        std::fs::File::options().write(true).create(true).truncate(true).mode(0o644).open(&new)?;
    // The task's user must be able to read the file, whatever the agent's umask is.
    file.set_permissions(std::fs::Permissions::from_mode(0o644))?;
    file.write_all(dns.resolv_conf().as_bytes())?;
    std::fs::rename(&new, &path)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn tasks_that_start_at_the_same_time_do_not_take_the_file_from_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let dns = DnsConfig { servers: vec!["10.0.0.53".to_owned()], ..DnsConfig::default() };
        let names = ["one", "two", "three", "four"].map(|name| TaskName::new(name).unwrap());
        let begin = std::sync::Barrier::new(names.len());
        std::thread::scope(|scope| {
            let writing = names.each_ref().map(|name| {
                let (begin, dir, dns) = (&begin, dir.path(), &dns);
                scope.spawn(move || {
                    begin.wait();
                    (0..200).try_for_each(|_| write(dir, name, dns).map(drop))
                })
            });
            for written in writing {
                written.join().unwrap().unwrap();
            }
        });
        let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
        assert_eq!(left.len(), 1);
        assert_eq!(std::fs::read_to_string(dir.path().join(FILE)).unwrap(), dns.resolv_conf());
        // No task has a directory there of this name.
        assert!(TaskName::new(FILE).is_err());
    }
}
