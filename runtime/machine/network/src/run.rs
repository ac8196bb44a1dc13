//! Runs one CNI plugin.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::Value;

use super::answer;
use super::conflist::CniPlugin;
use ostler_model::clock;
use ostler_model::ids::AllocId;
use ostler_model::limits::CNI_PLUGIN_WALL_MAX;
use ostler_process::program::{self, CommandFailure, ProgramStart};

/// The directories in which plugins find the programs that they run.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The interface in the namespace.
const INTERFACE: &str = "eth0";
/// How often to check whether plugins of an earlier agent have ended, and the pause in between.
const ENDS_MAX: usize = 50;
const END_PAUSE: Duration = Duration::from_millis(20);

/// The environment of all plugins of a network.
#[derive(Clone, Debug)]
pub(crate) struct PluginEnvironment {
    /// The allocation that the network belongs to.
    pub alloc: AllocId,
    /// The file that holds the namespace; `None` if it is gone.
    pub namespace: Option<PathBuf>,
    /// The directories of plugins.
    pub paths: Vec<PathBuf>,
}

/// The operation that is asked of a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CniVerb {
    Add,
    Del,
}

impl PluginEnvironment {
    /// Run one plugin. Returns the result of an addition.
    pub(crate) async fn run(
        &self,
        verb: CniVerb,
        plugin: &CniPlugin,
        input: &Value,
    ) -> Result<Value, String> {
        let name = &plugin.kind;
        let program = find(&self.paths, name).ok_or_else(|| missing_plugin(name, &self.paths))?;
        let start = ProgramStart {
            program,
            args: Vec::new(),
            env: self.env(verb),
            input: input.to_string().into_bytes(),
        };
        let output = program::run_with(start, CNI_PLUGIN_WALL_MAX).await.map_err(|failed| {
            let why = match failed {
                CommandFailure::TimedOut => format!("did not end within {CNI_PLUGIN_WALL_MAX:?}"),
                other => other.to_string(),
            };
            format!("CNI plugin {name}: {why}")
        })?;
        if output.exit_code != Some(0) {
            let said = answer::failure(&output.stdout, &output.stderr);
            return Err(format!("CNI plugin {name} failed: {said}"));
        }
        if verb == CniVerb::Del {
            return Ok(Value::Null);
        }
        answer::result(&output.stdout, output.truncated)
            .map_err(|error| format!("the answer of CNI plugin {name} is broken: {error}"))
    }

    fn env(&self, verb: CniVerb) -> Vec<(String, String)> {
        let verb = match verb {
            CniVerb::Add => "ADD",
            CniVerb::Del => "DEL",
        };
        let paths: Vec<_> = self.paths.iter().map(|path| path.display().to_string()).collect();
        let namespace = self.namespace.as_ref().map(|path| path.display().to_string());
        let all = [
            ("PATH", PATH.to_owned()),
            ("CNI_COMMAND", verb.to_owned()),
            (CONTAINER, self.alloc.to_string()),
            ("CNI_NETNS", namespace.unwrap_or_default()),
            ("CNI_IFNAME", INTERFACE.to_owned()),
            ("CNI_PATH", paths.join(":")),
            ("CNI_ARGS", "IgnoreUnknown=true".to_owned()),
        ];
        all.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

/// The variable by which plugins know the allocation.
const CONTAINER: &str = "CNI_CONTAINERID";

/// End running plugins of an allocation, which belong to an agent that is gone: no plugin of this
/// agent runs while it removes the network. Waits for their end, for a limited time.
pub(crate) async fn end_plugins(alloc: AllocId) {
    for _ in 0..ENDS_MAX {
        let found = clock::run_blocking(move || {
            let found = find_plugins(alloc);
            for plugin in &found {
                // A process that is gone meanwhile needs no signal.
                let _gone = pidfd_send_signal(plugin, Signal::KILL);
            }
            found.len()
        });
        match found.await {
            Ok(0) | Err(_) => return,
            Ok(count) => tracing::info!(%alloc, count, "CNI plugins of an earlier agent are ended"),
        }
        clock::sleep(END_PAUSE).await;
    }
}

/// The processes that were started for the allocation: plugins, and the programs that these ask for
/// addresses. Each is held by a descriptor before it is examined, so that a signal never hits a
/// later process with its pid.
fn find_plugins(alloc: AllocId) -> Vec<OwnedFd> {
    let wanted = format!("{CONTAINER}={alloc}");
    let started = |pid: i32| {
        let held = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
        let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
        let is = environment.split(|byte| *byte == 0).any(|line| line == wanted.as_bytes());
        is.then_some(held)
    };
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter_map(started).collect()
}

/// The path of the program that the plugins firewall and portmap need, if it is installed.
pub(crate) fn iptables() -> Option<PathBuf> {
    find(&PATH.split(':').map(PathBuf::from).collect::<Vec<_>>(), "iptables")
}

/// The first program of this name in the directories.
pub(crate) fn find(paths: &[PathBuf], name: &str) -> Option<PathBuf> {
    paths.iter().map(|dir| dir.join(name)).find(|path| is_program(path))
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// The message about a plugin that is not installed.
pub(crate) fn missing_plugin(name: &str, paths: &[PathBuf]) -> String {
    let paths: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
    format!(
        "CNI plugin {name} is not in {}: install {} (Debian), or set client {{ cni_path = … }} to where plugins are",
        paths.join(", "),
        ostler_model::network::CNI_PACKAGE
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use ostler_model::rng::Rng;

    /// Run a process until it is ended. Returns the signal that ended it.
    async fn plugin(of: AllocId) -> Option<u32> {
        let start = ProgramStart {
            program: "/bin/sleep".into(),
            args: vec!["1000".to_owned()],
            env: vec![(CONTAINER.to_owned(), of.to_string())],
            input: Vec::new(),
        };
        program::run_with(start, Duration::from_secs(60)).await.unwrap().signal
    }

    async fn until_there(of: AllocId) {
        while find_plugins(of).is_empty() {
            clock::sleep(END_PAUSE).await;
        }
    }

    #[tokio::test]
    async fn plugins_that_an_earlier_agent_left_are_ended_and_nobody_else_is() {
        let rng = Rng::from_seed(u64::from(std::process::id()));
        let (mine, others) = (AllocId::new(rng.uuid()), AllocId::new(rng.uuid()));
        let ended = async {
            until_there(mine).await;
            until_there(others).await;
            let held = find_plugins(mine);
            end_plugins(mine).await;
            assert_eq!((find_plugins(mine).len(), find_plugins(others).len()), (0, 1));
            end_plugins(others).await;
            held
        };
        let (mine, others, held) = tokio::join!(plugin(mine), plugin(others), ended);
        assert_eq!((mine, others), (Some(9), Some(9)));
        // What was found is this process, and no later one with its pid.
        let signalled: Vec<_> =
            held.iter().map(|plugin| pidfd_send_signal(plugin, Signal::KILL)).collect();
        assert_eq!(signalled, [Err(rustix::io::Errno::SRCH)]);
    }
}
