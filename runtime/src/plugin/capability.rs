//! Ask ∧ grant: what a plugin imports against what the configuration allows. Pure.
//!
//! Deny by default. Each import maps to an [`Authority`]; harmless ones are always granted, the
//! others need a grant in the plugin's block of the configuration. A missing grant is an error
//! that prints the lines that would add it.

use serde::{Deserialize, Serialize};

use super::manifest::Manifest;
pub use crate::model::config::{CommandGrant, FileGrant, Grants};

/// What a group of imports lets a plugin do, harmless first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Authority {
    /// Log, read its own configuration, say events.
    Always,
    /// Read the time.
    Clock,
    /// Get random numbers.
    Random,
    /// WASI standard streams, arguments, exit: connected to nothing.
    Stdio,
    /// Read (or write) granted directories.
    Files,
    /// Run granted programs to completion.
    Command,
    /// Start and control task processes.
    Process,
    /// Start and control WASM tasks.
    WasmTask,
    /// Open sockets: no grant exists for plugins.
    Network,
    /// An interface this agent does not have.
    Unknown,
}

impl Authority {
    /// The authority an import asks for.
    #[must_use]
    pub fn of_import(import: &str) -> Self {
        let (package, interface) = import.split_once('/').unwrap_or((import, ""));
        let interface = interface.split('@').next().unwrap_or_default();
        match (package, interface) {
            ("ostler:plugin", "types" | "log" | "config" | "events") => Self::Always,
            ("ostler:plugin", "clock") => Self::Clock,
            ("ostler:plugin", "random") => Self::Random,
            ("ostler:plugin", "command") => Self::Command,
            ("ostler:plugin", "process") => Self::Process,
            ("ostler:plugin", "wasm-task") => Self::WasmTask,
            ("wasi:cli", _) | ("wasi:io", _) => Self::Stdio,
            ("wasi:clocks", _) => Self::Clock,
            ("wasi:random", _) => Self::Random,
            ("wasi:filesystem", _) => Self::Files,
            ("wasi:sockets" | "wasi:http", _) => Self::Network,
            _ => Self::Unknown,
        }
    }

    /// What it lets a plugin do, for people.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Always => "log, read its own configuration, report events",
            Self::Clock => "read the time",
            Self::Random => "get random numbers",
            Self::Stdio => "standard streams, arguments and exit, connected to nothing",
            Self::Files => "read or write directories that are granted",
            Self::Command => "run granted programs to completion",
            Self::Process => "start and control task processes",
            Self::WasmTask => "start and control WASM tasks",
            Self::Network => "open network sockets (never granted to plugins)",
            Self::Unknown => "interfaces this agent does not have",
        }
    }

    /// Given to every plugin that asks.
    #[must_use]
    pub const fn harmless(self) -> bool {
        matches!(self, Self::Always | Self::Clock | Self::Random | Self::Stdio)
    }
}

/// An ask without its grant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("imports {} ({}), which is not granted{}", .imports.join(", "), .authority.meaning(), add_lines(.lines))]
pub struct MissingGrant {
    /// What is missing.
    pub authority: Authority,
    /// The imports that ask for it.
    pub imports: Vec<String>,
    /// Configuration lines that would grant it; empty when nothing can.
    pub lines: String,
}

fn add_lines(lines: &str) -> String {
    if lines.is_empty() {
        "; no grant exists for it".to_owned()
    } else {
        format!("; to grant it add to the agent's configuration:\n{lines}")
    }
}

impl Grants {
    /// Does the configuration grant this at all? Arguments are narrowed call by call.
    #[must_use]
    pub fn allow(&self, authority: Authority) -> bool {
        match authority {
            Authority::Files => !self.files.is_empty(),
            Authority::Command => !self.commands.is_empty(),
            Authority::Process => self.process,
            Authority::WasmTask => self.wasm_task,
            Authority::Network | Authority::Unknown => false,
            _ => true,
        }
    }

    /// The asks of a plugin that are not granted.
    #[must_use]
    pub fn missing(&self, plugin: &str, manifest: &Manifest) -> Vec<MissingGrant> {
        manifest
            .asks()
            .into_iter()
            .filter(|(authority, _)| !self.allow(*authority))
            .map(|(authority, imports)| MissingGrant {
                authority,
                imports: imports.into_iter().map(str::to_owned).collect(),
                lines: grant_lines(plugin, authority),
            })
            .collect()
    }
}

/// The configuration lines that would grant an authority to a plugin.
#[must_use]
pub fn grant_lines(plugin: &str, authority: Authority) -> String {
    let grant = match authority {
        Authority::Files => "    files \"/path/it/needs\" { write = false }\n",
        Authority::Command => {
            "    command \"/usr/bin/program\" { args = [[\"--query\", \"*\"]] }\n"
        }
        Authority::Process => "    process = true\n",
        Authority::WasmTask => "    wasm_task = true\n",
        _ => return String::new(),
    };
    format!("plugin \"{plugin}\" {{\n  grants {{\n{grant}  }}\n}}\n")
}

impl CommandGrant {
    /// May this program be run with these arguments?
    #[must_use]
    pub fn allows(&self, program: &str, args: &[String]) -> bool {
        let path = self.program.as_path();
        let named = path == std::path::Path::new(program)
            || path.file_name().is_some_and(|name| name == program);
        named
            && (self.args.is_empty()
                || self.args.iter().any(|patterns| {
                    patterns.len() == args.len()
                        && patterns.iter().zip(args).all(|(p, a)| wildcard(p, a))
                }))
    }
}

/// `*` stands for any run of characters; everything else for itself.
fn wildcard(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(first) = parts.next() else { return text.is_empty() };
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        match rest.find(part) {
            Some(at) => rest = rest.get(at + part.len()..).unwrap_or_default(),
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::manifest::PluginKind;

    fn manifest(imports: &[&str]) -> Manifest {
        Manifest {
            kind: PluginKind::Driver,
            interface_version: "0.1.0".into(),
            exports: vec![],
            imports: imports.iter().map(|s| (*s).to_owned()).collect(),
            size_bytes: 0,
            digest: String::new(),
        }
    }

    #[test]
    fn nothing_but_the_harmless_is_granted_by_default() {
        let asks = manifest(&[
            "ostler:plugin/log@0.1.0",
            "wasi:io/streams@0.2.6",
            "ostler:plugin/process@0.1.0",
            "wasi:sockets/tcp@0.2.6",
        ]);
        let missing = Grants::default().missing("x", &asks);
        let authorities: Vec<_> = missing.iter().map(|m| m.authority).collect();
        assert_eq!(authorities, [Authority::Process, Authority::Network]);
    }

    #[test]
    fn a_missing_grant_prints_the_lines_that_would_add_it() {
        let asks = manifest(&["ostler:plugin/process@0.1.0"]);
        let text = Grants::default().missing("mine", &asks)[0].to_string();
        assert!(text.contains("plugin \"mine\" {\n  grants {\n    process = true"), "{text}");
        let granted = Grants { process: true, ..Grants::default() };
        assert!(granted.missing("mine", &asks).is_empty());
    }

    #[test]
    fn network_can_not_be_granted_to_a_plugin() {
        let asks = manifest(&["wasi:sockets/tcp@0.2.6"]);
        let all = Grants { process: true, wasm_task: true, ..Grants::default() };
        assert!(all.missing("x", &asks)[0].to_string().contains("no grant exists"));
    }

    #[test]
    fn a_command_grant_is_narrowed_by_its_argument_patterns() {
        let grant = CommandGrant {
            program: "/usr/bin/nvidia-smi".into(),
            args: vec![vec!["--query-gpu=*".into(), "--format=csv".into()]],
        };
        let args = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
        assert!(grant.allows("nvidia-smi", &args(&["--query-gpu=name", "--format=csv"])));
        assert!(grant.allows("/usr/bin/nvidia-smi", &args(&["--query-gpu=", "--format=csv"])));
        assert!(!grant.allows("/tmp/nvidia-smi", &args(&["--query-gpu=name", "--format=csv"])));
        assert!(!grant.allows("nvidia-smi", &args(&["--reset", "--format=csv"])));
        assert!(!grant.allows("nvidia-smi", &args(&["--query-gpu=name"])));
    }

    #[test]
    fn wildcards_match_whole_arguments_only() {
        assert!(wildcard("a*c", "abc") && wildcard("*", "") && wildcard("a*b*c", "a-b-c"));
        assert!(!wildcard("a*c", "abcd") && !wildcard("abc", "abcd") && !wildcard("a*b*c", "acb"));
    }
}
