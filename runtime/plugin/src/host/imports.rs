//! The host side of each interface of `wit/`, one file per interface.
//!
//! Each function charges the call's budget, looks at the grants, and answers with a typed error of
//! its interface; only a spent budget ends the call.

mod command;
mod isolation;
mod lookup;
mod process;
mod say;
mod wasm_task;

pub(in crate::host) use lookup::Lookup;
use wasmtime::component::Linker;

use super::{CallState, trace};
use crate::bindings::since_0_1::host;
use ostler_model::grants::{Added, Authority, PUT, grant_lines};

/// Link every host interface and the harmless part of WASI, behind the [`trace`]. What a plugin may
/// import is decided before (see [`ostler_model::grants`]); what it may do with it, call by
/// call.
///
/// # Errors
/// When an interface is linked twice: a mistake in this agent.
pub fn link(linker: &mut Linker<CallState>) -> wasmtime::Result<()> {
    trace::link(linker)?;
    lookup::link(linker)
}

impl host::types::Host for CallState {}

impl CallState {
    /// What is not granted, and the lines that would grant it; what is denied by name would not be.
    fn denied(&self, what: &str, authority: Authority, added: Added) -> String {
        if self.plugin.grants.denies_all_of(authority) {
            let (name, word) = (&self.plugin.name, authority.word());
            return format!("{what}: the grants of plugin {name} have deny = [\"{word}\"]");
        }
        let lines = grant_lines(&self.plugin.name, &self.plugin.grants, &[added]);
        format!("{what}; to grant it {PUT}:\n{lines}")
    }
}
