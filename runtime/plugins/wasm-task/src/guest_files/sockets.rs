//! Counts sockets of guests: a descriptor for each, and the memory that the host may keep for data
//! to be sent.

use wasmtime::StoreContextMut;
use wasmtime::component::{Linker, Resource, ResourceType};
use wasmtime_wasi::WasiView;
use wasmtime_wasi::p2::bindings::sockets::network::{ErrorCode, Host as _, IpAddressFamily};
use wasmtime_wasi::p2::bindings::sockets::tcp::HostTcpSocket as _;
use wasmtime_wasi::p2::bindings::sockets::tcp_create_socket::Host as _;
use wasmtime_wasi::p2::{DynInputStream, DynOutputStream, SocketError, TcpSocket};
use wasmtime_wasi::sockets::WasiSocketsView as _;

use super::GuestFiles;
use super::host::Files;

/// Name of the interface as wasmtime-wasi links it. A component may ask for any older 0.2.
const CREATE: &str = "wasi:sockets/tcp-create-socket@0.2.12";
const TCP: &str = "wasi:sockets/tcp@0.2.12";

/// The data of a store that has files and sockets of a guest.
pub trait HasGuestFiles: WasiView + 'static {
    /// The files and sockets that the guest has open.
    fn guest_files(&mut self) -> &mut GuestFiles;
    /// The guest's open files together with wasmtime-wasi's part of them.
    fn files(&mut self) -> Files<'_>;
}

type Socket = Resource<TcpSocket>;
type AcceptedSocket = (Socket, Resource<DynInputStream>, Resource<DynOutputStream>);

/// Count the sockets of a guest until it drops them: those that it accepts, and those that it makes
/// unless they are `made_elsewhere`.
///
/// # Errors
/// When the linker does not have WASI's sockets, which is a mistake in this agent.
pub fn count_sockets<T: HasGuestFiles>(
    linker: &mut Linker<T>,
    made_elsewhere: bool,
) -> wasmtime::Result<()> {
    linker.allow_shadowing(true);
    if !made_elsewhere {
        linker.instance(CREATE)?.func_wrap(
            "create-tcp-socket",
            |mut context: StoreContextMut<'_, T>, (family,): (IpAddressFamily,)| {
                let state = context.data_mut();
                let made = create_socket(state, family);
                answer(state, made)
            },
        )?;
    }
    let mut tcp = linker.instance(TCP)?;
    tcp.func_wrap(
        "[method]tcp-socket.accept",
        |mut context: StoreContextMut<'_, T>, (socket,): (Socket,)| {
            let state = context.data_mut();
            let accepted = accept(state, socket);
            answer(state, accepted)
        },
    )?;
    let kind = ResourceType::host::<TcpSocket>();
    tcp.resource("tcp-socket", kind, |mut context: StoreContextMut<'_, T>, number| {
        let state = context.data_mut();
        state.sockets().drop(Resource::new_own(number))?;
        state.guest_files().sockets.remove(&number);
        Ok(())
    })?;
    linker.allow_shadowing(false);
    Ok(())
}

fn answer<T: HasGuestFiles, R>(
    state: &mut T,
    result: Result<R, SocketError>,
) -> wasmtime::Result<(Result<R, ErrorCode>,)> {
    Ok((match result {
        Ok(value) => Ok(value),
        Err(error) => Err(state.sockets().convert_error_code(error)?),
    },))
}

/// Make a socket for a guest, if there is a place for it.
///
/// # Errors
/// When the guest has as many sockets as it may, or the host has none.
pub fn create_socket<T: HasGuestFiles>(
    state: &mut T,
    family: IpAddressFamily,
) -> Result<Socket, SocketError> {
    let held = state.guest_files().socket().map_err(|_| ErrorCode::NewSocketLimit)?;
    let socket = state.sockets().create_tcp_socket(family)?;
    state.guest_files().sockets.insert(socket.rep(), held);
    Ok(socket)
}

fn accept<T: HasGuestFiles>(state: &mut T, socket: Socket) -> Result<AcceptedSocket, SocketError> {
    // Without a place, the connection stays in the kernel's queue, which is bounded.
    let held = state.guest_files().socket().map_err(|_| ErrorCode::NewSocketLimit)?;
    let accepted = state.sockets().accept(socket)?;
    state.guest_files().sockets.insert(accepted.0.rep(), held);
    Ok(accepted)
}
