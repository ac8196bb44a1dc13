//! Translates the task that Nomad gives into the task that a driver is given.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::record::RunIdentities;
use super::task::EventSender;
use crate::proto::driver as wire;
use crate::values::{self, ValuesError};
use ostler_model::cores::CoreSet;
use ostler_model::device::{DeviceNode, Mount};
use ostler_model::digest::Digest;
use ostler_model::ids::{AllocId, GroupName, JobId, NameError, RunId, TaskName};
use ostler_model::limits::{MIB, NOMAD_TASK_DISK_BYTES_MAX};
use ostler_model::ports::{ByteSink, FsIsolation, SinkFiles, TaskConfig, TaskContext};
use ostler_model::redact::Secrets;
use ostler_model::resources::AllocatedPort;

/// Where native programs are looked up in a task that Nomad gives no `PATH`.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The path that Nomad gives in place of a pipe where output is not collected.
const NOWHERE: &str = "/dev/null";

/// Why a task of Nomad cannot be given to a driver.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TranslationError {
    /// A name that is not valid here.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The configuration of the task is not readable.
    #[error(transparent)]
    Values(#[from] ValuesError),
    /// A path that is not absolute.
    #[error("{what} {path:?} is not an absolute path")]
    Path {
        /// What the path leads to, for people.
        what: &'static str,
        /// The path as Nomad gave it.
        path: String,
    },
    /// The pipes for the output of the task cannot be reached.
    #[error("the log pipes in {dir} cannot be reached: {source}", dir = dir.display())]
    Logs {
        /// The directory of the pipes.
        dir: PathBuf,
        /// The error of the kernel.
        #[source]
        source: std::io::Error,
    },
}

/// The id of the run: which start of which task this is. Nomad's own id has the same form.
pub(crate) fn run_id(task: &wire::TaskConfig) -> Result<RunId, TranslationError> {
    let alloc: AllocId = task.alloc_id.parse()?;
    let name = TaskName::new(&task.name)?;
    let last = task.id.rsplit('/').next().unwrap_or_default();
    let number = u32::from_str_radix(last, 16).unwrap_or_else(|_| {
        let digest = Digest::compute(task.id.as_bytes()).to_string();
        digest.get(..8).and_then(|text| u32::from_str_radix(text, 16).ok()).unwrap_or_default()
    });
    Ok(RunId::new(alloc, &name, number))
}

fn absolute_path(what: &'static str, path: &str) -> Result<PathBuf, TranslationError> {
    let given = Path::new(path);
    if given.is_absolute() {
        Ok(given.to_owned())
    } else {
        Err(TranslationError::Path { what, path: path.to_owned() })
    }
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}

/// A number of MiB in bytes; `None` for zero and less.
fn mebibytes(number: i64) -> Option<u64> {
    (number > 0).then(|| unsigned(number).saturating_mul(MIB))
}

/// What the host and the driver know of the task.
pub(crate) fn task_context(
    task: &wire::TaskConfig,
    spawned: &Arc<RunIdentities>,
    events: &EventSender,
) -> Result<TaskContext, TranslationError> {
    let run_id = run_id(task)?;
    let dir = absolute_path("the allocation directory", &task.alloc_dir)?;
    let resources = task.resources.clone().unwrap_or_default();
    let allocated = resources.allocated_resources.clone().unwrap_or_default();
    let cpu = allocated.cpu.map_or(0, |cpu| cpu.cpu_shares);
    let memory = allocated.memory.unwrap_or_default();
    let most = mebibytes(memory.memory_max_mb).max(mebibytes(memory.memory_mb));
    let job = [&task.job_id, &task.job_name].into_iter().find(|text| !text.is_empty());
    let mut secrets = Secrets::for_task();
    let variables = task.env.iter().chain(&task.device_env);
    variables.for_each(|(name, value)| secrets.learn_variable(name, value));
    Ok(TaskContext {
        alloc_id: task.alloc_id.parse()?,
        job_id: JobId::new(job.map_or("", String::as_str))?,
        group: GroupName::new(&task.task_group_name)?,
        task: TaskName::new(&task.name)?,
        stdout: sink(&task.stdout_path)?,
        stderr: sink(&task.stderr_path)?,
        record_identity: spawned.recorder(),
        events: events.event_sink(task),
        cpu_mhz: u32::try_from(cpu).unwrap_or_default(),
        // Nomad 1.0 gives no cores.
        cores: CoreSet::new(),
        memory_bytes_max: most.unwrap_or(u64::MAX),
        disk_bytes_max: NOMAD_TASK_DISK_BYTES_MAX,
        ports: ports(&resources),
        task_dir: dir.join(&task.name),
        alloc_dir: dir.join("alloc"),
        dirs: ostler_model::ports::dirs_are_made(),
        mounts: mounts(task),
        device_nodes: Vec::new(),
        user: None,
        alloc_user: None,
        named: Arc::default(),
        env: Arc::default(),
        network: None,
        secrets: Arc::new(secrets),
        run_id,
    })
}

/// All that a driver is given when it starts the task. `schema` is the schema of
/// the task's configuration.
pub(crate) fn task_config(
    task: &wire::TaskConfig,
    context: &TaskContext,
    (schema, fs): (&str, FsIsolation),
) -> Result<TaskConfig, TranslationError> {
    let memory = task.resources.as_ref().and_then(|all| all.allocated_resources.as_ref());
    let memory = memory.and_then(|all| all.memory).unwrap_or_default();
    let nodes = task.devices.iter().map(|device| DeviceNode {
        host_path: device.host_path.clone(),
        task_path: device.task_path.clone(),
        permissions: device.cgroup_permissions.clone(),
    });
    Ok(TaskConfig {
        run_id: context.run_id.clone(),
        alloc_id: context.alloc_id,
        job_id: context.job_id.clone(),
        group: context.group.clone(),
        task: context.task.clone(),
        config: values::configuration(&task.msgpack_driver_config, schema)?,
        env: env(task, fs),
        cpu_mhz: context.cpu_mhz,
        memory_bytes: mebibytes(memory.memory_mb).unwrap_or_default(),
        memory_max_bytes: mebibytes(memory.memory_max_mb),
        ports: context.ports.clone(),
        mounts: context.mounts.clone(),
        device_nodes: nodes.collect(),
        task_dir: context.task_dir.clone(),
        alloc_dir: context.alloc_dir.clone(),
        user: Some(task.user.clone()).filter(|user| !user.is_empty()),
    })
}

/// The environment of the task, sorted by name. Where two sources have a name, that of
/// the devices wins.
fn env(task: &wire::TaskConfig, fs: FsIsolation) -> Vec<(String, String)> {
    let all = task.env.iter().chain(&task.device_env);
    let mut all: BTreeMap<_, _> = all.map(|(name, value)| (name.clone(), value.clone())).collect();
    if fs != FsIsolation::Preopen {
        all.entry("PATH".to_owned()).or_insert_with(|| PATH.to_owned());
    }
    all.into_iter().collect()
}

fn mounts(task: &wire::TaskConfig) -> Vec<Mount> {
    let mounts = task.mounts.iter().map(|mount| Mount {
        host_path: mount.host_path.clone(),
        task_path: mount.task_path.clone(),
        read_only: mount.readonly,
    });
    mounts.collect()
}

/// The ports of the task. Newer versions of Nomad give them once for the group, older ones
/// with each network.
fn ports(resources: &wire::Resources) -> Vec<AllocatedPort> {
    let port = |number: i32| u16::try_from(number).unwrap_or_default();
    if !resources.ports.is_empty() {
        let mapped = resources.ports.iter().map(|one| AllocatedPort {
            label: one.label.clone(),
            value: port(one.value),
            to: if one.to > 0 { port(one.to) } else { port(one.value) },
            host_ip: one.host_ip.clone(),
            task: None,
        });
        return mapped.collect();
    }
    let networks = resources.allocated_resources.iter().flat_map(|all| &all.networks);
    let each = networks.flat_map(|network| {
        let ports = network.reserved_ports.iter().chain(&network.dynamic_ports);
        ports.map(|one| AllocatedPort {
            label: one.label.clone(),
            value: port(one.value),
            to: port(one.value),
            host_ip: network.ip.clone(),
            task: None,
        })
    });
    each.collect()
}

/// The sink for the pipe that Nomad reads.
fn sink(path: &str) -> Result<Arc<dyn ByteSink>, TranslationError> {
    if path.is_empty() || path == NOWHERE {
        return Ok(Arc::new(PipeSink(None)));
    }
    let path = absolute_path("the log pipe", path)?;
    let (Some(dir), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str()))
    else {
        let path = path.display().to_string();
        return Err(TranslationError::Path { what: "the log pipe", path });
    };
    let opened = std::fs::File::open(dir);
    let opened = opened.map_err(|source| TranslationError::Logs { dir: dir.to_owned(), source })?;
    Ok(Arc::new(PipeSink(Some(SinkFiles::pipe(Arc::new(opened.into()), name.to_owned())))))
}

/// Output of a task that another process runs. This process never sees it.
struct PipeSink(Option<SinkFiles>);

impl ByteSink for PipeSink {
    fn write(&self, _bytes: &[u8]) {}

    fn files(&self) -> Option<SinkFiles> {
        self.0.clone()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]
mod tests {
    use super::*;

    fn task() -> wire::TaskConfig {
        let alloc = "6f1d2c3a-0000-4000-8000-000000000001";
        wire::TaskConfig {
            id: format!("{alloc}/web/0a1b2c3d"),
            name: "web".to_owned(),
            alloc_id: alloc.to_owned(),
            alloc_dir: "/nomad/alloc/6f".to_owned(),
            job_name: "site".to_owned(),
            task_group_name: "front".to_owned(),
            env: [("A".to_owned(), "1".to_owned()), ("B".to_owned(), "1".to_owned())].into(),
            device_env: [("B".to_owned(), "2".to_owned())].into(),
            stdout_path: NOWHERE.to_owned(),
            resources: Some(wire::Resources {
                allocated_resources: Some(wire::AllocatedTaskResources {
                    cpu: Some(wire::AllocatedCpuResources { cpu_shares: 500 }),
                    memory: Some(wire::AllocatedMemoryResources {
                        memory_mb: 64,
                        memory_max_mb: 0,
                    }),
                    networks: vec![wire::NetworkResource {
                        ip: "10.0.0.1".to_owned(),
                        dynamic_ports: vec![wire::NetworkPort {
                            label: "http".to_owned(),
                            value: 20_000,
                        }],
                        ..Default::default()
                    }],
                }),
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    #[test]
    fn a_task_of_nomad_is_told_to_a_driver_in_its_own_words() {
        let (spawned, events) = (Arc::new(RunIdentities::default()), EventSender::new());
        let context = task_context(&task(), &spawned, &events).unwrap();
        assert_eq!(context.run_id.as_str(), task().id, "Nomad's id is the run's");
        assert_eq!(context.task_dir, Path::new("/nomad/alloc/6f/web"));
        assert_eq!(context.alloc_dir, Path::new("/nomad/alloc/6f/alloc"));
        assert_eq!((context.cpu_mhz, context.memory_bytes_max), (500, 64 * MIB));
        assert_eq!(context.ports[0].host_ip, "10.0.0.1");
        assert!(context.stdout.files().is_none());
        let config = task_config(&task(), &context, ("", FsIsolation::Preopen)).unwrap();
        let pairs = [("A", "1"), ("B", "2")].map(|(a, b)| (a.to_owned(), b.to_owned()));
        assert_eq!(config.env, pairs);
        assert_eq!((config.memory_bytes, config.memory_max_bytes), (64 * MIB, None));
    }

    #[test]
    fn a_task_without_a_place_is_refused() {
        let (spawned, events) = (Arc::new(RunIdentities::default()), EventSender::new());
        for wrong in [
            wire::TaskConfig { alloc_dir: "alloc".to_owned(), ..task() },
            wire::TaskConfig { alloc_id: "x".to_owned(), ..task() },
            wire::TaskConfig { name: "../up".to_owned(), ..task() },
            wire::TaskConfig { stdout_path: "x/y".to_owned(), ..task() },
        ] {
            assert!(task_context(&wrong, &spawned, &events).is_err(), "{wrong:?}");
        }
        let other = wire::TaskConfig { id: "not of that form".to_owned(), ..task() };
        assert_ne!(run_id(&other).unwrap(), run_id(&task()).unwrap());
    }
}
