//! The shim's side: from an order to a held task in its namespaces, with its init beside it.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd};

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, pidfd_send_signal, waitpid,
};

use super::{Walls, inside, sys};
use crate::host::process::child::{self, Forked, Plan};
use crate::model::isolation::Part;

/// Bytes of the helper's word: errno, then the pids of init and task.
const WORD_BYTES: usize = 12;

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
pub(in super::super) fn fork(plan: &Plan, walls: &Walls) -> io::Result<(Forked, Option<Init>)> {
    let (life_end, life) = child::pipe()?;
    let (word, word_end) = child::pipe()?;
    let child = child::Laid::new(plan)?;
    let shim = rustix::process::getpid();
    // SAFETY: this process has one thread, so its child may do everything; it never comes back.
    let (pid, moved) = unsafe { child::fork_in(plan.cgroup.as_ref())? };
    if pid == 0 {
        let helper = Helper { walls, plan, child: &child, life: &life_end, shim };
        let said = match helper.fork_both() {
            Ok((init, task)) => [0, init, task],
            Err(error) => [error.raw_os_error().unwrap_or(libc::EIO), 0, 0],
        };
        let _gone = rustix::io::write(&word_end, &said.map(i32::to_ne_bytes).concat());
        // SAFETY: ends the helper without running anything that is the shim's.
        unsafe { libc::_exit(0) }
    }
    drop((life_end, word_end));
    let helper = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidData)?;
    let said = read_word(&word);
    let _ended = waitpid(Some(helper), WaitOptions::empty());
    let [errno, init_pid, task] = said?;
    let init =
        Pid::from_raw(init_pid).map(|init| pidfd_open(init, PidfdFlags::empty())).transpose();
    if errno != 0 {
        return Err(io::Error::from_raw_os_error(errno));
    }
    let init = init?.map(|pidfd| Init { pidfd, _life: life });
    // Nobody else reaps our children, so the pid is still this child's.
    let task = Pid::from_raw(task).ok_or(io::ErrorKind::InvalidData)?;
    let forked = Forked::of(task)?;
    if let (false, Some(cgroup)) = (moved, &plan.cgroup) {
        // Those that are there, not the one that made them: the task waits for its go.
        for pid in Pid::from_raw(init_pid).into_iter().chain([task]) {
            super::super::cgroup::move_into(cgroup, pid)?;
        }
    }
    Ok((forked, init))
}

fn read_word(from: &OwnedFd) -> io::Result<[i32; 3]> {
    let mut bytes = [0; WORD_BYTES];
    let mut filled = 0;
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match rustix::io::read(from.as_fd(), rest) {
            // Killed before it said anything.
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let mut words = bytes.chunks_exact(4).filter_map(|word| word.try_into().ok());
    let mut word = || words.next().map_or(0, i32::from_ne_bytes);
    Ok([word(), word(), word()])
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
    walls: &'a Walls,
    plan: &'a Plan,
    child: &'a child::Laid,
    life: &'a OwnedFd,
    shim: Pid,
}

impl Helper<'_> {
    /// Pids of init, 0 without one, and of the task.
    fn fork_both(&self) -> io::Result<(i32, i32)> {
        if self.walls.user_namespace {
            own_user_namespace()?;
        }
        let alone = self.walls.has(Part::Pids);
        let mut init = 0;
        // Of init and the task together: what is under /proc/1 tells no more than the task's own.
        for (part, flag) in NAMESPACES {
            if self.walls.has(part) {
                sys::unshare(flag)?;
            }
        }
        if alone {
            // SAFETY: this process has one thread.
            init = unsafe { sys::fork_sibling()? };
            if init == 0 {
                be_init(self.life.as_raw_fd());
            }
        }
        // SAFETY: the same.
        let task = unsafe { sys::fork_sibling()? };
        if task == 0 {
            let parent = (!alone).then_some(self.shim);
            inside::run(self.plan, self.child, self.walls, parent);
        }
        Ok((init, task))
    }
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
/// end, and it ends with its shim.
fn be_init(life: RawFd) -> ! {
    // SAFETY: system calls over plain numbers; nothing that is closed is used after it.
    unsafe {
        child::close_from_but(0, life);
        libc::signal(libc::SIGCHLD, libc::SIG_IGN);
        libc::prctl(libc::PR_SET_NAME, c"ostler-init".as_ptr(), 0, 0, 0);
        libc::setsid();
        libc::chdir(c"/".as_ptr());
        let mut byte = 0_u8;
        while libc::read(life, (&raw mut byte).cast(), 1) < 0
            && io::Error::last_os_error().raw_os_error() == Some(libc::EINTR)
        {}
        libc::_exit(0)
    }
}
