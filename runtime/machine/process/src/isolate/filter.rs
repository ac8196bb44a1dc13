//! The filter of system calls, as containers usually get it. It allows all calls of Linux 6.10
//! except those that change the node, reach into the kernel or make new namespaces. Later calls
//! fail as unknown ones.

use std::collections::BTreeMap;
use std::io;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, apply_filter, sock_filter,
};

/// Number of `mseal`, the last call that the list below covers. Numbers of other conventions (x32)
/// are above it.
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

/// Calls that are refused too where the process can see other processes of its user.
const OF_OTHERS: &[libc::c_long] =
    &[libc::SYS_ptrace, libc::SYS_process_vm_readv, libc::SYS_process_vm_writev];

/// Calls that change how another process of the user runs, and the index of the argument that names
/// that process. An argument of 0 means the caller itself.
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
/// Calls whose first argument can mean all processes of a user, and the value with that meaning.
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
/// Request that types into a terminal as if a person had.
const TIOCSTI: u64 = 0x5412;
/// Request that pastes into a console.
const TIOCLINUX: u64 = 0x541C;
/// Allowed arguments of `personality`: nothing, 32 bits, both with the kernel's old version number,
/// and the query.
const PERSONALITIES: [u64; 5] = [0, 8, 0x2_0000, 0x2_0008, 0xffff_ffff];
/// Address family of sockets to the host of a virtual machine.
const AF_VSOCK: u64 = 40;

pub(super) type FilterError = seccompiler::BackendError;

/// The whole filter program: refused calls and unknown calls. `alone`: the task sees no processes
/// but its own.
///
/// The kernel runs a new filter once for each call number, and later for each call whose answer
/// it did not cache. A program that compares one number after the other is slow at that. This
/// one first looks in which part of the numbers a call is, and then compares with the numbers of
/// that part.
pub(super) fn program(alone: bool) -> io::Result<BpfProgram> {
    build_program(refused_calls(alone).map_err(io::Error::other)?)
}

/// The whole filter program of these rules.
pub(super) fn build_program(mut rules: FilterRules) -> io::Result<BpfProgram> {
    let mut program = arch_check().map_err(io::Error::other)?;
    program.extend(unknown_calls());
    while let Some(next) = rules.keys().nth(RULES_PER_PART).copied() {
        let later = rules.split_off(&next);
        let part = rules_program(std::mem::replace(&mut rules, later)).map_err(io::Error::other)?;
        let (next, over) = (u32::try_from(next), u32::try_from(part.len()));
        program.push(sock_filter {
            jt: 0,
            jf: 1,
            ..jump(IF_AT_LEAST, next.map_err(io::Error::other)?)
        });
        program.push(jump(ALWAYS, over.map_err(io::Error::other)?));
        program.extend(part);
    }
    program.extend(rules_program(rules).map_err(io::Error::other)?);
    Ok(program)
}

/// Put a filter in force for this thread. It cannot be taken off again.
pub(crate) fn apply(program: &BpfProgram) -> io::Result<()> {
    apply_filter(program).map_err(|error| match error {
        seccompiler::Error::Prctl(error) | seccompiler::Error::Seccomp(error) => error,
        other => io::Error::other(other),
    })
}

/// Filter all calls of an init but those by which it waits and ends.
pub(super) fn apply_to_init() -> io::Result<()> {
    let calls = [libc::SYS_read, libc::SYS_exit_group, libc::SYS_restart_syscall];
    let rules: FilterRules = calls.into_iter().map(|call| (call, Vec::new())).collect();
    let refuse = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let arch = std::env::consts::ARCH.try_into().map_err(io::Error::other)?;
    let filter = SeccompFilter::new(rules, refuse, SeccompAction::Allow, arch);
    let program: BpfProgram = filter.and_then(TryInto::try_into).map_err(io::Error::other)?;
    apply(&program)
}

/// Refused calls by number. A call without rules is always refused, otherwise where one of its
/// rules fits.
pub(super) type FilterRules = BTreeMap<i64, Vec<SeccompRule>>;

/// Most calls in one part of the program.
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

/// A complete program that refuses by these rules and allows all else.
fn rules_program(rules: FilterRules) -> Result<BpfProgram, FilterError> {
    let refuse = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let arch = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch)?.try_into()
}

/// The beginning of a program: it ends a process that calls with the convention of another
/// processor, and goes on with the instructions that follow.
fn arch_check() -> Result<BpfProgram, FilterError> {
    let mut program = rules_program(FilterRules::new())?;
    // Without rules, a program has only this check before its answer.
    program.pop();
    Ok(program)
}

/// A condition on the lower 32 bits of an argument.
pub(super) fn condition(
    arg: u8,
    op: SeccompCmpOp,
    value: u64,
) -> Result<SeccompCondition, FilterError> {
    SeccompCondition::new(arg, SeccompCmpArgLen::Dword, op, value)
}

/// A rule with one condition.
pub(super) fn single_condition(
    arg: u8,
    op: SeccompCmpOp,
    value: u64,
) -> Result<SeccompRule, FilterError> {
    SeccompRule::new(vec![condition(arg, op, value)?])
}

pub(super) fn refused_calls(alone: bool) -> Result<FilterRules, FilterError> {
    use SeccompCmpOp::{Eq, MaskedEq, Ne};
    let others = if alone { &[] } else { OF_OTHERS };
    let mut rules: FilterRules =
        REFUSED.iter().chain(others).map(|call| (*call, Vec::new())).collect();
    if !alone {
        for (call, arg) in CHANGES_OTHERS {
            rules.entry(call).or_default().push(single_condition(arg, Ne, 0)?);
        }
        for (call, user) in ALL_OF_USER {
            rules.entry(call).or_default().push(single_condition(0, Eq, user)?);
        }
    }
    let namespaces = NAMESPACES.map(|flag| u64::from(flag.unsigned_abs()));
    let clones: Result<_, FilterError> =
        namespaces.into_iter().map(|flag| single_condition(0, MaskedEq(flag), flag)).collect();
    rules.insert(libc::SYS_clone, clones?);
    rules.insert(
        libc::SYS_ioctl,
        vec![single_condition(1, Eq, TIOCSTI)?, single_condition(1, Eq, TIOCLINUX)?],
    );
    rules.insert(libc::SYS_socket, vec![single_condition(0, Eq, AF_VSOCK)?]);
    let other: Result<_, FilterError> =
        PERSONALITIES.into_iter().map(|known| condition(0, Ne, known)).collect();
    rules.insert(libc::SYS_personality, vec![SeccompRule::new(other?)?]);
    Ok(rules)
}

/// The part of the program that answers calls newer than this list as a kernel without them does.
/// `clone3` is among them, because no filter can see its flags: programs fall back to `clone`.
fn unknown_calls() -> BpfProgram {
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
