//! Functions of files, which work only where the command line reads the job file. The content of a file is plain
//! text: nothing in it is replaced when the task starts.

use std::path::{Component, Path, PathBuf};

use super::super::types::set;
use super::super::value::{Val, ValKind};
use super::{Function, FunctionCall, FunctionError};
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

/// The directory that paths are relative to. Without one, the call is an error.
fn base_directory<'a>(call: &FunctionCall<'a>) -> Result<&'a Path, FunctionError> {
    let inputs = call.inputs;
    match &inputs.directory {
        Some(here) => Ok(here),
        None => call.fail(format!(
            "{} works only where the command line reads the job file: the agent does not show its files",
            call.name
        )),
    }
}

/// The path without `.`, `..` and doubled slashes, as far as that is possible without reading the disk.
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

fn path(
    call: FunctionCall<'_>,
    change: fn(&Path, &Path) -> String,
) -> Result<ValKind, FunctionError> {
    call.check_count(1, 1)?;
    let here = base_directory(&call)?;
    Ok(ValKind::literal(change(Path::new(&call.text(0)?), here)))
}

/// The path of a text, in which `~` stands for the home directory of the user who runs the command.
fn expand_home(text: &str) -> Result<PathBuf, String> {
    let Some(rest) = text.strip_prefix('~') else { return Ok(PathBuf::from(text)) };
    if !rest.is_empty() && !rest.starts_with('/') {
        return Err("only ~ alone is a home directory, not that of another user".to_owned());
    }
    match std::env::var_os("HOME") {
        Some(home) => Ok(Path::new(&home).join(rest.trim_start_matches('/'))),
        None => Err("~ means nothing: HOME is not set".to_owned()),
    }
}

fn path_argument(call: &FunctionCall<'_>, index: usize) -> Result<PathBuf, FunctionError> {
    let here = base_directory(call)?;
    match expand_home(&call.text(index)?) {
        Ok(path) => Ok(clean(&here.join(path))),
        Err(message) => call.fail_at(index, message),
    }
}

fn path_expand(call: FunctionCall<'_>) -> Result<ValKind, FunctionError> {
    call.check_count(1, 1)?;
    base_directory(&call)?;
    match expand_home(&call.text(0)?) {
        Ok(path) => Ok(ValKind::literal(path.display().to_string())),
        Err(message) => call.fail_at(0, message),
    }
}

fn file(call: FunctionCall<'_>) -> Result<ValKind, FunctionError> {
    call.check_count(1, 1)?;
    match disk::text(&path_argument(&call, 0)?) {
        Ok(text) => Ok(ValKind::literal(text)),
        Err(message) => call.fail_at(0, message),
    }
}

fn file_exists(call: FunctionCall<'_>) -> Result<ValKind, FunctionError> {
    call.check_count(1, 1)?;
    match disk::exists(&path_argument(&call, 0)?) {
        Ok(there) => Ok(ValKind::Bool(there)),
        Err(message) => call.fail_at(0, message),
    }
}

fn file_set(mut call: FunctionCall<'_>) -> Result<ValKind, FunctionError> {
    call.check_count(2, 2)?;
    let (directory, pattern) = (path_argument(&call, 0)?, call.text(1)?);
    let found = match disk::matching(&directory, &pattern) {
        Ok(found) => found,
        Err(message) => return call.fail(message),
    };
    call.pay(found.iter().map(|path| path.len() + 64).sum())?;
    let span = call.span;
    Ok(set(found.iter().map(|path| Val::new(ValKind::literal(path), span)).collect()))
}
