//! The host side of each interface of `wit/`, one file per interface.
//!
//! Each function charges the call's budget, checks the grants, and answers with a typed error of
//! its interface. Only a spent budget ends the call.

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
use ostler_model::grants::{Authority, GrantAddition, PUT, grant_lines};

/// Link every host interface and the harmless part of WASI, behind the [`trace`]. What a plugin may
/// import is decided before that (see [`ostler_model::grants`]). What it may do with an import is
/// decided call by call.
///
/// # Errors
/// When an interface is linked twice, which is a mistake in this agent.
pub fn link(linker: &mut Linker<CallState>) -> wasmtime::Result<()> {
    trace::link(linker)?;
    lookup::link(linker)
}

impl host::types::Host for CallState {}

impl CallState {
    /// The text that says what is not granted, with the lines that would grant it. What the
    /// configuration denies by name has no such lines.
    fn denial_text(&self, what: &str, authority: Authority, added: GrantAddition) -> String {
        if self.plugin.grants.denies_all_of(authority) {
            let (name, word) = (&self.plugin.name, authority.word());
            return format!("{what}: the grants of plugin {name} have deny = [\"{word}\"]");
        }
        let lines = grant_lines(&self.plugin.name, &self.plugin.grants, &[added]);
        format!("{what}; to grant it {PUT}:\n{lines}")
    }
}
