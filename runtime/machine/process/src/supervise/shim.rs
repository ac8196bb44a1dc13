//! The shim: supervisor of one task, from the held child to the exit record.
//!
//! ```text
//! order ─► fork, held ─► answer ─► Held ── go ──► Released ── task ends ──► Draining ─► Killing
//!                                   │ agent gone: kill                  (≤ DRAIN_GRACE)    │
//!                                   │ given up: kill, no record                            ▼
//!                                   └─────────────────────────────────► record ◄── last output
//!                            the disk refuses it: kept, tried again ◄──────┘
//! ```
//! The shim is one loop over signals and pipes, and every wait in it also pumps the output. The
//! ended task stays a zombie until all its descendants were killed, so that its group id is not
//! used again.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process, kill_process_group, pidfd_send_signal};

use super::children::{ChildExit, children, find_ended_child, reap};
use super::output::{OutputPump, make_pumps};
use super::record::{self, ExitRecord, Room};
use super::{GIVE_UP, GO, SIGNAL, ShimAnswer, ShimOrder, ShimStep, read_memory_file, zygote};
use crate::cgroup::{Leaf, open_leaf};
use crate::child::{self, ChildPlan};
use crate::isolate::empty::EmptyMounts;
use crate::isolate::enter::{self, Init};
use crate::{DRAIN_GRACE, LAST_OUTPUT_WAIT, identity};
use ostler_model::clock::Stopwatch;
use ostler_model::limits::EXIT_KEPT_WALL_MAX;

/// How long descendants of other users, which may not be signalled, may take to end before the
/// record says that they did not.
const KILL_WAIT_MAX: Duration = Duration::from_secs(5);
/// Pause between looks at dying descendants, and between attempts to remove a cgroup.
const KILL_INTERVAL: Duration = Duration::from_millis(5);
/// Pause between looks at descendants that take long: one in uninterruptible sleep ends when its
/// disk answers.
const KILL_INTERVAL_LATER: Duration = Duration::from_secs(1);
/// Shortest and longest pause before a record that the disk refused is written again.
const KEEP_PAUSE: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(250)..=Duration::from_secs(10);
/// How long a shim has its task before it gives back the memory that only the start needed.
const TRIM_AFTER: Duration = Duration::from_secs(1);
/// How long the shim tries to remove the cgroup.
const REMOVE_WAIT_MAX: Duration = Duration::from_secs(1);

/// Descriptors of an order.
pub(super) struct ShimFds {
    order: OwnedFd,
    go: OwnedFd,
    status: OwnedFd,
    pub answer: OwnedFd,
    records: OwnedFd,
    dirs: Vec<OwnedFd>,
}

impl ShimFds {
    /// Sort the descriptors of a message into their fields; `None` when they are too few.
    pub(super) fn new(fds: Vec<OwnedFd>) -> Option<Self> {
        let mut fds = fds.into_iter();
        Some(Self {
            order: fds.next()?,
            go: fds.next()?,
            status: fds.next()?,
            answer: fds.next()?,
            records: fds.next()?,
            dirs: fds.collect(),
        })
    }
}

/// Be the supervisor of one task, in a process of its own. `empty`: what the mounts of an isolated task
/// begin with.
pub(super) fn run(received: ShimFds, empty: Option<EmptyMounts>) {
    let ShimFds { order, go, status, answer, records, dirs } = received;
    let begun = start_shim(order, go, status, dirs, empty);
    match begun {
        Err((step, error)) => {
            let errno = error.raw_os_error().unwrap_or(libc::EIO);
            ShimAnswer::Failed { step, errno }.send(answer.as_fd());
        }
        Ok(mut shim) => {
            let held = ShimAnswer::Held { shim: shim.own, task: (shim.pid(), shim.task_ticks) };
            held.send(answer.as_fd());
            drop(answer);
            // Done while the agent makes the identity durable.
            let name = record::name(&shim.run, shim.pid(), shim.task_ticks);
            let mut room = Room::keep(records, name);
            let record = shim.run_to_end();
            if shim.given_up {
                room.give_up();
            } else {
                shim.leave_record(&mut room, &record);
            }
            shim.remove_cgroup();
        }
    }
}

struct Shim {
    run: String,
    /// Kept open for agents that run a command inside the task.
    _order: OwnedFd,
    own: (u32, u64),
    task: Pid,
    task_fd: OwnedFd,
    task_ticks: u64,
    /// The init of the task's pid namespace, where it has one.
    init: Option<Init>,
    cgroup: Option<PathBuf>,
    leaf: Option<Leaf>,
    signals: OwnedFd,
    /// The go pipes from the agent and to the child, while the child is held.
    go: Option<(OwnedFd, OwnedFd)>,
    streams: [OutputPump; 2],
    released: bool,
    given_up: bool,
    with_agent: bool,
    /// The shim was told to kill the task, and waits for no output any more.
    killing: bool,
    ended: Option<ChildExit>,
    /// The task was reaped, so its pid may name another process.
    reaped: bool,
    /// The task was reaped early, while the rest of its pid namespace ends.
    freed: bool,
    /// The shim was told to end after the task was reaped.
    dismissed: bool,
}

type ShimError = (ShimStep, io::Error);

/// Set this process up and fork the task, held.
fn start_shim(
    order: OwnedFd,
    go: OwnedFd,
    status: OwnedFd,
    dirs: Vec<OwnedFd>,
    empty: Option<EmptyMounts>,
) -> Result<Shim, ShimError> {
    let at = |step| move |error: io::Error| (step, error);
    own_session(c"ostler-shim").map_err(at(ShimStep::Session))?;
    let told = [libc::SIGCHLD, SIGNAL, libc::SIGHUP];
    let signals = signals(&told).map_err(at(ShimStep::Signals))?;
    let read = read_memory_file(&order).map_err(at(ShimStep::Order))?;
    let ShimOrder { run, texts, ids, cgroup, streams, setup, network, with_agent } = read;
    if let Some(network) = &network {
        // All later children are in the network too.
        network.enter().map_err(at(ShimStep::Network))?;
    }
    if with_agent {
        end_with_zygote().map_err(at(ShimStep::Session))?;
    }

    let pipe = || child::pipe().map_err(at(ShimStep::Pipes));
    let ((stdout_read, stdout), (stderr_read, stderr)) = (pipe()?, pipe()?);
    let (go_child, go_task) = pipe()?;
    if let (Some(ids), Some(_)) = (&ids, &setup) {
        // Otherwise its program could not open them by their names in /dev.
        [&stdout, &stderr]
            .into_iter()
            .try_for_each(|end| ids.chown_file(end))
            .map_err(at(ShimStep::Pipes))?;
    }
    let stdin = child::dev_null().map_err(at(ShimStep::Pipes))?;
    for end in [&stdout_read, &stderr_read] {
        rustix::io::ioctl_fionbio(end, true).map_err(|errno| (ShimStep::Pipes, errno.into()))?;
    }
    // The task never runs without its supervisor.
    let kill_with_agent = true;
    let inside = cgroup.as_deref().map(open_leaf).transpose().map_err(at(ShimStep::Cgroup))?;
    let plan = ChildPlan {
        texts,
        ids,
        cgroup: inside,
        kill_with_agent,
        stdin,
        stdout,
        stderr,
        go: go_child,
        status,
    };
    let (forked, init) = match &setup {
        None => (child::fork(&plan).map_err(at(ShimStep::ForkTask))?, None),
        Some(setup) => enter::fork(&plan, setup, empty.as_ref()).map_err(at(ShimStep::Isolate))?,
    };
    drop((plan, empty));
    let streams = make_pumps([stdout_read, stderr_read], streams, dirs);
    let own = std::process::id();
    let pid = forked.pid().map_or(0, |pid| pid.as_raw_nonzero().get().unsigned_abs());
    let ticks = |pid| identity::start_ticks(pid).map_err(at(ShimStep::Identity));
    let (own, task_ticks) = ((own, ticks(own)?), ticks(pid)?);
    let (task, task_fd) =
        forked.into_parts().ok_or_else(|| (ShimStep::Identity, io::ErrorKind::NotFound.into()))?;
    Ok(Shim {
        run,
        _order: order,
        own,
        task,
        task_fd,
        task_ticks,
        init,
        cgroup,
        leaf: None,
        signals,
        go: Some((go, go_task)),
        streams,
        released: false,
        given_up: false,
        with_agent,
        killing: false,
        ended: None,
        reaped: false,
        freed: false,
        dismissed: false,
    })
}

/// Ask for a signal when the zygote ends, and with it the agent. [`Shim::take_signals`] then kills
/// the task.
fn end_with_zygote() -> io::Result<()> {
    let zygote = rustix::process::getppid();
    rustix::process::set_parent_process_death_signal(Some(Signal::HUP))?;
    // The zygote may have ended before that.
    if rustix::process::getppid() != zygote || zygote.is_none() {
        return Err(Errno::SRCH.into());
    }
    Ok(())
}

/// Leave the zygote's session, adopt every orphan among the descendants, and take a name of
/// its own.
pub(super) fn own_session(name: &std::ffi::CStr) -> io::Result<()> {
    rustix::process::setsid()?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    rustix::thread::set_name(name)?;
    zygote::set_child_action(libc::SIG_DFL);
    Ok(())
}

/// A descriptor to poll for these signals, which are blocked already.
pub(super) fn signals(which: &[libc::c_int]) -> io::Result<OwnedFd> {
    use std::os::fd::FromRawFd as _;
    // SAFETY: the set is initialised before it is read; the descriptor is new and nobody else's.
    unsafe {
        let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
        libc::sigemptyset(set.as_mut_ptr());
        for signal in which {
            libc::sigaddset(set.as_mut_ptr(), *signal);
        }
        match libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

impl Shim {
    fn pid(&self) -> u32 {
        self.task.as_raw_nonzero().get().unsigned_abs()
    }

    /// Attend the task until it and all its descendants have ended. Returns its record.
    fn run_to_end(&mut self) -> ExitRecord {
        let ended = self.wait_task_end();
        self.pump_for(DRAIN_GRACE, |shim| shim.killing);
        let survivors = self.kill_everything();
        self.pump_for(LAST_OUTPUT_WAIT, |_| false);
        let oom_killed = self.leaf().is_some_and(Leaf::saw_oom_kill);
        // From here on the pid may name another process.
        self.reaped = true;
        reap(self.task);
        ExitRecord {
            released: self.released,
            exit_code: ended.exit_code,
            signal: ended.signal,
            oom_killed,
            finished_at: ended.at.nanos(),
            dropped_bytes: self.streams.iter().map(OutputPump::dropped_bytes).sum(),
            survivors,
            ..ExitRecord::new(self.run.clone())
        }
    }

    /// Attend the task until it has ended. A task that is there for a while may be there for years: then
    /// what the start needed of memory is given back.
    fn wait_task_end(&mut self) -> ChildExit {
        let (since, mut trimmed) = (Stopwatch::start(), false);
        loop {
            if let Some(ended) = self.ended {
                return ended;
            }
            let left = (!trimmed).then(|| TRIM_AFTER.saturating_sub(since.elapsed()));
            if left == Some(Duration::ZERO) {
                let _given_back = crate::memory::trim();
                trimmed = true;
            } else {
                self.poll_once(left);
            }
        }
    }

    /// Pump until both pipes are closed, `enough` says so, or time is over.
    fn pump_for(&mut self, wait: Duration, enough: impl Fn(&Self) -> bool) {
        let watch = Stopwatch::start();
        while self.streams.iter().any(|stream| stream.pipe.is_some()) && !enough(self) {
            let Some(left) = wait.checked_sub(watch.elapsed()).filter(|left| !left.is_zero())
            else {
                return;
            };
            self.poll_once(Some(left));
        }
    }

    /// Wait for something to do, and do it.
    fn poll_once(&mut self, wait: Option<Duration>) {
        let [out, err] =
            self.streams.each_ref().map(|stream| stream.pipe.as_ref().map(AsFd::as_fd));
        let go = self.go.as_ref().map(|(go, _)| go.as_fd());
        let fds = [Some(self.signals.as_fd()), out, err, go];
        let asked = fds.iter().flatten().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN));
        let mut asked: Vec<_> = asked.collect();
        let wait = wait.and_then(|wait| Timespec::try_from(wait).ok());
        let told = poll(&mut asked, wait.as_ref()).is_ok();
        // If the poll failed, all descriptors are read: none of them blocks but `go`.
        let mut ready = asked.iter().map(|fd| !told || !fd.revents().is_empty());
        let [signals, out, err, go] = fds.map(|fd| fd.is_some() && ready.next() == Some(true));
        drop(asked);
        if signals {
            self.take_signals();
        }
        for (stream, ready) in self.streams.iter_mut().zip([out, err]) {
            if ready {
                stream.pump();
            }
        }
        if go && told {
            self.take_go();
        }
    }

    fn take_go(&mut self) {
        let Some((agent, task)) = self.go.take() else { return };
        let mut byte = [0; 1];
        match rustix::io::read(&agent, &mut byte) {
            Ok(1) if byte == [GO] => {
                self.released = rustix::io::write(&task, &[GO]).is_ok();
            }
            Err(Errno::INTR | Errno::AGAIN) => self.go = Some((agent, task)),
            got => {
                self.given_up = matches!(got, Ok(1)) && byte == [GIVE_UP];
                self.signal(Signal::KILL);
            }
        }
    }

    fn take_signals(&mut self) {
        const SIZE: usize = size_of::<libc::signalfd_siginfo>();
        loop {
            let mut info = MaybeUninit::<libc::signalfd_siginfo>::zeroed();
            // SAFETY: the pointer and the length are those of a live local.
            let got =
                unsafe { libc::read(self.signals.as_raw_fd(), info.as_mut_ptr().cast(), SIZE) };
            if usize::try_from(got) != Ok(SIZE) {
                return;
            }
            // SAFETY: the kernel has filled all of it.
            let info = unsafe { info.assume_init() };
            if i32::try_from(info.ssi_signo) == Ok(SIGNAL) {
                // Only this user and root may send it. A signal of another form is not from an
                // agent.
                if info.ssi_code == libc::SI_QUEUE
                    && let Some(signal) = Signal::from_named_raw(info.ssi_int)
                {
                    self.signal(signal);
                }
            } else if i32::try_from(info.ssi_signo) == Ok(libc::SIGHUP) {
                self.handle_zygote_end();
            } else {
                self.handle_ended_children();
            }
        }
    }

    /// Kill the task if it is to end with its agent.
    fn handle_zygote_end(&mut self) {
        if self.with_agent {
            self.signal(Signal::KILL);
        }
    }

    /// Signal the task's group. The task was not reaped, so the group is still its own.
    fn signal(&mut self, signal: Signal) {
        if self.reaped {
            self.dismissed |= signal == Signal::KILL;
            return;
        }
        self.killing |= signal == Signal::KILL;
        if self.freed {
            return;
        }
        if let Err(Errno::SRCH) = kill_process_group(self.task, signal) {
            // A child that has not made its group yet is alone.
            let _gone = pidfd_send_signal(&self.task_fd, signal);
        }
        if self.killing
            && let Some(leaf) = self.leaf()
        {
            leaf.kill();
        }
    }

    /// Note whether the task has ended, and reap other children that have.
    fn handle_ended_children(&mut self) {
        while let Some((pid, ended)) = find_ended_child() {
            if pid != self.task {
                reap(pid);
                continue;
            }
            self.ended.get_or_insert(ended);
            // The task stays a zombie and hides the others, which are reaped at the end.
            return;
        }
    }

    /// Kill the group, the cgroup and every descendant until none is left. Returns how many stay
    /// because they may not be signalled. Others that do not end are waited for: the task is not
    /// over before.
    fn kill_everything(&mut self) -> u32 {
        self.signal(Signal::KILL);
        if let Some(init) = self.init.take() {
            // The namespace ends once all its processes are reaped, and this process has to reap
            // the task.
            init.kill();
            self.freed = true;
            reap(self.task);
        }
        let watch = Stopwatch::start();
        loop {
            // This process adopts the children of those that were killed, so the look is repeated.
            let others: Vec<Pid> =
                children().into_iter().filter(|child| *child != self.task).collect();
            if others.is_empty() {
                return 0;
            }
            let mut refused = 0;
            for child in &others {
                // The child is not reaped, so its pid is its own.
                refused += usize::from(kill_process(*child, Signal::KILL) == Err(Errno::PERM));
                reap(*child);
            }
            let late = watch.elapsed() > KILL_WAIT_MAX;
            if late && refused == others.len() {
                return u32::try_from(refused).unwrap_or(u32::MAX);
            }
            self.poll_once(Some(if late { KILL_INTERVAL_LATER } else { KILL_INTERVAL }));
        }
    }

    /// Put the record where agents find it. While the disk refuses the record, it is kept in memory
    /// for an agent to read. This ends when the record is written, when an agent confirms that it
    /// has read it, when the directory of the records is removed, or after
    /// [`EXIT_KEPT_WALL_MAX`].
    fn leave_record(&mut self, room: &mut Room, record: &ExitRecord) {
        if room.fill(record).is_ok() {
            return;
        }
        // Without the memory file, the record is still tried again.
        let _kept = record::to_memory_file(record);
        let (watch, mut pause) = (Stopwatch::start(), *KEEP_PAUSE.start());
        while !self.dismissed && watch.elapsed() < EXIT_KEPT_WALL_MAX && !room.is_removed() {
            self.poll_once(Some(pause));
            if room.fill(record).is_ok() {
                return;
            }
            pause = pause.saturating_mul(2).min(*KEEP_PAUSE.end());
        }
        room.give_up();
    }

    /// The task's cgroup, if the agent made one and it still exists.
    fn leaf(&mut self) -> Option<&Leaf> {
        if self.leaf.is_none() {
            self.leaf = self.cgroup.clone().and_then(Leaf::open_existing);
        }
        self.leaf.as_ref()
    }

    fn remove_cgroup(&mut self) {
        let _opened = self.leaf();
        let Some(leaf) = self.leaf.take() else { return };
        let watch = Stopwatch::start();
        while !leaf.remove() && watch.elapsed() < REMOVE_WAIT_MAX {
            leaf.kill();
            self.poll_once(Some(KILL_INTERVAL));
        }
    }
}
