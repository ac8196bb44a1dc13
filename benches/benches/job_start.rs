//! From a job accepted to its task running, through admission, durable state, the driver plugin and
//! the host; against the bare operation in the same run:
//!
//! - `native`: a process of this machine. Baseline: fork, exec and wait of the same program.
//! - `wasm`: a component. Baseline: the same component in bare wasmtime with its default settings
//!   (no pool, no epochs, no limits), run to its end.
//! - `fdatasync`: one raw 4 KiB overwrite, of which a start needs several.
#![allow(
    missing_docs,
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a bench that cannot set up has to end"
)]

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use criterion::Criterion;
use ostler_benches::{Bench, compile_child, one_task};
use ostler_guests::fixtures::HELLO;
use wasmtime::component::{Component, Linker, ResourceTable};
use wasmtime::{Engine, Store};
use wasmtime_wasi::p2::bindings::sync::Command as WasiCommand;
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};

struct Bare {
    wasi: WasiCtx,
    table: ResourceTable,
}

impl WasiView for Bare {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

fn main() -> ExitCode {
    if let Some(code) = compile_child() {
        return code;
    }
    let mut criterion = Criterion::default()
        .sample_size(100)
        .measurement_time(Duration::from_secs(10))
        .configure_from_args();
    through_the_agent(&mut criterion);
    bare(&mut criterion);
    criterion.final_summary();
    ExitCode::SUCCESS
}

fn through_the_agent(criterion: &mut Criterion) {
    let bench = Bench::start();
    let native = one_task("exec", "command = \"/bin/true\"");
    let wasm = one_task("wasm", &format!("module = \"{HELLO}\""));
    let mut group = criterion.benchmark_group("job_start");
    for (name, job) in [("native", native), ("wasm", wasm)] {
        group.bench_function(name, |b| {
            b.iter_custom(|times| (0..times).map(|_| bench.time_start(&job)).sum());
        });
    }
    group.finish();
    bench.runtime.block_on(bench.agent.shutdown());
}

fn bare(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("bare");
    group.bench_function("fork_exec_wait", |b| {
        b.iter(|| {
            let mut command = Command::new("/bin/true");
            command.stdin(Stdio::null()).stdout(Stdio::null()).status().unwrap()
        });
    });

    let engine = Engine::default();
    let component = Component::from_file(&engine, HELLO).expect("the fixture compiles");
    let mut linker = Linker::new(&engine);
    wasmtime_wasi::p2::add_to_linker_sync(&mut linker).expect("WASI links");
    group.bench_function("wasmtime_run", |b| {
        b.iter(|| {
            let wasi = WasiCtx::builder().build();
            let mut store = Store::new(&engine, Bare { wasi, table: ResourceTable::new() });
            let command = WasiCommand::instantiate(&mut store, &component, &linker).unwrap();
            command.wasi_cli_run().call_run(&mut store).unwrap().unwrap();
        });
    });

    let dir = tempfile_dir();
    let file = File::create(dir.path().join("raw")).unwrap();
    let block = [7_u8; 4096];
    file.write_all_at(&block, 0).unwrap();
    file.sync_all().unwrap();
    group.bench_function("overwrite_fdatasync", |b| {
        b.iter(|| {
            file.write_all_at(&block, 0).unwrap();
            file.sync_data().unwrap();
        });
    });
    group.finish();
}

fn tempfile_dir() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("ostler-bench-").tempdir().unwrap()
}
