//! What outlives an agent: time, processes, devices, records.
//!
//! ```text
//!   process: held ── release ─► runs ── ends at a time that is known, or when it is asked to
//!              └── agent dies ─► never ran        WASM task: ends with its worker too
//!   note of a run: outlives agent and worker, not a power cut
//!   power cut: every process is gone, without an exit; devices hold nothing; another boot
//! ```
//! Nothing here runs by itself: whether a process has ended is a question of the time. Whatever an agent
//! does to the world goes through a door, and at a door it may be killed: from then on all are shut.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ostler_model::clock::Stopwatch;
use ostler_model::ids::{AllocId, JobId, RunId, TaskName};
use ostler_model::ports::{PluginCallError, RunNote};
use ostler_model::rng::Rng;
use ostler_model::task::RawExit;
use ostler_model::time::Timestamp;
use ostler_state::StateStore;
use tokio::sync::watch;

use crate::places::Places;
use crate::plan::{Disk, Ending, Mode, Script};

/// Time of day when the world begins: some day, in nanoseconds.
const BEGIN: u64 = 1_700_000_000_000_000_000;
/// The task that prepares for the other one of its allocation.
pub(crate) const PREPARES: &str = "prepares";
/// No node comes near so many doors in one history: thirty times what most pass. One that does goes round
/// in circles, perhaps without end.
pub(crate) const DOORS_MAX: u64 = 10_000;
/// Lines of the journal that are kept.
const JOURNAL_MAX: usize = 20_000;

/// A run of a task.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) alloc: AllocId,
    pub(crate) task: TaskName,
    /// The place of a job that it has, once it is let go; none of what may run beside others.
    pub(crate) place: Option<(JobId, u32)>,
    /// Instances that it was given.
    pub(crate) devices: Vec<String>,
    pub(crate) script: Script,
    /// In which it was started.
    pub(crate) boot: u64,
    /// It went down with its machine or worker: nothing says how.
    pub(crate) lost: bool,
    /// Forked, and not yet let go.
    pub(crate) held: bool,
    /// Its program was let go, and may have had effects.
    pub(crate) ran: bool,
    pub(crate) ends_at: Option<Duration>,
    /// Somebody wants it to end.
    pub(crate) asked: bool,
    pub(crate) exit: Option<RawExit>,
    pub(crate) changed: watch::Sender<u64>,
}

impl Run {
    pub(crate) fn lives(&self) -> bool {
        self.exit.is_none()
    }
}

/// An instance of the one device group, as its plugin sees it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Instance {
    pub(crate) unhealthy: bool,
    /// It was reserved, and not released since.
    pub(crate) reserved: bool,
    /// The plugin refused its release: that is given up after some minutes.
    pub(crate) refused: bool,
    /// Since when its plugin knows that: what it remembers is gone with the boot.
    pub(crate) reserved_in: u64,
}

pub(crate) struct Inner {
    /// Time that passed before this agent.
    before: Duration,
    since: Option<Stopwatch>,
    /// How far the time of day was moved, and how far it was when this agent began.
    pub(crate) jumped: i64,
    anchored: i64,
    /// What agents took for time that passed, because the clock was set forward before they began.
    forward: Duration,
    pub(crate) rng: Rng,
    pub(crate) runs: BTreeMap<RunId, Run>,
    /// What is kept of runs beside their exits.
    pub(crate) notes: BTreeMap<RunId, RunNote>,
    /// When runs of a task ended by themselves: each uses up an attempt.
    pub(crate) ended: BTreeMap<(AllocId, TaskName), Vec<Duration>>,
    /// What is over in which place of a job.
    pub(crate) places: Places,
    pub(crate) instances: BTreeMap<String, Instance>,
    pub(crate) driver: Mode,
    pub(crate) device: Mode,
    pub(crate) disk: Disk,
    /// When the last of their faults ended; none: not all of them do as they should.
    pub(crate) well_since: Option<Duration>,
    /// Starts of the machine, and in which of them what an allocation needs was prepared last.
    pub(crate) boot: u64,
    pub(crate) prepared: BTreeMap<AllocId, u64>,
    /// Doors passed, and at which one the agent is killed.
    pub(crate) doors: u64,
    pub(crate) kill_at: Option<u64>,
    /// Who passes more goes round in circles.
    pub(crate) doors_max: u64,
    /// The machine goes down then, and not only the agent.
    pub(crate) power: bool,
    pub(crate) dead: bool,
    pub(crate) life: u32,
    pub(crate) settled: bool,
    pub(crate) store: Option<StateStore>,
    pub(crate) journal: Vec<String>,
    /// What happens is written there.
    pub(crate) journaled: bool,
    pub(crate) broken: Option<String>,
}

/// The world. Clones are the same one.
#[derive(Clone)]
pub struct World {
    inner: Arc<Mutex<Inner>>,
    pub(crate) killed: Arc<watch::Sender<bool>>,
}

impl World {
    /// A world in which nothing has happened. Everything random in it comes from `seed`.
    #[must_use]
    pub fn new(seed: u64, instances: &[&str]) -> Self {
        let instances = instances.iter().map(|id| ((*id).to_owned(), Instance::default()));
        Self {
            inner: Arc::new(Mutex::new(Inner {
                before: Duration::ZERO,
                since: None,
                jumped: 0,
                anchored: 0,
                forward: Duration::ZERO,
                rng: Rng::from_seed(seed),
                runs: BTreeMap::new(),
                notes: BTreeMap::new(),
                ended: BTreeMap::new(),
                places: Places::default(),
                instances: instances.collect(),
                driver: Mode::Works,
                device: Mode::Works,
                disk: Disk::Works,
                well_since: Some(Duration::ZERO),
                boot: 1,
                prepared: BTreeMap::new(),
                doors: 0,
                kill_at: None,
                doors_max: u64::MAX,
                power: false,
                dead: false,
                life: 0,
                settled: false,
                store: None,
                journal: Vec::new(),
                journaled: true,
                broken: None,
            })),
            killed: Arc::new(watch::Sender::new(false)),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Time since the world began.
    #[must_use]
    pub fn time(&self) -> Duration {
        self.lock().time()
    }

    /// What the clock of the agent says: the time of day, which may jump, and what passed since it began.
    #[must_use]
    pub fn clock(&self) -> Timestamp {
        let inner = self.lock();
        let nanos = u64::try_from(inner.time().as_nanos()).unwrap_or(u64::MAX);
        let read = |moved: i64| BEGIN.saturating_add(nanos).saturating_add_signed(moved);
        Timestamp::from_readings(read(inner.jumped), read(inner.anchored))
    }

    /// Write down what happens.
    pub fn note(&self, what: &str) {
        let mut inner = self.lock();
        inner.note(what);
    }

    /// Everything that happened.
    #[must_use]
    pub fn journal(&self) -> Vec<String> {
        self.lock().journal.clone()
    }

    /// What the world saw that must not be; none: nothing.
    #[must_use]
    pub fn broken(&self) -> Option<String> {
        self.lock().broken.clone()
    }

    /// A door: the agent may be killed here. `false`: it is dead, and nothing of it gets through.
    pub(crate) fn door(&self, what: &str) -> bool {
        let mut inner = self.lock();
        if inner.dead {
            return false;
        }
        inner.doors = inner.doors.saturating_add(1);
        inner.note(what);
        let circles = inner.doors > inner.doors_max;
        if circles {
            let most = inner.doors_max;
            inner.break_with(format!("the node goes round in circles: it passed {most} doors"));
        }
        if circles || inner.kill_at == Some(inner.doors) {
            inner.dead = true;
            inner.note("the agent is killed here");
            drop(inner);
            self.killed.send_replace(true);
            return false;
        }
        true
    }

    /// A door for what is waited for: who is dead waits for ever.
    pub(crate) async fn pass(&self, what: &str) {
        if !self.door(what) {
            std::future::pending::<()>().await;
        }
    }

    /// An agent begins, to be killed at a door, counted from now.
    pub(crate) fn begin_life(&self, kill_after: Option<u64>) {
        let mut inner = self.lock();
        inner.since = Some(Stopwatch::start());
        inner.read_clock();
        inner.life = inner.life.saturating_add(1);
        (inner.dead, inner.power) = (false, false);
        inner.kill_at = kill_after.map(|doors| inner.doors.saturating_add(doors).saturating_add(1));
        let life = inner.life;
        inner.note(&format!("agent {life} begins"));
        drop(inner);
        self.killed.send_replace(false);
    }

    /// The time of this agent's runtime is over.
    pub(crate) fn stop_clock(&self) {
        let mut inner = self.lock();
        (inner.before, inner.since) = (inner.time(), None);
    }

    /// The agent is gone for a while. `killed`: without having left.
    pub(crate) fn end_life(&self, killed: bool, gone: Duration) {
        let mut inner = self.lock();
        inner.dead = true;
        let time = inner.time();
        inner.store = None;
        let cut = killed && inner.power;
        inner.note(match (cut, killed) {
            (true, _) => "agent gone: no power",
            (_, true) => "agent gone: killed",
            _ => "agent gone: left",
        });
        if cut {
            inner.lose_power();
        }
        // The worker of WASM tasks may go down too, and with it how those ended that nobody asked for.
        let worker_ends = killed && inner.rng.number_below(3) == 0;
        for run in inner.runs.values_mut() {
            let with_worker = worker_ends && run.script.wasm;
            run.lost |= with_worker;
            // What was started and held ends with its agent.
            if run.lives() && (run.held || with_worker) {
                run.ends_at = Some(time);
                run.exit = Some(RawExit { signal: Some(9), ..RawExit::default() });
            }
        }
        inner.before = inner.before.saturating_add(gone);
        inner.end_due();
    }

    /// Runs that live.
    #[must_use]
    pub fn live(&self) -> Vec<(AllocId, TaskName)> {
        let mut inner = self.lock();
        inner.end_due();
        let live = inner.runs.values().filter(|run| run.lives());
        live.map(|run| (run.alloc, run.task.clone())).collect()
    }

    /// Instances that are reserved, by what their plugin was told.
    #[must_use]
    pub fn reserved(&self) -> BTreeSet<String> {
        let inner = self.lock();
        let reserved = inner.instances.iter().filter(|(_, one)| one.reserved && !one.refused);
        reserved.map(|(id, _)| id.clone()).collect()
    }

    /// How a call goes: `None`, it works.
    pub(crate) async fn fault(&self, mode: impl Fn(&Inner) -> Mode) -> Result<(), PluginCallError> {
        let mode = mode(&self.lock());
        match mode {
            Mode::Works => Ok(()),
            Mode::Fails => Err(PluginCallError::Recoverable("the plugin fails".to_owned())),
            Mode::Lies => Err(PluginCallError::NotFound("the plugin says so".to_owned())),
            Mode::Hangs => std::future::pending().await,
        }
    }
}

impl Inner {
    pub(crate) fn time(&self) -> Duration {
        let life = self.since.map(|since| since.elapsed()).unwrap_or_default();
        self.before.saturating_add(life)
    }

    /// An agent begins with the time of day.
    fn read_clock(&mut self) {
        let step = self.jumped.saturating_sub(self.anchored);
        let forward = Duration::from_nanos(u64::try_from(step).unwrap_or(0));
        self.forward = self.forward.saturating_add(forward);
        self.anchored = self.jumped;
    }

    /// Time that passed as agents see it.
    fn seen(&self, at: Duration) -> Duration {
        at.saturating_add(self.forward)
    }

    pub(crate) fn note(&mut self, what: &str) {
        if self.journaled && self.journal.len() < JOURNAL_MAX {
            let line = format!("{:>10.3} {what}", self.time().as_secs_f64());
            self.journal.push(line);
        }
    }

    /// Everything in memory is gone.
    fn lose_power(&mut self) {
        self.end_due();
        let time = self.time();
        self.boot = self.boot.saturating_add(1);
        for run in self.runs.values_mut().filter(|run| run.lives()) {
            (run.ends_at, run.lost) = (Some(time), true);
            run.exit = Some(RawExit { signal: Some(9), ..RawExit::default() });
        }
        // They are not synced.
        self.notes.clear();
        // What was not decided yet is done again.
        self.ended.retain(|(_, task), _| task.as_str() != PREPARES);
        for one in self.instances.values_mut() {
            (one.reserved, one.refused) = (false, false);
        }
    }

    /// The id of this start of the machine.
    pub(crate) fn boot_id(&self) -> String {
        format!("boot {}", self.boot)
    }

    /// Something of what may be faulty changed.
    pub(crate) fn look_for_faults(&mut self) {
        let now = self.time();
        let well = (self.driver, self.device, self.disk) == (Mode::Works, Mode::Works, Disk::Works);
        self.well_since = if well { self.well_since.or(Some(now)) } else { None };
    }

    /// Something that must not be.
    pub(crate) fn break_with(&mut self, what: String) {
        self.note(&format!("BROKEN: {what}"));
        self.broken.get_or_insert(what);
    }

    /// Runs whose time has come have ended.
    pub(crate) fn end_due(&mut self) {
        let now = self.time();
        for run in self.runs.values_mut() {
            if run.exit.is_none() && run.ends_at.is_some_and(|at| at <= now) {
                let code = Some(run.script.exit_code);
                run.exit = Some(RawExit { exit_code: code, ..RawExit::default() });
                let of = (run.alloc, run.task.clone());
                let done = run.task.as_str() == PREPARES && run.script.exit_code == 0;
                if done && run.ran {
                    self.prepared.insert(run.alloc, run.boot);
                }
                // The exit of a WASM task goes down with an agent that has not decided on it.
                if run.ran && !run.asked && !run.script.wasm && !done {
                    let seen = run.ends_at.map(|at| at.saturating_add(self.forward));
                    self.ended.entry(of).or_default().extend(seen);
                }
            }
        }
    }

    /// A run ends by itself at once, with this code.
    pub(crate) fn end_itself(&mut self, id: &RunId, code: i32) {
        let now = self.time();
        if let Some(run) = self.runs.get_mut(id).filter(|run| run.lives() && !run.held) {
            (run.ends_at, run.script.exit_code) = (Some(now), code);
            run.changed.send_modify(|n| *n = n.saturating_add(1));
        }
        self.end_due();
    }

    /// Whether a task that starts now was started again more often than its policy allows, as far as
    /// that can be told: `attempts` in each window of `interval`, of which the first begins with the
    /// allocation.
    pub(crate) fn over_budget(
        &self,
        alloc: AllocId,
        task: &TaskName,
        (attempts, interval): (usize, Duration),
    ) -> bool {
        let now = self.seen(self.time());
        let ended = self.ended.get(&(alloc, task.clone())).into_iter().flatten();
        let within = ended.filter(|at| now.saturating_sub(**at) <= interval).count();
        // A later window may end and the next begin within the interval.
        let most = if now <= interval { attempts } else { attempts.saturating_mul(2) };
        within > most
    }

    /// A run ends at once, in this way.
    pub(crate) fn end(&mut self, id: &RunId, exit: RawExit) {
        self.end_due();
        let now = self.time();
        if let Some(run) = self.runs.get_mut(id).filter(|run| run.lives()) {
            (run.ends_at, run.exit, run.held) = (Some(now), Some(exit), false);
            run.changed.send_modify(|n| *n = n.saturating_add(1));
        }
    }

    /// A run is asked to end, and does as its script says.
    pub(crate) fn ask_to_end(&mut self, id: &RunId, how: Ending) {
        self.end_due();
        let now = self.time();
        let Some(run) = self.runs.get_mut(id).filter(|run| run.lives()) else { return };
        run.asked = true;
        if let Ending::After(after) = how {
            let at = now.saturating_add(after);
            run.ends_at = Some(run.ends_at.map_or(at, |known| known.min(at)));
            run.changed.send_modify(|n| *n = n.saturating_add(1));
        }
    }
}
