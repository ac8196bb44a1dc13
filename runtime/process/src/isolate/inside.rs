//! The task's process from its fork to its program: one step after the other, each of which can fail
//! and then says how.

use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::process::Pid;

use super::root::Failed;
use super::{IsolationSetup, filter, privileges, rules as landlock};
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
    if let Err((step, what, error)) = set_up(plan, setup) {
        child::report_text(step, &error, &what);
    }
    // SAFETY: as above.
    unsafe { child::wait_for_go() };
    execute(child, &setup.candidates)
}

/// The task's own `/dev/null`: that of the node could be changed through the descriptor.
fn own_stdin() -> io::Result<()> {
    let null = std::fs::File::open("/dev/null")?;
    Ok(rustix::stdio::dup2_stdin(null)?)
}

/// The step that failed, what it was about, and why.
pub(in super::super) type StepFailed = (Step, String, io::Error);

fn named(what: &'static str) -> impl FnOnce(io::Error) -> StepFailed {
    move |error| (Step::Isolate, what.to_owned(), error)
}

fn unmade((what, error): Failed) -> StepFailed {
    (Step::Isolate, what, error)
}

fn set_up(plan: &Plan, setup: &IsolationSetup) -> Result<(), StepFailed> {
    if setup.has(Part::Network) {
        loopback_up().map_err(named("network"))?;
    }
    if setup.has(Part::Mounts) {
        // In a user namespace no device nodes can be made.
        let owner = plan.ids.as_ref().filter(|_| !setup.user_namespace);
        setup.root.enter(owner).map_err(unmade)?;
        own_stdin().map_err(named("standard input"))?;
    }
    confine(plan, Some(setup), None)
}

/// Give up what the task does not have: of its user, capabilities, rules and filter, in its directory.
/// Without `setup` of its user alone. A terminal lies outside of the task's root and may be opened all the same.
pub(in super::super) fn confine(
    plan: &Plan,
    setup: Option<&IsolationSetup>,
    terminal: Option<&OwnedFd>,
) -> Result<(), StepFailed> {
    let has = |part| setup.is_some_and(|setup| setup.has(part));
    // Both are prepared with the rights that go next.
    let ruled = setup.filter(|setup| setup.has(Part::Landlock));
    let rules = ruled.map(|setup| setup.rules.prepare());
    let rules = rules.transpose().map_err(named("landlock"))?;
    let rules = match (rules, terminal) {
        (Some(rules), Some(terminal)) => {
            let with = landlock::with_terminal(rules, terminal);
            Some(with.map_err(|error| named("landlock")(io::Error::other(error)))?)
        }
        (rules, _) => rules,
    };
    let filter = has(Part::Seccomp).then(|| filter::program(has(Part::Pids)));
    let filter = filter.transpose().map_err(named("seccomp"))?;
    let kept = setup.map_or(0, |setup| setup.capabilities);
    // Opened before: another user may not get there by its path. Whether it may be in there is asked as itself.
    let cwd = Path::new(std::ffi::OsStr::from_bytes(plan.texts.cwd.to_bytes()));
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let cwd = rustix::fs::open(cwd, flags, Mode::empty())
        .map_err(|error| (Step::Directory, String::new(), error.into()))?;
    privileges::drop_to(plan.ids.as_ref(), kept, has(Part::Privileges))
        .map_err(named("user and privileges"))?;
    if let Some(most) = setup.and_then(|setup| setup.processes_max) {
        privileges::bound_processes(most).map_err(named("the number of processes"))?;
    }
    // The change of user cleared it.
    child::die_with_parent();
    if let Err(error) = rustix::process::fchdir(&cwd) {
        return Err((Step::Directory, String::new(), error.into()));
    }
    if let Some(rules) = rules {
        let restricted = rules.restrict_self();
        restricted.map_err(|error| named("landlock")(io::Error::other(error)))?;
    }
    if let Some(filter) = filter {
        filter::apply(&filter).map_err(named("seccomp"))?;
    }
    Ok(())
}

/// The first candidate that is there. Nothing returns from a program that runs.
pub(in super::super) fn execute(child: &Laid, candidates: &[CString]) -> ! {
    let (mut failed, mut with) = (io::Error::from_raw_os_error(libc::ENOENT), Step::Program);
    let mut which = String::new();
    for candidate in candidates {
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
pub(in super::super) fn loopback_up() -> io::Result<()> {
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
