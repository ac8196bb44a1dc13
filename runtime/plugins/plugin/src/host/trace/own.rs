//! Puts our own interfaces behind the trace.
//!
//! The configuration is not recorded in each call. It is kept beside the trace, and a played call
//! is given that one.

use super::number;
use super::wire::{Argument as _, PackedValue};
use super::{HostCall, TracedState};
use crate::bindings::since_0_1::host::{
    clock, command, config, events, log, process, random, types, wasm_task,
};

/// As `traced_async`, for values of our own interfaces. `$hash` are expressions.
macro_rules! traced_own {
    ($trait:path;
     $($number:ident $name:ident($($arg:ident: $type:ty),*) [$($hash:expr),*] -> $out:ty;)*) => {
        $(async fn $name(&mut self, $($arg: $type),*) -> wasmtime::Result<$out> {
            let mark = || HostCall::new(number::$number, [$($hash),*]);
            if let Some(answer) = self.0.tracer.play::<wasmtime::Result<PackedValue<$out>>>(mark) {
                return answer.map(|answer| answer.0);
            }
            self.0.tracer.record_begin(mark);
            let answer = <_ as $trait>::$name(self.own(), $($arg),*).await.map(PackedValue);
            self.0.tracer.record_end(&answer);
            answer.map(|answer| answer.0)
        })*
    };
}

impl types::Host for TracedState<'_> {}

impl log::Host for TracedState<'_> {
    traced_own! { log::Host;
        LOG log(level: log::Level, message: String) [message.digest()] -> ();
    }
}

impl config::Host for TracedState<'_> {
    async fn get(&mut self) -> wasmtime::Result<String> {
        config::Host::get(self.own()).await
    }
}

impl events::Host for TracedState<'_> {
    traced_own! { events::Host;
        EVENT emit(message: String, annotations: Vec<types::EnvVar>) [message.digest()] -> ();
    }
}

impl clock::Host for TracedState<'_> {
    traced_own! { clock::Host;
        NOW now() [] -> u64;
        MONOTONIC monotonic() [] -> u64;
    }
}

impl random::Host for TracedState<'_> {
    traced_own! { random::Host;
        RANDOM bytes(len: u32) [len.digest()] -> Vec<u8>;
    }
}

impl command::Host for TracedState<'_> {
    traced_own! { command::Host;
        COMMAND run(program: String, args: Vec<String>, timeout: u64)
            [program.digest(), args.digest(), timeout]
            -> Result<command::Output, command::CommandError>;
    }
}

impl process::Host for TracedState<'_> {
    traced_own! { process::Host;
        PROCESS_SPAWN spawn(request: process::SpawnRequest)
            [request.command.digest(), request.args.digest()]
            -> Result<String, process::ProcessError>;
        PROCESS_SPAWN_ISOLATED spawn_isolated(
            request: process::SpawnRequest, isolation: process::Isolation
        )
            [request.command.digest(), request.args.digest()]
            -> Result<String, process::ProcessError>;
        PROCESS_ISOLATION_PARTS isolation_parts() []
            -> Result<Vec<process::PartState>, process::ProcessError>;
        PROCESS_SIGNAL signal(id: String, signal: String) [id.digest(), signal.digest()]
            -> Result<(), process::ProcessError>;
        PROCESS_KILL kill(id: String) [id.digest()] -> Result<(), process::ProcessError>;
        PROCESS_STATE state(id: String) [id.digest()]
            -> Result<process::ProcessState, process::ProcessError>;
    }
}

impl wasm_task::Host for TracedState<'_> {
    traced_own! { wasm_task::Host;
        WASM_SPAWN spawn(request: wasm_task::SpawnRequest)
            [request.path.digest(), request.args.digest()]
            -> Result<String, wasm_task::WasmError>;
        WASM_SPAWN_LIMITED spawn_limited(
            request: wasm_task::SpawnRequest, within: wasm_task::TaskLimits
        )
            [request.path.digest(), request.args.digest()]
            -> Result<String, wasm_task::WasmError>;
        WASM_SPAWN_READING spawn_reading(
            request: wasm_task::SpawnRequest,
            within: wasm_task::TaskLimits,
            input: wasm_task::TaskInput
        )
            [request.path.digest(), request.args.digest()]
            -> Result<String, wasm_task::WasmError>;
        WASM_KILL kill(id: String) [id.digest()] -> Result<(), wasm_task::WasmError>;
        WASM_STATE state(id: String) [id.digest()]
            -> Result<wasm_task::TaskState, wasm_task::WasmError>;
    }
}
