//! The shim's side: from an order to a held task in its namespaces, with its init beside it.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

use super::{IsolationSetup, borrowed, filter, inside, sys};
use crate::child::{self, Child, Forked, Plan};
use ostler_model::isolation::Part;

/// The first process of a task's pid namespace. Everything in there ends with it.
#[derive(Debug)]
pub(in super::super) struct Init {
    pidfd: OwnedFd,
    /// It ends when this is closed: with the shim at the latest.
    _life: OwnedFd,
}

impl Init {
    /// End everything in the namespace.
    pub fn kill(&self) {
        let _gone = pidfd_send_signal(&self.pidfd, Signal::KILL);
    }
}

/// Fork a child that waits for its go, in its namespaces. Both are children of this process.
pub(in super::super) fn fork(
    plan: &Plan,
    setup: &IsolationSetup,
) -> io::Result<(Forked, Option<Init>)> {
    let (life_end, life) = child::pipe()?;
    let child = child::Laid::new(plan)?;
    let shim = rustix::process::getpid();
    let helper = Helper { setup, plan, child: &child, life: &life_end, shim };
    let mut both = Both::default();
    // SAFETY: a shim has one thread and its signals are blocked; what is forked does not come back.
    unsafe {
        borrowed::run(|| {
            both.failed = helper.fork_both(&mut both).err();
        })?;
    }
    drop(life_end);
    let Both { init, task, moved, failed } = both;
    // Before anything is given up, so that it ends with what this returns.
    let init = init.map(|pid| {
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        Ok::<_, io::Error>((pid, Init { pidfd, _life: life }))
    });
    let init = init.transpose()?;
    let task = match (failed, task) {
        (None, Some(task)) => task,
        (Some(error), _) => return Err(error),
        // Killed before it was done.
        (None, None) => return Err(io::ErrorKind::UnexpectedEof.into()),
    };
    // Nobody else reaps our children, so the pid is still this child's.
    let forked = Forked::of(task)?;
    if let (false, Some(cgroup)) = (moved, &plan.cgroup) {
        // Those that are there, not the one that made them: the task waits for its go.
        for pid in init.as_ref().map(|(pid, _)| *pid).into_iter().chain([task]) {
            super::super::cgroup::move_into(cgroup, pid)?;
        }
    }
    Ok((forked, init.map(|(_, init)| init)))
}

/// What the helper leaves.
#[derive(Default)]
struct Both {
    /// Where the task has a pid namespace.
    init: Option<Pid>,
    task: Option<Pid>,
    /// They were forked into their cgroup.
    moved: bool,
    failed: Option<io::Error>,
}

/// The namespaces that parts are made of.
const NAMESPACES: [(Part, libc::c_int); 4] = [
    (Part::Mounts, libc::CLONE_NEWNS),
    (Part::Ipc, libc::CLONE_NEWIPC),
    (Part::Network, libc::CLONE_NEWNET),
    (Part::Pids, libc::CLONE_NEWPID),
];

/// Enters what only children of a process can be in, and forks them.
struct Helper<'a> {
    setup: &'a IsolationSetup,
    plan: &'a Plan,
    child: &'a child::Laid,
    life: &'a OwnedFd,
    shim: Pid,
}

impl Helper<'_> {
    /// Runs in the shim's memory, beside its descriptors and namespaces.
    fn fork_both(&self, both: &mut Both) -> io::Result<()> {
        if self.setup.user_namespace {
            own_user_namespace()?;
        }
        // Of init and the task together: what is under /proc/1 tells no more than the task's own.
        let flags = NAMESPACES.iter().filter(|(part, _)| self.setup.has(*part));
        sys::unshare(flags.fold(0, |flags, (_, flag)| flags | flag))?;
        let cgroup = self.plan.cgroup.as_ref();
        let alone = self.setup.has(Part::Pids);
        if alone {
            // SAFETY: this process has one thread.
            let (init, _moved) = unsafe { child::fork_in(cgroup, Child::Sibling)? };
            if init == 0 {
                be_init(self.life.as_raw_fd(), self.setup.has(Part::Seccomp));
            }
            both.init = Pid::from_raw(init);
        }
        // SAFETY: the same.
        let (task, moved) = unsafe { child::fork_in(cgroup, Child::Sibling)? };
        if task == 0 {
            let parent = (!alone).then_some(self.shim);
            inside::run(self.plan, self.child, self.setup, parent);
        }
        both.task = Pid::from_raw(task);
        both.moved = moved;
        Ok(())
    }
}

/// Join the namespaces of a task, its root with them. What this process forks is in its pid namespace.
pub(in super::super) fn join(task: &OwnedFd, setup: &IsolationSetup) -> io::Result<()> {
    let parts = NAMESPACES.iter().filter(|(part, _)| setup.has(*part));
    let own = if setup.user_namespace { libc::CLONE_NEWUSER } else { 0 };
    let flags = parts.fold(own, |flags, (_, flag)| flags | flag);
    if flags == 0 {
        return Ok(());
    }
    sys::join(task, flags)
}

/// A user namespace in which this user is itself, and may do what namespaces need.
pub(super) fn own_user_namespace() -> io::Result<()> {
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    sys::unshare(libc::CLONE_NEWUSER)?;
    std::fs::write("/proc/self/setgroups", "deny")?;
    std::fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
    std::fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))
}

/// Pid 1: signals that are sent from inside do nothing to it, children it is given vanish when they
/// end, and it ends with its shim. It keeps no capability, and with `filtered` the kernel lets it read
/// and exit only: a task that may trace processes gains nothing by taking it over. A filter, and not the
/// kernel's strict mode, since the agent itself may be behind one.
fn be_init(life: RawFd, filtered: bool) -> ! {
    let nothing = CapabilitySet::empty();
    let none = CapabilitySets { effective: nothing, permitted: nothing, inheritable: nothing };
    // SAFETY: system calls over plain numbers; nothing that is closed is used after it.
    unsafe {
        child::close_from_but(0, life);
        libc::signal(libc::SIGCHLD, libc::SIG_IGN);
        libc::prctl(libc::PR_SET_NAME, c"ostler-init".as_ptr(), 0, 0, 0);
        libc::setsid();
        libc::chdir(c"/".as_ptr());
        if set_capabilities(None, none).is_err() || filtered && filter::apply_to_init().is_err() {
            libc::_exit(1);
        }
        let mut byte = 0_u8;
        while libc::read(life, (&raw mut byte).cast(), 1) < 0
            && io::Error::last_os_error().raw_os_error() == Some(libc::EINTR)
        {}
        libc::_exit(0)
    }
}
