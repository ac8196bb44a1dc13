//! The task's process from its fork to its program, step by step. A step that fails reports how.

use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::process::Pid;

use super::root::RootError;
use super::{IsolationSetup, filter, privileges, rules as landlock};
use crate::child::{self, ChildImage, ChildPlan, ChildStep};
use ostler_model::isolation::IsolationKind;

/// What the helper hands over to the task.
pub(super) struct Handover {
    /// The node's `/proc`, which is not in the task's root.
    pub proc: Option<OwnedFd>,
    /// Whether the root is the task's own by now, where it has one.
    pub root: Result<(), RootError>,
}

/// Set up, wait for the go, run the program. `shim`: the process with which this one ends, where
/// there is no init that ends with it.
pub(super) fn run(
    plan: &ChildPlan,
    child: &ChildImage,
    setup: &IsolationSetup,
    handover: Handover,
    shim: Option<Pid>,
) -> ! {
    let Handover { proc, root } = handover;
    // SAFETY: we are the only thread of a process of our own; what the steps read lives in `plan`.
    unsafe {
        if let Some(proc) = &proc {
            child::unprotect_in(proc);
        }
        drop(proc);
        child.place_descriptors();
        child::die_with(shim);
        child::begin_session();
    }
    let done = root.map_err(from_root_error).and_then(|()| set_up(plan, setup));
    if let Err((step, what, error)) = done {
        child::report_text(step, &error, &what);
    }
    // SAFETY: as above.
    unsafe { child::wait_for_go() };
    execute(child, &setup.candidates)
}

/// Open the task's own `/dev/null` as standard input. The node's could be changed through
/// the descriptor.
fn own_stdin() -> io::Result<()> {
    let null = std::fs::File::open("/dev/null")?;
    Ok(rustix::stdio::dup2_stdin(null)?)
}

/// The step that failed, what it was about, and why.
pub(in super::super) type StepError = (ChildStep, String, io::Error);

fn error_context(what: &'static str) -> impl FnOnce(io::Error) -> StepError {
    move |error| (ChildStep::Isolate, what.to_owned(), error)
}

fn from_root_error((what, error): RootError) -> StepError {
    (ChildStep::Isolate, what, error)
}

fn set_up(plan: &ChildPlan, setup: &IsolationSetup) -> Result<(), StepError> {
    if setup.has(IsolationKind::Network) {
        loopback_up().map_err(error_context("network"))?;
    }
    if setup.has(IsolationKind::Mounts) {
        setup.root.finish().map_err(from_root_error)?;
        own_stdin().map_err(error_context("standard input"))?;
    }
    confine(plan, Some(setup), None)
}

/// Take on the task's user, capabilities, rules, filter and directory, and give up all rights
/// beyond them. Without `setup` only the user is switched. A terminal lies outside of the task's
/// root and may be opened all the same.
pub(in super::super) fn confine(
    plan: &ChildPlan,
    setup: Option<&IsolationSetup>,
    terminal: Option<&OwnedFd>,
) -> Result<(), StepError> {
    let has = |part| setup.is_some_and(|setup| setup.has(part));
    // Both are prepared with the rights that go next.
    let ruled = setup.filter(|setup| setup.has(IsolationKind::Landlock));
    let rules = ruled.map(|setup| setup.rules.prepare());
    let rules = rules.transpose().map_err(error_context("landlock"))?;
    let rules = match (rules, terminal) {
        (Some(rules), Some(terminal)) => {
            let with = landlock::allow_terminal(rules, terminal);
            Some(with.map_err(|error| error_context("landlock")(io::Error::other(error)))?)
        }
        (rules, _) => rules,
    };
    let filter = has(IsolationKind::Seccomp).then(|| filter::program(has(IsolationKind::Pids)));
    let filter = filter.transpose().map_err(error_context("seccomp"))?;
    let kept = setup.map_or(0, |setup| setup.capabilities);
    // Opened before the switch, because another user may not get there by the path. The change of
    // directory below checks whether that user may be in there.
    let cwd = Path::new(std::ffi::OsStr::from_bytes(plan.texts.cwd.to_bytes()));
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let cwd = rustix::fs::open(cwd, flags, Mode::empty())
        .map_err(|error| (ChildStep::Directory, String::new(), error.into()))?;
    privileges::drop_privileges(plan.ids.as_ref(), kept, has(IsolationKind::Privileges))
        .map_err(error_context("user and privileges"))?;
    if let Some(most) = setup.and_then(|setup| setup.processes_max) {
        privileges::bound_processes(most).map_err(error_context("the number of processes"))?;
    }
    // The change of user cleared this setting.
    child::die_with_parent();
    if let Err(error) = rustix::process::fchdir(&cwd) {
        return Err((ChildStep::Directory, String::new(), error.into()));
    }
    if let Some(rules) = rules {
        let restricted = rules.restrict_self();
        restricted.map_err(|error| error_context("landlock")(io::Error::other(error)))?;
    }
    if let Some(filter) = filter {
        filter::apply(&filter).map_err(error_context("seccomp"))?;
    }
    Ok(())
}

/// Execute the first candidate that exists. This never returns.
pub(in super::super) fn execute(child: &ChildImage, candidates: &[CString]) -> ! {
    let (mut failed, mut with) = (io::Error::from_raw_os_error(libc::ENOENT), ChildStep::Program);
    let mut which = String::new();
    for candidate in candidates {
        let error = child.execute(candidate);
        let shown = || candidate.to_string_lossy().into_owned();
        match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR) if !is_there(candidate) => {}
            Some(libc::EACCES) => {
                if with == ChildStep::Program {
                    (failed, with, which) = (error, ChildStep::Exec, shown());
                }
            }
            _ => child::report_text(ChildStep::Exec, &error, &shown()),
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
