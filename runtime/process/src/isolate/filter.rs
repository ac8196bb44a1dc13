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

pub(super) type Failed = seccompiler::BackendError;

/// What is refused, and what is not there, as one program. `alone`: it sees no processes but its own.
///
/// The kernel runs a new filter once for every call it has, and so does every call that it cannot
/// answer from what it learned. A program that compares with one number after the other is slow at
/// that: this one looks in which part of the numbers a call is, and compares with those of that part.
pub(super) fn program(alone: bool) -> io::Result<BpfProgram> {
    whole(refused(alone).map_err(io::Error::other)?)
}

/// The program of these rules.
pub(super) fn whole(mut rules: Rules) -> io::Result<BpfProgram> {
    let mut program = known_arch().map_err(io::Error::other)?;
    program.extend(not_there());
    while let Some(next) = rules.keys().nth(RULES_PER_PART).copied() {
        let later = rules.split_off(&next);
        let part = part(std::mem::replace(&mut rules, later)).map_err(io::Error::other)?;
        let (next, over) = (u32::try_from(next), u32::try_from(part.len()));
        program.push(sock_filter {
            jt: 0,
            jf: 1,
            ..jump(IF_AT_LEAST, next.map_err(io::Error::other)?)
        });
        program.push(jump(ALWAYS, over.map_err(io::Error::other)?));
        program.extend(part);
    }
    program.extend(part(rules).map_err(io::Error::other)?);
    Ok(program)
}

/// Put it in force, for good.
pub(crate) fn apply(program: &BpfProgram) -> io::Result<()> {
    apply_filter(program).map_err(|error| match error {
        seccompiler::Error::Prctl(error) | seccompiler::Error::Seccomp(error) => error,
        other => io::Error::other(other),
    })
}

/// Let an init do nothing from here on but wait and end.
pub(super) fn apply_to_init() -> io::Result<()> {
    let calls = [libc::SYS_read, libc::SYS_exit_group, libc::SYS_restart_syscall];
    let rules: Rules = calls.into_iter().map(|call| (call, Vec::new())).collect();
    let refuse = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let arch = std::env::consts::ARCH.try_into().map_err(io::Error::other)?;
    let filter = SeccompFilter::new(rules, refuse, SeccompAction::Allow, arch);
    let program: BpfProgram = filter.and_then(TryInto::try_into).map_err(io::Error::other)?;
    apply(&program)
}

/// What is refused: always, or where one of the rules fits.
pub(super) type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Calls that one part of the program looks at.
const RULES_PER_PART: usize = 6;
const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const ALWAYS: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
const IF_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const IF_GREATER: u16 = (libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K) as u16;
const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const ANSWER: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

const fn jump(code: u16, k: u32) -> sock_filter {
    sock_filter { code, jt: 0, jf: 0, k }
}

/// A whole program: these rules, and everything else is allowed.
fn part(rules: Rules) -> Result<BpfProgram, Failed> {
    let refuse = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let arch = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch)?.try_into()
}

/// Ends the process when it calls as a program of another processor. Goes on with what follows it.
fn known_arch() -> Result<BpfProgram, Failed> {
    let mut program = part(Rules::new())?;
    // Without rules nothing but the check is before the answer.
    program.pop();
    Ok(program)
}

/// A word of an argument.
pub(super) fn condition(arg: u8, op: SeccompCmpOp, value: u64) -> Result<SeccompCondition, Failed> {
    SeccompCondition::new(arg, SeccompCmpArgLen::Dword, op, value)
}

/// A rule of one condition.
pub(super) fn one(arg: u8, op: SeccompCmpOp, value: u64) -> Result<SeccompRule, Failed> {
    SeccompRule::new(vec![condition(arg, op, value)?])
}

pub(super) fn refused(alone: bool) -> Result<Rules, Failed> {
    use SeccompCmpOp::{Eq, MaskedEq, Ne};
    let others = if alone { &[] } else { OF_OTHERS };
    let mut rules: Rules = REFUSED.iter().chain(others).map(|call| (*call, Vec::new())).collect();
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
    Ok(rules)
}

/// What is newer than this list is answered as by a kernel that does not have it, and so is
/// `clone3`, whose flags no filter can see: programs fall back to `clone`.
fn not_there() -> BpfProgram {
    const CLONE3: u32 = libc::SYS_clone3 as u32;
    const NO_SUCH_CALL: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS.unsigned_abs();
    vec![
        // The number of the call.
        jump(LOAD, 0),
        sock_filter { jt: 1, ..jump(IF_GREATER, LAST_KNOWN) },
        sock_filter { jf: 1, ..jump(IF_EQUAL, CLONE3) },
        jump(ANSWER, NO_SUCH_CALL),
    ]
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
pub(super) mod tests {
    use super::*;

    /// What the kernel answers, and after how many steps.
    pub(in super::super) fn answer(
        program: &[sock_filter],
        nr: u32,
        args: [u64; 6],
    ) -> (u32, usize) {
        let arch = match std::env::consts::ARCH {
            "x86_64" => 0xc000_003e_u32,
            _ => 0xc000_00b7,
        };
        let mut data = Vec::from(nr.to_ne_bytes());
        data.extend(arch.to_ne_bytes());
        data.extend([0; 8]);
        data.extend(args.iter().flat_map(|arg| arg.to_ne_bytes()));
        run(program, &data)
    }

    fn run(program: &[sock_filter], data: &[u8]) -> (u32, usize) {
        let (mut at, mut value) = (0, 0_u32);
        for steps in 1.. {
            let one = &program[at];
            let k = one.k;
            at += 1;
            let either = |yes: bool| usize::from(if yes { one.jt } else { one.jf });
            match one.code {
                LOAD => {
                    let at = k as usize;
                    value = u32::from_ne_bytes(data[at..at + 4].try_into().unwrap());
                }
                ALWAYS => at += k as usize,
                IF_AT_LEAST => at += either(value >= k),
                IF_GREATER => at += either(value > k),
                IF_EQUAL => at += either(value == k),
                ANSWER => return (k, steps),
                // BPF_ALU | BPF_AND | BPF_K
                0x54 => value &= k,
                other => panic!("{other:#x}"),
            }
        }
        unreachable!()
    }

    pub(in super::super) const ALLOWED: u32 = libc::SECCOMP_RET_ALLOW;
    pub(in super::super) const NOT_PERMITTED: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    const NOT_THERE: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;

    #[test]
    fn every_call_without_arguments_is_answered_as_the_list_says() {
        for alone in [true, false] {
            let program = program(alone).unwrap();
            for nr in 0..=LAST_KNOWN + 600 {
                let call = libc::c_long::from(nr);
                let expected = match call {
                    _ if nr > LAST_KNOWN || call == libc::SYS_clone3 => NOT_THERE,
                    _ if REFUSED.contains(&call) => NOT_PERMITTED,
                    _ if !alone && OF_OTHERS.contains(&call) => NOT_PERMITTED,
                    _ => ALLOWED,
                };
                assert_eq!(answer(&program, nr, [0; 6]).0, expected, "call {nr}, alone: {alone}");
            }
        }
    }

    #[test]
    fn a_call_is_refused_by_the_argument_that_makes_it_dangerous() {
        let (alone, beside) = (program(true).unwrap(), program(false).unwrap());
        let says = |program, call: libc::c_long, args: &[u64]| {
            let mut all = [0; 6];
            all[..args.len()].copy_from_slice(args);
            answer(program, u32::try_from(call).unwrap(), all).0
        };
        for flag in NAMESPACES {
            let flags = u64::from((flag | libc::SIGCHLD).unsigned_abs());
            assert_eq!(says(&alone, libc::SYS_clone, &[flags]), NOT_PERMITTED, "{flag:#x}");
        }
        let thread = u64::from((libc::CLONE_VM | libc::CLONE_THREAD).unsigned_abs());
        assert_eq!(says(&alone, libc::SYS_clone, &[thread]), ALLOWED);
        for (request, expected) in
            [(TIOCSTI, NOT_PERMITTED), (TIOCLINUX, NOT_PERMITTED), (libc::TIOCGWINSZ, ALLOWED)]
        {
            assert_eq!(says(&alone, libc::SYS_ioctl, &[0, request]), expected);
        }
        assert_eq!(says(&alone, libc::SYS_socket, &[AF_VSOCK]), NOT_PERMITTED);
        assert_eq!(says(&alone, libc::SYS_socket, &[libc::AF_UNIX as u64]), ALLOWED);
        for (asked, expected) in [(8, ALLOWED), (0xffff_ffff, ALLOWED), (0x4_0000, NOT_PERMITTED)] {
            assert_eq!(says(&alone, libc::SYS_personality, &[asked]), expected, "{asked:#x}");
        }
        for (call, arg) in CHANGES_OTHERS {
            let mut args = [0; 2];
            args[usize::from(arg)] = 7;
            assert_eq!(says(&beside, call, &args), NOT_PERMITTED, "call {call} of another");
            assert_eq!(says(&beside, call, &[0; 2]), ALLOWED, "call {call} of itself");
            assert_eq!(says(&alone, call, &args), ALLOWED, "call {call} where nobody else is");
        }
        for (call, user) in ALL_OF_USER {
            assert_eq!(says(&beside, call, &[user]), NOT_PERMITTED, "call {call}");
        }
    }

    #[test]
    fn a_program_of_another_processor_is_ended_whatever_it_calls() {
        let program = program(true).unwrap();
        for nr in [0_u32, 435, 700] {
            let mut data = Vec::from(nr.to_ne_bytes());
            // i386
            data.extend(0x4000_0003_u32.to_ne_bytes());
            data.extend([0; 56]);
            assert_eq!(run(&program, &data).0, libc::SECCOMP_RET_KILL_PROCESS, "call {nr}");
        }
    }

    #[test]
    fn a_call_is_answered_in_few_steps() {
        for alone in [true, false] {
            let program = program(alone).unwrap();
            let most = (0..=LAST_KNOWN).map(|nr| answer(&program, nr, [1; 6]).1).max();
            assert!(most < Some(90), "{most:?} of {}", program.len());
            assert!(program.len() < 1_000, "{}", program.len());
        }
    }

    #[test]
    fn no_call_is_named_twice() {
        let mut calls: Vec<_> = REFUSED.iter().chain(OF_OTHERS).collect();
        let all = calls.len();
        calls.sort_unstable();
        calls.dedup();
        assert_eq!(calls.len(), all);
        assert!(calls.iter().all(|call| **call <= i64::from(LAST_KNOWN)));
    }
}
