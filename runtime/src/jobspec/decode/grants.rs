//! The `grants` block of a plugin.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::super::diagnostic::{Span, shown};
use super::super::schema::{Schema, Shape};
use super::super::tree::{Block, ValueKind};
use super::agent::{field, labelled};
use super::reader::{as_text, wrong};
use super::{Context, Reader};
use crate::model::config::{CommandGrant, FileGrant, Grants};
use crate::model::endpoint::{Endpoint, EndpointError};

pub(super) static GRANTS: Schema = Schema {
    what: "grants",
    fields: &[
        labelled("files", &FILES),
        labelled("command", &COMMAND),
        field("process", Shape::Bool),
        field("users", Shape::TextList),
        field("programs", Shape::TextList),
        field("wasm_task", Shape::Bool),
        field("connect", Shape::TextList),
        field("env", Shape::TextList),
    ],
};

static FILES: Schema = Schema { what: "files", fields: &[field("write", Shape::Bool)] };

static COMMAND: Schema = Schema { what: "command", fields: &[field("args", Shape::TextList)] };

pub(super) fn grants(block: Block, cx: &mut Context<'_>) -> Grants {
    let mut reader = Reader::new(block.body, &GRANTS, cx);
    let mut files = Vec::new();
    for (path, _, block) in targets(reader.blocks("files"), cx) {
        let mut reader = Reader::new(block.body, &FILES, cx);
        let write = reader.boolean("write", cx).unwrap_or(false);
        reader.finish();
        files.push(FileGrant { path, write });
    }
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
    if !process {
        for (name, given) in [("users", &users), ("programs", &programs)] {
            if let Some((_, at)) = given {
                cx.error(*at, format!("{name} narrows process; write process = true beside it"));
            }
        }
    }
    let programs = programs.map(|programs| checked_programs(programs.0, cx));
    let wasm_task = reader.boolean("wasm_task", cx).unwrap_or(false);
    let connect = reader.texts("connect", cx).map(|(places, _)| endpoints(places, cx));
    let env = reader.texts("env", cx).map(|(names, _)| variables(names, cx));
    reader.finish();
    Grants {
        files,
        commands,
        process,
        users: users.map(|(users, _)| plain_texts(users)).unwrap_or_default(),
        programs,
        wasm_task,
        connect: connect.unwrap_or_default(),
        env: env.unwrap_or_default(),
    }
}

fn plain_texts(texts: Vec<(String, Span)>) -> Vec<String> {
    texts.into_iter().map(|(text, _)| text).collect()
}

/// A program that a task may be: found by its full path, never by name.
fn checked_programs(programs: Vec<(String, Span)>, cx: &mut Context<'_>) -> Vec<String> {
    for (program, at) in &programs {
        if !program.starts_with('/') {
            cx.error(*at, "a program is granted by its full path, as in \"/opt/app/*\"");
        }
    }
    plain_texts(programs)
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
