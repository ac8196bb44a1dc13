//! The shim's side: from an order to a held task in its namespaces, with its init beside it.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

use super::empty::EmptyMounts;
use super::inside::Handover;
use super::root::RootError;
use super::{IsolationSetup, filter, inside, sys, vfork_child};
use crate::child::{self, ChildPlan, ForkKind, HeldChild};
use ostler_model::isolation::IsolationKind;

/// The first process of a task's pid namespace. All processes in the namespace end with it.
#[derive(Debug)]
pub(in super::super) struct Init {
    pidfd: OwnedFd,
    /// The init ends when this is closed, at the latest with the shim.
    _life: OwnedFd,
}

impl Init {
    /// End everything in the namespace.
    pub fn kill(&self) {
        let _gone = pidfd_send_signal(&self.pidfd, Signal::KILL);
    }
}

/// Fork a child that waits for its go, in its namespaces. Both are children of this process.
/// `empty`: the namespace that is copied for its mounts; the node's own without one.
pub(in super::super) fn fork(
    plan: &ChildPlan,
    setup: &IsolationSetup,
    empty: Option<&EmptyMounts>,
) -> io::Result<(HeldChild, Option<Init>)> {
    let (life_end, life) = child::pipe()?;
    let child = child::ChildImage::new(plan)?;
    let shim = rustix::process::getpid();
    let helper = Helper { setup, plan, empty, child: &child, life: &life_end, shim };
    let mut both = ForkedPair::default();
    // SAFETY: a shim has one thread and its signals are blocked; what is forked does not come back.
    unsafe {
        vfork_child::run_vfork(0, || {
            both.failed = helper.fork_both(&mut both).err();
        })?;
    }
    drop(life_end);
    let ForkedPair { init, task, moved, failed } = both;
    // Opened before an error returns, so that the init ends with this value.
    let init = init.map(|pid| {
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        Ok::<_, io::Error>((pid, Init { pidfd, _life: life }))
    });
    let init = init.transpose()?;
    let task = match (failed, task) {
        (None, Some(task)) => task,
        (Some(error), _) => return Err(error),
        // The helper was killed before it was done.
        (None, None) => return Err(io::ErrorKind::UnexpectedEof.into()),
    };
    // Nobody else reaps our children, so the pid is still this child's.
    let forked = HeldChild::from_pid(task)?;
    if let (false, Some(cgroup)) = (moved, &plan.cgroup) {
        // The two children are moved one by one; the task waits for its go meanwhile.
        for pid in init.as_ref().map(|(pid, _)| *pid).into_iter().chain([task]) {
            super::super::cgroup::move_into(cgroup, pid)?;
        }
    }
    Ok((forked, init.map(|(_, init)| init)))
}

/// The processes that the helper forked.
#[derive(Default)]
struct ForkedPair {
    /// The init, where the task has a pid namespace.
    init: Option<Pid>,
    task: Option<Pid>,
    /// Both were forked into their cgroup.
    moved: bool,
    failed: Option<io::Error>,
}

/// The namespaces that parts of isolation are made of.
const NAMESPACES: [(IsolationKind, libc::c_int); 4] = [
    (IsolationKind::Mounts, libc::CLONE_NEWNS),
    (IsolationKind::Ipc, libc::CLONE_NEWIPC),
    (IsolationKind::Network, libc::CLONE_NEWNET),
    (IsolationKind::Pids, libc::CLONE_NEWPID),
];

/// Makes the namespaces that only children of a process are in, and forks those children.
struct Helper<'a> {
    setup: &'a IsolationSetup,
    plan: &'a ChildPlan,
    empty: Option<&'a EmptyMounts>,
    child: &'a child::ChildImage,
    life: &'a OwnedFd,
    shim: Pid,
}

impl Helper<'_> {
    /// Runs in the shim's memory, beside its descriptors and namespaces.
    fn fork_both(&self, both: &mut ForkedPair) -> io::Result<()> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let proc = rustix::fs::open(c"/proc", flags, Mode::empty()).ok();
        let handover = Handover { proc, root: self.enter_namespaces()? };
        let cgroup = self.plan.cgroup.as_ref();
        let alone = self.setup.has(IsolationKind::Pids);
        if alone {
            // SAFETY: this process has one thread.
            let (init, _moved) = unsafe { child::fork_in(cgroup, ForkKind::Sibling)? };
            if init == 0 {
                be_init(self.life.as_raw_fd(), self.setup.has(IsolationKind::Seccomp));
            }
            both.init = Pid::from_raw(init);
        }
        // SAFETY: the same.
        let (task, moved) = unsafe { child::fork_in(cgroup, ForkKind::Sibling)? };
        if task == 0 {
            let parent = (!alone).then_some(self.shim);
            inside::run(self.plan, self.child, self.setup, handover, parent);
        }
        both.task = Pid::from_raw(task);
        both.moved = moved;
        Ok(())
    }

    /// Make the namespaces, and the root where mounts are one of them.
    fn enter_namespaces(&self) -> io::Result<Result<(), RootError>> {
        let setup = self.setup;
        if setup.user_namespace {
            enter_user_namespace()?;
        }
        // Init and the task share them, so /proc/1 shows the task no more than its own entry does.
        let flags = NAMESPACES.iter().filter(|(part, _)| setup.has(*part));
        let flags = flags.fold(0, |flags, (_, flag)| flags | flag);
        if !setup.has(IsolationKind::Mounts) {
            return sys::unshare(flags).map(Ok);
        }
        // In a user namespace neither device nodes can be made nor the node's namespaces be joined.
        let owner = self.plan.ids.as_ref().filter(|_| !setup.user_namespace);
        let empty = self.empty.filter(|_| !setup.user_namespace);
        setup.root.enter(empty, flags, owner)
    }
}

/// Join the namespaces of a task, and with them its root. The children of this process are then in
/// the task's pid namespace.
pub(in super::super) fn join(task: &OwnedFd, setup: &IsolationSetup) -> io::Result<()> {
    let parts = NAMESPACES.iter().filter(|(part, _)| setup.has(*part));
    let own = if setup.user_namespace { libc::CLONE_NEWUSER } else { 0 };
    let flags = parts.fold(own, |flags, (_, flag)| flags | flag);
    if flags == 0 {
        return Ok(());
    }
    sys::join(task, flags)
}

/// Enter a new user namespace that keeps the ids of this user and lets it make other namespaces.
pub(super) fn enter_user_namespace() -> io::Result<()> {
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    sys::unshare(libc::CLONE_NEWUSER)?;
    std::fs::write("/proc/self/setgroups", "deny")?;
    std::fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
    std::fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))
}

/// Be pid 1 of a namespace. Signals from inside do nothing to it, orphans that it adopts vanish
/// when they end, and it ends with its shim. It keeps no capability, and with `filtered` the kernel
/// lets it only read and exit: a task that may trace processes gains nothing by taking it over. It
/// uses a filter and not the kernel's strict mode, because the agent itself may be behind a filter.
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
