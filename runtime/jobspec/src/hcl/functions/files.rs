//! Files, where the one who runs the command reads the job file. What is in a file is text: nothing in
//! it is replaced when the task starts.

use std::path::{Component, Path, PathBuf};

use super::super::types::set;
use super::super::value::{Kind, Val};
use super::{Call, Function, Wrong};
use crate::disk;

pub(super) const TABLE: &[(&str, Function)] = &[
    ("abspath", |call| path(call, |path, here| clean(&here.join(path)).display().to_string())),
    ("basename", |call| {
        path(call, |path, _| {
            path.file_name().map_or(".".to_owned(), |name| name.to_string_lossy().into_owned())
        })
    }),
    ("dirname", |call| path(call, |path, _| directory_of(path))),
    ("file", file),
    ("fileexists", file_exists),
    ("fileset", file_set),
    ("pathexpand", path_expand),
];

/// The directory that paths are relative to.
fn here<'a>(call: &Call<'a>) -> Result<&'a Path, Wrong> {
    let inputs = call.inputs;
    match &inputs.directory {
        Some(here) => Ok(here),
        None => call.wrong(format!(
            "{} works only where the command line reads the job file: the agent shows nobody its files",
            call.name
        )),
    }
}

/// Without `.`, `..` and doubled slashes, as far as that can be said without looking.
fn clean(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if out.file_name().is_some() => {
                out.pop();
            }
            Component::ParentDir if out.has_root() => {}
            part => out.push(part),
        }
    }
    if out.as_os_str().is_empty() { PathBuf::from(".") } else { out }
}

fn directory_of(path: &Path) -> String {
    match path.parent() {
        Some(parent) => clean(parent).display().to_string(),
        None => clean(path).display().to_string(),
    }
}

fn path(call: Call<'_>, change: fn(&Path, &Path) -> String) -> Result<Kind, Wrong> {
    call.takes(1, 1)?;
    let here = here(&call)?;
    Ok(Kind::literal(change(Path::new(&call.text(0)?), here)))
}

/// A path, with `~` as the home of whoever runs the command.
fn expanded(text: &str) -> Result<PathBuf, String> {
    let Some(rest) = text.strip_prefix('~') else { return Ok(PathBuf::from(text)) };
    if !rest.is_empty() && !rest.starts_with('/') {
        return Err("only ~ alone is a home directory, not that of another user".to_owned());
    }
    match std::env::var_os("HOME") {
        Some(home) => Ok(Path::new(&home).join(rest.trim_start_matches('/'))),
        None => Err("~ means nothing: HOME is not set".to_owned()),
    }
}

fn at(call: &Call<'_>, index: usize) -> Result<PathBuf, Wrong> {
    let here = here(call)?;
    match expanded(&call.text(index)?) {
        Ok(path) => Ok(clean(&here.join(path))),
        Err(message) => call.wrong_at(index, message),
    }
}

fn path_expand(call: Call<'_>) -> Result<Kind, Wrong> {
    call.takes(1, 1)?;
    here(&call)?;
    match expanded(&call.text(0)?) {
        Ok(path) => Ok(Kind::literal(path.display().to_string())),
        Err(message) => call.wrong_at(0, message),
    }
}

fn file(call: Call<'_>) -> Result<Kind, Wrong> {
    call.takes(1, 1)?;
    match disk::text(&at(&call, 0)?) {
        Ok(text) => Ok(Kind::literal(text)),
        Err(message) => call.wrong_at(0, message),
    }
}

fn file_exists(call: Call<'_>) -> Result<Kind, Wrong> {
    call.takes(1, 1)?;
    match disk::exists(&at(&call, 0)?) {
        Ok(there) => Ok(Kind::Bool(there)),
        Err(message) => call.wrong_at(0, message),
    }
}

fn file_set(mut call: Call<'_>) -> Result<Kind, Wrong> {
    call.takes(2, 2)?;
    let (directory, pattern) = (at(&call, 0)?, call.text(1)?);
    let found = match disk::matching(&directory, &pattern) {
        Ok(found) => found,
        Err(message) => return call.wrong(message),
    };
    call.pay(found.iter().map(|path| path.len() + 64).sum())?;
    let span = call.span;
    Ok(set(found.iter().map(|path| Val::new(Kind::literal(path), span)).collect()))
}
