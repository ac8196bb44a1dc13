//! The host's interfaces in a linker, behind the tape.

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
use crate::host::guest_files::host::Files;
use crate::host::guest_files::{HasGuestFiles as _, count_sockets};

/// The state of a call whose host functions pass the tape.
pub struct Taped<'a>(pub(super) &'a mut CallState);

struct HasTaped;

impl HasData for HasTaped {
    type Data<'a> = Taped<'a>;
}

impl Taped<'_> {
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

fn taped(state: &mut CallState) -> Taped<'_> {
    Taped(state)
}

/// Link every host interface and the harmless part of WASI.
///
/// # Errors
/// When an interface is linked twice: a mistake in this agent.
pub fn link(linker: &mut Linker<CallState>) -> wasmtime::Result<()> {
    wasmtime_wasi::p2::add_to_linker_async(linker)?;
    linker.allow_shadowing(true);
    io::error::add_to_linker::<_, HasTaped>(linker, taped)?;
    io::poll::add_to_linker::<_, HasTaped>(linker, taped)?;
    io::streams::add_to_linker::<_, HasTaped>(linker, taped)?;
    filesystem::types::add_to_linker::<_, HasTaped>(linker, taped)?;
    filesystem::preopens::add_to_linker::<_, HasTaped>(linker, taped)?;
    clocks::wall_clock::add_to_linker::<_, HasTaped>(linker, taped)?;
    clocks::monotonic_clock::add_to_linker::<_, HasTaped>(linker, taped)?;
    random::random::add_to_linker::<_, HasTaped>(linker, taped)?;
    random::insecure::add_to_linker::<_, HasTaped>(linker, taped)?;
    random::insecure_seed::add_to_linker::<_, HasTaped>(linker, taped)?;
    cli::environment::add_to_linker::<_, HasTaped>(linker, taped)?;
    sockets::tcp_create_socket::add_to_linker::<_, HasTaped>(linker, taped)?;
    linker.allow_shadowing(false);
    count_sockets(linker, true)?;
    DriverPlugin::add_to_linker::<_, HasTaped>(linker, taped)
}
