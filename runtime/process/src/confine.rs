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

use super::isolate::rules::Rules;
use super::isolate::{filter, filter_engine, privileges, rules};
use super::user::Ids;
use ostler_model::limits::CONTROL_NICE;

/// What a confined process may still reach, besides TCP, its own directory in `/proc` and what
/// is open in it.
#[derive(Clone, Debug, Default)]
pub struct Confinement {
    /// Directories, with everything beneath: everything but executing and making devices and pipes.
    pub write: Vec<PathBuf>,
    /// Directories, with everything beneath, and files: to be read, and mapped as code.
    pub read: Vec<PathBuf>,
    /// What it may say to whom.
    pub network: ConfinedNetwork,
    /// Of root it becomes nobody, and keeps no capability at all.
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
    /// None.
    Nothing,
}

/// The user without rights, and its group; the kernel's own number for whom it does not know.
const NOBODY: u32 = 65_534;

/// What a process may use, set by itself before it reads what it does not trust.
#[derive(Clone, Copy, Debug)]
pub struct ProcessBounds {
    /// Address space, bytes.
    pub address_space_bytes: u64,
    /// Processor time, seconds.
    pub cpu_seconds: u64,
    /// Open files.
    pub open_files: u64,
    /// Longest file it may write, bytes.
    pub file_bytes: u64,
}

/// Bound this process, for good.
///
/// # Errors
/// When the kernel refuses.
pub fn bound(to: &ProcessBounds) -> io::Result<()> {
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

/// Which parts are in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confined {
    /// It may listen on ports below 1,024: the only capability that is kept, where there was one.
    pub low_ports: bool,
    /// Version of the kernel's rules on files, or why there are none.
    pub landlock: Result<i64, String>,
    /// Or why the kernel does not filter.
    pub filter: Result<(), String>,
}

impl fmt::Display for Confined {
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

/// Why a process is not confined. It may be in part: it should end.
#[derive(Debug, thiserror::Error)]
pub enum ConfineError {
    /// The kernel confines single threads.
    #[error("a process is confined before it has threads, and it has {0}")]
    Threads(usize),
    /// What it is to reach is not there.
    #[error("{path} cannot be opened to be reached from inside", path = path.display())]
    Missing {
        /// As it was named.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// A part that the kernel has and that could not be had.
    #[error("{part} could not be put in force")]
    Part {
        /// Which.
        part: &'static str,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
}

/// Lock this process in, for good. To be called while it has one thread. What the kernel does not have
/// is told and no error.
///
/// From here on the process makes threads and no processes, executes nothing, signals nobody, and makes
/// sockets of TCP and connected pairs only: what listens on a path is made before, and names are
/// resolved elsewhere.
///
/// # Errors
/// See [`ConfineError`].
pub fn confine(to: &Confinement) -> Result<Confined, ConfineError> {
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
        Rules { read, write, except: Vec::new(), scoped: true, data_only: true }.prepare()
    });
    let rules = rules.transpose().map_err(failed("Landlock"))?;
    let program = filter_engine::program(rustix::process::getpid(), to.network);
    let program = program.map_err(failed("the filter of system calls"))?;

    let low_ports = match to.nobody {
        true => become_nobody().map(|()| false),
        false => kept_capabilities(),
    };
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
    Ok(Confined { low_ports, landlock, filter })
}

/// Drop all capabilities but the one by which tasks listen on low ports, and no new privileges; whether
/// that one is kept.
fn kept_capabilities() -> io::Result<bool> {
    // Without a capability by this, where the agent's threads go first: control threads here do too.
    let nice = u64::from((20 - CONTROL_NICE).unsigned_abs());
    let _refused = setrlimit(Resource::Nice, Rlimit { current: Some(nice), maximum: Some(nice) });
    let had = rustix::thread::capabilities(None)?.permitted;
    let kept = had & CapabilitySet::NET_BIND_SERVICE;
    privileges::drop_to(None, kept.bits(), true)?;
    Ok(!kept.is_empty())
}

/// Who is not root stays who it is.
fn become_nobody() -> io::Result<()> {
    let ids = Ids { uid: NOBODY, gid: NOBODY, groups: Vec::new() };
    let root = rustix::process::geteuid().is_root();
    privileges::drop_to(root.then_some(&ids), 0, true)
}

/// Open for as long as this process lives. The kernel's rules are about what it finds at a path now, and
/// in `/proc` it finds something new when it needed the memory in between.
fn keep_open(path: &Path) -> Result<(), ConfineError> {
    let opened = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let missing = |errno: Errno| ConfineError::Missing { path: path.into(), source: errno.into() };
    opened.map(std::mem::forget).map_err(missing)
}
