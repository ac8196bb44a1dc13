//! Finds out which parts of isolation work on this node, by trying them in processes that then end.

use std::collections::BTreeMap;
use std::io;

use rustix::thread::CapabilitySet;
use serde::{Deserialize, Serialize};

use super::empty::EmptyMounts;
use super::{enter, filter, root, rules, sys};
use crate::child;
use ostler_model::isolation::IsolationKind;

/// Which parts of isolation are possible on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Abilities {
    /// The parts that are not possible, and why. All other parts are possible.
    pub lacking: BTreeMap<IsolationKind, String>,
    /// Namespaces are made in a user namespace, because the agent may not make them by itself.
    pub user_namespace: bool,
}

impl Abilities {
    /// No part is possible, for one reason.
    #[must_use]
    pub fn none(why: &str) -> Self {
        let lacking = IsolationKind::ALL.into_iter().map(|part| (part, why.to_owned())).collect();
        Self { lacking, user_namespace: false }
    }

    /// Whether this part is possible.
    #[must_use]
    pub fn can(&self, part: IsolationKind) -> bool {
        !self.lacking.contains_key(&part)
    }
}

/// Try all parts. Call it in a process with one thread. `empty`: the namespace of which those of tasks
/// are copies.
pub(in super::super) fn probe_all(empty: Option<&EmptyMounts>) -> Abilities {
    let has = |capability| {
        rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(capability))
    };
    let user_namespace = !has(CapabilitySet::SYS_ADMIN);
    let mut found = Abilities { user_namespace, ..Abilities::default() };
    let mut lacks = |part: IsolationKind, tried: Result<(), String>| {
        if let Err(why) = tried {
            found.lacking.insert(part, why);
        }
    };
    let empty = empty.filter(|_| !user_namespace);
    let enter = move || if user_namespace { enter::enter_user_namespace() } else { Ok(()) };
    let entered = attempt(|| {
        enter().map_err(error_context("the agent may make neither namespaces nor user namespaces"))
    });
    let namespaces = entered.is_ok();
    match entered {
        Err(why) => {
            for part in [
                IsolationKind::Mounts,
                IsolationKind::Pids,
                IsolationKind::Ipc,
                IsolationKind::Network,
            ] {
                lacks(part, Err(why.clone()));
            }
        }
        Ok(()) => {
            let new = |what: &'static str, flag| {
                attempt(|| {
                    enter().map_err(error_context("no user namespace"))?;
                    sys::unshare(flag).map_err(error_context(what))
                })
            };
            lacks(IsolationKind::Ipc, new("no ipc namespace", libc::CLONE_NEWIPC));
            lacks(IsolationKind::Network, new("no network namespace", libc::CLONE_NEWNET));
            let root = attempt(|| try_own_root(enter, empty, false));
            let mounts = root.is_ok();
            lacks(IsolationKind::Mounts, root);
            lacks(IsolationKind::Pids, attempt(|| try_own_processes(enter, empty, mounts)));
        }
    }
    lacks(
        IsolationKind::Seccomp,
        attempt(|| try_filter().map_err(error_context("no filters of system calls"))),
    );
    lacks(IsolationKind::Landlock, rules::version().map(drop));
    found.user_namespace = user_namespace && namespaces;
    if rustix::process::geteuid().is_root() {
        let needed = CapabilitySet::SETUID | CapabilitySet::SETGID | CapabilitySet::CHOWN;
        let why = if user_namespace {
            Some("the agent is root without the right to make namespaces")
        } else if !has(needed) {
            Some("the agent is root without the right to switch users")
        } else if !found.can(IsolationKind::Mounts) {
            // Another user does not reach the data directory by its path.
            Some("without mounts only the agent's own user reaches a task's directories")
        } else {
            None
        };
        found.lacking.extend(why.map(|why| (IsolationKind::User, why.to_owned())));
    }
    found
}

fn error_context(what: &'static str) -> impl FnOnce(io::Error) -> root::RootError {
    move |error| (what.to_owned(), error)
}

/// Make a root as tasks get it, for no task.
fn try_own_root(
    enter: impl Fn() -> io::Result<()>,
    empty: Option<&EmptyMounts>,
    proc: bool,
) -> Result<(), root::RootError> {
    enter().map_err(error_context("no user namespace"))?;
    let place = |path: &str| root::BindMount {
        from: path.into(),
        to: path.into(),
        read_only: true,
        base: true,
        exec: true,
    };
    let places = vec![place("/usr"), place("/etc")];
    let root = root::Root { places, proc, ..root::Root::default() };
    let entered = root.enter(empty, libc::CLONE_NEWNS, None);
    entered.map_err(error_context("no mount namespace"))??;
    root.finish()
}

/// Make a pid namespace, and with `mounts` a `/proc` in a root of its own.
fn try_own_processes(
    enter: impl Fn() -> io::Result<()>,
    empty: Option<&EmptyMounts>,
    mounts: bool,
) -> Result<(), root::RootError> {
    enter().map_err(error_context("no user namespace"))?;
    sys::unshare(libc::CLONE_NEWPID).map_err(error_context("no pid namespace"))?;
    let first = attempt(|| if mounts { try_own_root(|| Ok(()), empty, true) } else { Ok(()) });
    first.map_err(|why| (why, io::ErrorKind::Other.into()))
}

fn try_filter() -> io::Result<()> {
    rustix::thread::set_no_new_privs(true)?;
    filter::apply(&filter::program(true)?)
}

/// Do something in a process of its own. An error says why it cannot be done.
fn attempt(what: impl FnOnce() -> Result<(), root::RootError>) -> Result<(), String> {
    let failed = |error: io::Error| format!("it cannot be tried: {error}");
    let (word, word_end) = child::pipe().map_err(failed)?;
    // SAFETY: this process has one thread, so its child may do everything; it never comes back.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let said = match what() {
            Ok(()) => String::new(),
            Err((what, error)) if error.raw_os_error().is_none() => what,
            Err((what, error)) => format!("{what}: {error}"),
        };
        let said = if said.is_empty() { "+".to_owned() } else { format!("-{said}") };
        let _gone = rustix::io::write(&word_end, said.as_bytes());
        // SAFETY: ends the child without running anything that is its parent's.
        unsafe { libc::_exit(0) }
    }
    drop(word_end);
    let Some(pid) = rustix::process::Pid::from_raw(pid).filter(|_| pid > 0) else {
        return Err(failed(io::Error::last_os_error()));
    };
    let mut said = String::new();
    let read = io::Read::read_to_string(&mut std::fs::File::from(word), &mut said);
    let _ended = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
    read.map_err(failed)?;
    match said.strip_prefix('-') {
        Some(why) => Err(why.to_owned()),
        None if said == "+" => Ok(()),
        None => Err("it was killed when it was tried".to_owned()),
    }
}
