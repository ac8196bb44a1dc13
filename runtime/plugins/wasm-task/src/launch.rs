//! The way from compiled code to a running guest: one path for components, one for core modules.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wasmtime::component::{Linker as ComponentLinker, Resource, ResourceTable};
use wasmtime::{InstancePre, Linker as ModuleLinker, Store, StoreContextMut};
use wasmtime_wasi::filesystem::{Descriptor, WasiFilesystemCtxView};
use wasmtime_wasi::p1::WasiP1Ctx;
use wasmtime_wasi::p2::bindings::CommandPre;
use wasmtime_wasi::p2::bindings::filesystem::{self, preopens};
use wasmtime_wasi::sockets::SocketAddrUse;
use wasmtime_wasi::{WasiCtx, WasiCtxBuilder, WasiCtxView, WasiView};

use super::dirs::{Roots, preopen};
use super::io_p1::PrintSinks;
use super::{WasmTaskError, WasmTaskSpec, disk_p1, input};
use crate::guest_files::disk::{DiskQuota, OpenInodes};
use crate::guest_files::host::{Files, HasFiles, files};
use crate::guest_files::{
    DirOpener, FileShare, GuestFiles, HasGuestFiles, OpenedDirs, choose_threads, count_sockets,
};
use ostler_model::limits::{
    TASK_CODE_KEPT_MAX, TASK_MEMORY_BYTES_CEILING, TASK_OPEN_FILES_MAX, TaskLimits,
};
use ostler_model::ports::{BoxFuture, ByteSink, TaskContext};
use ostler_sandbox::{
    CallError, Digest, EngineKind, GuestLimiter, GuestOutput, GuestSink, GuestUsage, LoadedCode,
    Sandbox, StderrTail, StoreLimits, StoreState, classify, new_resource_table, new_store,
    new_wasi_builder,
};

/// A guest that is ready to run.
pub(super) struct Guest {
    /// The future that runs the guest. Its value is the exit code.
    pub run: BoxFuture<'static, Result<i32, CallError>>,
    /// How much memory the guest holds while it runs.
    pub memory: Arc<GuestUsage>,
    /// Whether the guest complained that a file does not exist.
    pub missed: Arc<AtomicBool>,
    /// What the guest wrote last to standard error.
    pub tail: Arc<StderrTail>,
}

/// Linkers for both formats, which are made once, and the code that was linked last.
pub(super) struct Launcher {
    components: ComponentLinker<ComponentTask>,
    modules: ModuleLinker<ModuleTask>,
    linked: Mutex<VecDeque<(Digest, LinkedCode)>>,
    inodes: Arc<OpenInodes>,
}

/// Code whose imports are linked. Linking costs more than all else of a start.
#[derive(Clone)]
enum LinkedCode {
    Component(CommandPre<ComponentTask>),
    Module(InstancePre<ModuleTask>),
}

pub(super) struct ComponentTask {
    wasi: WasiCtx,
    table: ResourceTable,
    limiter: GuestLimiter,
    // This is dropped after the table, whose files it counts.
    files: GuestFiles,
}

impl HasGuestFiles for ComponentTask {
    fn guest_files(&mut self) -> &mut GuestFiles {
        &mut self.files
    }

    fn files(&mut self) -> Files<'_> {
        let wasi = WasiFilesystemCtxView { ctx: self.wasi.filesystem(), table: &mut self.table };
        Files { wasi, own: &mut self.files }
    }
}

impl StoreState for ComponentTask {
    fn limiter(&mut self) -> &mut GuestLimiter {
        &mut self.limiter
    }
}

impl WasiView for ComponentTask {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

pub(super) struct ModuleTask {
    pub(super) wasi: WasiP1Ctx,
    limiter: GuestLimiter,
    pub(super) disk: Arc<DiskQuota>,
    // This is dropped after what it counts.
    pub(super) files: GuestFiles,
    /// Most handles alive at once.
    pub(super) handles: u32,
    pub(super) printing: PrintSinks,
}

impl StoreState for ModuleTask {
    fn limiter(&mut self) -> &mut GuestLimiter {
        &mut self.limiter
    }
}

/// The sink of a task's output stream, in the form that the sandbox needs.
struct TaskOutput(Arc<dyn ByteSink>);

impl GuestSink for TaskOutput {
    fn write(&self, bytes: &[u8]) -> std::io::Result<()> {
        self.0.write(bytes);
        Ok(())
    }
}

/// The sink of a task's error stream. It notes whether the task said that it did not find a file:
/// libraries look up names outside of all directories by themselves, so the host sees no call that
/// fails. It also keeps the end of what was written.
struct Complaints {
    sink: TaskOutput,
    missed: Arc<AtomicBool>,
    tail: Arc<StderrTail>,
}

/// How C libraries and Rust say that a file was not found. The last is about a name outside
/// of all directories.
const MISSED: [&[u8]; 3] = [b"No such file", b"no such file", b"Capabilities insufficient"];

impl GuestSink for Complaints {
    fn write(&self, bytes: &[u8]) -> std::io::Result<()> {
        let says = |words: &&[u8]| bytes.windows(words.len()).any(|part| part == *words);
        if !self.missed.load(Ordering::Relaxed) && MISSED.iter().any(says) {
            self.missed.store(true, Ordering::Relaxed);
        }
        self.tail.push(bytes);
        self.sink.write(bytes)
    }
}

fn host_error(error: &wasmtime::Error) -> CallError {
    CallError::Host { message: format!("{error:#}") }
}

impl Launcher {
    pub(super) fn new(sandbox: &Sandbox) -> Result<Self, CallError> {
        let engine = sandbox.engine(EngineKind::Task);
        let mut components = ComponentLinker::new(engine);
        wasmtime_wasi::p2::add_to_linker_async(&mut components).map_err(|e| host_error(&e))?;
        let mut modules = ModuleLinker::new(engine);
        wasmtime_wasi::p1::add_to_linker_async(&mut modules, |task: &mut ModuleTask| {
            &mut task.wasi
        })
        .map_err(|e| host_error(&e))?;
        link_counted(&mut components).map_err(|e| host_error(&e))?;
        disk_p1::link_counted(&mut modules).map_err(|e| host_error(&e))?;
        Ok(Self { components, modules, linked: Mutex::default(), inodes: Arc::default() })
    }

    fn lock_linked(&self) -> MutexGuard<'_, VecDeque<(Digest, LinkedCode)>> {
        self.linked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known_link(&self, code: &LoadedCode) -> Option<LinkedCode> {
        let kept = self.lock_linked();
        kept.iter().find(|(digest, _)| digest == code.digest()).map(|(_, linked)| linked.clone())
    }

    /// Was the code linked before, and is the result still here?
    pub(super) fn has_linked(&self, code: &LoadedCode) -> bool {
        self.known_link(code).is_some()
    }

    /// Link the code, now or before. The digest alone identifies it, because one wasm
    /// has one format.
    fn find_linked(&self, path: &Path, code: &LoadedCode) -> Result<LinkedCode, WasmTaskError> {
        if let Some(linked) = self.known_link(code) {
            return Ok(linked);
        }
        let linked = self.link(code).map_err(|e| WasmTaskError::OtherWorld {
            path: path.to_owned(),
            reason: format!("{e:#}"),
        })?;
        let mut kept = self.lock_linked();
        kept.push_back((*code.digest(), linked.clone()));
        let oldest = (kept.len() > TASK_CODE_KEPT_MAX).then(|| kept.pop_front());
        drop(kept);
        // Unmapped without holding the lock.
        drop(oldest);
        Ok(linked)
    }

    fn link(&self, code: &LoadedCode) -> wasmtime::Result<LinkedCode> {
        if let Some(component) = code.component() {
            let pre = self.components.instantiate_pre(component)?;
            return CommandPre::new(pre).map(LinkedCode::Component);
        }
        let Some(module) = code.module() else {
            wasmtime::bail!("it is neither a component nor a module");
        };
        wasmtime::ensure!(module.get_export("_start").is_some(), "it does not export _start");
        self.modules.instantiate_pre(module).map(LinkedCode::Module)
    }

    /// Check imports and exports, build the store, and return what runs the guest.
    pub(super) fn prepare(
        &self,
        sandbox: &Sandbox,
        context: &TaskContext,
        spec: &WasmTaskSpec,
        code: &LoadedCode,
    ) -> Result<Guest, WasmTaskError> {
        let linked = self.find_linked(&spec.path, code)?;
        let memory_bytes_max = spec.limits.memory_bytes_max.min(TASK_MEMORY_BYTES_CEILING);
        let limits = StoreLimits::from(&TaskLimits { memory_bytes_max, ..spec.limits.clone() });
        let (missed, tail) = (Arc::new(AtomicBool::new(false)), Arc::new(StderrTail::default()));
        let outputs = outputs(context, &missed, &tail);
        let is_component = matches!(linked, LinkedCode::Component(_));
        let (wasi, waits, dirs) = build_wasi(context, spec, &limits, &outputs, is_component)?;
        let limiter = GuestLimiter::new(&limits);
        let memory = limiter.usage();
        let disk = Arc::new(DiskQuota::new(spec.limits.disk_bytes_max));
        let share = Arc::new(FileShare::new(sandbox.descriptors(TASK_OPEN_FILES_MAX)));
        let mut files = GuestFiles::new(limiter.usage(), share, waits)
            .with_quota(Arc::clone(&disk), Arc::clone(&self.inodes));
        match dirs {
            GuestDirs::Open(many) => files.hold_given(many).map_err(|e| host_error(&e))?,
            GuestDirs::Late(open) => files = files.with_unopened(Arc::clone(&context.dirs), open),
        }
        let engine = sandbox.engine(EngineKind::Task);
        let pre = match linked {
            LinkedCode::Component(pre) => {
                let state = ComponentTask {
                    wasi: { wasi }.build(),
                    table: new_resource_table(&limits),
                    limiter,
                    files,
                };
                let store = new_store(engine, &limits, state)?;
                let run = Box::pin(run_component(pre, store, limits));
                return Ok(Guest { run, memory, missed, tail });
            }
            LinkedCode::Module(pre) => pre,
        };
        // A buffer beyond this is refused, not read short, and programs read whole files at once.
        // The host's copy of one buffer is never larger than the memory that holds the buffer.
        let hostcall_bytes = limits.hostcall_bytes.max(memory_bytes_max);
        // The store is made with `answer_bytes`, which is the same for a task.
        let limits = StoreLimits { hostcall_bytes, answer_bytes: hostcall_bytes, ..limits };
        let handles = limits.handles;
        let (wasi, printing) = ({ wasi }.build_p1(), PrintSinks(outputs.map(Some)));
        let mut state = ModuleTask { wasi, limiter, disk, files, handles, printing };
        disk_p1::note_given_dirs(&mut state).map_err(|e| host_error(&e))?;
        let store = new_store(engine, &limits, state)?;
        Ok(Guest { run: Box::pin(run_module(pre, store, limits)), memory, missed, tail })
    }
}

/// Link a check and a count around every function that opens something, keeps it, or changes how
/// much there is.
fn link_counted(linker: &mut ComponentLinker<ComponentTask>) -> wasmtime::Result<()> {
    linker.allow_shadowing(true);
    filesystem::types::add_to_linker::<_, HasFiles>(linker, files::<ComponentTask>)?;
    filesystem::preopens::add_to_linker::<_, HasFiles>(linker, files::<ComponentTask>)?;
    link_late_dirs(linker)?;
    linker.allow_shadowing(false);
    count_sockets(linker, false)
}

/// The interface that tells a guest its directories, in the version that `wasmtime-wasi` links.
const PREOPENS: &str = "wasi:filesystem/preopens@0.2.12";

/// Link the function that tells a guest its directories: they may have to be made first, for which
/// the guest waits.
fn link_late_dirs(linker: &mut ComponentLinker<ComponentTask>) -> wasmtime::Result<()> {
    type Given = (Vec<(Resource<Descriptor>, String)>,);
    linker.instance(PREOPENS)?.func_wrap_async(
        "get-directories",
        |mut store: StoreContextMut<'_, ComponentTask>, (): ()| {
            Box::new(async move {
                if let Some(make) = store.data_mut().files.take_unmade() {
                    make().await.map_err(|error| {
                        wasmtime::format_err!("the directories of the task are not made: {error}")
                    })?;
                }
                let given = preopens::Host::get_directories(&mut store.data_mut().files())?;
                wasmtime::Result::<Given>::Ok((given,))
            })
        },
    )
}

async fn run_component(
    pre: CommandPre<ComponentTask>,
    mut store: Store<ComponentTask>,
    limits: StoreLimits,
) -> Result<i32, CallError> {
    let usage = store.data().limiter.usage();
    let run = async {
        let command = pre.instantiate_async(&mut store).await?;
        command.wasi_cli_run().call_run(&mut store).await
    };
    match run.await {
        // WASI 0.2 has only success and failure, so any exit code of a Rust program other than 0 is
        // 1.
        Ok(ended) => Ok(if ended.is_ok() { 0 } else { 1 }),
        Err(error) => Err(classify(error, &limits, &usage)),
    }
}

async fn run_module(
    pre: InstancePre<ModuleTask>,
    mut store: Store<ModuleTask>,
    limits: StoreLimits,
) -> Result<i32, CallError> {
    let usage = store.data().limiter.usage();
    let run = async {
        let instance = pre.instantiate_async(&mut store).await?;
        let start = instance.get_typed_func::<(), ()>(&mut store, "_start")?;
        start.call_async(&mut store, ()).await
    };
    match run.await {
        Ok(()) => Ok(0),
        Err(error) => Err(classify(error, &limits, &usage)),
    }
}

/// The sinks of standard output and standard error.
fn outputs(
    context: &TaskContext,
    missed: &Arc<AtomicBool>,
    tail: &Arc<StderrTail>,
) -> [Arc<dyn GuestSink>; 2] {
    let complaints = Complaints {
        sink: TaskOutput(Arc::clone(&context.stderr)),
        missed: Arc::clone(missed),
        tail: Arc::clone(tail),
    };
    [Arc::new(TaskOutput(Arc::clone(&context.stdout))), Arc::new(complaints)]
}

/// The directories that a task is given.
enum GuestDirs {
    /// The directories are open; there are this many.
    Open(u64),
    /// The directories are opened when the task asks for them.
    Late(DirOpener),
}

/// Open the directories, or say how they are opened when the task asks for them. The second value
/// says whether calls about them run on threads that can be given up.
fn open_dirs(
    wasi: &mut WasiCtxBuilder,
    context: &TaskContext,
    spec: &WasmTaskSpec,
    late: bool,
) -> Result<(GuestDirs, bool), WasmTaskError> {
    let roots = Roots::from_context(context);
    let paths = || spec.dirs.iter().map(|dir| dir.host_path.as_path());
    if !(late && roots.is_free_of_mounts(&spec.dirs)) {
        let waits = choose_threads(wasi, paths());
        return Ok((GuestDirs::Open(preopen(wasi, &roots, &spec.dirs)?), waits));
    }
    roots.check_paths(&spec.dirs)?;
    let dirs = spec.dirs.clone();
    let open = Box::new(move || {
        let mut wasi = WasiCtxBuilder::new();
        let waits = choose_threads(&mut wasi, dirs.iter().map(|dir| dir.host_path.as_path()));
        let many = preopen(&mut wasi, &roots, &dirs)?;
        Ok(OpenedDirs { wasi, many, waits })
    });
    Ok((GuestDirs::Late(open), false))
}

/// Build what WASI shows of the node. The second value says whether its calls run on threads that
/// can be given up.
fn build_wasi(
    context: &TaskContext,
    spec: &WasmTaskSpec,
    limits: &StoreLimits,
    [stdout, stderr]: &[Arc<dyn GuestSink>; 2],
    late: bool,
) -> Result<(WasiCtxBuilder, bool, GuestDirs), WasmTaskError> {
    let mut wasi = new_wasi_builder(limits);
    wasi.args(&spec.args)
        .envs(&spec.env)
        .stdout(GuestOutput::new(Arc::clone(stdout)))
        .stderr(GuestOutput::new(Arc::clone(stderr)));
    input::connect(&mut wasi, context, &spec.input)?;
    let (dirs, waits) = open_dirs(&mut wasi, context, spec, late)?;
    if spec.listen || !spec.connect.is_empty() {
        let connect = spec
            .connect
            .iter()
            .map(|text| {
                text.parse::<SocketAddr>()
                    .map_err(|_| WasmTaskError::Address { given: text.chars().take(64).collect() })
            })
            .collect::<Result<Vec<_>, _>>()?;
        let ports = if spec.listen {
            context
                .ports
                .iter()
                .map(|port| (port.host_ip.parse::<IpAddr>().ok(), port.value))
                .collect()
        } else {
            Vec::new()
        };
        wasi.allow_tcp(true).socket_addr_check(move |address, purpose| {
            let allowed = is_allowed(&ports, &connect, address, purpose);
            Box::pin(std::future::ready(allowed))
        });
    }
    Ok((wasi, waits, dirs))
}

/// May a task use this address? It may listen on the allocation's ports, on their addresses, and
/// accept whoever connects to them. It may connect to what was asked for. A socket that connects is
/// first bound to the unspecified address. That is allowed where the task may connect to anything,
/// and listening on it is not.
fn is_allowed(
    ports: &[(Option<IpAddr>, u16)],
    connect: &[SocketAddr],
    address: SocketAddr,
    purpose: SocketAddrUse,
) -> bool {
    let assigned = || {
        ports
            .iter()
            .any(|(ip, port)| *port == address.port() && ip.is_none_or(|ip| ip == address.ip()))
    };
    let any = address.ip().is_unspecified() && address.port() == 0;
    match purpose {
        SocketAddrUse::TcpBind => assigned() || (any && !connect.is_empty()),
        SocketAddrUse::TcpListen => assigned(),
        SocketAddrUse::TcpAccept => !ports.is_empty(),
        SocketAddrUse::TcpConnect => connect.contains(&address),
        _ => false,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_task_listens_on_the_ports_of_its_allocation_and_on_no_other() {
        let ports = [(Some("127.0.0.1".parse().unwrap()), 6379)];
        let bind = |text| is_allowed(&ports, &[], address(text), SocketAddrUse::TcpBind);
        assert!(bind("127.0.0.1:6379"));
        assert!(!bind("127.0.0.1:6380"));
        assert!(!bind("0.0.0.0:6379"), "an address that was not assigned");
        assert!(!bind("127.0.0.1:0"));
        let listen = |text| is_allowed(&ports, &[], address(text), SocketAddrUse::TcpListen);
        assert!(listen("127.0.0.1:6379"));
        assert!(!listen("127.0.0.1:40000"), "a port the system chose");
        let accept =
            |ports| is_allowed(ports, &[], address("10.0.0.9:41000"), SocketAddrUse::TcpAccept);
        assert!(accept(&ports));
        assert!(!accept(&[]));
    }

    #[test]
    fn a_task_connects_to_what_it_asked_for_and_to_nothing_else() {
        let connect = [address("127.0.0.1:80")];
        let to = |text, purpose| is_allowed(&[], &connect, address(text), purpose);
        assert!(to("127.0.0.1:80", SocketAddrUse::TcpConnect));
        assert!(!to("127.0.0.1:81", SocketAddrUse::TcpConnect));
        assert!(!to("127.0.0.1:80", SocketAddrUse::UdpSend));
        assert!(!to("127.0.0.1:80", SocketAddrUse::TcpBind));
        assert!(to("0.0.0.0:0", SocketAddrUse::TcpBind), "before the connect");
        assert!(!to("0.0.0.0:0", SocketAddrUse::TcpListen));
        let nothing = |text| is_allowed(&[], &[], address(text), SocketAddrUse::TcpBind);
        assert!(!nothing("0.0.0.0:0"));
    }
}
