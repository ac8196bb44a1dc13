//! `wasi:io`, `wasi:clocks`, `wasi:random` and the environment behind the trace; sockets are not
//! recorded, and a played call that asks for one ends.

use wasmtime::component::Resource;
use wasmtime_wasi::p2::bindings::cli::environment;
use wasmtime_wasi::p2::bindings::clocks::{monotonic_clock, wall_clock};
use wasmtime_wasi::p2::bindings::random::{insecure, insecure_seed, random};
use wasmtime_wasi::p2::bindings::sockets::network::{self, IpAddressFamily};
use wasmtime_wasi::p2::bindings::sockets::tcp_create_socket;
use wasmtime_wasi::p2::{DynInputStream, DynOutputStream, DynPollable, StreamError, StreamResult};
use wasmtime_wasi::p2::{SocketError, TcpSocket};
use wasmtime_wasi_io::bindings::wasi::io::{error, poll, streams};

use error::{Host as ErrorHost, HostError};
use insecure::Host as Insecure;
use insecure_seed::Host as InsecureSeed;
use monotonic_clock::Host as MonotonicClock;
use poll::{Host as PollHost, HostPollable};
use random::Host as Random;
use streams::{HostInputStream, HostOutputStream};
use wall_clock::{Datetime, Host as WallClock};

use super::number;
use super::wire::Argument as _;
use super::{HostCall, TracedState};
use ostler_wasm_task::guest_files::create_socket;

type In = Resource<DynInputStream>;
type Out = Resource<DynOutputStream>;
type Pollable = Resource<DynPollable>;

impl environment::Host for TracedState<'_> {
    /// The granted variables of the agent's own environment. Their values are secret, so stars are
    /// recorded in their place.
    fn get_environment(&mut self) -> wasmtime::Result<Vec<(String, String)>> {
        let mark = || HostCall::new(number::ENVIRONMENT, []);
        if let Some(answer) = self.0.tracer.play(mark) {
            return answer;
        }
        self.0.tracer.record_begin(mark);
        let answer = environment::Host::get_environment(&mut self.cli())?;
        if self.0.tracer.is_recording() {
            let stars = answer.iter().map(|(name, value)| (name.clone(), "*".repeat(value.len())));
            self.0.tracer.record_end::<wasmtime::Result<Vec<_>>>(&Ok(stars.collect()));
            self.0.tracer.learn(answer.iter().map(|(_, value)| value.as_str()));
        }
        Ok(answer)
    }

    fn get_arguments(&mut self) -> wasmtime::Result<Vec<String>> {
        environment::Host::get_arguments(&mut self.cli())
    }

    fn initial_cwd(&mut self) -> wasmtime::Result<Option<String>> {
        environment::Host::initial_cwd(&mut self.cli())
    }
}

impl network::Host for TracedState<'_> {
    fn convert_error_code(&mut self, error: SocketError) -> wasmtime::Result<network::ErrorCode> {
        network::Host::convert_error_code(&mut self.sockets(), error)
    }

    fn network_error_code(
        &mut self,
        error: Resource<wasmtime::Error>,
    ) -> wasmtime::Result<Option<network::ErrorCode>> {
        network::Host::network_error_code(&mut self.sockets(), error)
    }
}

impl network::HostNetwork for TracedState<'_> {
    fn drop(&mut self, network: Resource<network::Network>) -> wasmtime::Result<()> {
        network::HostNetwork::drop(&mut self.sockets(), network)
    }
}

impl tcp_create_socket::Host for TracedState<'_> {
    fn create_tcp_socket(
        &mut self,
        family: IpAddressFamily,
    ) -> Result<Resource<TcpSocket>, SocketError> {
        match self.0.tracer.check_recorded("tcp-create-socket.create-tcp-socket") {
            Some(divergence) => Err(SocketError::trap(divergence)),
            None => create_socket(self.own(), family),
        }
    }
}

impl WallClock for TracedState<'_> {
    traced! { clocks WallClock;
        WALL_NOW now() [] -> wasmtime::Result<Datetime>;
        WALL_RESOLUTION resolution() [] -> wasmtime::Result<Datetime>;
    }
}

impl MonotonicClock for TracedState<'_> {
    traced! { clocks MonotonicClock;
        MONO_NOW now() [] -> wasmtime::Result<u64>;
        MONO_RESOLUTION resolution() [] -> wasmtime::Result<u64>;
        MONO_INSTANT subscribe_instant(when: u64) [when] -> wasmtime::Result<Pollable>;
        MONO_DURATION subscribe_duration(span: u64) [span] -> wasmtime::Result<Pollable>;
    }
}

impl Random for TracedState<'_> {
    traced! { random Random;
        RANDOM_BYTES get_random_bytes(len: u64) [len] -> wasmtime::Result<Vec<u8>>;
        RANDOM_U64 get_random_u64() [] -> wasmtime::Result<u64>;
    }
}

impl Insecure for TracedState<'_> {
    traced! { random Insecure;
        INSECURE_BYTES get_insecure_random_bytes(len: u64) [len] -> wasmtime::Result<Vec<u8>>;
        INSECURE_U64 get_insecure_random_u64() [] -> wasmtime::Result<u64>;
    }
}

impl InsecureSeed for TracedState<'_> {
    traced! { random InsecureSeed;
        INSECURE_SEED insecure_seed() [] -> wasmtime::Result<(u64, u64)>;
    }
}

impl ErrorHost for TracedState<'_> {}

impl HostError for TracedState<'_> {
    traced! { table HostError;
        ERROR_TEXT to_debug_string(error: Resource<wasmtime::Error>) []
            -> wasmtime::Result<String>;
    }

    // Also a played call has to drop it: a played failure of a stream puts a real error into the
    // table.
    fn drop(&mut self, error: Resource<wasmtime::Error>) -> wasmtime::Result<()> {
        HostError::drop(&mut self.table(), error)
    }
}

impl PollHost for TracedState<'_> {
    traced_async! { table PollHost;
        POLL poll(list: Vec<Pollable>) [] -> wasmtime::Result<Vec<u32>>;
    }
}

impl HostPollable for TracedState<'_> {
    traced_async! { table HostPollable;
        POLL_BLOCK block(pollable: Pollable) [] -> wasmtime::Result<()>;
        POLL_READY ready(pollable: Pollable) [] -> wasmtime::Result<bool>;
    }

    fn drop(&mut self, pollable: Pollable) -> wasmtime::Result<()> {
        if self.0.tracer.is_playing() {
            Ok(())
        } else {
            HostPollable::drop(&mut self.table(), pollable)
        }
    }
}

impl streams::Host for TracedState<'_> {
    fn convert_stream_error(
        &mut self,
        error: StreamError,
    ) -> wasmtime::Result<streams::StreamError> {
        streams::Host::convert_stream_error(&mut self.table(), error)
    }
}

impl HostInputStream for TracedState<'_> {
    traced! { table HostInputStream;
        IN_READ read(stream: In, len: u64) [len] -> StreamResult<Vec<u8>>;
        IN_SKIP skip(stream: In, len: u64) [len] -> StreamResult<u64>;
        IN_SUBSCRIBE subscribe(stream: In) [] -> wasmtime::Result<Pollable>;
    }

    traced_async! { table HostInputStream;
        IN_BLOCKING_READ blocking_read(stream: In, len: u64) [len] -> StreamResult<Vec<u8>>;
        IN_BLOCKING_SKIP blocking_skip(stream: In, len: u64) [len] -> StreamResult<u64>;
    }

    async fn drop(&mut self, stream: In) -> wasmtime::Result<()> {
        if self.0.tracer.is_playing() {
            Ok(())
        } else {
            HostInputStream::drop(&mut self.table(), stream).await
        }
    }
}

impl HostOutputStream for TracedState<'_> {
    traced! { table HostOutputStream;
        OUT_CHECK check_write(stream: Out) [] -> StreamResult<u64>;
        OUT_WRITE write(stream: Out, bytes: Vec<u8>) [bytes] -> StreamResult<()>;
        OUT_ZEROES write_zeroes(stream: Out, len: u64) [len] -> StreamResult<()>;
        OUT_FLUSH flush(stream: Out) [] -> StreamResult<()>;
        OUT_SPLICE splice(to: Out, from: In, len: u64) [len] -> StreamResult<u64>;
        OUT_SUBSCRIBE subscribe(stream: Out) [] -> wasmtime::Result<Pollable>;
    }

    traced_async! { table HostOutputStream;
        OUT_BLOCKING_WRITE blocking_write_and_flush(stream: Out, bytes: Vec<u8>) [bytes]
            -> StreamResult<()>;
        OUT_BLOCKING_ZEROES blocking_write_zeroes_and_flush(stream: Out, len: u64) [len]
            -> StreamResult<()>;
        OUT_BLOCKING_FLUSH blocking_flush(stream: Out) [] -> StreamResult<()>;
        OUT_BLOCKING_SPLICE blocking_splice(to: Out, from: In, len: u64) [len]
            -> StreamResult<u64>;
    }

    async fn drop(&mut self, stream: Out) -> wasmtime::Result<()> {
        if self.0.tracer.is_playing() {
            Ok(())
        } else {
            HostOutputStream::drop(&mut self.table(), stream).await
        }
    }
}
