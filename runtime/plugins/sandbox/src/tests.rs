//! The sandbox with real guests: written as WebAssembly text, compiled by a real compile child.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "tests"
)]

mod code;
mod containment;
mod dense;
mod fairness;
mod near;
mod queue;
mod streams;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tempfile::TempDir;
use tokio_util::sync::CancellationToken;
use wasmtime::component::{Linker, Val};

use super::*;
use ostler_testing::programs::write_script;

/// Long enough for a machine that compiles three other things at the same time.
const PATIENCE: Duration = Duration::from_secs(60);

/// A sandbox and the directory of its code.
struct Bench {
    sandbox: Sandbox,
    dir: TempDir,
}

impl Bench {
    fn new() -> Self {
        Self::with_instances(16)
    }

    fn with_instances(instances: u32) -> Self {
        Self::of(|dir| config(dir, instances))
    }

    fn of(config: impl FnOnce(&Path) -> SandboxConfig) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let sandbox = Sandbox::new(config(dir.path())).unwrap();
        Self { sandbox, dir }
    }

    fn cache_dir(&self) -> PathBuf {
        self.dir.path().join("code")
    }

    async fn load(&self, wat: &str) -> Result<Arc<LoadedCode>, LoadError> {
        self.load_as(EngineKind::Plugin, wat).await
    }

    async fn load_as(&self, kind: EngineKind, wat: &str) -> Result<Arc<LoadedCode>, LoadError> {
        let wasm: Arc<[u8]> = wat::parse_str(wat).unwrap().into();
        let format = detect_format(&wasm).unwrap();
        self.sandbox.code().load(wasm, kind, format).await
    }

    /// Load the component, call its export `run` within the limits and the deadline.
    async fn call(&self, wat: &str, limits: StoreLimits, deadline: Duration) -> GuestRun<Vec<Val>> {
        let code = self.load(wat).await.unwrap();
        let guest = run_export(&self.sandbox, code, limits, |_| {});
        self.sandbox.run_with_deadline(deadline, &CancellationToken::new(), guest).await
    }

    async fn error(&self, wat: &str) -> CallError {
        self.call(wat, StoreLimits::default(), PATIENCE).await.result.unwrap_err()
    }
}

fn config(dir: &Path, instances: u32) -> SandboxConfig {
    SandboxConfig {
        cache_dir: Some(dir.join("code")),
        compiler: compile_child_script(dir, ""),
        ahead: Vec::new(),
        plugin_instances: instances,
        task_instances: instances,
        dense: false,
        guest_threads: None,
    }
}

/// A program that answers `__compile`: this test binary, told by its environment to do only that.
/// `before` are shell commands that run first.
fn compile_child_script(dir: &Path, before: &str) -> PathBuf {
    let path = dir.join("compiler");
    std::fs::write(dir.join("before"), before).unwrap();
    if !path.exists() {
        std::os::unix::fs::symlink(shared_script(), &path).unwrap();
    }
    path
}

/// Written once. Other processes of this binary may run it meanwhile: it is whole before it
/// has its name.
fn shared_script() -> &'static Path {
    static SCRIPT: OnceLock<PathBuf> = OnceLock::new();
    SCRIPT.get_or_init(|| {
        let binary = std::env::current_exe().unwrap();
        let script = format!(
            "#!/bin/sh\n. \"${{0%/*}}/before\"\nshift\nOSTLER_TEST_COMPILE=\"$*\" exec '{}' --exact \
             tests::the_compile_child --ignored --nocapture --test-threads=1\n",
            binary.display()
        );
        let new = binary.with_extension(format!("compiler-{}", std::process::id()));
        write_script(&new, &script).unwrap();
        let path = binary.with_extension("compiler");
        std::fs::rename(&new, &path).unwrap();
        path
    })
}

/// Not a test: the body of the compile child, run by [`compile_child_script`].
#[test]
#[ignore = "only does something inside a compile child"]
fn the_compile_child() {
    if let Ok(args) = std::env::var("OSTLER_TEST_COMPILE") {
        let args = args.split(' ').map(std::ffi::OsString::from);
        let code = super::compile::child::run(args);
        if let Ok(file) = std::env::var("OSTLER_TEST_OPEN_FILES") {
            let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
            std::fs::write(file, format!("{:?} {:?}", limit.current, limit.maximum)).unwrap();
        }
        std::process::exit(i32::from(code));
    }
}

/// The data of a test's store. Says when the store is gone.
struct State {
    limiter: GuestLimiter,
    budget: HostcallBudget,
    cpu: CpuMeter,
    gone: Option<tokio::sync::oneshot::Sender<()>>,
    /// How many guests wait for ever.
    waiting: Arc<std::sync::atomic::AtomicUsize>,
}

impl StoreState for State {
    fn limiter(&mut self) -> &mut GuestLimiter {
        &mut self.limiter
    }
}

impl HostCalls for State {
    fn budget(&mut self) -> &mut HostcallBudget {
        &mut self.budget
    }

    fn cpu(&self) -> &CpuMeter {
        &self.cpu
    }
}

impl Drop for State {
    fn drop(&mut self) {
        if let Some(gone) = self.gone.take() {
            let _ = gone.send(());
        }
    }
}

fn run_export(
    sandbox: &Sandbox,
    code: Arc<LoadedCode>,
    limits: StoreLimits,
    prepare: impl FnOnce(&mut State) + Send + 'static,
) -> impl Future<Output = Result<Vec<Val>, CallError>> + Send + 'static {
    run_in(sandbox, code, limits, prepare, false)
}

/// The same with metered host calls.
fn run_metered(
    sandbox: &Sandbox,
    code: Arc<LoadedCode>,
    limits: StoreLimits,
    prepare: impl FnOnce(&mut State) + Send + 'static,
) -> impl Future<Output = Result<Vec<Val>, CallError>> + Send + 'static {
    run_in(sandbox, code, limits, prepare, true)
}

fn run_in(
    sandbox: &Sandbox,
    code: Arc<LoadedCode>,
    limits: StoreLimits,
    prepare: impl FnOnce(&mut State) + Send + 'static,
    metered: bool,
) -> impl Future<Output = Result<Vec<Val>, CallError>> + Send + 'static {
    let engine = sandbox.engine(code.kind()).clone();
    async move {
        let limiter = GuestLimiter::new(&limits);
        let usage = limiter.usage();
        let (budget, cpu) = (HostcallBudget::new(100, 1_000), CpuMeter::default());
        let mut state = State { limiter, budget, cpu, gone: None, waiting: Arc::default() };
        prepare(&mut state);
        let mut store = new_store(&engine, &limits, state)?;
        if metered {
            meter_host_calls(&mut store, &limits);
        }
        let mut linker = Linker::new(&engine);
        host_functions(&mut linker);
        let run = async {
            let component = code.component().expect("a component");
            let instance = linker.instantiate_async(&mut store, component).await?;
            let run = instance.get_func(&mut store, "run").expect("an export `run`");
            let mut results = vec![Val::Bool(false); run.ty(&store).results().len()];
            run.call_async(&mut store, &[], &mut results).await?;
            Ok(results)
        };
        run.await.map_err(|error| classify(error, &limits, &usage))
    }
}

fn host_functions(linker: &mut Linker<State>) {
    let mut root = linker.root();
    root.func_wrap("panic", |_, (): ()| -> wasmtime::Result<()> { panic!("host fell over") })
        .unwrap();
    root.func_wrap("exit", |_, (): ()| -> wasmtime::Result<()> {
        Err(wasmtime_wasi::I32Exit(7).into())
    })
    .unwrap();
    root.func_wrap_async("wait", |store: wasmtime::StoreContextMut<'_, State>, (): ()| {
        store.data().waiting.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        Box::new(std::future::pending::<wasmtime::Result<()>>())
    })
    .unwrap();
    root.func_wrap("take", |_, (_,): (Vec<u8>,)| Ok(())).unwrap();
    let turns = std::sync::atomic::AtomicI32::new(0);
    root.func_wrap("work", move |_, (): ()| {
        let spent = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        let (until, step) = (spent(), rustix::time::Timespec { tv_sec: 0, tv_nsec: 20_000_000 });
        while spent() - until < step {}
        let turn = turns.fetch_add(1, std::sync::atomic::Ordering::SeqCst) + 1;
        if turn == 10 { Err(wasmtime_wasi::I32Exit(10).into()) } else { Ok(()) }
    })
    .unwrap();
    root.func_wrap("spend", |mut store: wasmtime::StoreContextMut<'_, State>, (): ()| {
        store.data_mut().budget.count_call()?;
        Ok(())
    })
    .unwrap();
}

/// How long a timer of 20 ms takes: the least of five, since the machine may be busy.
async fn least_timer() -> Duration {
    let mut least = Duration::MAX;
    for _ in 0..5 {
        let watch = ostler_model::clock::Stopwatch::start();
        tokio::time::sleep(Duration::from_millis(20)).await;
        least = least.min(watch.elapsed());
    }
    least
}

/// A component with one core module, whose export `run` takes and gives nothing.
fn plain(core: &str) -> String {
    format!(
        r#"(component
            (core module $m {core})
            (core instance $i (instantiate $m))
            (func (export "run") (canon lift (core func $i "run"))))"#
    )
}

/// A component that calls the host function `name` for ever.
fn calling(name: &str) -> String {
    format!(
        r#"(component
            (import "{name}" (func $host))
            (core func $host (canon lower (func $host)))
            (core module $m
                (import "host" "call" (func $host))
                (func (export "run") (loop (call $host) (br 0))))
            (core instance $i (instantiate $m
                (with "host" (instance (export "call" (func $host))))))
            (func (export "run") (canon lift (core func $i "run"))))"#
    )
}

const SPIN: &str = r#"(func (export "run") (loop (br 0)))"#;
const NOTHING: &str = r#"(func (export "run"))"#;
