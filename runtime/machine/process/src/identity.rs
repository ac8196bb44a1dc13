//! Identity of a process, so that a pid that was used again is never taken for the task.
//!
//! A pid alone names whatever process has it now. Pid, start time and boot id together name one
//! process for ever. A leftover of a crashed agent is killed only when all three still agree, and
//! through a pidfd. The pidfd is opened first and checked after, so that the check and the signal
//! are about the same process.

use std::fs;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, pidfd_send_signal};

use super::leftovers::{self, Certainty};
use super::{cgroup, supervise};
use ostler_model::causes;
use ostler_model::clock::{self, Stopwatch};
use ostler_model::ids::RunId;
use ostler_model::ports::ProcessIdentity;

/// What [`reap_leftover`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReapOutcome {
    /// The process does not run any more, or its pid belongs to another process now.
    Gone,
    /// The process still ran and was killed, with its process group.
    Killed,
}

/// Id of this boot of the machine.
///
/// # Errors
/// When `/proc` is not readable.
pub fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// Identity of the process that has this pid now, without a cgroup.
///
/// # Errors
/// When there is no such process or `/proc` cannot be read.
pub fn read(pid: u32) -> io::Result<ProcessIdentity> {
    let stat = fs::read(format!("/proc/{pid}/stat"))?;
    let fields = parse_stat(&stat)
        .ok_or_else(|| io::Error::other(format!("/proc/{pid}/stat has an unknown form")))?;
    Ok(ProcessIdentity {
        pid,
        start_ticks: fields.start_ticks,
        boot_id: boot_id()?,
        cgroup: None,
        supervisor: None,
    })
}

/// Whether the process of this identity still runs. A zombie does not.
#[must_use]
pub fn is_alive(identity: &ProcessIdentity) -> bool {
    boot_id().is_ok_and(|boot| boot == identity.boot_id) && is_same_and_running(identity)
}

/// Kill what a crashed agent left behind: the process group of `identity` when the process is
/// still the same one, and its cgroup. Never signals a stranger that has the pid now.
///
/// A supervised process is ended by its supervisor: the supervisor is told to, and this does
/// not wait.
///
/// Other processes of the task are left to [`end_leftover`]. Returns before the killed ones
/// are dead.
///
/// # Errors
/// When the kernel refuses the signal.
pub fn reap_leftover(identity: &ProcessIdentity) -> io::Result<ReapOutcome> {
    if boot_id()? != identity.boot_id {
        return Ok(ReapOutcome::Gone);
    }
    // Its supervisor ends it, with every descendant.
    if let Some(supervisor) = identity.supervisor
        && let Some(pidfd) = open_same(supervisor.pid, supervisor.start_ticks)?
        && !has_ended(&pidfd)
    {
        supervise::send_kill(pidfd.as_fd())?;
        return Ok(ReapOutcome::Killed);
    }
    let killed = kill_same(identity)?;
    let emptied = identity.cgroup.as_deref().is_some_and(kill_cgroup);
    Ok(if killed || emptied { ReapOutcome::Killed } else { ReapOutcome::Gone })
}

/// Pause before killed processes are looked for again.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// Kill what a crashed agent left of a process, and wait until all of it is gone: the process, its
/// supervisor, and the rest of its session.
///
/// # Errors
/// When the kernel refuses, `/proc` cannot be read, or something does not end within `bound`.
pub async fn end_leftover(
    run: RunId,
    identity: ProcessIdentity,
    bound: Duration,
) -> io::Result<()> {
    end_process(Some(run), identity, bound).await
}

/// As [`end_leftover`], for a process whose run is not known.
///
/// # Errors
/// As [`end_leftover`].
pub async fn end_unnamed(identity: ProcessIdentity, bound: Duration) -> io::Result<()> {
    end_process(None, identity, bound).await
}

async fn end_process(
    run: Option<RunId>,
    identity: ProcessIdentity,
    bound: Duration,
) -> io::Result<()> {
    let watch = Stopwatch::start();
    loop {
        let (run, identity) = (run.clone(), identity.clone());
        let ending = tokio::task::spawn_blocking(move || -> io::Result<Option<String>> {
            reap_leftover(&identity)?;
            if is_there(&identity)? {
                return Ok(Some(format!("process {}", identity.pid)));
            }
            let left = match &run {
                Some(run) => leftovers::find_remaining(run, &identity, Certainty::Recorded)?,
                None => leftovers::find_unnamed(&identity)?,
            };
            leftovers::kill_certain(&left);
            Ok(left.iter().find(|left| left.certain).map(|left| format!("process {left}")))
        });
        let left = ending.await.unwrap_or_else(|_| Err(io::ErrorKind::Interrupted.into()))?;
        let Some(left) = left else { return Ok(()) };
        if watch.elapsed() >= bound {
            let text = format!("{left} did not end within {bound:?}");
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
        clock::sleep(LOOK_INTERVAL).await;
    }
}

/// Whether the process or its supervisor runs.
fn is_there(identity: &ProcessIdentity) -> io::Result<bool> {
    if boot_id()? != identity.boot_id {
        return Ok(false);
    }
    let supervisor = identity.supervisor.map(|who| (who.pid, who.start_ticks));
    for (pid, start_ticks) in supervisor.into_iter().chain([(identity.pid, identity.start_ticks)]) {
        let now = stat_of(pid)?;
        if now.is_some_and(|now| now.start_ticks == start_ticks && now.is_alive()) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn kill_same(identity: &ProcessIdentity) -> io::Result<bool> {
    let Some(pid) = i32::try_from(identity.pid).ok().and_then(Pid::from_raw) else {
        return Ok(false);
    };
    let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => pidfd,
        Err(Errno::SRCH | Errno::INVAL) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    if !is_same_and_running(identity) {
        return Ok(false);
    }
    // Frozen first, so that it cannot end, be reaped by its new parent and free its pid between
    // the check and the signal to the group.
    match pidfd_send_signal(&pidfd, Signal::STOP) {
        Ok(()) => {}
        Err(Errno::SRCH) => return Ok(false),
        Err(error) => return Err(error.into()),
    }
    if is_same_and_running(identity) && group_of(identity.pid) == Some(identity.pid) {
        match kill_process_group(pid, Signal::KILL) {
            Ok(()) | Err(Errno::SRCH) => {}
            Err(error) => return Err(error.into()),
        }
    }
    match pidfd_send_signal(&pidfd, Signal::KILL) {
        Ok(()) | Err(Errno::SRCH) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

fn kill_cgroup(path: &Path) -> bool {
    let leaf = cgroup::Leaf::open_existing(path.to_owned());
    leaf.is_some_and(|leaf| {
        let populated = leaf.is_populated();
        leaf.kill();
        leaf.remove();
        populated
    })
}

fn is_same_and_running(identity: &ProcessIdentity) -> bool {
    fs::read(format!("/proc/{}/stat", identity.pid))
        .ok()
        .and_then(|stat| parse_stat(&stat))
        .is_some_and(|now| now.start_ticks == identity.start_ticks && now.is_alive())
}

/// What the kernel says of the process that has this pid now; `None` when there is none.
///
/// # Errors
/// When `/proc` cannot be read.
pub(super) fn stat_of(pid: u32) -> io::Result<Option<Stat>> {
    match fs::read(format!("/proc/{pid}/stat")) {
        Ok(stat) => Ok(parse_stat(&stat)),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether the error is the node's and says nothing about the process: no file descriptor is left,
/// for example.
pub(super) fn is_of_the_node(error: &io::Error) -> bool {
    causes::is_of_the_node(error)
}

fn group_of(pid: u32) -> Option<u32> {
    parse_stat(&fs::read(format!("/proc/{pid}/stat")).ok()?).map(|stat| stat.group)
}

/// Start time of the process that has this pid now.
pub(super) fn start_ticks(pid: u32) -> io::Result<u64> {
    let stat = fs::read(format!("/proc/{pid}/stat"))?;
    let stat = parse_stat(&stat).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
    Ok(stat.start_ticks)
}

/// Parent of the process that has this pid now.
pub(super) fn parent_of(pid: Pid) -> Option<u32> {
    let pid = pid.as_raw_nonzero();
    parse_stat(&fs::read(format!("/proc/{pid}/stat")).ok()?).map(|stat| stat.parent)
}

/// A pidfd of exactly the process with this pid and start time; `None` when it is gone. A zombie is
/// still there. The caller has compared the boot id.
pub(super) fn open_same(pid: u32, start_ticks: u64) -> io::Result<Option<OwnedFd>> {
    let Some(raw) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        return Ok(None);
    };
    let pidfd = match pidfd_open(raw, PidfdFlags::empty()) {
        Ok(pidfd) => pidfd,
        Err(Errno::SRCH | Errno::INVAL) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    // The check comes after the open, so that it is about the process that the pidfd means.
    let stat = match fs::read(format!("/proc/{pid}/stat")) {
        Ok(stat) => stat,
        Err(error) if is_gone(&error) => return Ok(None),
        // The error is the node's: no file descriptor is left, for example.
        Err(error) => return Err(error),
    };
    let same = parse_stat(&stat).is_some_and(|now| now.start_ticks == start_ticks);
    Ok(same.then_some(pidfd))
}

/// Whether the error means that the process of a file in `/proc` is gone.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || error.raw_os_error() == Some(Errno::SRCH.raw_os_error())
}

/// Whether the process of this pidfd has ended, reaped or not.
pub(super) fn has_ended(pidfd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// Fields of `/proc/PID/stat`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Stat {
    pub name: String,
    pub state: u8,
    pub parent: u32,
    pub group: u32,
    pub session: u32,
    pub start_ticks: u64,
}

impl Stat {
    /// Whether the process lives. A zombie does not.
    pub(super) fn is_alive(&self) -> bool {
        !matches!(self.state, b'Z' | b'X')
    }
}

/// Fields 2, 3, 4, 5, 6 and 22 of `/proc/PID/stat`. The name in field 2 may hold spaces and
/// parentheses, so counting starts after the last `)`.
fn parse_stat(stat: &[u8]) -> Option<Stat> {
    let close = stat.iter().rposition(|byte| *byte == b')')?;
    let open = stat.iter().position(|byte| *byte == b'(')?;
    let name = String::from_utf8_lossy(stat.get(open + 1..close)?).into_owned();
    let rest = std::str::from_utf8(stat.get(close + 1..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let state = *fields.next()?.as_bytes().first()?;
    let parent = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    let session = fields.next()?.parse().ok()?;
    let start_ticks = fields.nth(15)?.parse().ok()?;
    Some(Stat { name, state, parent, group, session, start_ticks })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_process_name_full_of_spaces_and_parentheses_does_not_move_the_fields() {
        let stat = b"42 (a) b) (c 7 7) S 1 41 40 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 1 2";
        let expected = Stat {
            name: "a) b) (c 7 7".to_owned(),
            state: b'S',
            parent: 1,
            group: 41,
            session: 40,
            start_ticks: 987_654,
        };
        assert_eq!(parse_stat(stat), Some(expected));
    }

    #[test]
    fn a_stat_cut_short_is_not_an_identity() {
        assert_eq!(parse_stat(b"42 (sh) S 1 41 40"), None);
        assert_eq!(parse_stat(b""), None);
    }

    #[test]
    fn this_process_is_alive_and_another_boot_or_start_is_not() {
        let me = read(std::process::id()).unwrap();
        assert!(is_alive(&me));
        assert!(!is_alive(&ProcessIdentity { boot_id: "other".into(), ..me.clone() }));
        assert!(!is_alive(&ProcessIdentity { start_ticks: me.start_ticks + 1, ..me }));
    }
}
