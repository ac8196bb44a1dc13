//! Decides what guests may open: files and directories whose reads return.
//!
//! | stands under the name | |
//! |---|---|
//! | a pipe, a device, a socket | never opened: opening one may wait for ever |
//! | a file of a disk, of memory | opened |
//! | a file that the kernel makes up (`/sys`, `/proc`) | opened so that a read that would wait fails; of `/proc` nothing that is the agent's own |
//! | a file of another machine or process (NFS, FUSE), or of a kind unknown | only in a directory that is itself of such a kind; all calls of such a guest run on threads that can be given up |
//!
//! In all other cases file calls run on the guest's thread, and nothing ends a call that waits in
//! the kernel. Two of them would hold up all guests of the node. So what a name stands for is
//! looked at before it is opened. Whoever swaps it in between has write access to the directory
//! outside of the sandbox; that is not prevented.

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path};
use std::sync::OnceLock;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl, fstatfs};
use wasmtime_wasi::p2::bindings::filesystem::types::{DescriptorStat, DescriptorType};

/// May a guest open a file of this type?
pub(crate) fn is_plain(stat: &DescriptorStat) -> bool {
    use DescriptorType::{Directory, RegularFile, SymbolicLink};
    matches!(stat.type_, RegularFile | Directory | SymbolicLink)
}

/// A kind of file system, by what a read does there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileSystemKind {
    /// A read returns: the data is on a disk of this node, or in its memory.
    Returns,
    /// The kernel makes the data up. A read may wait for an event, unless it is asked not to.
    Kernel,
    /// The kernel makes the data up, about processes.
    Processes,
    /// A read may wait for another machine or process. File systems that are not known are taken
    /// for this kind.
    Waits,
}

/// File systems whose reads return, by their numbers in `statfs(2)` and the kernel's `magic.h`.
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

const fn kind_of_number(number: u32) -> FileSystemKind {
    const fn contains(all: &[u32], number: u32) -> bool {
        match all {
            [] => false,
            [first, rest @ ..] => *first == number || contains(rest, number),
        }
    }
    if number == PROC {
        FileSystemKind::Processes
    } else if contains(&RETURNS, number) {
        FileSystemKind::Returns
    } else if contains(&KERNEL, number) {
        FileSystemKind::Kernel
    } else {
        FileSystemKind::Waits
    }
}

/// The kind of file system that an open file or directory is on.
pub(crate) fn kind_of_file(file: &File) -> FileSystemKind {
    fstatfs(file).map_or(FileSystemKind::Waits, |found| kind_of_number(found.f_type as u32))
}

/// The kind of file system that a path leads to. A path that does not exist waits for nobody.
pub(crate) fn kind_of_path(path: &Path) -> FileSystemKind {
    rustix::fs::statfs(path)
        .map_or(FileSystemKind::Returns, |found| kind_of_number(found.f_type as u32))
}

/// May a guest keep what it has opened? Reads of data that the kernel makes up are set to return at
/// once. `waits`: calls of this guest run on threads that can be given up.
pub(crate) fn admit(file: &File, waits: bool) -> bool {
    match kind_of_file(file) {
        FileSystemKind::Returns => true,
        FileSystemKind::Waits => waits,
        FileSystemKind::Kernel => {
            set_nonblocking(file);
            true
        }
        FileSystemKind::Processes => {
            set_nonblocking(file);
            let directory = file.metadata().is_ok_and(|meta| meta.is_dir());
            directory || is_readable_proc(file)
        }
    }
}

fn set_nonblocking(file: &File) {
    if let Ok(flags) = fcntl_getfl(file) {
        let _refused = fcntl_setfl(file, flags | OFlags::NONBLOCK);
    }
}

fn is_readable_proc(file: &File) -> bool {
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
    is_harmless(&path, own_numbers, is_own)
}

/// The files of a process that a guest may read: names, numbers, states and limits, and nothing
/// that the process holds in memory.
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

/// May a guest read this file of a `proc` file system? `own_numbers`: the file system has the
/// process numbers that the agent sees. `is_own` says whether a number is that of the agent or of
/// one of its threads.
///
/// A guest may read [`OF_PROCESSES`] of a process and the process's view of the network, and
/// nothing of the agent. Of the node it may read all but the memory and the kernel's log,
/// whose readers wait.
fn is_harmless(path: &Path, own_numbers: bool, is_own: impl Fn(&str) -> bool) -> bool {
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
    // The thread may have ended while its process is still there.
    let name = name.strip_suffix(" (deleted)").unwrap_or(name);
    if of_process {
        of_network || OF_PROCESSES.contains(&name)
    } else {
        !["kcore", "kmsg", "vmcore"].contains(&name)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_disk_returns_the_kernel_answers_and_whoever_is_not_known_may_wait() {
        assert_eq!(kind_of_number(0xef53), FileSystemKind::Returns);
        assert_eq!(kind_of_number(0x6265_6572), FileSystemKind::Kernel);
        assert_eq!(kind_of_number(0x9fa0), FileSystemKind::Processes);
        for waits in [0x6969, 0x6573_5546, 0x0102_1997, 0xff53_4d42, 0, 1] {
            assert_eq!(kind_of_number(waits), FileSystemKind::Waits, "{waits:#x}");
        }
        assert_eq!(kind_of_path(Path::new("/proc")), FileSystemKind::Processes);
        assert_eq!(kind_of_path(Path::new("/sys")), FileSystemKind::Kernel);
    }

    #[test]
    fn of_processes_a_guest_reads_what_they_are_called_and_not_what_they_hold() {
        let may = |path: &str, own| is_harmless(Path::new(path), own, |number| number == "77");
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
