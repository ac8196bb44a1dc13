//! Links the host's interfaces behind the trace.

use wasmtime::component::{HasData, Linker, ResourceTable};
use wasmtime_wasi::WasiView as _;
use wasmtime_wasi::cli::{WasiCliCtxView, WasiCliView as _};
use wasmtime_wasi::clocks::{WasiClocksCtxView, WasiClocksView as _};
use wasmtime_wasi::p2::bindings::{cli, clocks, filesystem, random, sockets};
use wasmtime_wasi::random::WasiRandomCtx;
use wasmtime_wasi::sockets::{WasiSocketsCtxView, WasiSocketsView as _};
use wasmtime_wasi_io::bindings::wasi::io;

use crate::bindings::since_0_1::driver_world::DriverPlugin;
use crate::host::CallState;
use ostler_sandbox::leave_caller;
use ostler_wasm_task::guest_files::{Files, HasGuestFiles as _, count_sockets};

/// The state of a call whose host functions pass the trace.
pub struct TracedState<'a>(pub(super) &'a mut CallState);

struct HasTraced;

impl HasData for HasTraced {
    type Data<'a> = TracedState<'a>;
}

impl TracedState<'_> {
    pub(super) fn own(&mut self) -> &mut CallState {
        self.0
    }

    pub(super) fn table(&mut self) -> &mut ResourceTable {
        self.0.ctx().table
    }

    pub(super) fn files(&mut self) -> Files<'_> {
        self.0.files()
    }

    pub(super) fn clocks(&mut self) -> WasiClocksCtxView<'_> {
        self.0.clocks()
    }

    pub(super) fn cli(&mut self) -> WasiCliCtxView<'_> {
        self.0.cli()
    }

    pub(super) fn sockets(&mut self) -> WasiSocketsCtxView<'_> {
        self.0.sockets()
    }

    pub(super) fn random(&mut self) -> &mut WasiRandomCtx {
        self.0.ctx().ctx.random()
    }
}

fn traced_state(state: &mut CallState) -> TracedState<'_> {
    TracedState(state)
}

/// Replace `get-directories`, so that the granted directories are opened when the guest asks for
/// them. That may block.
fn link_late_preopens(linker: &mut Linker<CallState>) -> wasmtime::Result<()> {
    let mut preopens = linker.instance(PREOPENS)?;
    preopens.func_wrap_async("get-directories", |mut store, (): ()| {
        Box::new(async move {
            if !store.data().tracer.is_playing() {
                leave_caller().await;
            }
            let state: &mut CallState = store.data_mut();
            state.open_granted()?;
            Ok((filesystem::preopens::Host::get_directories(&mut traced_state(state))?,))
        })
    })
}

/// Name of the interface as wasmtime-wasi links it. Under another name a plugin would be told
/// of no directory.
const PREOPENS: &str = "wasi:filesystem/preopens@0.2.12";

/// Link every host interface and the harmless part of WASI.
///
/// # Errors
/// When an interface is linked twice, which is a mistake in this agent.
pub fn link(linker: &mut Linker<CallState>) -> wasmtime::Result<()> {
    wasmtime_wasi::p2::add_to_linker_async(linker)?;
    linker.allow_shadowing(true);
    io::error::add_to_linker::<_, HasTraced>(linker, traced_state)?;
    io::poll::add_to_linker::<_, HasTraced>(linker, traced_state)?;
    io::streams::add_to_linker::<_, HasTraced>(linker, traced_state)?;
    filesystem::types::add_to_linker::<_, HasTraced>(linker, traced_state)?;
    filesystem::preopens::add_to_linker::<_, HasTraced>(linker, traced_state)?;
    link_late_preopens(linker)?;
    clocks::wall_clock::add_to_linker::<_, HasTraced>(linker, traced_state)?;
    clocks::monotonic_clock::add_to_linker::<_, HasTraced>(linker, traced_state)?;
    random::random::add_to_linker::<_, HasTraced>(linker, traced_state)?;
    random::insecure::add_to_linker::<_, HasTraced>(linker, traced_state)?;
    random::insecure_seed::add_to_linker::<_, HasTraced>(linker, traced_state)?;
    cli::environment::add_to_linker::<_, HasTraced>(linker, traced_state)?;
    sockets::tcp_create_socket::add_to_linker::<_, HasTraced>(linker, traced_state)?;
    linker.allow_shadowing(false);
    count_sockets(linker, true)?;
    DriverPlugin::add_to_linker::<_, HasTraced>(linker, traced_state)
}
