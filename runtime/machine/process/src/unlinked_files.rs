//! Files that processes hold open or mapped and that have no name any more. They fill a disk, and
//! no walk of directories meets them.
//!
//! ```text
//! /proc/PID/task/TID/fd/N ─ its link ends in "(deleted)" ─► no name left, on the device asked for ─► counted once
//! /proc/PID/maps          ─ the same of a mapping whose descriptor was closed ──────┘
//! ```
//! Each thread with descriptors of its own is looked at. A file that is on its way through a
//! socket, and open nowhere, is not seen. Processes come and go meanwhile; what cannot be read
//! makes the result a lower bound.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, BufRead as _, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, StatxFlags, makedev};

use super::ProcessHost;
use super::identity;
use super::leftovers::{self, Certainty};
use ostler_model::ids::AllocId;
use ostler_model::limits::{HELD_FILES_LOOKED_AT_MAX, HELD_MAPS_BYTES_MAX};

/// End of the link to a file whose name is gone.
const DELETED: &[u8] = b" (deleted)";
/// Bytes in a block, on every file system.
const BLOCK_BYTES: u64 = 512;

/// What processes hold of files without a name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnlinkedFiles {
    /// Bytes that the files occupy on the disk.
    pub bytes: u64,
    /// Sum of the lengths of the files, in bytes.
    pub apparent_bytes: u64,
    /// Number of the files.
    pub inodes: u64,
    /// Not everything could be looked at, so the numbers are lower bounds.
    pub incomplete: bool,
}

impl ProcessHost {
    /// Files without a name on the file system `device` that the processes of an allocation's tasks
    /// hold. Ends early once `stop` returns `true`. Blocks.
    #[must_use]
    pub fn held_files(
        &self,
        alloc: AllocId,
        device: u64,
        stop: &dyn Fn() -> bool,
    ) -> UnlinkedFiles {
        let mut look = UnlinkedScan::new(device, stop);
        for pid in self.pids_of(alloc, &mut look.found.incomplete) {
            look.scan_process(pid);
        }
        look.found
    }

    /// Pids of the processes of all runs of an allocation.
    fn pids_of(&self, alloc: AllocId, incomplete: &mut bool) -> BTreeSet<u32> {
        let mut of_alloc = Vec::new();
        for (run, of_run) in self.table().iter().filter(|(run, _)| run.alloc() == Some(alloc)) {
            of_alloc.extend(of_run.processes.values().map(|one| (run.clone(), Arc::clone(one))));
        }
        let mut pids = BTreeSet::new();
        for (run, process) in of_alloc {
            // A cgroup knows all of them. Without one they are found as at the end of a task.
            let found = match &process.leaf {
                Some(leaf) => pids_in_cgroup(leaf.path()),
                None => leftovers::find_remaining(&run, &process.identity, Certainty::Now)
                    .map(|all| all.into_iter().map(|one| one.pid).collect()),
            };
            match found {
                Ok(found) => pids.extend(found),
                Err(_gone_or_short) => *incomplete = true,
            }
        }
        pids
    }
}

fn pids_in_cgroup(path: &Path) -> io::Result<Vec<u32>> {
    let pids = fs::read_to_string(path.join("cgroup.procs"))?;
    Ok(pids.lines().filter_map(|pid| pid.parse().ok()).collect())
}

/// Whether a process and one of its threads share their descriptors. Without this check hundreds of
/// threads would be looked at, each with the same files.
fn share_descriptors(pid: u32, thread: u32) -> bool {
    /// The comparison of descriptor tables, from `linux/kcmp.h`.
    const KCMP_FILES: libc::c_long = 2;
    // SAFETY: a system call over plain numbers. Where it is refused, the thread is looked at.
    let compared = unsafe {
        libc::syscall(
            libc::SYS_kcmp,
            libc::c_long::from(pid),
            libc::c_long::from(thread),
            KCMP_FILES,
            0,
            0,
        )
    };
    compared == 0
}

/// One scan of some processes.
struct UnlinkedScan<'a> {
    found: UnlinkedFiles,
    device: u64,
    /// Inodes of the files that were counted.
    known: BTreeSet<u64>,
    left: u64,
    stop: &'a dyn Fn() -> bool,
}

impl<'a> UnlinkedScan<'a> {
    fn new(device: u64, stop: &'a dyn Fn() -> bool) -> Self {
        let (found, known) = (UnlinkedFiles::default(), BTreeSet::new());
        Self { found, device, known, left: HELD_FILES_LOOKED_AT_MAX, stop }
    }

    fn scan_process(&mut self, pid: u32) {
        let dir = Path::new("/proc").join(pid.to_string());
        // A process that is gone holds nothing.
        let Ok(threads) = fs::read_dir(dir.join("task")) else { return };
        for thread in threads {
            let Ok(thread) = thread else {
                self.found.incomplete = true;
                break;
            };
            let number = thread.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
            if number.is_some_and(|number| number != pid && share_descriptors(pid, number)) {
                continue;
            }
            self.scan_descriptors(&thread.path().join("fd"));
        }
        self.scan_mappings(&dir);
    }

    /// Whether one more descriptor or mapping may be looked at.
    fn may_continue(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        let on = self.left > 0 && !(self.stop)();
        self.found.incomplete |= !on;
        on
    }

    fn scan_descriptors(&mut self, dir: &Path) {
        let entries = match fs::read_dir(dir) {
            Ok(entries) => entries,
            Err(error) => return self.note_unreadable(&error),
        };
        for entry in entries {
            if !self.may_continue() {
                return;
            }
            match entry {
                Ok(entry) => self.count_link(&entry.path()),
                Err(error) => return self.note_unreadable(&error),
            }
        }
    }

    /// Note that a file of `/proc` could not be read. A process or thread that ended meanwhile is
    /// no gap: it holds nothing any more.
    fn note_unreadable(&mut self, error: &io::Error) {
        self.found.incomplete |=
            identity::is_of_the_node(error) || error.kind() == io::ErrorKind::PermissionDenied;
    }

    /// Count the file that a link in `/proc` leads to, where the file has no name any more.
    fn count_link(&mut self, link: &Path) {
        let Ok(target) = fs::read_link(link) else { return };
        if target.as_os_str().as_bytes().ends_with(DELETED) {
            self.count_file(link);
        }
    }

    fn count_file(&mut self, link: &Path) {
        // What the kernel has in memory: a server of the file system, which may not answer, is not
        // asked.
        let asked = StatxFlags::NLINK | StatxFlags::INO | StatxFlags::BLOCKS | StatxFlags::SIZE;
        let found = rustix::fs::statx(CWD, link, AtFlags::STATX_DONT_SYNC, asked);
        let Ok(found) = found else { return };
        let here = makedev(found.stx_dev_major, found.stx_dev_minor) == self.device;
        if !here || found.stx_nlink > 0 || !self.known.insert(found.stx_ino) {
            return;
        }
        let bytes = found.stx_blocks.saturating_mul(BLOCK_BYTES);
        self.found.bytes = self.found.bytes.saturating_add(bytes);
        self.found.apparent_bytes = self.found.apparent_bytes.saturating_add(found.stx_size);
        self.found.inodes = self.found.inodes.saturating_add(1);
    }

    fn scan_mappings(&mut self, dir: &Path) {
        let maps = match fs::File::open(dir.join("maps")) {
            Ok(maps) => maps,
            Err(error) => return self.note_unreadable(&error),
        };
        let mut maps = io::BufReader::new(maps.take(HELD_MAPS_BYTES_MAX));
        let mut line = Vec::new();
        while maps.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
            if !self.may_continue() {
                return;
            }
            let text = line.trim_ascii_end();
            if text.ends_with(DELETED)
                && let Some(range) = text.split(|byte| *byte == b' ').next()
            {
                self.count_file(&dir.join("map_files").join(OsStr::from_bytes(range)));
            }
            line.clear();
        }
        self.found.incomplete |= maps.get_ref().limit() == 0;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, clippy::disallowed_methods, reason = "tests")]
mod tests {
    use std::io::Write as _;
    use std::os::fd::AsRawFd as _;
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    /// Whether this file of the process is counted. Other tests have open files too.
    fn counted(file: &fs::Metadata) -> bool {
        let mut look = UnlinkedScan::new(file.dev(), &|| false);
        look.scan_process(std::process::id());
        assert!(!look.found.incomplete, "{:?}", look.found);
        look.known.contains(&file.ino())
    }

    #[test]
    fn a_file_without_a_name_is_counted_while_it_is_open_or_mapped() {
        use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
        const BYTES: usize = 1 << 20;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        let mut file = fs::File::create_new(&path).unwrap();
        file.write_all(&vec![b'x'; BYTES]).unwrap();
        let found = file.metadata().unwrap();
        assert!(!counted(&found), "it has a name");
        fs::remove_file(&path).unwrap();
        assert!(counted(&found));
        let mapped = fs::File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
        // SAFETY: a new mapping, wherever there is room, that nobody writes or reads.
        let at = unsafe {
            mmap(std::ptr::null_mut(), BYTES, ProtFlags::READ, MapFlags::PRIVATE, &mapped, 0)
        };
        let at = at.unwrap();
        drop((file, mapped));
        // Only who may look into processes sees what they have mapped.
        if rustix::process::geteuid().is_root() {
            assert!(counted(&found), "it is mapped");
        }
        // SAFETY: the mapping just made.
        unsafe { munmap(at, BYTES).unwrap() };
        assert!(!counted(&found), "nobody has it");
    }

    #[test]
    fn threads_that_share_descriptors_are_looked_at_once_and_others_each() {
        use std::sync::mpsc::channel;
        let (dir, (ready, told)) = (tempfile::tempdir().unwrap(), channel());
        let path = dir.path().join("own");
        let apart = {
            let (path, ready) = (path.clone(), ready.clone());
            move |end: std::sync::mpsc::Receiver<()>| {
                // SAFETY: this thread alone has other descriptors from now on, which it closes itself.
                assert_eq!(unsafe { libc::unshare(libc::CLONE_FILES) }, 0);
                let file = fs::File::create_new(&path).unwrap();
                fs::remove_file(&path).unwrap();
                ready.send(Some(file.metadata().unwrap())).unwrap();
                let _ended = end.recv();
            }
        };
        let (end_of_apart, ends) = channel();
        let mut threads = vec![std::thread::spawn(move || apart(ends))];
        let mut ends = vec![end_of_apart];
        for _ in 0..100 {
            let (end, ends_with) = channel::<()>();
            let ready = ready.clone();
            ends.push(end);
            threads.push(std::thread::spawn(move || {
                ready.send(None).unwrap();
                let _ended = ends_with.recv();
            }));
        }
        let found: Vec<_> = (0..threads.len()).filter_map(|_| told.recv().unwrap()).collect();
        let mut look = UnlinkedScan::new(found[0].dev(), &|| false);
        look.scan_process(std::process::id());
        assert!(look.known.contains(&found[0].ino()), "a thread has it");
        let open = fs::read_dir("/proc/self/fd").unwrap().count() as u64;
        let maps = fs::read_to_string("/proc/self/maps").unwrap().lines().count() as u64;
        let looked_at = HELD_FILES_LOOKED_AT_MAX - look.left;
        assert!(looked_at < 20 * open + 2 * maps, "{looked_at} of {open} and {maps}");
        drop(ends);
        for thread in threads {
            thread.join().unwrap();
        }
    }

    #[test]
    fn what_a_process_holds_of_the_file_system_is_summed_up_once() {
        let dir = tempfile::tempdir().unwrap();
        let script = "exec 3>x 4>&3; rm x; head -c 1048576 /dev/zero >&3; echo ready; read line";
        let mut child = std::process::Command::new("/bin/sh")
            .args(["-c", script])
            .current_dir(dir.path())
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = [0; 6];
        child.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
        let device = dir.path().metadata().unwrap().dev();
        let found = |device| {
            let mut look = UnlinkedScan::new(device, &|| false);
            look.scan_process(child.id());
            look.found
        };
        let held = found(device);
        assert_eq!((held.inodes, held.apparent_bytes, held.incomplete), (1, 1 << 20, false));
        assert_eq!(found(device + 1), UnlinkedFiles::default(), "of another file system");
        let mut stopped = UnlinkedScan::new(device, &|| true);
        stopped.scan_process(child.id());
        assert!(stopped.found.incomplete);
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
