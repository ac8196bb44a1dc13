//! The filter of a process that runs guests in an engine ([`crate::confine`]): what tasks are refused,
//! and what such a process never does by itself. It was written for one that is not the engine's any
//! more: every call left open is one that somebody inside may use.

use std::io;

use rustix::process::Pid;
use seccompiler::{BpfProgram, SeccompCmpOp, SeccompRule};

use super::filter::{Failed, Rules, condition, one, refused, whole};

/// Refused whatever their arguments.
const REFUSED: &[libc::c_long] = &[
    // No program but this one.
    libc::SYS_execve,
    libc::SYS_execveat,
    // Processes of the same user: the agent, and native tasks.
    libc::SYS_kill,
    libc::SYS_tkill,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal,
    libc::SYS_process_madvise,
    libc::SYS_process_mrelease,
    // Another user.
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setgroups,
    libc::SYS_setfsuid,
    libc::SYS_setfsgid,
    // Files of the same user wherever they are: the kernel's rules on files say nothing of these.
    libc::SYS_fchmodat,
    libc::SYS_fchmodat2,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_mknodat,
    // Memory and queues of the same user.
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_shmctl,
    libc::SYS_msgget,
    libc::SYS_msgsnd,
    libc::SYS_msgrcv,
    libc::SYS_msgctl,
    libc::SYS_semget,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_semctl,
    libc::SYS_mq_open,
    libc::SYS_mq_unlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_fork,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_vfork,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chmod,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lchown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_mknod,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
];

/// What `fcntl` would send signals to, and which: any process of the user.
const SIGNALS_OF_FILES: [libc::c_int; 3] = [libc::F_SETOWN, F_SETSIG, F_SETOWN_EX];
const F_SETSIG: libc::c_int = 10;
const F_SETOWN_EX: libc::c_int = 15;
/// The same by `ioctl`.
const SIGNALS_OF_SOCKETS: [u64; 2] = [0x8901, 0x8902];
/// Of the second argument of `socketpair`: the kind, without flags.
const SOCKET_KIND: u64 = 0xf;

/// The filter of the process `own`.
pub(crate) fn program(own: Pid) -> io::Result<BpfProgram> {
    whole(rules(own).map_err(io::Error::other)?)
}

fn rules(own: Pid) -> Result<Rules, Failed> {
    use SeccompCmpOp::{Eq, MaskedEq, Ne};
    let number = |value: libc::c_int| u64::from(value.unsigned_abs());
    let mut rules = refused(false)?;
    rules.extend(REFUSED.iter().map(|call| (*call, Vec::new())));
    // Threads and no processes.
    let thread = number(libc::CLONE_THREAD);
    rules.entry(libc::SYS_clone).or_default().push(one(0, MaskedEq(thread), 0)?);
    // To end itself: an abort is a signal to a thread.
    let own = number(own.as_raw_nonzero().get());
    rules.insert(libc::SYS_tgkill, vec![one(0, Ne, own)?]);
    let signals: Result<_, Failed> =
        SIGNALS_OF_FILES.iter().map(|command| one(1, Eq, number(*command))).collect();
    rules.insert(libc::SYS_fcntl, signals?);
    for request in SIGNALS_OF_SOCKETS {
        rules.entry(libc::SYS_ioctl).or_default().push(one(1, Eq, request)?);
    }
    // The network, and no services of the node: by a socket with a path somebody would be the operator.
    let (inet, inet6) = (number(libc::AF_INET), number(libc::AF_INET6));
    let elsewhere = SeccompRule::new(vec![condition(0, Ne, inet)?, condition(0, Ne, inet6)?])?;
    rules.insert(libc::SYS_socket, vec![elsewhere]);
    // Of a pair only kinds that stay connected to each other.
    let pairs = vec![
        one(0, Ne, number(libc::AF_UNIX))?,
        one(1, MaskedEq(SOCKET_KIND), number(libc::SOCK_DGRAM))?,
        one(1, MaskedEq(SOCKET_KIND), number(libc::SOCK_RAW))?,
    ];
    rules.insert(libc::SYS_socketpair, pairs);
    Ok(rules)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::super::filter::tests::{ALLOWED, NOT_PERMITTED, answer};
    use super::*;

    fn says(call: libc::c_long, args: &[u64]) -> u32 {
        let program = program(Pid::from_raw(7).unwrap()).unwrap();
        let mut all = [0; 6];
        all[..args.len()].copy_from_slice(args);
        answer(&program, u32::try_from(call).unwrap(), all).0
    }

    #[test]
    fn what_an_engine_never_does_is_refused_and_what_it_does_is_not() {
        for call in REFUSED {
            assert_eq!(says(*call, &[]), NOT_PERMITTED, "call {call}");
        }
        for call in [libc::SYS_ptrace, libc::SYS_mount, libc::SYS_io_uring_setup, libc::SYS_chroot]
        {
            assert_eq!(says(call, &[]), NOT_PERMITTED, "call {call}");
        }
        for call in [
            libc::SYS_openat,
            libc::SYS_openat2,
            libc::SYS_mmap,
            libc::SYS_mprotect,
            libc::SYS_madvise,
            libc::SYS_futex,
            libc::SYS_recvmsg,
            libc::SYS_accept4,
            libc::SYS_connect,
            libc::SYS_utimensat,
            libc::SYS_fchmod,
            libc::SYS_setpriority,
            libc::SYS_sched_setattr,
            libc::SYS_rt_sigaction,
            libc::SYS_exit_group,
        ] {
            assert_eq!(says(call, &[]), ALLOWED, "call {call}");
        }
    }

    #[test]
    fn threads_are_made_and_processes_are_not() {
        let flags = |flags: libc::c_int| [u64::from(flags.unsigned_abs())];
        let thread = libc::CLONE_VM | libc::CLONE_THREAD | libc::CLONE_SIGHAND;
        assert_eq!(says(libc::SYS_clone, &flags(thread)), ALLOWED);
        let vfork = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        for refused in [libc::SIGCHLD, vfork, thread | libc::CLONE_NEWNS] {
            assert_eq!(says(libc::SYS_clone, &flags(refused)), NOT_PERMITTED, "{refused:#x}");
        }
    }

    #[test]
    fn nobody_else_is_signalled_by_whatever_way() {
        assert_eq!(says(libc::SYS_tgkill, &[7, 9, 6]), ALLOWED);
        assert_eq!(says(libc::SYS_tgkill, &[8, 8, 6]), NOT_PERMITTED);
        for command in SIGNALS_OF_FILES {
            let command = u64::from(command.unsigned_abs());
            assert_eq!(says(libc::SYS_fcntl, &[3, command]), NOT_PERMITTED, "{command}");
        }
        assert_eq!(says(libc::SYS_fcntl, &[3, 1030]), ALLOWED, "F_DUPFD_CLOEXEC");
        for request in SIGNALS_OF_SOCKETS {
            assert_eq!(says(libc::SYS_ioctl, &[3, request]), NOT_PERMITTED);
        }
    }

    #[test]
    fn sockets_are_of_the_network_and_pairs_stay_pairs() {
        let socket =
            |family: libc::c_int| says(libc::SYS_socket, &[u64::from(family.unsigned_abs())]);
        assert_eq!([libc::AF_INET, libc::AF_INET6].map(socket), [ALLOWED; 2]);
        for family in
            [libc::AF_UNIX, libc::AF_NETLINK, libc::AF_PACKET, libc::AF_VSOCK, libc::AF_ALG]
        {
            assert_eq!(socket(family), NOT_PERMITTED, "{family}");
        }
        let pair = |kind: libc::c_int| {
            let kind = u64::from((kind | libc::SOCK_CLOEXEC).unsigned_abs());
            says(libc::SYS_socketpair, &[u64::from(libc::AF_UNIX.unsigned_abs()), kind])
        };
        assert_eq!([libc::SOCK_STREAM, libc::SOCK_SEQPACKET].map(pair), [ALLOWED; 2]);
        assert_eq!([libc::SOCK_DGRAM, libc::SOCK_RAW].map(pair), [NOT_PERMITTED; 2]);
    }
}
