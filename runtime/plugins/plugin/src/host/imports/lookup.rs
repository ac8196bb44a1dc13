//! `wasi:sockets/ip-name-lookup`, restricted to granted names.

use std::net::IpAddr;

use wasmtime::component::{HasData, Linker, Resource};
use wasmtime_wasi::p2::bindings::sockets::ip_name_lookup::{
    self, Host, HostResolveAddressStream, ResolveAddressStream,
};
use wasmtime_wasi::p2::bindings::sockets::network::{self, ErrorCode, IpAddress, Network};
use wasmtime_wasi::p2::{DynPollable, SocketError};
use wasmtime_wasi::sockets::WasiSocketsCtxView;

use crate::host::CallState;
use crate::host::network::{NetworkState, granted_ports};
use ostler_model::endpoint::Endpoint;

/// WASI's own look-up, behind a check of the grants.
pub(in crate::host) struct Lookup<'a> {
    pub(in crate::host) sockets: WasiSocketsCtxView<'a>,
    pub(in crate::host) network: &'a mut NetworkState,
    pub(in crate::host) granted: &'a [Endpoint],
}

struct LookupData;

impl HasData for LookupData {
    type Data<'a> = Lookup<'a>;
}

/// Link the restricted look-up in place of WASI's.
pub(super) fn link(linker: &mut Linker<CallState>) -> wasmtime::Result<()> {
    linker.allow_shadowing(true);
    ip_name_lookup::add_to_linker::<CallState, LookupData>(linker, CallState::lookup)?;
    linker.allow_shadowing(false);
    Ok(())
}

impl Host for Lookup<'_> {
    fn resolve_addresses(
        &mut self,
        network: Resource<Network>,
        name: String,
    ) -> Result<Resource<ResolveAddressStream>, SocketError> {
        let ports = granted_ports(self.granted, &name);
        // An address needs no look-up. Whether it is granted is checked when the guest connects.
        if ports.is_empty() && name.parse::<IpAddr>().is_err() {
            return Err(ErrorCode::AccessDenied.into());
        }
        let stream = self.sockets.resolve_addresses(network, name)?;
        self.network.begin_lookup(stream.rep(), ports);
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
            self.network.learn_address(rep, to_ip_addr(address));
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
        self.network.end_lookup(stream.rep());
        HostResolveAddressStream::drop(&mut self.sockets, stream)
    }
}

fn to_ip_addr(address: &IpAddress) -> IpAddr {
    match address {
        IpAddress::Ipv4((a, b, c, d)) => IpAddr::from([*a, *b, *c, *d]),
        IpAddress::Ipv6((a, b, c, d, e, f, g, h)) => IpAddr::from([*a, *b, *c, *d, *e, *f, *g, *h]),
    }
}
