//! Driver `exec`: runs a native program kept apart from the node and from other tasks.
//!
//! What it is kept apart from is the configuration's to demand and the host's to do; the driver asks
//! for all there is, says what this node lacks, and starts nothing that lacks what is demanded.

use ostler_sdk::driver::prelude::*;
use process::{Isolation, IsolationPart, PartState, SpawnRequest, part_name};
use serde::Deserialize;

const SCHEMA: &str = include_str!("task-config.schema.json");

/// What a program expects to find in its environment, where the job does not say.
const PATH_DEFAULT: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const LANG_DEFAULT: &str = "C.UTF-8";

/// A task's `config` block.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    command: String,
    #[serde(default)]
    args: Vec<String>,
    cwd: Option<String>,
    #[serde(default)]
    network_mode: Mode,
    #[serde(default)]
    cap_add: Vec<String>,
    #[serde(default)]
    mounts: Vec<JobMount>,
}

#[derive(Deserialize, Default, PartialEq)]
#[serde(rename_all = "lowercase")]
enum Mode {
    #[default]
    Host,
    None,
}

/// A path of the node that the job wants to see.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JobMount {
    source: String,
    target: String,
    #[serde(default)]
    read_only: bool,
}

/// What of isolation there is on this node.
struct Here(Vec<PartState>);

impl Here {
    fn look() -> Result<Self> {
        Ok(Self(process::isolation_parts()?))
    }

    fn can(&self, part: IsolationPart) -> bool {
        self.0.iter().any(|state| state.part == part && state.lacking.is_none())
    }

    /// Has a task a root of its own? Otherwise it sees the node's paths.
    fn rooted(&self) -> bool {
        self.can(IsolationPart::Mounts)
    }

    /// What a task lacks here, with the reason. Network only where it asks for it; rules on files
    /// are no lack beside a root of its own.
    fn lacking(&self) -> impl Iterator<Item = (&PartState, &str)> {
        let rooted = self.rooted();
        self.0.iter().filter_map(move |state| {
            let why = state.lacking.as_deref()?;
            let minor = match state.part {
                IsolationPart::Network => true,
                IsolationPart::Landlock => rooted,
                _ => false,
            };
            (!minor).then_some((state, why))
        })
    }

    /// Parts and reasons, by what the configuration says of them.
    fn lacking_text(&self, may_lack: bool) -> String {
        let of = self.lacking().filter(|(state, _)| state.may_lack == may_lack);
        let texts: Vec<_> =
            of.map(|(state, why)| format!("{} ({why})", part_name(state.part))).collect();
        texts.join(", ")
    }

    fn asked(&self, config: &Config, task: &TaskConfig, mounts: Vec<Mount>) -> Isolation {
        let demanded = self.0.iter().filter(|state| !state.may_lack);
        let mut required: Vec<_> = demanded.map(|state| state.part).collect();
        if config.network_mode == Mode::None {
            required.push(IsolationPart::Network);
        }
        let rest = self.0.iter().map(|state| state.part);
        let wanted =
            rest.filter(|part| *part != IsolationPart::Network && !required.contains(part));
        Isolation {
            wanted: wanted.collect(),
            required,
            mounts,
            device_nodes: task.device_nodes.clone(),
            capabilities: config.cap_add.clone(),
        }
    }
}

/// Variables that most programs rely on, where the job has none.
fn add_defaults(env: &mut Vec<EnvVar>, task_dir: &str, rooted: bool) {
    let home = if rooted { "/local".to_owned() } else { format!("{task_dir}/local") };
    let mut defaults =
        vec![("PATH", PATH_DEFAULT.to_owned()), ("HOME", home), ("LANG", LANG_DEFAULT.to_owned())];
    if !rooted {
        defaults.push(("TMPDIR", format!("{task_dir}/tmp")));
    }
    for (name, value) in defaults {
        if !env.iter().any(|var| var.name == name) {
            env.push(EnvVar::new(name, value));
        }
    }
}

/// What is shown to the task beside its own directories.
fn mounts(task: &TaskConfig, config: &mut Config, rooted: bool) -> Result<Vec<Mount>> {
    let mut mounts = task.mounts.clone();
    mounts.extend(config.mounts.drain(..).map(|mount| Mount {
        host_path: mount.source,
        task_path: mount.target,
        read_only: mount.read_only,
    }));
    let elsewhere = mounts.iter().find(|mount| mount.host_path != mount.task_path);
    if let Some(mount) = elsewhere.filter(|_| !rooted) {
        return Err(Error::unsupported(format!(
            "without mounts a task has no file system of its own, so {} cannot be shown to it as {}",
            mount.host_path, mount.task_path
        )));
    }
    Ok(mounts)
}

struct Exec;

impl Driver for Exec {
    type Runs = Process;

    fn describe() -> DriverInfo {
        let rooted = Here::look().is_ok_and(|here| here.rooted());
        let paths = if rooted { FsIsolation::Chroot } else { FsIsolation::None };
        DriverInfo::new("exec", env!("CARGO_PKG_VERSION"))
            .send_signals()
            .exec()
            .fs_isolation(paths)
            .network_modes([NetworkMode::Host, NetworkMode::None])
            .task_config_schema(SCHEMA)
    }

    fn fingerprint() -> Result<Fingerprint> {
        let here = Here::look()?;
        let lacking = here.lacking_text(false);
        let health = if lacking.is_empty() {
            Health::healthy()
        } else {
            Health::unhealthy(format!(
                "this node cannot isolate tasks by {lacking}; run the agent as root or allow it user \
                 namespaces, list these parts in `without` in the isolation block of the driver's grants, or \
                 use raw_exec"
            ))
        };
        let parts = here.0.iter().map(|state| {
            let name = format!("isolation.{}", part_name(state.part));
            NamedAttribute::new(name, state.lacking.is_none())
        });
        Ok(parts.fold(Fingerprint::new(health), Fingerprint::attribute))
    }

    fn start(mut task: TaskConfig) -> Result<Started> {
        let mut config: Config = task.parse()?;
        let here = Here::look()?;
        let rooted = here.rooted();
        let mounts = mounts(&task, &mut config, rooted)?;
        let own = if rooted { "" } else { task.task_dir.as_str() };
        let cwd = match config.cwd.take() {
            None if rooted => "/".to_owned(),
            None => task.task_dir.clone(),
            Some(dir) if dir.starts_with('/') => dir,
            Some(dir) => format!("{own}/{dir}"),
        };
        add_defaults(&mut task.env, &task.task_dir, rooted);
        let context = ExecContext::new(&task, cwd.as_str());
        let isolation = here.asked(&config, &task, mounts);
        let without = here.lacking_text(true);
        if !without.is_empty() {
            events::emit(&format!("the task is not isolated by {without}"));
        }
        let request = SpawnRequest {
            command: config.command,
            search: vec![format!("{own}/local"), format!("{own}/")],
            args: config.args,
            env: task.env,
            cwd,
            user: task.user,
        };
        let id = process::spawn_isolated(&request, &isolation)?;
        Started::remembering::<Self>(id, &context)
    }

    fn exec(handle: Handle, argv: Vec<String>, _tty: bool) -> Result<ExecPlan> {
        handle.state::<ExecContext>()?.plan(argv)
    }
}

ostler_sdk::export_driver!(Exec);

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]
mod tests;
