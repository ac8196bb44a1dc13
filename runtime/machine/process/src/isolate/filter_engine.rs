//! The filter of a process that runs guests in an engine ([`crate::confine`]). It refuses what
//! tasks are refused, and all calls that such a process never needs. It assumes that a guest has
//! taken the process over: the guest may use every call that is left open.

use std::io;

use rustix::process::Pid;
use seccompiler::{BpfProgram, SeccompCmpOp, SeccompRule};

use super::super::confine::ConfinedNetwork;
use super::filter::{
    FilterError, FilterRules, build_program, condition, refused_calls, single_condition,
};

/// Calls that are refused whatever their arguments.
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
    // Parts of the kernel that nothing in the engine needs.
    libc::SYS_io_setup,
    libc::SYS_io_submit,
    libc::SYS_landlock_add_rule,
    libc::SYS_landlock_create_ruleset,
    libc::SYS_landlock_restrict_self,
    libc::SYS_memfd_secret,
    libc::SYS_name_to_handle_at,
    libc::SYS_remap_file_pages,
    libc::SYS_seccomp,
    libc::SYS_sync,
    libc::SYS_vmsplice,
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
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utime,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utimes,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_futimesat,
];

/// Commands of `fcntl` that choose which process gets signals of a file, and which signal.
const SIGNALS_OF_FILES: [libc::c_int; 3] = [libc::F_SETOWN, F_SETSIG, F_SETOWN_EX];
const F_SETSIG: libc::c_int = 10;
const F_SETOWN_EX: libc::c_int = 15;
/// Requests of `ioctl` that choose which process gets signals of a socket.
const SIGNALS_OF_SOCKETS: [u64; 2] = [0x8901, 0x8902];
/// Mask of the kind, without flags, in the second argument of `socket`.
const SOCKET_KIND: u64 = 0xf;
/// All kinds of sockets other than streams.
const OTHER_KINDS: [libc::c_int; 6] = [
    libc::SOCK_DGRAM,
    libc::SOCK_RAW,
    libc::SOCK_RDM,
    libc::SOCK_SEQPACKET,
    libc::SOCK_DCCP,
    SOCK_PACKET,
];
/// A kind that old programs use; its name in the C library is deprecated.
const SOCK_PACKET: libc::c_int = 10;
/// Options of sockets that put a program or another protocol into the kernel: level and name.
const PROGRAMS_OF_SOCKETS: [(libc::c_int, libc::c_int); 5] = [
    (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER),
    (libc::SOL_SOCKET, libc::SO_ATTACH_BPF),
    (libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF),
    (libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_EBPF),
    (libc::IPPROTO_TCP, libc::TCP_ULP),
];

/// The filter of the process `own`.
pub(crate) fn program(own: Pid, network: ConfinedNetwork) -> io::Result<BpfProgram> {
    build_program(rules(own, network).map_err(io::Error::other)?)
}

fn rules(own: Pid, network: ConfinedNetwork) -> Result<FilterRules, FilterError> {
    use SeccompCmpOp::{Eq, MaskedEq, Ne};
    let number = |value: libc::c_int| u64::from(value.unsigned_abs());
    let mut rules = refused_calls(false)?;
    rules.extend(REFUSED.iter().map(|call| (*call, Vec::new())));
    // It may make threads but no processes.
    let thread = number(libc::CLONE_THREAD);
    rules.entry(libc::SYS_clone).or_default().push(single_condition(0, MaskedEq(thread), 0)?);
    // It may signal only itself: an abort is a signal to a thread.
    let own = number(own.as_raw_nonzero().get());
    rules.insert(libc::SYS_tgkill, vec![single_condition(0, Ne, own)?]);
    let signals: Result<_, FilterError> =
        SIGNALS_OF_FILES.iter().map(|command| single_condition(1, Eq, number(*command))).collect();
    rules.insert(libc::SYS_fcntl, signals?);
    for request in SIGNALS_OF_SOCKETS {
        rules.entry(libc::SYS_ioctl).or_default().push(single_condition(1, Eq, request)?);
    }
    rules.insert(libc::SYS_prctl, vec![single_condition(0, Eq, number(libc::PR_SET_SECCOMP))?]);
    sockets(&mut rules, network)?;
    Ok(rules)
}

/// Refuse all sockets but TCP and connected pairs. Through a socket with a path, a guest could
/// reach services of the node and act as the operator.
fn sockets(rules: &mut FilterRules, network: ConfinedNetwork) -> Result<(), FilterError> {
    use SeccompCmpOp::{Eq, MaskedEq, Ne};
    let number = |value: libc::c_int| u64::from(value.unsigned_abs());
    let neither = |arg, one: libc::c_int, other: libc::c_int| {
        SeccompRule::new(vec![condition(arg, Ne, number(one))?, condition(arg, Ne, number(other))?])
    };
    let kind = |kind: libc::c_int| single_condition(1, MaskedEq(SOCKET_KIND), number(kind));
    let names = network == ConfinedNetwork::TcpAndNames;
    let other = OTHER_KINDS.into_iter().filter(|kind| !(names && *kind == libc::SOCK_DGRAM));
    let kinds: Result<Vec<_>, FilterError> = other.map(kind).collect();
    let mut refused = kinds?;
    refused.push(neither(0, libc::AF_INET, libc::AF_INET6)?);
    if names {
        refused.push(SeccompRule::new(vec![
            condition(2, Ne, 0)?,
            condition(2, Ne, number(libc::IPPROTO_TCP))?,
            condition(2, Ne, number(libc::IPPROTO_UDP))?,
        ])?);
    } else {
        refused.push(neither(2, 0, libc::IPPROTO_TCP)?);
    }
    if network == ConfinedNetwork::Nothing {
        // Whatever their arguments.
        refused.clear();
    }
    rules.insert(libc::SYS_socket, refused);
    // A datagram socket may send to any path by its address, and a raw one becomes a datagram socket.
    let pairs = vec![
        single_condition(0, Ne, number(libc::AF_UNIX))?,
        kind(libc::SOCK_DGRAM)?,
        kind(libc::SOCK_RAW)?,
    ];
    rules.insert(libc::SYS_socketpair, pairs);
    let options: Result<_, FilterError> = PROGRAMS_OF_SOCKETS
        .into_iter()
        .map(|(level, name)| {
            SeccompRule::new(vec![
                condition(1, Eq, number(level))?,
                condition(2, Eq, number(name))?,
            ])
        })
        .collect();
    rules.insert(libc::SYS_setsockopt, options?);
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::super::filter::tests::{ALLOWED, NOT_PERMITTED, answer};
    use super::*;

    fn says(call: libc::c_long, args: &[u64]) -> u32 {
        let program = program(Pid::from_raw(7).unwrap(), ConfinedNetwork::Tcp).unwrap();
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
    fn sockets_are_of_tcp_and_pairs_stay_pairs() {
        let number = |value: libc::c_int| u64::from(value.unsigned_abs());
        let socket = |family, kind: libc::c_int, protocol| {
            let kind = number(kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
            says(libc::SYS_socket, &[number(family), kind, number(protocol)])
        };
        for family in [libc::AF_INET, libc::AF_INET6] {
            for protocol in [0, libc::IPPROTO_TCP] {
                assert_eq!(socket(family, libc::SOCK_STREAM, protocol), ALLOWED);
            }
            assert_eq!(socket(family, libc::SOCK_STREAM, libc::IPPROTO_SCTP), NOT_PERMITTED);
            for kind in OTHER_KINDS {
                assert_eq!(socket(family, kind, 0), NOT_PERMITTED, "{kind}");
            }
        }
        for family in
            [libc::AF_UNIX, libc::AF_NETLINK, libc::AF_PACKET, libc::AF_VSOCK, libc::AF_ALG]
        {
            assert_eq!(socket(family, libc::SOCK_STREAM, 0), NOT_PERMITTED, "{family}");
        }
        let pair = |kind: libc::c_int| {
            says(libc::SYS_socketpair, &[number(libc::AF_UNIX), number(kind | libc::SOCK_CLOEXEC)])
        };
        assert_eq!([libc::SOCK_STREAM, libc::SOCK_SEQPACKET].map(pair), [ALLOWED; 2]);
        assert_eq!([libc::SOCK_DGRAM, libc::SOCK_RAW].map(pair), [NOT_PERMITTED; 2]);
    }

    #[test]
    fn names_are_resolved_by_udp_where_that_is_allowed_and_nothing_is_said_where_it_is_not() {
        let number = |value: libc::c_int| u64::from(value.unsigned_abs());
        let socket = |network, family, kind, protocol| {
            let program = program(Pid::from_raw(7).unwrap(), network).unwrap();
            let args = [number(family), number(kind), number(protocol), 0, 0, 0];
            answer(&program, u32::try_from(libc::SYS_socket).unwrap(), args).0
        };
        let (stream, datagram) = (libc::SOCK_STREAM, libc::SOCK_DGRAM);
        let names = ConfinedNetwork::TcpAndNames;
        assert_eq!(socket(names, libc::AF_INET, datagram, libc::IPPROTO_UDP), ALLOWED);
        assert_eq!(socket(names, libc::AF_INET6, datagram, 0), ALLOWED);
        assert_eq!(socket(names, libc::AF_INET, stream, 0), ALLOWED);
        assert_eq!(socket(names, libc::AF_UNIX, stream, 0), NOT_PERMITTED);
        assert_eq!(socket(names, libc::AF_INET, datagram, libc::IPPROTO_ICMP), NOT_PERMITTED);
        assert_eq!(socket(names, libc::AF_INET, libc::SOCK_RAW, 0), NOT_PERMITTED);
        assert_eq!(socket(ConfinedNetwork::Nothing, libc::AF_INET, stream, 0), NOT_PERMITTED);
        assert_eq!(socket(ConfinedNetwork::Nothing, libc::AF_INET, datagram, 0), NOT_PERMITTED);
    }

    #[test]
    fn no_program_is_put_into_the_kernel() {
        let number = |value: libc::c_int| u64::from(value.unsigned_abs());
        let option = |level, name| says(libc::SYS_setsockopt, &[3, number(level), number(name)]);
        for (level, name) in PROGRAMS_OF_SOCKETS {
            assert_eq!(option(level, name), NOT_PERMITTED, "{level} {name}");
        }
        assert_eq!(option(libc::IPPROTO_TCP, libc::TCP_NODELAY), ALLOWED);
        assert_eq!(option(libc::SOL_SOCKET, libc::SO_REUSEADDR), ALLOWED);
        assert_eq!(says(libc::SYS_prctl, &[number(libc::PR_SET_SECCOMP)]), NOT_PERMITTED);
        assert_eq!(says(libc::SYS_prctl, &[number(libc::PR_SET_NAME)]), ALLOWED);
    }
}
