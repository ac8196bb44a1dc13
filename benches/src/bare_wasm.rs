//! WASM programs without an agent.

use std::time::Duration;

use ostler_model::clock::Stopwatch;
use wasmtime::component::{Component, Linker, ResourceTable};
use wasmtime::{Engine, Store};
use wasmtime_wasi::p2::bindings::sync::{Command as WasiCommand, CommandPre};
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

/// A component in wasmtime with its default settings, its output discarded.
pub struct BareWasm {
    engine: Engine,
    component: Component,
    linker: Linker<Bare>,
    ready: CommandPre<Bare>,
}

impl BareWasm {
    /// Compile it.
    ///
    /// # Panics
    /// When it is no command.
    #[must_use]
    pub fn new(path: &str) -> Self {
        let engine = Engine::default();
        let component = Component::from_file(&engine, path).expect("the component compiles");
        let mut linker = Linker::new(&engine);
        wasmtime_wasi::p2::add_to_linker_sync(&mut linker).expect("WASI links");
        let ready = linker.instantiate_pre(&component).expect("the component links");
        let ready = CommandPre::new(ready).expect("the component is a command");
        Self { engine, component, linker, ready }
    }

    fn store(&self) -> Store<Bare> {
        let wasi = WasiCtx::builder().build();
        Store::new(&self.engine, Bare { wasi, table: ResourceTable::new() })
    }

    /// Link, instantiate, run to the end.
    ///
    /// # Panics
    /// When it fails.
    #[must_use]
    pub fn link_and_run(&self) -> Duration {
        let watch = Stopwatch::start();
        let mut store = self.store();
        let command = WasiCommand::instantiate(&mut store, &self.component, &self.linker);
        let command = command.expect("an instance");
        let _ended = command.wasi_cli_run().call_run(&mut store).expect("it runs");
        watch.elapsed()
    }

    /// The same, linked before.
    ///
    /// # Panics
    /// When it fails.
    #[must_use]
    pub fn run(&self) -> Duration {
        let watch = Stopwatch::start();
        let mut store = self.store();
        let command = self.ready.instantiate(&mut store).expect("an instance");
        let _ended = command.wasi_cli_run().call_run(&mut store).expect("it runs");
        watch.elapsed()
    }
}
