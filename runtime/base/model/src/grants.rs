//! Compares what a plugin imports with what the configuration grants. Pure.
//!
//! All is denied by default. Each import maps to an [`Authority`]; harmless ones are always
//! granted, the others need a grant in the plugin's block of the configuration. A missing grant is
//! an error that prints the block that would add it ([`grant_lines`]).
//!
//! Patterns: `*` stands for any run of characters. In the arguments of a command it never stands
//! for the start of an option (`-…`), unless the pattern itself begins with `-`; `**` as the last
//! of a list is any further arguments, options among them.

pub mod answers;
pub mod lines;

use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use crate::config::{CommandGrant, FileGrant, Grants};
use crate::isolation::{IsolationKind, USER_DEFAULT};
use crate::limits::NAMES_TOLD_MAX;
use crate::plugin::PluginManifest;
use crate::printable::join_some;
pub use lines::grant_lines;

/// The last pattern of a list that stands for any further arguments.
pub(super) const ANY_MORE: &str = "**";

/// What a group of imports lets a plugin do, harmless first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Authority {
    /// Log, read its own configuration, report events.
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
    /// Open TCP connections to granted places.
    Network,
    /// An interface this agent does not have.
    Unknown,
}

impl Authority {
    /// The authority that an import asks for.
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
            ("wasi:sockets", _) => Self::Network,
            _ => Self::Unknown,
        }
    }

    /// A text for people about what the authority lets a plugin do.
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
            Self::Network => "open TCP connections to granted places",
            Self::Unknown => "interfaces this agent does not have",
        }
    }

    /// Whether the configuration can grant it.
    #[must_use]
    pub const fn can_be_granted(self) -> bool {
        !matches!(self, Self::Unknown)
    }

    /// Name of the authority in the configuration and in tables.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::Clock => "clock",
            Self::Random => "random",
            Self::Stdio => "stdio",
            Self::Files => "files",
            Self::Command => "command",
            Self::Process => "process",
            Self::WasmTask => "wasm_task",
            Self::Network => "connect",
            Self::Unknown => "unknown",
        }
    }

    /// Whether every plugin that asks gets it.
    #[must_use]
    pub const fn is_harmless(self) -> bool {
        matches!(self, Self::Always | Self::Clock | Self::Random | Self::Stdio)
    }
}

/// An authority that a plugin asks for without having its grant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("imports {} ({}), which is not granted", names(.imports), .authority.meaning())]
pub struct MissingGrant {
    /// The authority that is not granted.
    pub authority: Authority,
    /// The imports that ask for it.
    pub imports: Vec<String>,
}

/// Everything a plugin asks for and was not granted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{}{}", .missing.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "), add_lines(.missing, .lines))]
pub struct NotGranted {
    /// The grants that are missing, at least one.
    pub missing: Vec<MissingGrant>,
    /// The plugin's block of the configuration, with these grants added to the existing ones. Empty
    /// when none of them can be granted.
    pub lines: String,
}

/// The names of the first imports, because a component may have a thousand.
fn names(imports: &[String]) -> String {
    join_some(imports.iter().map(String::as_str), NAMES_TOLD_MAX)
}

fn add_lines(missing: &[MissingGrant], lines: &str) -> String {
    let no_grant = missing.iter().any(|one| !one.authority.can_be_granted());
    match (no_grant, lines.is_empty()) {
        (true, _) => {
            "; no grant exists for it; if it can do without, refuse it with deny".to_owned()
        }
        (false, true) => String::new(),
        (false, false) => format!("; to grant it {PUT}:\n{lines}"),
    }
}

/// Instruction for the operator before the lines of [`grant_lines`].
pub const PUT: &str = "put this into the agent's configuration, each key on a line of its own; where the plugin has a block \
                       there already, its grants are to be these";

/// A grant to add to those that a plugin has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrantAddition {
    /// The authority of an import. Where only the plugin knows the values, the lines have
    /// an example.
    Ask(Authority),
    /// The plugin may run a program with exactly these arguments.
    Command {
        /// Absolute path of the program. For a bare name, the operator has to fill in
        /// the directory.
        program: String,
        /// Arguments of the program, in order.
        args: Vec<String>,
    },
    /// Tasks may run as this user.
    User(String),
    /// This program may be started as a task.
    Program(String),
    /// Programs may be started in this directory.
    Dir(String),
    /// Tasks may be shown this path.
    Mount {
        /// Absolute path on the node.
        path: String,
        /// Tasks may write to the path.
        write: bool,
    },
    /// Tasks may be assigned this device node.
    Node {
        /// Absolute path on the node.
        path: String,
        /// Any of `r`, `w`, `m`.
        permissions: String,
    },
    /// The plugin may set this variable of tasks.
    TaskEnv(String),
    /// The plugin may announce device groups of this pattern.
    Group(String),
    /// The driver may take this name.
    Driver(String),
    /// The plugin may publish this attribute.
    Attribute(String),
    /// Tasks may run without these parts of isolation.
    Without(Vec<IsolationKind>),
    /// Jobs may mount this path.
    MountOf(String),
    /// Jobs may ask for this capability.
    Capability(String),
}

impl Grants {
    /// Whether the configuration grants this authority at all. The arguments are checked at
    /// each call.
    #[must_use]
    pub fn allow(&self, authority: Authority) -> bool {
        match authority {
            Authority::Files => !self.files.is_empty(),
            Authority::Command => !self.commands.is_empty(),
            Authority::Process => self.process,
            Authority::WasmTask => self.wasm_task,
            Authority::Network => !self.connect.is_empty(),
            Authority::Unknown => false,
            _ => true,
        }
    }

    /// Whether this import is denied: the plugin loads all the same, and the function refuses.
    #[must_use]
    pub fn denies(&self, import: &str) -> bool {
        let authority = Authority::of_import(import);
        let named = import.split('@').next().unwrap_or(import);
        let same = |denied: &String| {
            *denied == authority.word()
                || named.strip_prefix(denied.as_str()).is_some_and(|rest| {
                    rest.is_empty() || rest.starts_with('/') || denied.ends_with('/')
                })
        };
        !authority.is_harmless() && self.deny.iter().any(same)
    }

    /// Whether the grants deny this authority by its name.
    #[must_use]
    pub fn denies_all_of(&self, authority: Authority) -> bool {
        self.deny.iter().any(|denied| denied == authority.word())
    }

    /// Whether the grants, files aside, let the plugin call nothing that could hold its thread. The
    /// starts of processes and WASM tasks leave the thread of the caller before they do.
    #[must_use]
    pub fn opens_only_files(&self) -> bool {
        let Self { commands, connect, env, .. } = self;
        commands.is_empty() && connect.is_empty() && env.is_empty()
    }

    /// Whether a task may run as this user. `None` stands for the agent's own user, which is
    /// always allowed.
    #[must_use]
    pub fn allow_user(&self, user: Option<&str>) -> bool {
        user.is_none_or(|user| self.users.iter().any(|pattern| wildcard(pattern, user)))
    }

    /// The configured user of isolated tasks whose job names none.
    #[must_use]
    pub fn isolated_user(&self) -> Option<&str> {
        self.isolation.as_ref().and_then(|isolation| isolation.user.as_deref())
    }

    /// The user of an isolated task whose job names none and whose allocation has no user id of
    /// its own.
    #[must_use]
    pub fn isolated_user_or_default(&self) -> String {
        self.isolated_user().unwrap_or(USER_DEFAULT).to_owned()
    }

    /// Whether this command may be started as a task process. Where the grants name programs, it
    /// must be a full path, because any other command could mean any program.
    #[must_use]
    pub fn allow_program(&self, command: &str) -> bool {
        let Some(programs) = &self.programs else { return true };
        let plain = command.starts_with('/') && !command.split('/').any(|part| part == "..");
        plain && programs.iter().any(|pattern| wildcard(pattern, command))
    }

    /// What a mount at `path` of a task's root could replace: a granted program, or a part of the
    /// `base` of the system from which programs load code. Returns the pattern of the program, or
    /// the path of the base.
    #[must_use]
    pub fn find_replaced_program(&self, path: &Path, base: &[PathBuf]) -> Option<String> {
        let programs = self.programs.as_ref()?;
        let meets = |other: &Path| path.starts_with(other) || other.starts_with(path);
        // The path before the first wildcard; a pattern that begins with one stands for all paths.
        let start = |pattern: &String| {
            let start = pattern.split(['*', '?', '[']).next().unwrap_or_default();
            let dir = start.rfind('/').and_then(|at| start.get(..=at)).unwrap_or("/");
            PathBuf::from(if start.len() == pattern.len() { start } else { dir })
        };
        let program = programs.iter().find(|pattern| meets(&start(pattern))).cloned();
        program
            .or_else(|| base.iter().find(|base| meets(base)).map(|base| base.display().to_string()))
    }

    /// Whether programs may be started in this directory. A task's own directories are always
    /// allowed and are not checked here.
    #[must_use]
    pub fn allow_dir(&self, dir: &str) -> bool {
        let plain = dir.starts_with('/') && !dir.split('/').any(|part| part == "..");
        plain && self.dirs.iter().any(|pattern| wildcard(pattern, dir))
    }

    /// Whether the plugin may be told when this path changes. It may for all paths that it
    /// may read.
    #[must_use]
    pub fn allow_watch(&self, path: &Path) -> bool {
        let plain = !path.components().any(|part| matches!(part, Component::ParentDir));
        plain && self.files.iter().any(|grant| path.starts_with(&grant.path))
    }

    /// The variables of the agent's environment that the plugin sees.
    pub fn environment<'a>(
        &'a self,
        of_agent: impl Iterator<Item = (String, String)> + 'a,
    ) -> impl Iterator<Item = (String, String)> + 'a {
        of_agent.filter(|(name, _)| self.env.iter().any(|pattern| wildcard(pattern, name)))
    }

    /// The imports of a plugin that are not granted; `None` when it may run.
    #[must_use]
    pub fn find_missing(&self, plugin: &str, manifest: &PluginManifest) -> Option<NotGranted> {
        let missing: Vec<MissingGrant> = manifest
            .asks()
            .into_iter()
            .filter(|(authority, _)| !self.allow(*authority))
            .map(|(authority, mut imports)| {
                imports.retain(|import| !self.denies(import));
                (authority, imports)
            })
            .filter(|(_, imports)| !imports.is_empty())
            .map(|(authority, imports)| MissingGrant {
                authority,
                imports: imports.into_iter().map(str::to_owned).collect(),
            })
            .collect();
        if missing.is_empty() {
            return None;
        }
        let added: Vec<GrantAddition> =
            missing.iter().map(|one| GrantAddition::Ask(one.authority)).collect();
        Some(NotGranted { missing, lines: grant_lines(plugin, self, &added) })
    }
}

impl CommandGrant {
    /// Whether this program may be run with these arguments.
    #[must_use]
    pub fn allows(&self, program: &str, args: &[String]) -> bool {
        let path = self.program.as_path();
        let named =
            path == Path::new(program) || path.file_name().is_some_and(|name| name == program);
        named && self.args.iter().any(|patterns| arguments_fit(patterns, args))
    }
}

/// Whether a list of patterns fits all of the arguments.
fn arguments_fit(patterns: &[String], args: &[String]) -> bool {
    match (patterns.split_first(), args.split_first()) {
        (Some((last, [])), _) if last == ANY_MORE => true,
        (Some((pattern, patterns)), Some((arg, args))) => {
            argument_fits(pattern, arg) && arguments_fit(patterns, args)
        }
        (None, None) => true,
        _ => false,
    }
}

/// Whether a pattern fits an argument. A pattern for a value lets no option in: `*` does not fit
/// `--output=/etc/passwd`.
fn argument_fits(pattern: &str, arg: &str) -> bool {
    (pattern.starts_with('-') || !arg.starts_with('-')) && wildcard(pattern, arg)
}

/// Whether a pattern fits a text. `*` stands for any run of characters, any other character
/// for itself.
#[must_use]
pub fn wildcard(pattern: &str, text: &str) -> bool {
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
mod tests;
