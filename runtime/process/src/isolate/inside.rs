//! The task's process from its fork to its program: one step after the other, each of which can fail
//! and then says how.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::process::Pid;

use super::root::Failed;
use super::{IsolationSetup, filter, privileges};
use crate::child::{self, Laid, Plan, Step};
use ostler_model::isolation::Part;

/// Set up, wait for the go, run the program. `shim`: whose end is looked for, where there is no init
/// that ends with it.
pub(super) fn run(plan: &Plan, child: &Laid, setup: &IsolationSetup, shim: Option<Pid>) -> ! {
    // SAFETY: we are the only thread of a process of our own; what the steps read lives in `plan`.
    unsafe {
        child.lay_out();
        child::die_with(shim);
        child::begin_session();
    }
    if let Err((what, error)) = set_up(plan, setup) {
        child::report_text(Step::Isolate, &error, &what);
    }
    // SAFETY: as above.
    unsafe { child::wait_for_go() };
    execute(child, setup)
}

/// The task's own `/dev/null`: that of the node could be changed through the descriptor.
fn own_stdin() -> io::Result<()> {
    let null = std::fs::File::open("/dev/null")?;
    Ok(rustix::stdio::dup2_stdin(null)?)
}

fn named(what: &'static str) -> impl FnOnce(io::Error) -> Failed {
    move |error| (what.to_owned(), error)
}

fn set_up(plan: &Plan, setup: &IsolationSetup) -> Result<(), Failed> {
    if setup.has(Part::Network) {
        loopback_up().map_err(named("network"))?;
    }
    if setup.has(Part::Mounts) {
        // In a user namespace no device nodes can be made.
        let owner = plan.ids.as_ref().filter(|_| !setup.user_namespace);
        setup.root.enter(owner)?;
        own_stdin().map_err(named("standard input"))?;
    }
    // Both are prepared with the rights that go next.
    let rules = setup.has(Part::Landlock).then(|| setup.rules.prepare());
    let rules = rules.transpose().map_err(named("landlock"))?;
    let alone = setup.has(Part::Pids);
    let filter = setup.has(Part::Seccomp).then(|| filter::program(alone));
    let filter = filter.transpose().map_err(named("seccomp"))?;
    let drop = setup.has(Part::Privileges);
    privileges::drop_to(plan.ids.as_ref(), setup.capabilities, drop)
        .map_err(named("user and privileges"))?;
    if let Some(most) = setup.processes_max {
        privileges::bound_processes(most).map_err(named("the number of processes"))?;
    }
    // The change of user cleared it.
    child::die_with_parent();
    let cwd = Path::new(std::ffi::OsStr::from_bytes(plan.texts.cwd.to_bytes()));
    if let Err(error) = std::env::set_current_dir(cwd) {
        child::report_text(Step::Directory, &error, "");
    }
    if let Some(rules) = rules {
        let restricted = rules.restrict_self();
        restricted.map_err(|error| ("landlock".to_owned(), io::Error::other(error)))?;
    }
    if let Some(filter) = filter {
        filter::apply(&filter).map_err(named("seccomp"))?;
    }
    Ok(())
}

/// The first candidate that is there. Nothing returns from a program that runs.
fn execute(child: &Laid, setup: &IsolationSetup) -> ! {
    let (mut failed, mut with) = (io::Error::from_raw_os_error(libc::ENOENT), Step::Program);
    let mut which = String::new();
    for candidate in &setup.candidates {
        let error = child.execute(candidate);
        let shown = || candidate.to_string_lossy().into_owned();
        match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR) if !is_there(candidate) => {}
            Some(libc::EACCES) => {
                if with == Step::Program {
                    (failed, with, which) = (error, Step::Exec, shown());
                }
            }
            _ => child::report_text(Step::Exec, &error, &shown()),
        }
    }
    child::report_text(with, &failed, &which)
}

fn is_there(path: &CString) -> bool {
    let path = Path::new(std::ffi::OsStr::from_bytes(path.to_bytes()));
    path.symlink_metadata().is_ok()
}

/// Bring up the loopback of a new network namespace.
fn loopback_up() -> io::Result<()> {
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        None,
    )?;
    // SAFETY: the structure is plain data; the name fits with its end.
    unsafe {
        use std::os::fd::AsRawFd as _;
        let mut request = std::mem::zeroed::<libc::ifreq>();
        for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
            *to = (*from).cast_signed();
        }
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
        if libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
