//! Guests open files and directories, no pipes, devices or sockets: what `open-at` asks of a plugin
//! ([`super::tape`]) and of a task ([`super::wasm_task`]).
//!
//! Opening a pipe waits until somebody opens its other end, reading a device perhaps for ever; file calls
//! run on the guest's thread, and nothing ends one that waits in the kernel. Two of them would hold all
//! guests of the node. So what stands under a name is looked at before it is opened. Whoever swaps it in
//! between has write access to the directory outside of the sandbox; that is not prevented.

use wasmtime_wasi::p2::bindings::filesystem::types::{DescriptorStat, DescriptorType};

/// The interface as wasmtime-wasi links it; a component may ask for any older 0.2.
pub(super) const TYPES: &str = "wasi:filesystem/types@0.2.12";

/// May a guest open what this says of?
pub(super) fn plain(stat: &DescriptorStat) -> bool {
    use DescriptorType::{Directory, RegularFile, SymbolicLink};
    matches!(stat.type_, RegularFile | Directory | SymbolicLink)
}
