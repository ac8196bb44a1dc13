//! What guests may open: files and directories, where a read comes back.
//!
//! | stands under the name | |
//! |---|---|
//! | a pipe, a device, a socket | never opened: opening one may wait for ever |
//! | a file of a disk, of memory | opened |
//! | a file that the kernel makes up (`/sys`, `/proc`) | opened so that a read that would wait fails; of `/proc` nothing that is the agent's own |
//! | a file of another machine or process (NFS, FUSE), or of a kind unknown | only in a directory that is itself of such a kind; all calls of such a guest run on threads that can be given up |
//!
//! File calls run on the guest's thread otherwise, and nothing ends one that waits in the kernel: two of
//! them would hold all guests of the node. What stands under a name is looked at before it is opened.
//! Whoever swaps it in between has write access to the directory outside of the sandbox; that is not
//! prevented.

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path};
use std::sync::OnceLock;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl, fstatfs};
use wasmtime_wasi::p2::bindings::filesystem::types::{DescriptorStat, DescriptorType};

/// May a guest open what this says of?
pub(in crate::host) fn plain(stat: &DescriptorStat) -> bool {
    use DescriptorType::{Directory, RegularFile, SymbolicLink};
    matches!(stat.type_, RegularFile | Directory | SymbolicLink)
}

/// A kind of file system, by what a read of it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::host) enum Place {
    /// It comes back: the data is on a disk of this node, or in its memory.
    Returns,
    /// The kernel makes the data up: it may wait for an event, but not where it is asked not to.
    Kernel,
    /// The same, about processes.
    Processes,
    /// It may wait for another machine or process. Those not known are taken for such.
    Waits,
}

/// Numbers as in `statfs(2)` and the kernel's `magic.h`.
const RETURNS: [u32; 27] = [
    0xef53,      // ext2, ext3, ext4
    0x5846_5342, // xfs
    0x9123_683e, // btrfs
    0x0102_1994, // tmpfs, devtmpfs
    0x8584_58f6, // ramfs
    0x9584_58f6, // hugetlbfs
    0x794c_7630, // overlay
    0x7371_7368, // squashfs
    0xe0f5_e1e2, // erofs
    0xf2f5_2010, // f2fs
    0x2fc1_2fc1, // zfs
    0xca45_1a4e, // bcachefs
    0x4d44,      // vfat
    0x2011_bab0, // exfat
    0x7366_746e, // ntfs3
    0x5346_544e, // ntfs
    0x9660,      // iso9660
    0x1501_3346, // udf
    0x3153_464a, // jfs
    0x5265_4973, // reiserfs
    0x3434,      // nilfs2
    0xf15f,      // ecryptfs
    0x482b,      // hfs+
    0x7275,      // romfs
    0x28cd_3d45, // cramfs
    0x6175_6673, // aufs
    0x137f,      // minix
];
const KERNEL: [u32; 11] = [
    0x6265_6572, // sysfs
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
    0x7363_6673, // securityfs
    0x0027_e0eb, // cgroup
    0x6367_7270, // cgroup2
    0xcafe_4a11, // bpf
    0x6265_6570, // configfs
    0x6165_676c, // pstore
    0xde5e_81e4, // efivarfs
    0xf97c_ff8c, // selinuxfs
];
const PROC: u32 = 0x9fa0;

const fn place(number: u32) -> Place {
    const fn contains(all: &[u32], number: u32) -> bool {
        match all {
            [] => false,
            [first, rest @ ..] => *first == number || contains(rest, number),
        }
    }
    if number == PROC {
        Place::Processes
    } else if contains(&RETURNS, number) {
        Place::Returns
    } else if contains(&KERNEL, number) {
        Place::Kernel
    } else {
        Place::Waits
    }
}

/// Where an open file or directory is.
pub(in crate::host) fn of_file(file: &File) -> Place {
    fstatfs(file).map_or(Place::Waits, |found| place(found.f_type as u32))
}

/// Where a path leads; what is not there waits for nobody.
pub(in crate::host) fn of_path(path: &Path) -> Place {
    rustix::fs::statfs(path).map_or(Place::Returns, |found| place(found.f_type as u32))
}

/// May a guest keep what it has opened? Makes reads of what the kernel makes up come back. `waits`: calls
/// of this guest run on threads that can be given up.
pub(in crate::host) fn admit(file: &File, waits: bool) -> bool {
    match of_file(file) {
        Place::Returns => true,
        Place::Waits => waits,
        Place::Kernel => {
            never_wait(file);
            true
        }
        Place::Processes => {
            never_wait(file);
            let directory = file.metadata().is_ok_and(|meta| meta.is_dir());
            directory || of_processes(file)
        }
    }
}

fn never_wait(file: &File) {
    if let Ok(flags) = fcntl_getfl(file) {
        let _refused = fcntl_setfl(file, flags | OFlags::NONBLOCK);
    }
}

fn of_processes(file: &File) -> bool {
    use std::os::fd::AsRawFd as _;
    /// The device number of `/proc` as the agent sees it.
    static OWN: OnceLock<Option<u64>> = OnceLock::new();
    let own = OWN.get_or_init(|| std::fs::metadata("/proc").ok().map(|meta| meta.dev()));
    let here = file.metadata().ok().map(|meta| meta.dev());
    let Ok(path) = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())) else {
        return false;
    };
    let own_numbers = own.is_some() && *own == here;
    let is_own = |number: &str| Path::new("/proc/self/task").join(number).exists();
    harmless(&path, own_numbers, is_own)
}

/// What a guest reads of a process: names, numbers, states and limits, and nothing that it holds in memory.
const OF_PROCESSES: [&str; 20] = [
    "autogroup",
    "cgroup",
    "children",
    "cmdline",
    "comm",
    "cpuset",
    "io",
    "limits",
    "loginuid",
    "mountinfo",
    "mounts",
    "oom_adj",
    "oom_score",
    "oom_score_adj",
    "sched",
    "schedstat",
    "stat",
    "statm",
    "status",
    "wchan",
];

/// May a guest read this file of a `proc` file system? `own_numbers`: its process numbers are those that
/// the agent has, and `is_own` knows the agent's own (of its threads as well).
///
/// Of a process it reads [`OF_PROCESSES`] and its view of the network, and of the agent nothing; of the node
/// all but its memory and the kernel's log, whose readers wait.
fn harmless(path: &Path, own_numbers: bool, is_own: impl Fn(&str) -> bool) -> bool {
    let (mut of_process, mut of_network) = (false, false);
    for part in path.components() {
        let Component::Normal(name) = part else { continue };
        let Some(name) = name.to_str() else { return false };
        if name.bytes().all(|byte| byte.is_ascii_digit()) {
            of_process = true;
            if !own_numbers || is_own(name) {
                return false;
            }
        }
        of_network |= of_process && name == "net";
    }
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return false };
    // Of a thread that ended meanwhile the process may still be there.
    let name = name.strip_suffix(" (deleted)").unwrap_or(name);
    match of_process {
        true => of_network || OF_PROCESSES.contains(&name),
        false => !["kcore", "kmsg", "vmcore"].contains(&name),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_disk_returns_the_kernel_answers_and_whoever_is_not_known_may_wait() {
        assert_eq!(place(0xef53), Place::Returns);
        assert_eq!(place(0x6265_6572), Place::Kernel);
        assert_eq!(place(0x9fa0), Place::Processes);
        for waits in [0x6969, 0x6573_5546, 0x0102_1997, 0xff53_4d42, 0, 1] {
            assert_eq!(place(waits), Place::Waits, "{waits:#x}");
        }
        assert_eq!(of_path(Path::new("/proc")), Place::Processes);
        assert_eq!(of_path(Path::new("/sys")), Place::Kernel);
    }

    #[test]
    fn of_processes_a_guest_reads_what_they_are_called_and_not_what_they_hold() {
        let may = |path: &str, own| harmless(Path::new(path), own, |number| number == "77");
        for path in [
            "/proc/meminfo",
            "/proc/5/stat",
            "/proc/5/task/6/status",
            "/proc/net/dev",
            "/proc/5/net/tcp",
        ] {
            assert!(may(path, true), "{path}");
        }
        for path in [
            "/proc/77/status",
            "/proc/77/environ",
            "/proc/5/task/77/status",
            "/proc/5/environ",
            "/proc/5/task/6/mem",
            "/proc/5/task/6/environ (deleted)",
            "/proc/5/maps",
            "/proc/5/smaps_rollup",
            "/proc/5/syscall",
            "/proc/5/fd/3",
            "/proc/5/what_a_later_kernel_has",
            "/proc/kcore",
            "/proc/kmsg",
            "/host/proc/kmsg",
        ] {
            assert!(!may(path, true), "{path}");
        }
        assert!(may("/host/proc/meminfo", false) && !may("/host/proc/5/stat", false));
    }

    #[test]
    fn the_agents_own_files_are_refused_however_they_are_opened() {
        let tid = rustix::thread::gettid().as_raw_nonzero();
        for path in ["/proc/self/status".to_owned(), format!("/proc/{tid}/status")] {
            assert!(!admit(&File::open(path).unwrap(), false));
        }
        assert!(admit(&File::open("/proc/meminfo").unwrap(), false));
        assert!(admit(&File::open("/proc/self").unwrap(), false), "a directory may be listed");
    }

    #[test]
    fn a_read_of_what_the_kernel_makes_up_never_waits() {
        let file = File::open("/proc/meminfo").unwrap();
        assert!(admit(&file, false));
        assert!(fcntl_getfl(&file).unwrap().contains(OFlags::NONBLOCK));
    }
}
