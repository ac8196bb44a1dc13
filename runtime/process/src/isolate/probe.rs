//! What of isolation this node can do: found out by doing it, in processes that then end.

use std::collections::BTreeMap;
use std::io;

use rustix::thread::CapabilitySet;
use serde::{Deserialize, Serialize};

use super::{enter, filter, root, rules, sys};
use crate::child;
use ostler_model::isolation::Part;

/// What is possible on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Abilities {
    /// Why a part is not possible; those that are absent are.
    pub lacking: BTreeMap<Part, String>,
    /// Namespaces are made in a user namespace: the agent may not make them by itself.
    pub user_namespace: bool,
}

impl Abilities {
    /// Nothing is possible, for one reason.
    #[must_use]
    pub fn none(why: &str) -> Self {
        let lacking = Part::ALL.into_iter().map(|part| (part, why.to_owned())).collect();
        Self { lacking, user_namespace: false }
    }

    /// Is this part possible?
    #[must_use]
    pub fn can(&self, part: Part) -> bool {
        !self.lacking.contains_key(&part)
    }
}

/// Try everything. In a process with one thread.
pub(in super::super) fn all() -> Abilities {
    let has = |capability| {
        rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(capability))
    };
    let user_namespace = !has(CapabilitySet::SYS_ADMIN);
    let mut found = Abilities { user_namespace, ..Abilities::default() };
    let mut lacks = |part: Part, tried: Result<(), String>| {
        if let Err(why) = tried {
            found.lacking.insert(part, why);
        }
    };
    let enter = move || match user_namespace {
        true => enter::own_user_namespace(),
        false => Ok(()),
    };
    let entered = attempt(|| {
        enter().map_err(of("the agent may make no namespaces, and no user namespace either"))
    });
    let namespaces = entered.is_ok();
    match entered {
        Err(why) => {
            for part in [Part::Mounts, Part::Pids, Part::Ipc, Part::Network] {
                lacks(part, Err(why.clone()));
            }
        }
        Ok(()) => {
            let new = |what: &'static str, flag| {
                attempt(|| {
                    enter().map_err(of("no user namespace"))?;
                    sys::unshare(flag).map_err(of(what))
                })
            };
            lacks(Part::Ipc, new("no ipc namespace", libc::CLONE_NEWIPC));
            lacks(Part::Network, new("no network namespace", libc::CLONE_NEWNET));
            let root = attempt(|| own_root(enter, false));
            let mounts = root.is_ok();
            lacks(Part::Mounts, root);
            lacks(Part::Pids, attempt(|| own_processes(enter, mounts)));
        }
    }
    lacks(Part::Seccomp, attempt(|| filter_works().map_err(of("no filters of system calls"))));
    lacks(Part::Landlock, rules::version().map(drop));
    found.user_namespace = user_namespace && namespaces;
    if rustix::process::geteuid().is_root() {
        let needed = CapabilitySet::SETUID | CapabilitySet::SETGID | CapabilitySet::CHOWN;
        let why = if user_namespace {
            Some("the agent is root without the right to make namespaces")
        } else if !has(needed) {
            Some("the agent is root without the right to switch users")
        } else if !found.can(Part::Mounts) {
            // Another user does not reach the data directory by its path.
            Some("without mounts only the agent's own user reaches a task's directories")
        } else {
            None
        };
        found.lacking.extend(why.map(|why| (Part::User, why.to_owned())));
    }
    found
}

fn of(what: &'static str) -> impl FnOnce(io::Error) -> root::Failed {
    move |error| (what.to_owned(), error)
}

/// A root as tasks get it, without one.
fn own_root(enter: impl Fn() -> io::Result<()>, proc: bool) -> Result<(), root::Failed> {
    enter().map_err(of("no user namespace"))?;
    sys::unshare(libc::CLONE_NEWNS).map_err(of("no mount namespace"))?;
    let place = |path: &str| root::Place {
        from: path.into(),
        to: path.into(),
        read_only: true,
        base: true,
        exec: true,
    };
    let places = vec![place("/usr"), place("/etc")];
    root::Root { places, proc, ..root::Root::default() }.enter(None)
}

/// A pid namespace, with a `/proc` where there is a root of its own to mount it in.
fn own_processes(enter: impl Fn() -> io::Result<()>, mounts: bool) -> Result<(), root::Failed> {
    enter().map_err(of("no user namespace"))?;
    sys::unshare(libc::CLONE_NEWPID).map_err(of("no pid namespace"))?;
    let first = attempt(|| if mounts { own_root(|| Ok(()), true) } else { Ok(()) });
    first.map_err(|why| (why, io::ErrorKind::Other.into()))
}

fn filter_works() -> io::Result<()> {
    rustix::thread::set_no_new_privs(true)?;
    filter::apply(&filter::program(true)?)
}

/// Do something in a process of its own; why it cannot be done.
fn attempt(what: impl FnOnce() -> Result<(), root::Failed>) -> Result<(), String> {
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
