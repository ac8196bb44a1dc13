//! What a granted program is started with: `programs` would mean little where a driver may choose the
//! libraries that the program loads, the directory whose files it reads, or whose rights it has.
//!
//! ```text
//! user         the job's, by `users`; without one the agent's own, by `users` where that is root
//! directory    the task's own, those it was assigned, those of `dirs`; links resolved
//! environment  the task's own as it is, what the plugin may set (`variables::is_own`), `task_env`
//!              never what makes a program load code, wherever it comes from
//! ```

use std::path::Path;

use crate::bindings::since_0_1::host::process::SpawnRequest;
use crate::bindings::since_0_1::host::types::EnvVar;
use ostler_model::grants::{Added, Grants, wildcard};
use ostler_model::isolation::Part;
use ostler_model::ports::TaskContext;
use ostler_model::variables::{is_own, is_reserved, loads_code};
use ostler_process::Isolation;
use ostler_process::user::{LANG_USUAL, PATH_USUAL};

/// The user whose rights are the node's.
const ROOT: &str = "root";

/// What is not as the grant of `programs` wants it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wrong {
    /// A grant is missing.
    Lacks(String, Added),
    /// No grant allows it.
    Never(String),
}

/// The first thing wrong with a request for a granted program.
pub(super) fn wrong(
    plugin: &str,
    grants: &Grants,
    task: &TaskContext,
    request: &SpawnRequest,
    isolation: Option<&Isolation>,
) -> Option<Wrong> {
    // One that is isolated so is nobody's, and sees no directories but those it may have.
    let has = |part| isolation.is_some_and(|isolation| isolation.has(part));
    let as_root =
        request.user.is_none() && !has(Part::User) && rustix::process::geteuid().is_root();
    if as_root && !grants.allow_user(Some(ROOT)) {
        let text = "running granted programs as root is not granted; the job names no user";
        return Some(Wrong::Lacks(text.to_owned(), Added::User(ROOT.to_owned())));
    }
    let cwd = &request.cwd;
    if !has(Part::Mounts) && !own_dir(task, cwd) && !grants.allow_dir(cwd) {
        let text = format!("running granted programs in {cwd} is not granted");
        return Some(Wrong::Lacks(text, Added::Dir(cwd.clone())));
    }
    request.env.iter().find_map(|var| variable(plugin, grants, task, var))
}

/// Put what a directory leads to in its place; one that is not there stays as it is.
pub(super) fn without_links(dir: &mut String) {
    let real = Path::new(dir.as_str()).canonicalize().ok();
    if let Some(real) = real.as_deref().and_then(Path::to_str) {
        real.clone_into(dir);
    }
}

/// Is a directory the task's own, or assigned to it?
fn own_dir(task: &TaskContext, dir: &str) -> bool {
    let plain = !dir.split('/').any(|part| part == "..");
    let assigned = task.mounts.iter().map(|mount| Path::new(&mount.host_path));
    let mut own = [task.task_dir.as_path(), task.alloc_dir.as_path()].into_iter().chain(assigned);
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_absent| path.to_owned());
    plain && own.any(|own| Path::new(dir).starts_with(real(own)))
}

/// What a driver gives a task that has no such variable of its own: nothing that chooses code or data.
fn is_usual(task: &TaskContext, name: &str, value: &str) -> bool {
    let below = |dir: &str| Path::new(value) == task.task_dir.join(dir);
    match name {
        "PATH" => value == PATH_USUAL,
        "LANG" => value == LANG_USUAL,
        "HOME" => value == "/local" || below("local"),
        "TMPDIR" => below("tmp"),
        _ => false,
    }
}

fn variable(plugin: &str, grants: &Grants, task: &TaskContext, var: &EnvVar) -> Option<Wrong> {
    let name = &var.name;
    if loads_code(name) {
        return Some(Wrong::Never(format!(
            "the variable {name} makes a program load other code: where programs are granted one by \
             one it is never given to them"
        )));
    }
    let own = task.env.iter().any(|(own, value)| (own, value) == (name, &var.value))
        || is_usual(task, name, &var.value);
    let mut granted = grants.answers.task_env.iter().flatten();
    let allowed =
        !is_reserved(name) && (is_own(plugin, name) || granted.any(|one| wildcard(one, name)));
    if own || allowed {
        return None;
    }
    let text = format!(
        "giving granted programs the variable {name} with a value of its own is not granted"
    );
    Some(match is_reserved(name) {
        true => Wrong::Never(text),
        false => Wrong::Lacks(text, Added::TaskEnv(name.clone())),
    })
}
