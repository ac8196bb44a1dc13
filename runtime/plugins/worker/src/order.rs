//! The order to start a task: how the agent builds it, and how the worker reads it.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::protocol::{
    Dir, ListedTask, OrderCode, OrderLimits, OrderMount, Port, StartOrder, Stdin, StreamDir,
    StreamFiles, TaskExit, TaskPlace,
};
use ostler_logs::task_sink;
use ostler_model::cores::CoreSet;
use ostler_model::device;
use ostler_model::digest::Digest;
use ostler_model::ids::{AllocId, GroupName, JobId, RunId, TaskName};
use ostler_model::limits::{TaskLimits, WORKER_ID_BYTES_MAX, WORKER_TEXT_BYTES_MAX};
use ostler_model::ports::{
    ByteSink, DirMaker, DriverEventSink, LogDir, SinkFiles, TaskContext, dirs_are_made,
};
use ostler_model::printable::printable_lines;
use ostler_model::resources::AllocatedPort;
use ostler_model::task::RawExit;
use ostler_model::time::Timestamp;
use ostler_process::live::RunPlace;
use ostler_sandbox::{CodeFile, EngineKind, WasmFormat};
use ostler_wasm_task::{PreopenedDir, TaskStdin, WasmTaskError, WasmTaskSpec, opens_dirs_late};

/// What the agent sends: the order and its file descriptors.
pub(crate) struct OrderWithFds {
    pub order: StartOrder,
    pub fds: Vec<Arc<OwnedFd>>,
}

/// Build the order for a start, in the agent.
pub(crate) fn build_order(
    context: &TaskContext,
    spec: WasmTaskSpec,
    code: &CodeFile,
    id: &str,
) -> Result<OrderWithFds, WasmTaskError> {
    let file = code.file.try_clone().map_err(|e| no_descriptor(&e))?;
    let mut fds = vec![Arc::new(OwnedFd::from(file))];
    let mut stream = |sink: &Arc<dyn ByteSink>| -> Result<Option<StreamFiles>, WasmTaskError> {
        let Some(SinkFiles { dir, prefix, files_max, file_bytes_max, fresh }) = sink.files() else {
            return Ok(None);
        };
        let dir = match dir {
            LogDir::Open(dir) => {
                fds.push(dir);
                None
            }
            LogDir::Below { root, path } => {
                Some(StreamDir { root: utf8_path(&root)?, path: utf8_path(&path)? })
            }
        };
        Ok(Some(StreamFiles { dir, fresh, prefix, files_max, file_bytes_max }))
    };
    let (stdout, stderr) = (stream(&context.stdout)?, stream(&context.stderr)?);
    let dirs = spec.dirs.iter().map(|dir| {
        let host = utf8_path(&dir.host_path)?;
        Ok(Dir { host, guest: dir.guest_path.clone(), read_only: dir.read_only })
    });
    let mounts = context.mounts.iter().map(|mount| OrderMount {
        host: mount.host_path.clone(),
        task: mount.task_path.clone(),
        read_only: mount.read_only,
    });
    // A task in a network of its own has the port numbers of that network, on every address.
    let own = context.network.is_some();
    let ports = context.ports.iter().map(|port| Port {
        label: port.label.clone(),
        value: if own { port.to } else { port.value },
        to: port.to,
        host_ip: if own { String::new() } else { port.host_ip.clone() },
    });
    let component = code.format == WasmFormat::Component;
    let late_dirs = opens_dirs_late(context, &spec, component);
    let order = StartOrder {
        run: context.run_id.to_string(),
        id: Some(id.to_owned()),
        alloc: context.alloc_id.to_string(),
        job: context.job_id.qualified_id().to_owned(),
        group: context.group.to_string(),
        task: context.task.to_string(),
        code: OrderCode { digest: code.digest.to_string(), component },
        path: utf8_path(&spec.path)?,
        dirs: dirs.collect::<Result<_, WasmTaskError>>()?,
        args: spec.args,
        env: spec.env,
        stdin: match spec.input {
            TaskStdin::Nothing => Stdin::Nothing,
            TaskStdin::Text(given) => Stdin::Text(given),
            TaskStdin::File(path) => Stdin::File(utf8_path(&path)?),
        },
        listen: spec.listen,
        connect: spec.connect,
        cpu_mhz: context.cpu_mhz,
        task_dir: utf8_path(&context.task_dir)?,
        alloc_dir: utf8_path(&context.alloc_dir)?,
        late_dirs,
        mounts: mounts.collect(),
        ports: ports.collect(),
        limits: OrderLimits {
            memory_bytes: spec.limits.memory_bytes_max,
            table_elements: spec.limits.table_elements_max,
            transfer_bytes: spec.limits.transfer_bytes_max,
            handles: spec.limits.handles_max,
            random_bytes: spec.limits.random_bytes_max,
            disk_bytes: spec.limits.disk_bytes_max,
        },
        stdout,
        stderr,
    };
    Ok(OrderWithFds { order, fds })
}

fn utf8_path(path: &Path) -> Result<String, WasmTaskError> {
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| WasmTaskError::File {
        path: path.to_owned(),
        reason: "its path is not UTF-8".to_owned(),
    })
}

fn no_descriptor(error: &io::Error) -> WasmTaskError {
    WasmTaskError::Worker { reason: format!("no file descriptor is left: {error}") }
}

/// An order as the worker carries it out.
pub(crate) struct ParsedOrder {
    pub id: Option<String>,
    pub context: TaskContext,
    pub spec: WasmTaskSpec,
    pub code: CodeFile,
}

/// Why an order cannot be carried out: it is not one that an agent sends.
#[derive(Debug, thiserror::Error)]
#[error("the order of a start is broken: {0}")]
pub(crate) struct BrokenOrder(String);

/// Are these the same directory?
fn is_same_dir(one: &OwnedFd, other: &OwnedFd) -> bool {
    let stats = [one, other].map(rustix::fs::fstat);
    matches!(stats, [Ok(a), Ok(b)] if (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino))
}

/// Read an order in the worker. `events` receives the events of the task, and `late` says how its
/// directories are waited for, if they are made late.
pub(crate) fn read_order(
    order: StartOrder,
    fds: Vec<OwnedFd>,
    events: DriverEventSink,
    late: impl FnOnce(RunId, PathBuf) -> DirMaker,
) -> Result<ParsedOrder, BrokenOrder> {
    let mut fds = fds.into_iter();
    let code = fds.next().ok_or_else(|| BrokenOrder("it has no code".to_owned()))?;
    let mut shared: Option<Arc<OwnedFd>> = None;
    let mut stream = |files: Option<StreamFiles>| -> Result<Arc<dyn ByteSink>, BrokenOrder> {
        let Some(files) = files else { return Ok(Arc::new(DiscardSink)) };
        let StreamFiles { dir, fresh, prefix, files_max, file_bytes_max } = files;
        let dir = match dir {
            Some(StreamDir { root, path }) => {
                LogDir::Below { root: PathBuf::from(root).into(), path: PathBuf::from(path).into() }
            }
            None => {
                let dir =
                    fds.next().ok_or_else(|| BrokenOrder("it lacks a directory".to_owned()))?;
                // Both streams lie in one directory: sharing it saves a descriptor for each task.
                let dir = match &shared {
                    Some(known) if is_same_dir(known, &dir) => Arc::clone(known),
                    _ => Arc::new(dir),
                };
                shared = Some(Arc::clone(&dir));
                LogDir::Open(dir)
            }
        };
        Ok(task_sink(SinkFiles { dir, prefix, files_max, file_bytes_max, fresh }))
    };
    let (stdout, stderr) = (stream(order.stdout)?, stream(order.stderr)?);
    let digest: Digest = parse_text(&order.code.digest)?;
    let format = if order.code.component { WasmFormat::Component } else { WasmFormat::Module };
    let alloc_id: AllocId = parse_text(&order.alloc)?;
    let mounts = order.mounts.into_iter().map(|mount| device::Mount {
        host_path: mount.host,
        task_path: mount.task,
        read_only: mount.read_only,
    });
    let ports = order.ports.into_iter().map(|port| AllocatedPort {
        label: port.label,
        value: port.value,
        to: port.to,
        host_ip: port.host_ip,
        task: None,
    });
    let run_id = parse_run(&order.run)?;
    let task_dir = PathBuf::from(order.task_dir);
    let dirs =
        if order.late_dirs { late(run_id.clone(), task_dir.clone()) } else { dirs_are_made() };
    let context = TaskContext {
        run_id,
        alloc_id,
        job_id: check_name(JobId::from_qualified(&order.job))?,
        group: check_name(GroupName::new(&order.group))?,
        task: check_name(TaskName::new(&order.task))?,
        stdout,
        stderr,
        record_identity: Arc::new(|_| {
            Box::pin(std::future::ready(Err("a worker starts no processes".to_owned())))
        }),
        events,
        cpu_mhz: order.cpu_mhz,
        cores: CoreSet::new(),
        memory_bytes_max: order.limits.memory_bytes,
        disk_bytes_max: order.limits.disk_bytes,
        ports: ports.collect(),
        task_dir,
        alloc_dir: PathBuf::from(order.alloc_dir),
        dirs,
        mounts: mounts.collect(),
        device_nodes: Vec::new(),
        user: None,
        alloc_user: None,
        named: Arc::default(),
        env: Arc::default(),
        network: None,
        secrets: Arc::default(),
    };
    let dirs = order.dirs.into_iter().map(|dir| PreopenedDir {
        host_path: PathBuf::from(dir.host),
        guest_path: dir.guest,
        read_only: dir.read_only,
    });
    let spec = WasmTaskSpec {
        path: PathBuf::from(order.path),
        args: order.args,
        env: order.env,
        dirs: dirs.collect(),
        limits: TaskLimits {
            memory_bytes_max: order.limits.memory_bytes,
            table_elements_max: order.limits.table_elements,
            transfer_bytes_max: order.limits.transfer_bytes,
            handles_max: order.limits.handles,
            random_bytes_max: order.limits.random_bytes,
            disk_bytes_max: order.limits.disk_bytes,
        },
        listen: order.listen,
        connect: order.connect,
        input: match order.stdin {
            Stdin::Nothing => TaskStdin::Nothing,
            Stdin::Text(given) => TaskStdin::Text(given),
            Stdin::File(path) => TaskStdin::File(PathBuf::from(path)),
        },
    };
    let file = Arc::new(std::fs::File::from(code));
    let code = CodeFile { digest, kind: EngineKind::Task, format, file };
    let id = order.id.filter(|id| is_id(id));
    Ok(ParsedOrder { id, context, spec, code })
}

/// The variable with the index of the allocation, which the environment of each task has.
const INDEX: &str = "NOMAD_ALLOC_INDEX";

/// Job, group and index to which a task belongs, as its order says.
pub(crate) fn task_place(order: &StartOrder) -> Option<TaskPlace> {
    let index = order.env.iter().find(|(name, _)| name == INDEX)?.1.parse().ok()?;
    Some(TaskPlace { job: order.job.clone(), group: order.group.clone(), index })
}

/// Where a listed task belongs. `None`: its worker does not say it, or says it in names that
/// are not valid.
pub(crate) fn parse_place(task: &ListedTask) -> Option<RunPlace> {
    let place = task.place.as_ref()?;
    let mut parts = task.run.split('/');
    Some(RunPlace {
        alloc: parts.next()?.parse().ok()?,
        task: TaskName::new(parts.next()?).ok()?,
        job: JobId::from_qualified(&place.job).ok()?,
        group: GroupName::new(&place.group).ok()?,
        index: place.index,
    })
}

/// Parse the text of a run id.
pub(crate) fn parse_run(text: &str) -> Result<RunId, BrokenOrder> {
    serde_json::from_value(serde_json::Value::from(text)).map_err(|e| BrokenOrder(e.to_string()))
}

fn parse_text<T: std::str::FromStr<Err: std::fmt::Display>>(text: &str) -> Result<T, BrokenOrder> {
    text.parse().map_err(|e: T::Err| BrokenOrder(e.to_string()))
}

fn check_name<T, E: std::fmt::Display>(name: Result<T, E>) -> Result<T, BrokenOrder> {
    name.map_err(|e| BrokenOrder(e.to_string()))
}

/// An exit as the worker sends it.
pub(crate) fn encode_exit(exit: &RawExit) -> TaskExit {
    TaskExit {
        code: exit.exit_code,
        signal: exit.signal,
        oom_killed: exit.oom_killed,
        error: exit.error.clone(),
        finished_at: exit.finished_at.nanos(),
    }
}

/// An exit as the agent reads it.
pub(crate) fn decode_exit(exit: TaskExit) -> RawExit {
    RawExit {
        exit_code: exit.code,
        signal: exit.signal,
        oom_killed: exit.oom_killed,
        error: exit.error.map(sanitize_text),
        finished_at: Timestamp::from_nanos(exit.finished_at),
    }
}

/// Make a text of a worker safe to show. It goes into events and records, and a guest that broke
/// out of its engine may have written it.
pub(crate) fn sanitize_text(text: String) -> String {
    printable_lines(text, WORKER_TEXT_BYTES_MAX)
}

/// Can this be the id of a task? The id is written into the task's record.
pub(crate) fn is_id(id: &str) -> bool {
    (1..=WORKER_ID_BYTES_MAX).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic())
}

/// A sink that drops all output.
struct DiscardSink;

impl ByteSink for DiscardSink {
    fn write(&self, _bytes: &[u8]) {}
}
