//! The filter of system calls: what containers usually get. Everything that Linux 6.10 has but what
//! changes the node, reaches into the kernel or makes new namespaces; later calls are not there.

use std::collections::BTreeMap;
use std::io;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, apply_filter, sock_filter,
};

/// `mseal`: the last one that was looked at. Numbers of other conventions (x32) are above it.
const LAST_KNOWN: u32 = 462;

/// Refused with `EPERM` whatever their arguments.
const REFUSED: &[libc::c_long] = &[
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_adjtimex,
    libc::SYS_bpf,
    libc::SYS_chroot,
    libc::SYS_clock_adjtime,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_fanotify_init,
    libc::SYS_finit_module,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_init_module,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
    libc::SYS_kcmp,
    libc::SYS_kexec_file_load,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_lookup_dcookie,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_nfsservctl,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_perf_event_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pivot_root,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_setdomainname,
    libc::SYS_sethostname,
    libc::SYS_setns,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
    libc::SYS_vhangup,
    #[cfg(target_arch = "x86_64")]
    libc::SYS__sysctl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_sysfs,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_uselib,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ustat,
];

/// Refused too where other processes of the user can be seen.
const OF_OTHERS: &[libc::c_long] =
    &[libc::SYS_ptrace, libc::SYS_process_vm_readv, libc::SYS_process_vm_writev];

/// What changes how another process of the user runs, and which argument names that process: 0 is the
/// caller itself.
const CHANGES_OTHERS: [(libc::c_long, u8); 9] = [
    (libc::SYS_prlimit64, 0),
    (libc::SYS_sched_setscheduler, 0),
    (libc::SYS_sched_setparam, 0),
    (libc::SYS_sched_setattr, 0),
    (libc::SYS_sched_setaffinity, 0),
    (libc::SYS_migrate_pages, 0),
    (libc::SYS_move_pages, 0),
    (libc::SYS_setpriority, 1),
    (libc::SYS_ioprio_set, 1),
];
/// Of the last two the first argument may mean everything of a user.
const ALL_OF_USER: [(libc::c_long, u64); 2] =
    [(libc::SYS_setpriority, 2), (libc::SYS_ioprio_set, 3)];

/// Flags of `clone` that make a namespace.
const NAMESPACES: [libc::c_int; 7] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];
/// Types into the terminal, as if somebody had.
const TIOCSTI: u64 = 0x5412;
/// The same on a console.
const TIOCLINUX: u64 = 0x541C;
/// What `personality` may be asked for: nothing, 32 bits, both with the kernel's old version number,
/// and to be told.
const PERSONALITIES: [u64; 5] = [0, 8, 0x2_0000, 0x2_0008, 0xffff_ffff];
/// Sockets to the host of a virtual machine.
const AF_VSOCK: u64 = 40;

type Failed = seccompiler::BackendError;

/// What is refused, and what is not there. `alone`: it sees no processes but its own.
pub(super) fn programs(alone: bool) -> io::Result<[BpfProgram; 2]> {
    Ok([not_there(), refused(alone).map_err(io::Error::other)?])
}

/// Put them in force, for good.
pub(super) fn apply(programs: &[BpfProgram; 2]) -> io::Result<()> {
    programs.iter().try_for_each(|program| apply_filter(program)).map_err(|error| match error {
        seccompiler::Error::Prctl(error) | seccompiler::Error::Seccomp(error) => error,
        other => io::Error::other(other),
    })
}

fn refused(alone: bool) -> Result<BpfProgram, Failed> {
    use SeccompCmpOp::{Eq, MaskedEq, Ne};
    let condition = |arg: u8, op: SeccompCmpOp, value: u64| {
        SeccompCondition::new(arg, SeccompCmpArgLen::Dword, op, value)
    };
    let one = |arg, op, value| SeccompRule::new(vec![condition(arg, op, value)?]);
    let others = if alone { &[] } else { OF_OTHERS };
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        REFUSED.iter().chain(others).map(|call| (*call, Vec::new())).collect();
    if !alone {
        for (call, arg) in CHANGES_OTHERS {
            rules.entry(call).or_default().push(one(arg, Ne, 0)?);
        }
        for (call, user) in ALL_OF_USER {
            rules.entry(call).or_default().push(one(0, Eq, user)?);
        }
    }
    let namespaces = NAMESPACES.map(|flag| u64::from(flag.unsigned_abs()));
    let clones: Result<_, Failed> =
        namespaces.into_iter().map(|flag| one(0, MaskedEq(flag), flag)).collect();
    rules.insert(libc::SYS_clone, clones?);
    rules.insert(libc::SYS_ioctl, vec![one(1, Eq, TIOCSTI)?, one(1, Eq, TIOCLINUX)?]);
    rules.insert(libc::SYS_socket, vec![one(0, Eq, AF_VSOCK)?]);
    let other: Result<_, Failed> =
        PERSONALITIES.into_iter().map(|known| condition(0, Ne, known)).collect();
    rules.insert(libc::SYS_personality, vec![SeccompRule::new(other?)?]);
    let refuse = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let arch = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch)?.try_into()
}

/// What is newer than this list is answered as by a kernel that does not have it, and so is
/// `clone3`, whose flags no filter can see: programs fall back to `clone`.
fn not_there() -> BpfProgram {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const IF_GREATER: u16 = (libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K) as u16;
    const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const ANSWER: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    const CLONE3: u32 = libc::SYS_clone3 as u32;
    const NO_SUCH_CALL: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS.unsigned_abs();
    vec![
        sock_filter { code: LOAD, jt: 0, jf: 0, k: 0 },
        sock_filter { code: IF_GREATER, jt: 2, jf: 0, k: LAST_KNOWN },
        sock_filter { code: IF_EQUAL, jt: 1, jf: 0, k: CLONE3 },
        sock_filter { code: ANSWER, jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW },
        sock_filter { code: ANSWER, jt: 0, jf: 0, k: NO_SUCH_CALL },
    ]
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn the_filters_fit_the_kernels_bound_and_no_call_is_named_twice() {
        for alone in [true, false] {
            let [first, second] = programs(alone).unwrap();
            assert!(first.len() + second.len() < 1_000, "{}", second.len());
        }
        let mut calls: Vec<_> = REFUSED.iter().chain(OF_OTHERS).collect();
        let all = calls.len();
        calls.sort_unstable();
        calls.dedup();
        assert_eq!(calls.len(), all);
        assert!(calls.iter().all(|call| **call <= i64::from(LAST_KNOWN)));
    }
}
