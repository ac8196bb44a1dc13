//! The `grants` block of a plugin.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use super::super::diagnostic::{Span, shown};
use super::super::schema::{Schema, Shape};
use super::super::tree::{Block, ValueKind};
use super::agent::{field, labelled, once};
use super::reader::{as_text, wrong};
use super::{Context, Reader};
use ostler_model::config::{AnswerGrants, CommandGrant, FileGrant, Grants, NodeGrant};
use ostler_model::endpoint::{Endpoint, EndpointError};
use ostler_model::ids::PluginName;
use ostler_model::isolation::{IsolationGrant, Part};
use ostler_model::variables::is_reserved;

pub(super) static GRANTS: Schema = Schema {
    what: "grants",
    fields: &[
        labelled("files", &FILES),
        labelled("command", &COMMAND),
        field("process", Shape::Bool),
        once("isolation", &ISOLATION),
        field("users", Shape::TextList),
        field("programs", Shape::TextList),
        field("dirs", Shape::TextList),
        field("wasm_task", Shape::Bool),
        field("connect", Shape::TextList),
        field("env", Shape::TextList),
        field("deny", Shape::TextList),
        labelled("mounts", &FILES),
        labelled("device_nodes", &NODES),
        field("task_env", Shape::TextList),
        field("groups", Shape::TextList),
        field("driver", Shape::Text),
        field("attributes", Shape::TextList),
    ],
};

/// What can be denied by the word that grants it; everything else by the name of its package.
const DENIABLE: [&str; 5] = ["files", "command", "process", "wasm_task", "connect"];

static NODES: Schema =
    Schema { what: "device_nodes", fields: &[field("permissions", Shape::Text)] };
/// One process is the least that runs; what the kernel can number at most.
const PROCESSES: RangeInclusive<i64> = 1..=4_194_304;

static ISOLATION: Schema = Schema {
    what: "isolation",
    fields: &[
        field("without", Shape::TextList),
        field("base", Shape::TextList),
        field("hidden", Shape::TextList),
        field("mounts", Shape::TextList),
        field("capabilities", Shape::TextList),
        field("user", Shape::Text),
        field("processes_max", Shape::Integer),
    ],
};

static FILES: Schema = Schema { what: "files", fields: &[field("write", Shape::Bool)] };

static COMMAND: Schema = Schema { what: "command", fields: &[field("args", Shape::TextList)] };

pub(super) fn grants(block: Block, cx: &mut Context<'_>) -> Grants {
    let mut reader = Reader::new(block.body, &GRANTS, cx);
    let files = paths(reader.blocks("files"), cx);
    let mut commands = Vec::new();
    for (program, at, block) in targets(reader.blocks("command"), cx) {
        if !program.is_absolute() {
            cx.error(at, "a command is granted by its full path, as in \"/usr/bin/nvidia-smi\"");
        }
        let mut reader = Reader::new(block.body, &COMMAND, cx);
        let args = argument_lists(&mut reader, cx);
        reader.finish();
        commands.push(CommandGrant { program, args });
    }
    let process = reader.boolean("process", cx).unwrap_or(false);
    let users = reader.texts("users", cx);
    let programs = reader.texts("programs", cx);
    let dirs = reader.texts("dirs", cx);
    let isolated = reader.place("isolation");
    let isolation = reader.block("isolation").map(|block| isolation(block, cx));
    if let (false, Some(at)) = (process, isolated) {
        cx.error(at, "isolation narrows process; write process = true beside it");
    }
    if !process {
        for (name, given) in [("users", &users), ("programs", &programs)] {
            if let Some((_, at)) = given {
                cx.error(*at, format!("{name} narrows process; write process = true beside it"));
            }
        }
    }
    if let Some((_, at)) = dirs.as_ref().filter(|_| programs.is_none()) {
        cx.error(*at, "dirs are where programs may be started; write programs beside it");
    }
    let full = "a program is granted by its full path, as in \"/opt/app/*\"";
    let programs = programs.map(|programs| full_paths(programs.0, full, cx));
    let full = "a directory is granted by its full path, as in \"/srv/*\"";
    let dirs = dirs.map(|dirs| full_paths(dirs.0, full, cx)).unwrap_or_default();
    let wasm_task = reader.boolean("wasm_task", cx).unwrap_or(false);
    let connect = reader.texts("connect", cx).map(|(places, _)| endpoints(places, cx));
    let env = reader.texts("env", cx).map(|(names, _)| variables(names, cx));
    let denied = reader.texts("deny", cx);
    let answers = answers(&mut reader, cx);
    reader.finish();
    let mut grants = Grants {
        files,
        commands,
        process,
        isolation,
        users: users.map(|(users, _)| plain_texts(users)).unwrap_or_default(),
        programs,
        dirs,
        wasm_task,
        connect: connect.unwrap_or_default(),
        env: env.unwrap_or_default(),
        deny: Vec::new(),
        answers,
    };
    if let Some((denied, _)) = denied {
        grants.deny = deny(denied, &grants, cx);
    }
    grants
}

/// What is granted to answers. See [`AnswerGrants`].
fn answers(reader: &mut Reader, cx: &mut Context<'_>) -> AnswerGrants {
    let mounts = Some(reader.blocks("mounts")).filter(|blocks| !blocks.is_empty());
    let nodes = Some(reader.blocks("device_nodes")).filter(|blocks| !blocks.is_empty());
    let task_env = reader.texts("task_env", cx).map(|(names, _)| {
        for (name, at) in &names {
            if is_reserved(name.trim_end_matches('*')) || is_reserved(name) {
                let what = "says which code a task runs or where it finds things";
                cx.error(*at, format!("{} {what}: no plugin sets it for a task", shown(name)));
            }
        }
        variables(names, cx)
    });
    let groups = reader.texts("groups", cx).map(|(patterns, _)| {
        for (pattern, at) in &patterns {
            if pattern.is_empty() || pattern.split('/').take(3).any(str::is_empty) {
                cx.error(*at, "device groups are granted as in \"vendor/type/*\"");
            }
        }
        plain_texts(patterns)
    });
    let driver = reader.text("driver", cx).and_then(|(name, at)| match PluginName::new(&name) {
        Ok(_) => Some(name),
        Err(error) => {
            cx.error(at, error.to_string());
            None
        }
    });
    let attributes = reader.texts("attributes", cx).map(|(names, _)| plain_texts(names));
    AnswerGrants {
        mounts: mounts.map(|blocks| paths(blocks, cx)),
        device_nodes: nodes.map(|blocks| device_nodes(blocks, cx)),
        task_env,
        groups,
        driver,
        attributes,
    }
}

/// Directories that may be read, or with `write = true` also written.
fn paths(blocks: Vec<Block>, cx: &mut Context<'_>) -> Vec<FileGrant> {
    let mut files = Vec::new();
    for (path, _, block) in targets(blocks, cx) {
        let mut reader = Reader::new(block.body, &FILES, cx);
        let write = reader.boolean("write", cx).unwrap_or(false);
        reader.finish();
        files.push(FileGrant { path, write });
    }
    files
}

fn device_nodes(blocks: Vec<Block>, cx: &mut Context<'_>) -> Vec<NodeGrant> {
    let mut nodes = Vec::new();
    for (path, at, block) in targets(blocks, cx) {
        if !path.is_absolute() {
            cx.error(at, "device nodes are granted by their full path, as in \"/dev/dri/*\"");
        }
        let mut reader = Reader::new(block.body, &NODES, cx);
        let permissions = match reader.text("permissions", cx) {
            Some((given, _)) if !given.is_empty() && given.chars().all(|c| "rwm".contains(c)) => {
                given
            }
            Some((_, at)) => {
                cx.error(at, "permissions are of r (read), w (write) and m (mknod), as in \"rw\"");
                String::new()
            }
            None => "rw".to_owned(),
        };
        reader.finish();
        nodes.push(NodeGrant { path: path.to_string_lossy().into_owned(), permissions });
    }
    nodes
}

/// What is imported and refused. Nothing is both granted and denied.
fn deny(given: Vec<(String, Span)>, grants: &Grants, cx: &mut Context<'_>) -> Vec<String> {
    for (word, at) in &given {
        let granted = match word.as_str() {
            "files" => !grants.files.is_empty(),
            "command" => !grants.commands.is_empty(),
            "process" => grants.process,
            "wasm_task" => grants.wasm_task,
            "connect" => !grants.connect.is_empty(),
            _ => false,
        };
        if granted {
            cx.error(*at, format!("{} is granted here as well", shown(word)));
        } else if !DENIABLE.contains(&word.as_str()) && !word.contains(':') {
            let words = DENIABLE.join(", ");
            let what = format!("{} cannot be denied; {words} can", shown(word));
            cx.error(*at, format!("{what}, and interfaces by name, as in \"wasi:http\""));
        }
    }
    plain_texts(given)
}

/// How processes are isolated, and what they may do without.
fn isolation(block: Block, cx: &mut Context<'_>) -> IsolationGrant {
    let mut reader = Reader::new(block.body, &ISOLATION, cx);
    let mut grant = IsolationGrant::default();
    for (word, at) in reader.texts("without", cx).map(|(words, _)| words).unwrap_or_default() {
        match Part::from_word(&word) {
            Some(part) => grant.without.push(part),
            None => {
                let known: Vec<&str> = Part::ALL.iter().map(|part| part.word()).collect();
                let known = known.join(", ");
                cx.error(
                    at,
                    format!("{} is no part of isolation; there are {known}", shown(&word)),
                );
            }
        }
    }
    let mut absolute = |name: &'static str, cx: &mut Context<'_>| {
        let texts = reader.texts(name, cx)?.0;
        for (path, at) in &texts {
            if !path.starts_with('/') || path.split('/').any(|part| part == "..") {
                cx.error(*at, "an absolute path without .. is wanted here");
            }
        }
        Some(plain_texts(texts))
    };
    let paths = |texts: Vec<String>| texts.into_iter().map(PathBuf::from).collect::<Vec<_>>();
    grant.base = absolute("base", cx).map(paths);
    grant.hidden = absolute("hidden", cx).map(paths).unwrap_or_default();
    grant.mounts = absolute("mounts", cx).unwrap_or_default();
    let capabilities = reader.texts("capabilities", cx).map(|(names, _)| names);
    grant.capabilities = plain_texts(capabilities.unwrap_or_default());
    grant.user = reader.text("user", cx).map(|(user, _)| user);
    grant.processes_max = reader.number("processes_max", PROCESSES, cx);
    reader.finish();
    grant
}

fn plain_texts(texts: Vec<(String, Span)>) -> Vec<String> {
    texts.into_iter().map(|(text, _)| text).collect()
}

/// Something found by its full path, never by name.
fn full_paths(paths: Vec<(String, Span)>, wanted: &str, cx: &mut Context<'_>) -> Vec<String> {
    for (path, at) in &paths {
        if !path.starts_with('/') {
            cx.error(*at, wanted);
        }
    }
    plain_texts(paths)
}

fn endpoints(places: Vec<(String, Span)>, cx: &mut Context<'_>) -> Vec<Endpoint> {
    let mut endpoints = Vec::with_capacity(places.len());
    for (place, at) in places {
        match place.parse() {
            Ok(endpoint) => endpoints.push(endpoint),
            Err(error) => {
                let error: EndpointError = error;
                cx.error(at, error.to_string());
            }
        }
    }
    endpoints
}

fn variables(names: Vec<(String, Span)>, cx: &mut Context<'_>) -> Vec<String> {
    for (name, at) in &names {
        if name.is_empty() || name.contains(['=', '\0']) {
            let message = "the name of a variable, or a pattern such as \"LC_*\", is wanted here";
            cx.error(*at, message);
        }
    }
    plain_texts(names)
}

/// Blocks whose label is a path; the same path twice is reported.
fn targets(blocks: Vec<Block>, cx: &mut Context<'_>) -> Vec<(PathBuf, Span, Block)> {
    let mut seen = BTreeSet::new();
    let mut targets = Vec::with_capacity(blocks.len());
    for mut block in blocks {
        let Some(label) = block.labels.drain(..).next() else {
            continue;
        };
        if label.name.is_empty() {
            cx.error(label.span, "a path must not be empty");
            continue;
        }
        if !seen.insert(label.name.clone()) {
            cx.error(label.span, format!("{} is granted here already", shown(&label.name)));
        }
        targets.push((PathBuf::from(label.name), label.span, block));
    }
    targets
}

/// `args`: a list of argument lists. Absent: no arguments.
fn argument_lists(reader: &mut Reader, cx: &mut Context<'_>) -> Vec<Vec<String>> {
    let wanted = "a list of argument lists such as [[\"--query\", \"*\"]]";
    let Some((key, value)) = reader.value("args") else {
        return vec![Vec::new()];
    };
    let ValueKind::List(items) = value.kind else {
        return wrong(&key, value.span, wanted, &value.kind, cx).unwrap_or_default();
    };
    if items.is_empty() {
        cx.error(
            value.span,
            "args must not be empty; leave it out for no arguments, write [[\"**\"]] for any",
        );
    }
    let mut lists = Vec::with_capacity(items.len());
    for item in items {
        let ValueKind::List(items) = item.kind else {
            wrong(&key, item.span, wanted, &item.kind, cx).unwrap_or(());
            continue;
        };
        let mut list = Vec::with_capacity(items.len());
        for argument in items {
            match as_text(argument.kind) {
                // A literal `${` is kept as `$${` for whoever fills in references later: nobody here.
                Ok(text) => list.push(text.replace("$${", "${")),
                Err(kind) => wrong(&key, argument.span, wanted, &kind, cx).unwrap_or(()),
            }
        }
        lists.push(list);
    }
    lists
}
