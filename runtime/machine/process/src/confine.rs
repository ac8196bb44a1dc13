//! A process that locks itself in: what runs guests can do next to nothing but that.
//!
//! ```text
//! one thread, everything opened that only the free may open (listening sockets with a path)
//!   │ confine: capabilities go ─► no new privileges ─► rules on files ─► filter of system calls
//!   ▼
//! threads, engine, guests
//! ```
//! It is for the case that the engine has a fault and a guest decides what the process does. Such a
//! guest still has all that its own process has: the memory of its fellows, descriptors that were
//! handed over, the directories named here, the network. See `docs/threat-model.md`.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::CapabilitySet;

use super::isolate::rules::LandlockRules;
use super::isolate::{filter, filter_engine, privileges, rules};
use super::user::Ids;
use ostler_model::limits::CONTROL_NICE;

/// What a confined process may still reach, besides TCP, its own directory in `/proc` and the files
/// that it has open.
#[derive(Clone, Debug, Default)]
pub struct Confinement {
    /// Directories in which it may do everything, at any depth, but execute files and make devices
    /// and pipes.
    pub write: Vec<PathBuf>,
    /// Files, and directories at any depth, that it may read and map as code.
    pub read: Vec<PathBuf>,
    /// Which sockets it may have.
    pub network: ConfinedNetwork,
    /// A process of root becomes nobody, and keeps no capability at all.
    pub nobody: bool,
}

/// What sockets a confined process may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConfinedNetwork {
    /// TCP, and connected pairs.
    #[default]
    Tcp,
    /// The same and UDP, by which names are resolved.
    TcpAndNames,
    /// No sockets at all.
    Nothing,
}

/// Id of the user without rights and of its group. The kernel shows it for ids that it cannot map.
const NOBODY: u32 = 65_534;

/// What a process may use. It sets these bounds itself, before it reads what it does not trust.
#[derive(Clone, Copy, Debug)]
pub struct ProcessBounds {
    /// Most address space, bytes.
    pub address_space_bytes: u64,
    /// Processor time, seconds.
    pub cpu_seconds: u64,
    /// Most files that may be open at once.
    pub open_files: u64,
    /// Longest file it may write, bytes.
    pub file_bytes: u64,
}

/// Set these bounds on this process. They cannot be lifted again.
///
/// # Errors
/// When the kernel refuses.
pub fn set_bounds(to: &ProcessBounds) -> io::Result<()> {
    for (resource, soft, hard) in [
        (Resource::As, to.address_space_bytes, to.address_space_bytes),
        (Resource::Cpu, to.cpu_seconds, to.cpu_seconds.saturating_add(1)),
        (Resource::Nofile, to.open_files, to.open_files),
        (Resource::Fsize, to.file_bytes, to.file_bytes),
        // A dump would hold what it has read.
        (Resource::Core, 0, 0),
    ] {
        // An existing hard limit below ours stays.
        let hard = rustix::process::getrlimit(resource).maximum.map_or(hard, |now| now.min(hard));
        setrlimit(resource, Rlimit { current: Some(soft.min(hard)), maximum: Some(hard) })?;
    }
    Ok(())
}

/// Which parts of the confinement are in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfinementState {
    /// It may listen on ports below 1,024. This is the only capability that is kept, where the
    /// process had it.
    pub low_ports: bool,
    /// Version of the kernel's rules on files, or why there are none.
    pub landlock: Result<i64, String>,
    /// System calls are filtered, or why the kernel does not filter them.
    pub filter: Result<(), String>,
}

impl fmt::Display for ConfinementState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no new privileges, no capabilities")?;
        if self.low_ports {
            f.write_str(" but for ports below 1024")?;
        }
        match &self.landlock {
            Ok(version) => write!(f, "; files by Landlock {version}")?,
            Err(why) => write!(f, "; ALL files of its user, because {why}")?,
        }
        match &self.filter {
            Ok(()) => f.write_str("; system calls filtered"),
            Err(why) => write!(f, "; ALL system calls, because {why}"),
        }
    }
}

/// Why a process is not confined. Some parts may be in force already, so the process should end.
#[derive(Debug, thiserror::Error)]
pub enum ConfineError {
    /// The process has this many threads, and the kernel confines single threads.
    #[error("a process is confined before it has threads, and it has {0}")]
    Threads(usize),
    /// A path that the process is to reach cannot be opened.
    #[error("{path} cannot be opened to be reached from inside", path = path.display())]
    Missing {
        /// The path as the caller named it.
        path: PathBuf,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
    /// A part that the kernel supports could not be put in force.
    #[error("{part} could not be put in force")]
    Part {
        /// Name of the part, for people: `Landlock`, for example.
        part: &'static str,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
}

/// Lock this process in, for good. Call it while the process has one thread. What the kernel does
/// not support is told by the result and is no error.
///
/// From here on the process makes threads and no processes, executes nothing, signals nobody, and makes
/// sockets of TCP and connected pairs only. What listens on a path is made before, and names are
/// resolved elsewhere.
///
/// # Errors
/// See [`ConfineError`].
pub fn confine(to: &Confinement) -> Result<ConfinementState, ConfineError> {
    let failed = |part| move |source| ConfineError::Part { part, source };
    match std::fs::read_dir("/proc/self/task").map(Iterator::count) {
        Ok(1) => {}
        Ok(threads) => return Err(ConfineError::Threads(threads)),
        Err(source) => return Err(failed("counting the threads")(source)),
    }
    let own = PathBuf::from(format!("/proc/{}", std::process::id()));
    let read: Vec<PathBuf> = to.read.iter().chain([&own]).cloned().collect();
    to.write.iter().chain(&read).try_for_each(|path| keep_open(path))?;
    // Both are prepared with the rights that go next.
    let landlock = rules::version();
    let rules = landlock.is_ok().then(|| {
        let write = to.write.clone();
        LandlockRules { read, write, except: Vec::new(), scoped: true, data_only: true }.prepare()
    });
    let rules = rules.transpose().map_err(failed("Landlock"))?;
    let program = filter_engine::program(rustix::process::getpid(), to.network);
    let program = program.map_err(failed("the filter of system calls"))?;

    let low_ports = if to.nobody { become_nobody().map(|()| false) } else { drop_capabilities() };
    let low_ports = low_ports.map_err(failed("dropping capabilities"))?;
    if let Some(rules) = rules {
        let restricted = rules.restrict_self().map_err(io::Error::other);
        restricted.map_err(failed("Landlock"))?;
    }
    // SAFETY: asks whether there are filters at all; nothing is read or written.
    let filter = match unsafe { libc::prctl(libc::PR_GET_SECCOMP) } {
        ..0 => Err("the kernel has no filters of system calls".to_owned()),
        0.. => Ok(filter::apply(&program).map_err(failed("the filter of system calls"))?),
    };
    Ok(ConfinementState { low_ports, landlock, filter })
}

/// Drop all capabilities but the one by which tasks listen on low ports, and allow no new
/// privileges. Returns whether that capability is kept.
fn drop_capabilities() -> io::Result<bool> {
    // Where the agent's threads have priority, control threads here have it too, by this limit and
    // without a capability.
    let nice = u64::from((20 - CONTROL_NICE).unsigned_abs());
    let _refused = setrlimit(Resource::Nice, Rlimit { current: Some(nice), maximum: Some(nice) });
    let had = rustix::thread::capabilities(None)?.permitted;
    let kept = had & CapabilitySet::NET_BIND_SERVICE;
    privileges::drop_privileges(None, kept.bits(), true)?;
    Ok(!kept.is_empty())
}

/// Switch from root to nobody, and drop all capabilities. A process of another user keeps its user.
fn become_nobody() -> io::Result<()> {
    let ids = Ids { uid: NOBODY, gid: NOBODY, groups: Vec::new() };
    let root = rustix::process::geteuid().is_root();
    privileges::drop_privileges(root.then_some(&ids), 0, true)
}

/// Keep a path open for as long as this process lives. The kernel's rules hold for the inode
/// that is at the path now, and the kernel makes new inodes in `/proc` when it needed the memory
/// in between.
fn keep_open(path: &Path) -> Result<(), ConfineError> {
    let opened = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let missing = |errno: Errno| ConfineError::Missing { path: path.into(), source: errno.into() };
    opened.map(std::mem::forget).map_err(missing)
}
