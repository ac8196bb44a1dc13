//! Standard input of a WASM task: nothing, a text, or a file of the task.
//!
//! A file is opened as directories are (`dirs`): by walking down from a directory of the task, so
//! that no link leads outside. It is read piece by piece as the task asks. Only regular files are
//! taken, because a read holds the guest's thread.

use std::path::{Path, PathBuf};

use cap_std::ambient_authority;
use cap_std::fs::{Dir, OpenOptions, OpenOptionsExt as _};
use wasmtime_wasi::WasiCtxBuilder;
use wasmtime_wasi::cli::InputFile;
use wasmtime_wasi::p2::pipe::MemoryInputPipe;

use super::WasmTaskError;
use crate::guest_files::places::{self, FileSystemKind};
use ostler_model::ports::TaskContext;

/// What a task reads from its standard input.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TaskStdin {
    /// Nothing: the first read is the end.
    #[default]
    Nothing,
    /// This text, and then the end.
    Text(String),
    /// A file inside the task's or the shared directory, or assigned to the task.
    File(PathBuf),
}

/// Set the standard input of a task.
pub(super) fn connect(
    wasi: &mut WasiCtxBuilder,
    context: &TaskContext,
    input: &TaskStdin,
) -> Result<(), WasmTaskError> {
    match input {
        TaskStdin::Nothing => {}
        TaskStdin::Text(text) => {
            wasi.stdin(MemoryInputPipe::new(text.clone()));
        }
        TaskStdin::File(path) => {
            wasi.stdin(InputFile::new(open(context, path)?));
        }
    }
    Ok(())
}

fn open(context: &TaskContext, path: &Path) -> Result<std::fs::File, WasmTaskError> {
    let failed = |reason: String| WasmTaskError::Input { path: path.to_owned(), reason };
    let assigned = context.mounts.iter().map(|mount| Path::new(&mount.host_path));
    let roots = assigned.chain([context.task_dir.as_path(), context.alloc_dir.as_path()]);
    let below = |root: &Path| Some((root.to_owned(), path.strip_prefix(root).ok()?.to_owned()));
    let found = { roots }.find_map(below);
    let (mut root, mut name) =
        found.ok_or_else(|| WasmTaskError::OutsideTask { path: path.to_owned() })?;
    if name.as_os_str().is_empty() {
        // The file itself is assigned to the task.
        let (Some(parent), Some(file)) = (path.parent(), path.file_name()) else {
            return Err(failed("it is a directory".to_owned()));
        };
        (root, name) = (parent.to_owned(), file.into());
    }
    let opened = Dir::open_ambient_dir(&root, ambient_authority());
    let opened = opened.map_err(|e| failed(e.to_string()))?;
    let mut options = OpenOptions::new();
    // Opening a pipe would wait for whoever writes to it.
    options.read(true).custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed());
    let file = opened.open_with(&name, &options).map_err(|e| failed(e.to_string()))?;
    let meta = file.metadata().map_err(|e| failed(e.to_string()))?;
    if !meta.is_file() {
        return Err(failed("it is not a regular file".to_owned()));
    }
    let file = file.into_std();
    if !places::admit(&file, places::kind_of_path(&context.task_dir) == FileSystemKind::Waits) {
        return Err(failed("reading it may block forever, or it belongs to the agent".to_owned()));
    }
    Ok(file)
}
