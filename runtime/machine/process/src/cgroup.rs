//! One cgroup (version 2) per process, where this machine lets the agent make one.
//!
//! ```text
//! <unified mount>/<where, see place>/ostler/<leaf>     memory.max cpu.weight pids.max cgroup.kill memory.events
//!                              ▲ cgroup.subtree_control: +memory +cpu +pids, where delegated
//! …/ostler/share/<leaf>                          where cpuset is delegated too: see [`cores`]
//! ```
//! A process is forked into its cgroup, which is made before it: moving it there later waits until
//! every processor passed a quiet state (15 ms and more), because the kernel locks out all forks.
//!
//! A cgroup serves two purposes, which work independently. *Ending everything*: `cgroup.kill`
//! reaches descendants that left the process group, and needs no controller. *Limits*: they need
//! the memory and cpu controllers to be delegated to the agent. What is not available is told by a
//! typed [`CgroupUnavailable`] and logged once; the task then runs with its process group alone. There is
//! no fallback by resource limits: `RLIMIT_AS` counts address space, and would break programs that
//! reserve more than they use. Version 1 hierarchies are not used.

pub(crate) mod cores;
mod place;

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags, fstatfs};
use rustix::process::Pid;

use super::{identity, reap};
use ostler_model::cores::CoreSet;
use ostler_model::ports::ProcessIdentity;

/// `statfs` type of a version 2 hierarchy.
const CGROUP2_MAGIC: i64 = 0x6367_7270;
/// Largest `cpu.weight`.
const CPU_WEIGHT_MAX: u32 = 10_000;
/// MHz per unit of `cpu.weight`: the default weight, 100, stands for one core of 1 GHz.
const MHZ_PER_WEIGHT: u32 = 10;

/// Why tasks run without a cgroup, or without limits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CgroupUnavailable {
    /// No version 2 hierarchy is mounted, or the directory given is not in it.
    #[error("no cgroup version 2 hierarchy is mounted there")]
    NotMounted,
    /// The directory for the tasks cannot be made or written.
    #[error("cgroup {path} cannot be used: {reason}; delegate a cgroup to the agent", path = path.display())]
    NotWritable {
        /// Path of the cgroup that was to hold the tasks.
        path: PathBuf,
        /// Text of the error that the kernel gave.
        reason: String,
    },
    /// No limit can be set: the controllers do not reach the agent's cgroup.
    #[error(
        "controllers {missing} are not delegated to cgroup {path}: {reason}",
        path = path.display()
    )]
    NotDelegated {
        /// Path of the cgroup that was to hold the tasks.
        path: PathBuf,
        /// Some of `memory`, `cpu`, `pids`, `cpuset`.
        missing: String,
        /// Text of the error that the kernel gave.
        reason: String,
    },
}

/// What cgroups do for the tasks of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupStatus {
    /// Parent of the tasks' cgroups; `None` when there are none.
    pub parent: Option<PathBuf>,
    /// `memory.max` is set and kills for memory are seen.
    pub memory: bool,
    /// `cpu.weight` is set.
    pub cpu: bool,
    /// `pids.max` is set.
    pub pids: bool,
    /// Cores that tasks may have for themselves; none where `cpuset.cpus` cannot be set.
    pub cores: CoreSet,
    /// What is missing and why.
    pub unavailable: Option<CgroupUnavailable>,
}

impl CgroupStatus {
    const fn none(why: CgroupUnavailable) -> Self {
        Self {
            parent: None,
            memory: false,
            cpu: false,
            pids: false,
            cores: CoreSet::new(),
            unavailable: Some(why),
        }
    }

    /// The parent of the cgroups of processes: of those that have cores for themselves if
    /// `own_cores`, otherwise of all others. `None` where there are no cgroups.
    pub(crate) fn home(&self, own_cores: bool) -> Option<PathBuf> {
        let parent = self.parent.as_ref()?;
        let shared = !own_cores && !self.cores.is_empty();
        Some(if shared { parent.join(cores::SHARE) } else { parent.clone() })
    }
}

/// Prepare the parent directory and see what it can do. `parent` is an absolute path below the
/// unified mount; without one the agent's own cgroup is used.
#[must_use]
pub fn prepare(parent: Option<&Path>) -> CgroupStatus {
    let parent = match parent {
        Some(parent) => parent.to_owned(),
        None => match own_parent() {
            Some(parent) => parent,
            None => return CgroupStatus::none(CgroupUnavailable::NotMounted),
        },
    };
    let refused = |error: &io::Error| CgroupUnavailable::NotWritable {
        path: parent.clone(),
        reason: error.to_string(),
    };
    // Nothing is made outside a cgroup hierarchy.
    if !parent.ancestors().find(|path| path.exists()).is_some_and(is_cgroup2) {
        return CgroupStatus::none(CgroupUnavailable::NotMounted);
    }
    if let Err(error) = fs::create_dir_all(&parent) {
        return CgroupStatus::none(refused(&error));
    }
    if let Err(error) = rustix::fs::access(&parent, rustix::fs::Access::WRITE_OK) {
        return CgroupStatus::none(refused(&error.into()));
    }
    sweep(&parent);
    let limits = ["memory", "cpu", "pids"].map(|name| (name, enable(&parent, name)));
    let enabled = limits.iter().filter(|(_, enabled)| enabled.is_ok());
    let enabled: Vec<&str> = enabled.map(|(name, _)| *name).collect();
    let cores = cores::prepare(&parent, &enabled);
    let missing =
        limits.iter().filter_map(|(name, enabled)| Some((*name, enabled.as_ref().err()?)));
    let missing: Vec<(&str, &io::Error)> =
        missing.chain(cores.as_ref().err().map(|reason| ("cpuset", reason))).collect();
    let unavailable = missing.first().map(|(_, reason)| CgroupUnavailable::NotDelegated {
        path: parent.clone(),
        missing: missing.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", "),
        reason: reason.to_string(),
    });
    let [memory, cpu, pids] = ["memory", "cpu", "pids"].map(|name| enabled.contains(&name));
    CgroupStatus {
        memory,
        cpu,
        pids,
        cores: cores.unwrap_or_default(),
        parent: Some(parent),
        unavailable,
    }
}

/// Name of a new cgroup: who it is for, a number that nobody else has, and who makes it.
fn leaf_name(run: &str, maker: &ProcessIdentity) -> String {
    static MADE: AtomicU64 = AtomicU64::new(0);
    let run = run.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' });
    // Names of directories have at most 255 bytes.
    let run: String = run.take(160).collect();
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    format!("{run}-{number}-{}-{}", maker.pid, maker.start_ticks)
}

/// Remove the cgroups that agents left behind when they died. A cgroup whose maker still lives
/// stays: another agent may just have made it and not filled it yet.
fn sweep(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let mut parts = name.to_str().unwrap_or_default().rsplitn(3, '-');
        let (ticks, pid) = (parts.next(), parts.next());
        if let (Some(Ok(start_ticks)), Some(Ok(pid))) =
            (ticks.map(str::parse::<u64>), pid.map(str::parse::<u32>))
            && !identity::read(pid).is_ok_and(|now| now.start_ticks == start_ticks)
        {
            // Refused while something is inside.
            drop(fs::remove_dir(entry.path()));
        }
    }
}

/// Let a controller reach the children of `parent`, through the cgroup above it.
fn enable(parent: &Path, controller: &str) -> io::Result<()> {
    let has = |path: &Path, file: &str| {
        fs::read_to_string(path.join(file))
            .is_ok_and(|text| text.split_ascii_whitespace().any(|name| name == controller))
    };
    if !has(parent, "cgroup.controllers") {
        let Some(above) = parent.parent().filter(|above| has(above, "cgroup.controllers")) else {
            return Err(io::Error::other("the cgroup above does not have them"));
        };
        let handed_down = fs::write(above.join("cgroup.subtree_control"), format!("+{controller}"));
        handed_down.map_err(explain_busy)?;
    }
    if !has(parent, "cgroup.subtree_control") {
        fs::write(parent.join("cgroup.subtree_control"), format!("+{controller}"))?;
    }
    Ok(())
}

/// Replaces the kernel's "busy" by what it means here; other errors stay as they are.
fn explain_busy(error: io::Error) -> io::Error {
    if error.raw_os_error() != Some(rustix::io::Errno::BUSY.raw_os_error()) {
        return error;
    }
    io::Error::other(
        "the kernel hands controllers down only from a cgroup without processes of its own; for a service of \
         systemd write Delegate=yes and DelegateSubgroup=agent into its unit",
    )
}

/// Move this agent, and what earlier agents left in its cgroup, out of the way of the tasks. Needed
/// where a service manager or a container delegated the cgroup, because the kernel hands
/// controllers down only from a cgroup without processes. Agents that serve call it before anything
/// is started. A failure is logged; the tasks then run without limits.
pub fn make_room() {
    let Some((mount, own)) = own_place() else { return };
    if let Err(reason) = place::make_room(&mount, own) {
        tracing::warn!(%reason, "tasks cannot get controllers of cgroups");
    }
}

fn own_parent() -> Option<PathBuf> {
    own_place().map(|(mount, own)| place::tasks_parent(&mount, own))
}

/// The unified mount and this process's cgroup in it.
fn own_place() -> Option<(PathBuf, PathBuf)> {
    let mount = unified_mount(&fs::read_to_string("/proc/self/mountinfo").ok()?)?;
    let own = own_cgroup(&fs::read_to_string("/proc/self/cgroup").ok()?)?;
    let own = match own.trim_start_matches('/') {
        "" => mount.clone(),
        own => mount.join(own),
    };
    Some((mount, own))
}

/// Mount point of the version 2 hierarchy in `/proc/self/mountinfo`: `/sys/fs/cgroup`, or
/// `/sys/fs/cgroup/unified` on hybrid machines.
fn unified_mount(mountinfo: &str) -> Option<PathBuf> {
    mountinfo.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let kind = after.split_ascii_whitespace().next()?;
        (kind == "cgroup2").then(|| before.split_ascii_whitespace().nth(4).map(PathBuf::from))?
    })
}

/// The version 2 line of `/proc/self/cgroup`.
fn own_cgroup(text: &str) -> Option<String> {
    text.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned)
}

fn is_cgroup2(path: &Path) -> bool {
    fs::File::open(path).is_ok_and(|dir| {
        #[allow(clippy::useless_conversion, reason = "the field's type differs between machines")]
        fstatfs(dir.as_fd()).is_ok_and(|stat| i64::from(stat.f_type) == CGROUP2_MAGIC)
    })
}

/// `cpu.weight` for a reservation: proportional, 100 for 1,000 MHz.
#[must_use]
pub fn weight_of_mhz(cpu_mhz: u32) -> u32 {
    (cpu_mhz / MHZ_PER_WEIGHT).clamp(1, CPU_WEIGHT_MAX)
}

/// What a process may use, as far as this node can hold it to that.
#[derive(Clone, Debug, Default)]
pub struct Limits {
    /// MHz reserved; 0 for no share.
    pub cpu_mhz: u32,
    /// Cores that the process has for itself. An empty set: it shares the cores that nobody has.
    pub cores: CoreSet,
    /// Largest memory; 0 for no limit.
    pub memory_bytes: u64,
    /// Most processes and threads together; `None` for no limit.
    pub processes: Option<u32>,
}

/// The cgroup of one process. Removed on drop when nothing is inside.
#[derive(Debug)]
pub struct Leaf {
    path: PathBuf,
}

impl Leaf {
    /// Make a cgroup for a process of `run` below the parent of `status` and set its limits; `None`
    /// where there are no cgroups.
    ///
    /// # Errors
    /// When the directory or a limit cannot be written, or cores cannot be given; nothing is left then.
    pub fn create(status: &CgroupStatus, run: &str, limits: &Limits) -> io::Result<Option<Self>> {
        let own_cores = !limits.cores.is_empty();
        if own_cores && !status.cores.contains_all(&limits.cores) {
            return Err(cores::cores_error(status, &limits.cores));
        }
        let Some(parent) = status.home(own_cores) else {
            return Ok(None);
        };
        let maker = identity::read(std::process::id())?;
        let leaf = Self { path: parent.join(leaf_name(run, &maker)) };
        fs::create_dir(&leaf.path)?;
        let set = || -> io::Result<()> {
            if status.memory && limits.memory_bytes > 0 {
                leaf.write("memory.max", &limits.memory_bytes.to_string())?;
                // One victim is the whole task: half a task is no task. Not on every kernel.
                drop(leaf.write("memory.oom.group", "1"));
                // Without swap accounting the file is missing; the limit then counts memory alone.
                drop(leaf.write("memory.swap.max", "0"));
            }
            if status.cpu && limits.cpu_mhz > 0 {
                leaf.write("cpu.weight", &weight_of_mhz(limits.cpu_mhz).to_string())?;
            }
            if let (true, Some(most)) = (status.pids, limits.processes) {
                leaf.write("pids.max", &most.to_string())?;
            }
            if own_cores {
                leaf.write(cores::CPUS, &limits.cores.to_string())?;
                cores::check_given(&leaf.path, &limits.cores)?;
                cores::share_rest(&parent)?;
            }
            Ok(())
        };
        match set() {
            Ok(()) => Ok(Some(leaf)),
            Err(error) => {
                leaf.remove();
                Err(error)
            }
        }
    }

    /// The cgroup at a path that was recorded earlier; `None` when the path is no cgroup any more.
    #[must_use]
    pub fn open_existing(path: PathBuf) -> Option<Self> {
        (is_cgroup2(&path) && path.join("cgroup.procs").exists()).then_some(Self { path })
    }

    /// Absolute path of the cgroup's directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory, to fork into; see [`open_leaf`].
    ///
    /// # Errors
    /// When it is gone.
    pub fn open(&self) -> io::Result<OwnedFd> {
        open_leaf(&self.path)
    }

    /// Kill everything inside (kernel 5.14 and later; before, this does nothing).
    pub fn kill(&self) {
        drop(self.write("cgroup.kill", "1"));
    }

    /// Was something inside killed for memory?
    #[must_use]
    pub fn saw_oom_kill(&self) -> bool {
        fs::read_to_string(self.path.join("memory.events"))
            .is_ok_and(|text| is_counter_positive(&text, "oom_kill"))
    }

    /// Is something inside?
    #[must_use]
    pub fn is_populated(&self) -> bool {
        fs::read_to_string(self.path.join("cgroup.events"))
            .is_ok_and(|text| is_counter_positive(&text, "populated"))
    }

    /// Remove the directory; `false` while something is inside.
    pub fn remove(&self) -> bool {
        match fs::remove_dir(&self.path) {
            Ok(()) => {
                if let Some(parent) = self.path.parent() {
                    cores::share_freed_cores(parent);
                }
                true
            }
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    }

    fn write(&self, file: &str, text: &str) -> io::Result<()> {
        write(&self.path.join(file), text)
    }
}

/// Write to a file of a cgroup. Not `fs::write`: such a file is never created.
fn write(path: &Path, text: &str) -> io::Result<()> {
    use std::io::Write as _;
    fs::OpenOptions::new().write(true).truncate(true).open(path)?.write_all(text.as_bytes())
}

/// The cgroup of a process that goes on without the agent ([`super::detached_process`]). It is made before
/// the process. When this value is dropped while the process runs, the cgroup stays.
#[derive(Debug)]
pub struct WorkerCgroup {
    leaf: Leaf,
    /// Whether the worker's share of the processor can be set (`cpu.weight`).
    cpu: bool,
    /// The weight that this agent set last; 0: it has set none.
    weight: AtomicU32,
}

impl WorkerCgroup {
    /// Make one with limits; `None` where there are no cgroups.
    pub(super) fn create(
        status: &CgroupStatus,
        name: &str,
        memory_bytes: Option<u64>,
        threads_max: u32,
    ) -> io::Result<Option<Self>> {
        let limits = Limits {
            cpu_mhz: 0,
            cores: CoreSet::new(),
            memory_bytes: memory_bytes.unwrap_or(0),
            processes: Some(threads_max),
        };
        let leaf = Leaf::create(status, name, &limits)?;
        Ok(leaf.map(|leaf| Self::new(leaf, status)))
    }

    const fn new(leaf: Leaf, status: &CgroupStatus) -> Self {
        Self { leaf, cpu: status.cpu, weight: AtomicU32::new(0) }
    }

    /// The cgroup of a process that an earlier agent started. Its name comes from the kernel, and
    /// it is looked for below the parent of all cgroups, so nothing that the process says counts.
    pub(super) fn find_by_pid(status: &CgroupStatus, pid: u32) -> io::Result<Option<Self>> {
        let own = own_cgroup(&fs::read_to_string(format!("/proc/{pid}/cgroup"))?);
        let Some(name) = own.as_deref().map(Path::new).and_then(Path::file_name) else {
            return Ok(None);
        };
        // The cgroups of an agent that could not give cores lie directly below the parent of all.
        let homes = [status.home(false), status.parent.clone()].into_iter().flatten();
        let Some(leaf) = homes.map(|home| home.join(name)).find_map(Leaf::open_existing) else {
            return Ok(None);
        };
        let procs = fs::read_to_string(leaf.path.join("cgroup.procs"))?;
        let inside = procs.lines().any(|line| line.parse() == Ok(pid));
        Ok(inside.then(|| Self::new(leaf, status)))
    }

    /// Set the worker's share of the processor beside native tasks. `cpu_mhz` is what its tasks
    /// reserved together. Does nothing where the controller is not delegated, or where the weight
    /// stays the same in the kernel's unit. Callers take turns.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set_cpu_weight(&self, cpu_mhz: u32) -> io::Result<()> {
        let weight = weight_of_mhz(cpu_mhz);
        if self.cpu && self.weight.load(Ordering::Relaxed) != weight {
            self.leaf.write("cpu.weight", &weight.to_string())?;
            self.weight.store(weight, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Was it ended for its memory?
    #[must_use]
    pub fn saw_oom_kill(&self) -> bool {
        self.leaf.saw_oom_kill()
    }

    /// Remove the cgroup once its process has ended. This waits for the moment that the kernel may
    /// still need; a drop does not.
    pub async fn remove(&self) {
        reap::remove_leaf(&self.leaf).await;
    }

    /// Open `cgroup.procs`, by which a process puts itself into the cgroup.
    pub(super) fn open_procs(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        Ok(rustix::fs::open(self.leaf.path.join("cgroup.procs"), flags, Mode::empty())?)
    }
}

/// Open a cgroup's directory, to fork into it.
///
/// # Errors
/// When it is gone.
pub fn open_leaf(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// Move a process into an open cgroup. Waits for the kernel: see the module.
///
/// # Errors
/// When the kernel refuses.
pub fn move_into(leaf: impl AsFd, pid: Pid) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    let procs = rustix::fs::openat(leaf, "cgroup.procs", flags, Mode::empty())?;
    rustix::io::write(&procs, pid.as_raw_nonzero().to_string().as_bytes())?;
    Ok(())
}

impl Drop for Leaf {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Is the flat-keyed counter `key` above zero?
fn is_counter_positive(text: &str, key: &str) -> bool {
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .any(|(name, value)| name == key && value.trim().parse::<u64>().is_ok_and(|n| n > 0))
}

#[cfg(test)]
mod tests;
