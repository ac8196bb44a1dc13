//! The `grants` block of a plugin.

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::diagnostic::{Span, quote_text};
use crate::keys::FieldBounds::Whole;
use crate::keys::{Arguments, Context, Keys, Setting, Texts, keys};
use crate::tree::SpannedKey;
use ostler_model::config::{AnswerGrants, CommandGrant, FileGrant, Grants, NodeGrant};
use ostler_model::endpoint::{Endpoint, EndpointError};
use ostler_model::ids::PluginName;
use ostler_model::isolation::{IsolationGrant, IsolationKind};
use ostler_model::variables::is_reserved;

keys! {
    struct GrantKeys: "grants" {
        /// A directory that the plugin may read.
        files: Vec<FileKeys>;
        /// A program that it may run, by its full path.
        commands "command": Vec<CommandKeys>;
        /// Task processes.
        process: Setting<bool> = false;
        /// Only processes that are isolated, and how ([what they see](native-tasks.md)).
        isolation: Option<IsolationKeys>;
        /// Users that tasks may run as, by name or pattern.
        users: Texts, "none but the agent's own";
        /// Programs that may be started, by full path or pattern.
        programs: Texts, "any";
        /// Where `programs` may be started besides the task's directories.
        dirs: Texts, "none";
        /// WASM tasks.
        wasm_task: Setting<bool> = false;
        /// TCP endpoints that it may connect to: `host:port`, `10.0.0.0/8:443`, `host:*`.
        connect: Texts, "none";
        /// Variables of the agent's environment that it sees, by name or pattern.
        env: Texts, "none";
        /// What it imports and is refused: the word of a grant or the name of a package.
        deny: Texts, "nothing";
        /// A path of the node that its answers may show to tasks.
        mounts: Vec<FileKeys>;
        /// Device nodes that its answers may assign to tasks, by full path or pattern.
        device_nodes: Vec<NodeKeys>;
        /// Variables of tasks that its answers may set, besides those with its prefix.
        task_env: Texts, "none";
        /// Device groups that it may announce, besides those of the vendor it is called as.
        groups: Texts, "none";
        /// The name that a driver may take in place of its block's.
        driver: Setting<String>, "the block's";
        /// Attributes below `driver.NAME.` that it may publish.
        attributes: Texts, "any";
    }
}

keys! {
    struct IsolationKeys: "isolation" {
        /// Parts that a process may lack: `mounts`, `pids`, `ipc`, `network`, `user`,
        /// `privileges`, `seccomp`, `landlock`.
        without: Texts, "none";
        /// What is shown read-only.
        base: Texts, "the system's directories";
        /// What of that is not shown, beside what never is.
        hidden: Texts, "nothing more";
        /// Directories of the node that jobs may have mounted, by path or pattern.
        mounts: Texts, "none";
        /// Capabilities that jobs may ask for.
        capabilities: Texts, "none";
        /// User of tasks whose job names none, of all allocations.
        user: Setting<String>, "an id of each allocation's own (`client { users }`), or `nobody` where it has none";
        /// Processes and threads of one task; the kernel can number so many at most.
        processes_max: Setting<u32> [Whole(1, 4_194_304)], "`4096`";
    }
}

keys! {
    struct FileKeys: "files", label Name {
        /// Also write.
        write: Setting<bool> = false;
    }
}

keys! {
    struct CommandKeys: "command", label Name {
        /// Allowed argument lists; `*` stands for any characters, `**` for any further arguments.
        args: Setting<Arguments>, "no arguments";
    }
}

keys! {
    struct NodeKeys: "device_nodes", label Name {
        /// Of `r` (read), `w` (write) and `m` (mknod).
        permissions: Setting<String> = "rw";
    }
}

/// The grants that can be denied by the word that grants them. Everything else is denied by the name
/// of its package.
const DENIABLE: [&str; 5] = ["files", "command", "process", "wasm_task", "connect"];

impl GrantKeys {
    /// Decode the block into the grants of a plugin.
    pub(super) fn grants(self, cx: &mut Context<'_>) -> Grants {
        let process = self.process.get();
        let narrowing = [("users", self.users.place()), ("programs", self.programs.place())];
        let isolated = ("isolation", self.isolation.as_ref().map(|block| block.at));
        for (name, at) in narrowing.into_iter().chain([isolated]).filter(|_| !process) {
            if let Some(at) = at {
                cx.error(at, format!("{name} narrows process; write process = true beside it"));
            }
        }
        if let (Some(at), None) = (self.dirs.place(), &self.programs.value) {
            cx.error(at, "dirs are where programs may be started; write programs beside it");
        }
        let full = |wanted: &'static str| move |p: &str| (!p.starts_with('/')).then_some(wanted);
        self.programs
            .check(cx, full("a program is granted by its full path, as in \"/opt/app/*\""));
        self.dirs.check(cx, full("a directory is granted by its full path, as in \"/srv/*\""));
        self.env.check(cx, variable);
        self.task_env.check(cx, variable);
        self.task_env.check(cx, |name| {
            let what = "says which code a task runs or where it finds things";
            (is_reserved(name.trim_end_matches('*')) || is_reserved(name))
                .then(|| format!("{} {what}: no plugin sets it for a task", quote_text(name)))
        });
        self.groups.check(cx, |pattern| {
            (pattern.is_empty() || pattern.split('/').take(3).any(str::is_empty))
                .then_some("device groups are granted as in \"vendor/type/*\"")
        });
        let nodes = targets(self.device_nodes, cx).into_iter().map(|one| node(one, cx));
        let nodes = Some(nodes.collect::<Vec<_>>()).filter(|nodes| !nodes.is_empty());
        let mut grants = Grants {
            files: files(self.files, cx),
            commands: targets(self.commands, cx).into_iter().map(|one| command(one, cx)).collect(),
            process,
            isolation: self.isolation.map(|block| isolation(block, cx)),
            users: self.users.plain().unwrap_or_default(),
            programs: self.programs.plain(),
            dirs: self.dirs.plain().unwrap_or_default(),
            wasm_task: self.wasm_task.get(),
            connect: endpoints(self.connect, cx),
            env: self.env.plain().unwrap_or_default(),
            deny: Vec::new(),
            answers: AnswerGrants {
                mounts: (!self.mounts.is_empty()).then(|| files(self.mounts, cx)),
                device_nodes: nodes,
                task_env: self.task_env.plain(),
                groups: self.groups.plain(),
                driver: self.driver.parse_with(cx, |name| PluginName::new(&name).map(|_| name)),
                attributes: self.attributes.plain(),
            },
        };
        check_denied(&self.deny, &grants, cx);
        grants.deny = self.deny.plain().unwrap_or_default();
        grants
    }
}

fn variable(name: &str) -> Option<&'static str> {
    (name.is_empty() || name.contains(['=', '\0']))
        .then_some("expected the name of a variable, or a pattern such as \"LC_*\"")
}

fn endpoints(places: Texts, cx: &mut Context<'_>) -> Vec<Endpoint> {
    let endpoint = |(place, at): (String, Span)| {
        place.parse().map_err(|error: EndpointError| cx.error(at, error.to_string())).ok()
    };
    places.value.into_iter().flatten().filter_map(endpoint).collect()
}

/// Blocks whose label is a path, with the path and its place. A path that is given twice is reported.
fn targets<K: Keys>(blocks: Vec<K>, cx: &mut Context<'_>) -> Vec<(PathBuf, Span, K)> {
    let mut seen = BTreeSet::new();
    let mut targets = Vec::with_capacity(blocks.len());
    for block in blocks {
        let SpannedKey { name, span } = block.label().clone();
        if name.is_empty() {
            cx.error(span, "a path must not be empty");
            continue;
        }
        if !seen.insert(name.clone()) {
            cx.error(span, format!("{} is already granted here", quote_text(&name)));
        }
        targets.push((PathBuf::from(name), span, block));
    }
    targets
}

/// Decode the directories that may be read or, with `write = true`, also written.
fn files(blocks: Vec<FileKeys>, cx: &mut Context<'_>) -> Vec<FileGrant> {
    let targets = targets(blocks, cx).into_iter();
    targets.map(|(path, _, keys)| FileGrant { path, write: keys.write.get() }).collect()
}

fn command(
    (program, at, keys): (PathBuf, Span, CommandKeys),
    cx: &mut Context<'_>,
) -> CommandGrant {
    if !program.is_absolute() {
        cx.error(at, "a command is granted by its full path, as in \"/usr/bin/nvidia-smi\"");
    }
    let args = keys.args.value.map_or_else(|| vec![Vec::new()], |lists| lists.0);
    CommandGrant { program, args }
}

fn node((path, at, keys): (PathBuf, Span, NodeKeys), cx: &mut Context<'_>) -> NodeGrant {
    if !path.is_absolute() {
        cx.error(at, "device nodes are granted by their full path, as in \"/dev/dri/*\"");
    }
    let at = keys.permissions.at;
    let permissions = keys.permissions.get();
    if permissions.is_empty() || !permissions.chars().all(|c| "rwm".contains(c)) {
        cx.error(at, "permissions are of r (read), w (write) and m (mknod), as in \"rw\"");
    }
    NodeGrant { path: path.to_string_lossy().into_owned(), permissions }
}

/// Check the imports that are denied: each can be denied, and none is granted as well.
fn check_denied(given: &Texts, grants: &Grants, cx: &mut Context<'_>) {
    given.check(cx, |word| {
        let granted = match word {
            "files" => !grants.files.is_empty(),
            "command" => !grants.commands.is_empty(),
            "process" => grants.process,
            "wasm_task" => grants.wasm_task,
            "connect" => !grants.connect.is_empty(),
            _ => false,
        };
        let (words, shown) = (DENIABLE.join(", "), quote_text(word));
        if granted {
            Some(format!("{shown} is granted here as well"))
        } else if DENIABLE.contains(&word) || word.contains(':') {
            None
        } else {
            Some(format!(
                "{shown} cannot be denied; {words} can, and interfaces by name, as in \"wasi:http\""
            ))
        }
    });
}

/// Decode how processes are isolated, and which parts of the isolation they may lack.
fn isolation(keys: IsolationKeys, cx: &mut Context<'_>) -> IsolationGrant {
    let parts = keys.without.value.iter().flatten();
    let without = parts.filter_map(|(word, _)| IsolationKind::from_word(word)).collect();
    keys.without.check(cx, |word| {
        let known = IsolationKind::ALL.map(IsolationKind::word).join(", ");
        let message =
            format!("{} is not a part of isolation; the parts are {known}", quote_text(word));
        IsolationKind::from_word(word).is_none().then_some(message)
    });
    for paths in [&keys.base, &keys.hidden, &keys.mounts] {
        paths.check(cx, |path| {
            (!path.starts_with('/') || path.split('/').any(|part| part == ".."))
                .then_some("expected an absolute path without ..")
        });
    }
    let paths = |texts: Vec<String>| texts.into_iter().map(PathBuf::from).collect::<Vec<_>>();
    IsolationGrant {
        without,
        base: keys.base.plain().map(paths),
        hidden: keys.hidden.plain().map(paths).unwrap_or_default(),
        mounts: keys.mounts.plain().unwrap_or_default(),
        capabilities: keys.capabilities.plain().unwrap_or_default(),
        user: keys.user.value,
        processes_max: keys.processes_max.value,
    }
}
