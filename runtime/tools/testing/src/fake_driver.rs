//! A scripted node: drivers, workloads and devices without plugins or processes.
//!
//! ```text
//!   script(task, [run 1, run 2, …])      the last script repeats
//!   start ─► live run ─► ends by itself (runs_for), by stop, by kill, by the host's kill_run
//!   journal: (virtual time since the node was made, "start web", "stop web", …)
//! ```

mod agents;
mod traits;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use ostler_model::clock;
use ostler_model::device::Reservation;
use ostler_model::ids::RunId;
use ostler_model::ports::{
    Adoption, Diagnostic, PluginCallError, ProcessIdentity, RunNote, StartedTask, TaskConfig,
    TaskContext,
};
use ostler_model::task::{DriverHandle, RawExit, Workload};

/// How a call goes.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Reply {
    /// As it should.
    #[default]
    Ok,
    /// With this error.
    Fail(PluginCallError),
    /// Never.
    Hang,
}

/// When the workload of a run comes to life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spawns {
    /// With an answer that is good.
    #[default]
    WithAnswer,
    /// Before the answer, whatever that will be.
    BeforeAnswer,
    /// Even when the call is dropped, at that very moment.
    WhenDropped,
}

/// What a request to end does to the workload.
#[derive(Clone, Debug, PartialEq)]
pub enum Ending {
    /// It ends with this code after this time.
    After(Duration, i32),
    /// Nothing.
    Ignored,
    /// The call itself does not work.
    Call(Reply),
}

/// How one run of a task goes.
#[derive(Clone, Debug)]
pub struct Script {
    /// Answer to `start`.
    pub start: Reply,
    /// When the workload comes to life, seen from the answer of `start`.
    pub spawns: Spawns,
    /// Time `start` takes.
    pub start_takes: Duration,
    /// Ends by itself after this time; absent: only when asked.
    pub runs_for: Option<Duration>,
    /// Exit code when it ends by itself.
    pub exit_code: i32,
    /// What `stop` does.
    pub on_stop: Ending,
    /// What `kill` does.
    pub on_kill: Ending,
    /// Does the host's own kill work?
    pub host_kill_works: bool,
    /// Answer to `exited`.
    pub exited: Reply,
    /// Answer to `destroy`.
    pub destroy: Reply,
    /// Is polled on this interval instead of waited for.
    pub poll: Option<Duration>,
    /// Spawns a process with this pid: its identity is recorded first.
    pub pid: Option<u32>,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            start: Reply::Ok,
            spawns: Spawns::default(),
            start_takes: Duration::ZERO,
            runs_for: None,
            exit_code: 0,
            on_stop: Ending::After(Duration::ZERO, 0),
            on_kill: Ending::After(Duration::ZERO, 137),
            host_kill_works: true,
            exited: Reply::Ok,
            destroy: Reply::Ok,
            poll: None,
            pid: None,
        }
    }
}

impl Script {
    /// Ends by itself after `after` with `code`.
    #[must_use]
    pub fn ends(after: Duration, code: i32) -> Self {
        Self { runs_for: Some(after), exit_code: code, ..Self::default() }
    }

    /// Runs until it is asked to end.
    #[must_use]
    pub fn runs() -> Self {
        Self::default()
    }
}

struct FakeRun {
    task: String,
    script: Script,
    exit: watch::Sender<Option<RawExit>>,
}

/// Called at the beginning of each `start`, before anything is recorded or spawned.
pub type StartProbe = Arc<dyn Fn(&TaskContext, &TaskConfig) + Send + Sync>;

#[derive(Default)]
struct Inner {
    scripts: BTreeMap<String, Vec<Script>>,
    starts: BTreeMap<String, usize>,
    runs: BTreeMap<RunId, FakeRun>,
    live: BTreeSet<RunId>,
    journal: Vec<(Duration, String)>,
    not_ready: Option<String>,
    problems: Vec<Diagnostic>,
    reserve: Reply,
    /// What is wrong with the devices.
    unfit: Option<String>,
    signal: Reply,
    exec: Reply,
    /// Tasks see a root of their own.
    rooted: bool,
    reservation: Reservation,
    twice: Vec<RunId>,
    probe: Option<StartProbe>,
    missing: bool,
    recover: Reply,
    inspect: Reply,
    adoption: Option<Adoption>,
    contexts: Vec<Arc<TaskContext>>,
    /// Processes that wait for their `release`.
    held: BTreeSet<RunId>,
    /// Those whose agent died before.
    never: BTreeSet<RunId>,
    released: Vec<RunId>,
    by_release: bool,
    starts_held: bool,
    /// What is kept of runs; none: nothing is.
    notes: Option<BTreeMap<RunId, RunNote>>,
    /// The driver's own deadline.
    call_wall: Duration,
    /// Runs of an earlier agent that the host was asked to own and did not.
    unowned: BTreeSet<RunId>,
}

/// The scripted node. Clones share it.
#[derive(Clone)]
pub struct FakeNode {
    inner: Arc<Mutex<Inner>>,
    born: tokio::time::Instant,
}

impl Default for FakeNode {
    fn default() -> Self {
        Self::new()
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the journal shows virtual time, which only tokio has"
)]
fn tokio_now() -> tokio::time::Instant {
    tokio::time::Instant::now()
}

impl FakeNode {
    /// A node with one ready driver, `fake`. Needs a tokio runtime.
    #[must_use]
    pub fn new() -> Self {
        Self { inner: Arc::default(), born: tokio_now() }
    }

    /// Virtual time since the node was made.
    #[must_use]
    pub fn age(&self) -> Duration {
        tokio_now().duration_since(self.born)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How the runs of a task go, one after the other; the last one repeats.
    pub fn script(&self, task: &str, runs: impl Into<Vec<Script>>) {
        self.lock().scripts.insert(task.to_owned(), runs.into());
    }

    /// Make the driver unusable with a reason, or usable.
    pub fn set_not_ready(&self, reason: Option<&str>) {
        self.lock().not_ready = reason.map(str::to_owned);
    }

    /// What the driver finds wrong with every configuration.
    pub fn set_problems(&self, problems: Vec<Diagnostic>) {
        self.lock().problems = problems;
    }

    /// How `signal` goes.
    pub fn set_signal(&self, reply: Reply) {
        self.lock().signal = reply;
    }

    /// How `exec` goes.
    pub fn set_exec(&self, reply: Reply) {
        self.lock().exec = reply;
    }

    /// Tasks see a root of their own from now on.
    pub fn set_rooted(&self) {
        self.lock().rooted = true;
    }

    /// How `reserve` goes, and what it gives.
    pub fn set_reserve(&self, reply: Reply, reservation: Reservation) {
        let mut inner = self.lock();
        inner.reserve = reply;
        inner.reservation = reservation;
    }

    /// What is wrong with the devices that tasks hold; `None`: nothing.
    pub fn set_unfit(&self, reason: Option<&str>) {
        self.lock().unfit = reason.map(str::to_owned);
    }

    /// Look at things the moment a start is called.
    pub fn set_probe(&self, probe: StartProbe) {
        self.lock().probe = Some(probe);
    }

    /// Everything that was called, with the virtual time since the node was made.
    #[must_use]
    pub fn journal(&self) -> Vec<(Duration, String)> {
        self.lock().journal.clone()
    }

    /// The journal without times.
    #[must_use]
    pub fn calls(&self) -> Vec<String> {
        self.lock().journal.iter().map(|(_, what)| what.clone()).collect()
    }

    /// When something was called first.
    #[must_use]
    pub fn when(&self, what: &str) -> Option<Duration> {
        self.lock().journal.iter().find(|(_, w)| w == what).map(|(at, _)| *at)
    }

    /// Runs alive now.
    #[must_use]
    pub fn live(&self) -> usize {
        self.lock().live.len()
    }

    /// What did not end although it was killed ends at the next kill.
    pub fn let_die(&self) {
        for run in self.lock().runs.values_mut() {
            run.script.host_kill_works = true;
        }
    }

    /// Runs that were started while another run of the same task was alive. Must stay empty.
    #[must_use]
    pub fn started_twice(&self) -> Vec<RunId> {
        self.lock().twice.clone()
    }

    fn note(&self, what: &str, task: &str) {
        let at = self.age();
        self.lock().journal.push((at, format!("{what} {task}")));
    }

    fn end(&self, run: &RunId, exit: RawExit) {
        let mut inner = self.lock();
        if inner.live.remove(run)
            && let Some(known) = inner.runs.get(run)
        {
            known.exit.send_replace(Some(exit));
        }
    }

    fn end_later(&self, run: &RunId, after: Duration, code: i32) {
        let (node, run) = (self.clone(), run.clone());
        tokio::spawn(async move {
            clock::sleep(after).await;
            node.end(&run, RawExit { exit_code: Some(code), ..RawExit::default() });
        });
    }

    fn script_of(&self, run: &RunId) -> Option<Script> {
        self.lock().runs.get(run).map(|r| r.script.clone())
    }

    fn task_of(&self, run: &RunId) -> String {
        self.lock().runs.get(run).map(|r| r.task.clone()).unwrap_or_default()
    }

    async fn begin(
        &self,
        context: Arc<TaskContext>,
        config: TaskConfig,
    ) -> Result<StartedTask, PluginCallError> {
        let task = config.task.to_string();
        self.note("start", &task);
        let (script, probe) = {
            let mut inner = self.lock();
            let released = inner.by_release.then_some(inner.released.len());
            let count = inner.starts.entry(task.clone()).or_default();
            let index = released.unwrap_or(*count);
            *count += 1;
            let scripts = inner.scripts.get(&task);
            let script = scripts.and_then(|s| s.get(index).or_else(|| s.last())).cloned();
            (script.unwrap_or_default(), inner.probe.clone())
        };
        if let Some(probe) = probe {
            probe(&context, &config);
        }
        self.lock().contexts.push(Arc::clone(&context));
        let run = config.run_id;
        let born = |node: &Self| node.bring_to_life(&run, &task, &script);
        if script.spawns == Spawns::BeforeAnswer {
            born(self);
        }
        let mut dropped =
            WhenDropped((script.spawns == Spawns::WhenDropped).then_some(|| born(self)));
        clock::sleep(script.start_takes).await;
        reply(&script.start).await?;
        dropped.0 = None;
        if let Some(pid) = script.pid {
            let boot_id = "fake".to_owned();
            let identity =
                ProcessIdentity { pid, start_ticks: 1, boot_id, cgroup: None, supervisor: None };
            (context.record_identity)(identity).await.map_err(PluginCallError::Recoverable)?;
            self.note("spawned", &task);
        }
        born(self);
        if script.pid.is_some() {
            self.lock().held.insert(run.clone());
        } else if let Some(after) = script.runs_for {
            self.end_later(&run, after, script.exit_code);
        }
        let handle = DriverHandle {
            plugin: "fake".to_owned(),
            version: 1,
            data: run.as_str().as_bytes().to_vec(),
        };
        Ok(StartedTask { handle, workload: workload(&script), network: None })
    }

    /// Once per run.
    fn bring_to_life(&self, run: &RunId, task: &str, script: &Script) {
        let mut inner = self.lock();
        if inner.runs.contains_key(run) {
            return;
        }
        let of_task = |r: &RunId| inner.runs.get(r).is_some_and(|r| r.task == task);
        if inner.live.iter().any(of_task) {
            inner.twice.push(run.clone());
        }
        inner.live.insert(run.clone());
        let exit = watch::channel(None).0;
        let (task, script) = (task.to_owned(), script.clone());
        inner.runs.insert(run.clone(), FakeRun { task, script, exit });
    }

    async fn finish(&self, run: RunId, how: Option<Ending>) -> Result<(), PluginCallError> {
        match how {
            None => Err(PluginCallError::NotFound(run.to_string())),
            Some(Ending::After(after, code)) => {
                self.end_later(&run, after, code);
                Ok(())
            }
            Some(Ending::Ignored) => Ok(()),
            Some(Ending::Call(answer)) => reply(&answer).await,
        }
    }
}

fn workload(script: &Script) -> Workload {
    match script.poll {
        Some(every) => Workload::Poll(u64::try_from(every.as_millis()).unwrap_or(u64::MAX)),
        None => Workload::Process("p1".to_owned()),
    }
}

/// Does something when it is dropped.
struct WhenDropped<F: FnMut()>(Option<F>);

impl<F: FnMut()> Drop for WhenDropped<F> {
    fn drop(&mut self) {
        if let Some(act) = &mut self.0 {
            act();
        }
    }
}

async fn reply(how: &Reply) -> Result<(), PluginCallError> {
    match how {
        Reply::Ok => Ok(()),
        Reply::Fail(error) => Err(error.clone()),
        Reply::Hang => std::future::pending().await,
    }
}
