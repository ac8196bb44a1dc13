//! Checks what a granted program is started with. The grant `programs` would mean little if a
//! driver could choose the libraries that the program loads, the directory whose files it reads, or
//! whose rights it has.
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
use ostler_model::grants::{GrantAddition, Grants, wildcard};
use ostler_model::isolation::IsolationKind;
use ostler_model::ports::TaskContext;
use ostler_model::variables::{is_own, is_reserved, loads_code};
use ostler_process::Isolation;
use ostler_process::user::{LANG_USUAL, PATH_USUAL};

/// The user whose rights are the node's.
const ROOT: &str = "root";

/// Why a request breaks the rules for granted programs.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ProgramViolation {
    /// A grant is missing.
    Lacks(String, GrantAddition),
    /// No grant would allow it.
    Never(String),
}

/// The first rule that a request for a granted program breaks.
pub(super) fn find_violation(
    plugin: &str,
    grants: &Grants,
    task: &TaskContext,
    request: &SpawnRequest,
    isolation: Option<&Isolation>,
) -> Option<ProgramViolation> {
    // A process that is isolated by `user` does not run as root. One isolated by `mounts` sees no
    // directories but those it may have.
    let has = |part| isolation.is_some_and(|isolation| isolation.has(part));
    let as_root =
        request.user.is_none() && !has(IsolationKind::User) && rustix::process::geteuid().is_root();
    if as_root && !grants.allow_user(Some(ROOT)) {
        let text = "running granted programs as root is not granted; the job names no user";
        return Some(ProgramViolation::Lacks(
            text.to_owned(),
            GrantAddition::User(ROOT.to_owned()),
        ));
    }
    let cwd = &request.cwd;
    if !has(IsolationKind::Mounts) && !is_own_dir(task, cwd) && !grants.allow_dir(cwd) {
        let text = format!("running granted programs in {cwd} is not granted");
        return Some(ProgramViolation::Lacks(text, GrantAddition::Dir(cwd.clone())));
    }
    request.env.iter().find_map(|var| check_variable(plugin, grants, task, var))
}

/// Replace a directory by its real path. A directory that does not exist stays as it is.
pub(super) fn resolve_links(dir: &mut String) {
    let real = Path::new(dir.as_str()).canonicalize().ok();
    if let Some(real) = real.as_deref().and_then(Path::to_str) {
        real.clone_into(dir);
    }
}

/// Is a directory below the task's own, or assigned to the task?
fn is_own_dir(task: &TaskContext, dir: &str) -> bool {
    let plain = !dir.split('/').any(|part| part == "..");
    let assigned = task.mounts.iter().map(|mount| Path::new(&mount.host_path));
    let mut own = [task.task_dir.as_path(), task.alloc_dir.as_path()].into_iter().chain(assigned);
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_absent| path.to_owned());
    plain && own.any(|own| Path::new(dir).starts_with(real(own)))
}

/// Is this one of the usual variables that a driver gives to a task without it? They choose neither
/// code nor data.
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

fn check_variable(
    plugin: &str,
    grants: &Grants,
    task: &TaskContext,
    var: &EnvVar,
) -> Option<ProgramViolation> {
    let name = &var.name;
    if loads_code(name) {
        return Some(ProgramViolation::Never(format!(
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
    Some(if is_reserved(name) {
        ProgramViolation::Never(text)
    } else {
        ProgramViolation::Lacks(text, GrantAddition::TaskEnv(name.clone()))
    })
}
