//! `wasi:sockets/ip-name-lookup`, narrowed: only granted names are looked up.

use std::net::IpAddr;

use wasmtime::component::{HasData, Linker, Resource};
use wasmtime_wasi::p2::bindings::sockets::ip_name_lookup::{
    self, Host, HostResolveAddressStream, ResolveAddressStream,
};
use wasmtime_wasi::p2::bindings::sockets::network::{self, ErrorCode, IpAddress, Network};
use wasmtime_wasi::p2::{DynPollable, SocketError};
use wasmtime_wasi::sockets::WasiSocketsCtxView;

use crate::host::CallState;
use crate::host::network::{NetworkState, ports_of};
use ostler_model::endpoint::Endpoint;

/// WASI's own look-up, behind the grants.
pub(in crate::host) struct Lookup<'a> {
    pub(in crate::host) sockets: WasiSocketsCtxView<'a>,
    pub(in crate::host) network: &'a mut NetworkState,
    pub(in crate::host) granted: &'a [Endpoint],
}

struct Narrowed;

impl HasData for Narrowed {
    type Data<'a> = Lookup<'a>;
}

/// Put it in the place of WASI's.
pub(super) fn link(linker: &mut Linker<CallState>) -> wasmtime::Result<()> {
    linker.allow_shadowing(true);
    ip_name_lookup::add_to_linker::<CallState, Narrowed>(linker, CallState::lookup)?;
    linker.allow_shadowing(false);
    Ok(())
}

impl Host for Lookup<'_> {
    fn resolve_addresses(
        &mut self,
        network: Resource<Network>,
        name: String,
    ) -> Result<Resource<ResolveAddressStream>, SocketError> {
        let ports = ports_of(self.granted, &name);
        // An address needs no look-up; whether it may be connected to is asked then.
        if ports.is_empty() && name.parse::<IpAddr>().is_err() {
            return Err(ErrorCode::AccessDenied.into());
        }
        let stream = self.sockets.resolve_addresses(network, name)?;
        self.network.looking_up(stream.rep(), ports);
        Ok(stream)
    }
}

impl network::Host for Lookup<'_> {
    fn convert_error_code(&mut self, error: SocketError) -> wasmtime::Result<ErrorCode> {
        network::Host::convert_error_code(&mut self.sockets, error)
    }

    fn network_error_code(
        &mut self,
        error: Resource<wasmtime::Error>,
    ) -> wasmtime::Result<Option<ErrorCode>> {
        network::Host::network_error_code(&mut self.sockets, error)
    }
}

impl network::HostNetwork for Lookup<'_> {
    fn drop(&mut self, network: Resource<Network>) -> wasmtime::Result<()> {
        network::HostNetwork::drop(&mut self.sockets, network)
    }
}

impl HostResolveAddressStream for Lookup<'_> {
    fn resolve_next_address(
        &mut self,
        stream: Resource<ResolveAddressStream>,
    ) -> Result<Option<IpAddress>, SocketError> {
        let rep = stream.rep();
        let found = self.sockets.resolve_next_address(stream)?;
        if let Some(address) = &found {
            self.network.found(rep, address_of(address));
        }
        Ok(found)
    }

    fn subscribe(
        &mut self,
        stream: Resource<ResolveAddressStream>,
    ) -> wasmtime::Result<Resource<DynPollable>> {
        self.sockets.subscribe(stream)
    }

    fn drop(&mut self, stream: Resource<ResolveAddressStream>) -> wasmtime::Result<()> {
        self.network.looked_up(stream.rep());
        HostResolveAddressStream::drop(&mut self.sockets, stream)
    }
}

fn address_of(address: &IpAddress) -> IpAddr {
    match address {
        IpAddress::Ipv4((a, b, c, d)) => IpAddr::from([*a, *b, *c, *d]),
        IpAddress::Ipv6((a, b, c, d, e, f, g, h)) => IpAddr::from([*a, *b, *c, *d, *e, *f, *g, *h]),
    }
}
