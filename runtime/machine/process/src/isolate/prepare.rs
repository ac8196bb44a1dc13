//! The agent's side: turns the isolation of a process into the instructions for its shim. Blocks.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid};

use super::names::{self, ReplacementFile};
use super::root::{BindMount, Device, Root};
use super::rules::LandlockRules;
use super::view::{self, OWN, SHARED, TaskDirEntry, VisiblePaths};
use super::{Isolation, IsolationSetup};
use crate::ProcessSpec;
use crate::command::{self, Texts};
use crate::error::ProcessError;
use crate::user::{self, Ids, UserAccount};
use ostler_model::isolation::IsolationKind;
use ostler_model::limits::USER_PROCESSES_MAX;
use ostler_model::task_path::OWN_FILES;

/// Mode of the directories that all tasks of an allocation may write, whichever user they run as.
const WRITABLE_BY_ALL: Mode = Mode::from_raw_mode(0o777);
const SHARED_DIRS: [&str; 2] = ["data", "tmp"];

/// The instructions for the shim, and the program for messages.
pub(in super::super) struct IsolatedProgram {
    pub texts: Texts,
    pub ids: Option<Ids>,
    pub program: PathBuf,
    /// The paths at which the program is looked for, for a message.
    pub looked_for: String,
    pub setup: IsolationSetup,
}

/// Check all that can be wrong before a process exists, and hand the task's directories to its
/// user. `counted`: something else bounds the number of the task's processes.
pub(in super::super) fn prepare(
    spec: &ProcessSpec,
    isolation: &Isolation,
    counted: bool,
) -> Result<IsolatedProgram, ProcessError> {
    let own = |dir: &Path| {
        let real = std::fs::canonicalize(dir);
        real.map_err(|source| ProcessError::system("finding the task's directory", source))
    };
    let (task_dir, alloc_dir) = (own(&isolation.task_dir)?, own(&isolation.alloc_dir)?);
    let account = choose_account(spec, isolation)?;
    let env = account.environment(&spec.env);
    let ids = account.ids.clone();
    if let Some(ids) = &ids {
        hand_over(&task_dir, &alloc_dir, ids)
            .map_err(|source| ProcessError::system("handing the task its directories", source))?;
    }
    let entries = if isolation.has(IsolationKind::Mounts) {
        own_entries(&task_dir, isolation)?
    } else {
        Vec::new()
    };
    let program = if isolation.has(IsolationKind::Mounts) {
        find_programs(spec, isolation, (&task_dir, &entries), &alloc_dir)?
    } else {
        command::check_cwd(&spec.cwd)?;
        vec![command::resolve(&spec.command, &spec.search, &spec.cwd, &spec.env)?]
    };
    let first = program.first().cloned().unwrap_or_default();
    let texts = Texts::new(&first, &spec.command, &spec.args, &env, &spec.cwd)?;
    let looked_for = command::join_paths(&program);
    let candidates: Result<_, _> =
        program.iter().map(|path| CString::new(path.as_os_str().as_bytes())).collect();
    let candidates = candidates.map_err(|_| ProcessError::InvalidText {
        what: "command",
        reason: "contains a NUL byte",
    })?;
    let as_root = match &ids {
        Some(ids) => ids.uid == 0,
        None => rustix::process::geteuid().is_root(),
    };
    // The kernel counts processes by user, or by user in a user namespace. For the agent's own user
    // it would count processes of others, and root is not counted at all.
    let countable = isolation.user_namespace || ids.as_ref().is_some_and(|ids| ids.uid != 0);
    if let (false, false, Some(most)) = (counted, countable, isolation.processes_max) {
        return Err(ProcessError::ProcessesNotBounded { most });
    }
    let most = isolation.processes_max.map_or(USER_PROCESSES_MAX, u64::from);
    let setup = IsolationSetup {
        parts: isolation.parts.clone(),
        user_namespace: isolation.user_namespace,
        // With a capability the process may get where otherwise only root does.
        root: build_root(
            isolation,
            (&task_dir, &entries),
            &alloc_dir,
            as_root || isolation.capabilities != 0,
            &account,
        )?,
        rules: build_rules(isolation, (&task_dir, &entries), &alloc_dir),
        candidates,
        capabilities: isolation.capabilities,
        processes_max: (!counted && countable).then_some(most),
    };
    Ok(IsolatedProgram { texts, ids, program: first, looked_for, setup })
}

/// The account that the task runs as. It is root only where the configuration allows root by name.
fn choose_account(spec: &ProcessSpec, isolation: &Isolation) -> Result<UserAccount, ProcessError> {
    let by_default = isolation.has(IsolationKind::User).then_some(&isolation.user_default);
    let account = user::account_of_task(spec.user.as_deref(), by_default)?;
    let as_root = account.ids.as_ref().is_some_and(|ids| ids.uid == 0);
    if as_root && isolation.has(IsolationKind::User) && !isolation.root_allowed {
        let by_default = || by_default.map(ToString::to_string).unwrap_or_default();
        let user = spec.user.clone().unwrap_or_else(by_default);
        return Err(ProcessError::RootNotPermitted { user });
    }
    Ok(account)
}

/// The paths that the program may have, in the root that the process will see.
fn find_programs(
    spec: &ProcessSpec,
    isolation: &Isolation,
    own: (&Path, &[TaskDirEntry]),
    alloc_dir: &Path,
) -> Result<Vec<PathBuf>, ProcessError> {
    if spec.command.is_empty() {
        return Err(ProcessError::InvalidText { what: "command", reason: "is empty" });
    }
    let shown = VisiblePaths::new(own, alloc_dir, &isolation.mounts, &isolation.base);
    let not_there = |reason: &str| ProcessError::WorkingDirectory {
        path: spec.cwd.clone(),
        reason: reason.to_owned(),
    };
    if !spec.cwd.is_absolute() {
        return Err(not_there("it is not absolute"));
    }
    if shown.is_surely_absent(&spec.cwd) {
        return Err(not_there("the task sees no such directory"));
    }
    let path = command::path_of(&spec.env);
    let candidates = command::candidates(&spec.command, &spec.search, &spec.cwd, path);
    let looked_for = command::join_paths(&candidates);
    let found: Vec<PathBuf> =
        candidates.into_iter().filter(|path| !shown.is_surely_absent(path)).collect();
    for path in found.iter().filter(|path| spec.search.iter().any(|dir| path.starts_with(dir))) {
        shown.make_executable(path);
    }
    if found.is_empty() {
        let command = spec.command.clone();
        return Err(ProcessError::CommandNotFound { command, looked_for });
    }
    Ok(found)
}

/// Entries of the task's directory beside those that every task has.
///
/// # Errors
/// When one of them cannot be shown.
fn own_entries(task_dir: &Path, isolation: &Isolation) -> Result<Vec<TaskDirEntry>, ProcessError> {
    let entries = view::list_entries(task_dir)
        .map_err(|source| ProcessError::system("reading the task's directory", source))?;
    let refused = entries.iter().find_map(|entry| {
        let reason = view::entry_problem(entry, &isolation.base)?;
        Some((entry.path_in_task(), reason))
    });
    let Some((shown, reason)) = refused else { return Ok(entries) };
    let task = shown.display().to_string();
    let host = format!("what a template or an artifact put at {task}");
    Err(ProcessError::Mount { host, task, reason })
}

fn build_root(
    isolation: &Isolation,
    (task_dir, entries): (&Path, &[TaskDirEntry]),
    alloc_dir: &Path,
    as_root: bool,
    account: &UserAccount,
) -> Result<Root, ProcessError> {
    if !isolation.has(IsolationKind::Mounts) {
        return Ok(Root::default());
    }
    let mounts = &isolation.mounts;
    let paths = |host: &str, task: &str| (host.to_owned(), task.to_owned());
    let refused = mounts.iter().find_map(|mount| {
        let nothing = || view::missing_mount_point(mount, &isolation.base);
        let reason = view::mount_problem(mount, mounts).or_else(nothing)?;
        Some((paths(&mount.host_path, &mount.task_path), reason))
    });
    let refused = refused.or_else(|| {
        isolation.device_nodes.iter().find_map(|node| {
            let reason = view::device_problem(&node.task_path, mounts)?;
            Some((paths(&node.host_path, &node.task_path), reason))
        })
    });
    if let Some(((host, task), reason)) = refused {
        return Err(ProcessError::Mount { host, task, reason });
    }
    let place = |from: PathBuf, to: PathBuf, read_only| BindMount {
        from,
        to,
        read_only,
        base: false,
        exec: true,
    };
    // These come before the base, because some of the base is below directories that a task may
    // have too.
    let mut places: Vec<BindMount> = entries
        .iter()
        .filter(|entry| matches!(entry, TaskDirEntry::Directory(_)))
        .map(|entry| place(task_dir.join(entry.name()), entry.path_in_task(), false))
        .collect();
    let links: Vec<_> = entries
        .iter()
        .filter_map(|entry| link_target(entry).zip(Some(entry.path_in_task())))
        .collect();
    if !links.is_empty() {
        places.push(place(task_dir.to_owned(), OWN_FILES.into(), false));
    }
    places.extend(
        isolation
            .base
            .iter()
            .map(|path| BindMount { base: true, ..place(path.clone(), path.clone(), true) }),
    );
    for (shown, name) in OWN {
        places.push(place(task_dir.join(name), shown.into(), false));
    }
    // Only the agent writes the logs of tasks, and the names in the directory are the allocation's.
    places.push(place(alloc_dir.to_owned(), SHARED.into(), true));
    for name in SHARED_DIRS {
        places.push(place(alloc_dir.join(name), Path::new(SHARED).join(name), false));
    }
    let mut mounts: Vec<_> = isolation.mounts.iter().collect();
    mounts.sort_by_key(|mount| &mount.task_path);
    places.extend(
        mounts.iter().map(|m| place((&m.host_path).into(), (&m.task_path).into(), m.read_only)),
    );
    let devices = isolation.device_nodes.iter().map(|device| Device {
        from: (&device.host_path).into(),
        to: (&device.task_path).into(),
        read: device.permissions.contains('r'),
        write: device.permissions.contains('w'),
    });
    Ok(Root {
        places,
        links,
        devices: devices.collect(),
        instead: account.unknown_id().map_or_else(Vec::new, |id| user_lists_for(id, isolation)),
        hidden: isolation.hidden.clone(),
        proc: isolation.has(IsolationKind::Pids),
        as_root,
    })
}

/// The lists of users with a name for an id of an allocation, without those that a job
/// mounts itself.
fn user_lists_for(id: u32, isolation: &Isolation) -> Vec<ReplacementFile> {
    let mounted = |path: &Path| isolation.mounts.iter().any(|m| path.starts_with(&m.task_path));
    names::lists_with_user(id).into_iter().filter(|file| !mounted(&file.path)).collect()
}

/// Target of the link that stands in the root for an entry of the task's directory; `None` for a
/// directory, which is mounted.
fn link_target(entry: &TaskDirEntry) -> Option<PathBuf> {
    match entry {
        TaskDirEntry::Directory(_) => None,
        TaskDirEntry::File(name) => Some(Path::new(OWN_FILES).join(name)),
        TaskDirEntry::Link(_, goal) => Some(goal.clone()),
    }
}

fn build_rules(
    isolation: &Isolation,
    (task_dir, entries): (&Path, &[TaskDirEntry]),
    alloc_dir: &Path,
) -> LandlockRules {
    if isolation.has(IsolationKind::Mounts) {
        // The root itself restricts more. These rules hold also for what is mounted in it later.
        let own = OWN.iter().map(|(shown, _)| PathBuf::from(shown));
        let entries = entries.iter().map(TaskDirEntry::path_in_task).chain([OWN_FILES.into()]);
        let own = own.chain(entries);
        let shared = SHARED_DIRS.map(|name| Path::new(SHARED).join(name));
        let kernel = ["/proc", "/dev"].map(PathBuf::from).into_iter().chain(shared);
        let mounts = isolation.mounts.iter().filter(|mount| !mount.read_only);
        let mounts = mounts.map(|mount| PathBuf::from(&mount.task_path));
        let devices = isolation.device_nodes.iter().map(|device| (&device.task_path).into());
        let write = own.chain(kernel).chain(mounts).chain(devices).collect();
        return LandlockRules {
            read: vec!["/".into()],
            write,
            except: Vec::new(),
            scoped: true,
            data_only: false,
        };
    }
    let (mut read, mut write) = (isolation.base.clone(), Vec::new());
    read.extend([alloc_dir.to_owned(), task_dir.to_owned(), "/proc".into()]);
    write.extend(OWN.iter().map(|(_, name)| task_dir.join(name)));
    write.extend(SHARED_DIRS.map(|name| alloc_dir.join(name)));
    for device in ["null", "zero", "full", "random", "urandom", "tty", "shm"] {
        write.push(Path::new("/dev").join(device));
    }
    for mount in &isolation.mounts {
        let list = if mount.read_only { &mut read } else { &mut write };
        list.push((&mount.host_path).into());
    }
    write.extend(isolation.device_nodes.iter().map(|device| PathBuf::from(&device.host_path)));
    LandlockRules { read, write, except: isolation.hidden.clone(), scoped: true, data_only: false }
}

/// Let the task's user write where the task may. Links that a task put there are not followed.
fn hand_over(task_dir: &Path, alloc_dir: &Path, ids: &Ids) -> Result<(), rustix::io::Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let task = rustix::fs::open(task_dir, flags, Mode::empty())?;
    let (uid, gid) = (Uid::from_raw(ids.uid), Gid::from_raw(ids.gid));
    for (_, name) in OWN {
        let owned = rustix::fs::statat(&task, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if (owned.st_uid, owned.st_gid) != (ids.uid, ids.gid) {
            let dir = rustix::fs::openat(&task, name, flags, Mode::empty())?;
            rustix::fs::fchown(&dir, Some(uid), Some(gid))?;
        }
    }
    let shared = rustix::fs::open(alloc_dir, flags, Mode::empty())?;
    for name in SHARED_DIRS {
        let dir = rustix::fs::openat(&shared, name, flags, Mode::empty())?;
        rustix::fs::fchmod(&dir, WRITABLE_BY_ALL)?;
    }
    Ok(())
}
