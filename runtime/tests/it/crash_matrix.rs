//! An agent that serves is killed at each point where it writes state, and the next one on the
//! directory makes good of what it finds.
//!
//! ```text
//! this process                       a child: the same binary, one ignored test
//!   spawn, point N ─────────────────►  an agent over a disk that counts; drives the scenario
//!   read ◄── pipe ───────────────────  a line for each acknowledgement
//!                                      point N: SIGKILL to itself
//!   spawn, acknowledged ────────────►  the next agent: has it all? drives on, to the end; looks
//!   count what the tasks wrote, look for processes
//! ```
//! Points are counted in the order in which they are met: before each write, change of length and
//! sync of the state file, and after each commit, when it is durable and nobody has been told. Half
//! of the restarts are killed too, so that a restore is met in the middle.
//!
//! The tasks say themselves that they start, in a file beside the data directory, and hold a lock
//! as long as they live: two instances at a time would tell. One of them holds a device of the mock
//! plugin, which writes down that it is reserved and released.
//!
//! A sample of the points; all of them with `OSTLER_SOAK=1`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ostler_agent::{Agent, AgentHandle, LeaveMode, RegisterOptions, RegisterOutcome, StopOptions};
use ostler_model::alloc::{ClientStatus, DesiredStatus};
use ostler_model::clock;
use ostler_model::ids::{JobId, TaskName};
use ostler_model::job::Job;
use ostler_model::rng::Rng;
use ostler_state::backend::{Op, Visit};
use ostler_state::disk_store::{DiskBackend, JournalFile, JournalOpener, Openers};
use ostler_state::redb_store::Opener;
use ostler_state::{Backend, BackendError, StateError, StateStore};
use redb::StorageBackend;
use redb::backends::FileBackend;
use rustix::process::{Signal, getpid, kill_process};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::agent::serving;
use crate::support::jobs::{STAYS_FAILED, lifecycle, shell, wasm, with_guests};
use crate::support::system::{eventually, kill, processes_of};
use crate::support::{DataDir, PATIENCE, parse};

const DIR: &str = "OSTLER_TEST_CRASH_DIR";
const DATA: &str = "OSTLER_TEST_CRASH_DATA";
const POINT: &str = "OSTLER_TEST_CRASH_POINT";
const ACKNOWLEDGED: &str = "OSTLER_TEST_CRASH_ACKNOWLEDGED";
/// Lines that the first task prints.
const LINES: usize = 50;
/// Points of a normal run.
const SAMPLE: u64 = 20;

/// Where it is counted, and where the process ends.
#[derive(Debug)]
struct Points {
    met: AtomicU64,
    last: u64,
}

impl Points {
    /// One point; does not return from the last one.
    fn meet(&self) {
        if self.met.fetch_add(1, Ordering::SeqCst) + 1 == self.last {
            kill_process(getpid(), Signal::KILL).unwrap();
            loop {
                std::thread::park();
            }
        }
    }
}

/// The state file or its journal, with points.
#[derive(Debug)]
struct Disk {
    file: FileBackend,
    points: Arc<Points>,
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.points.meet();
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.points.meet();
        self.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.points.meet();
        self.file.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.file.close()
    }
}

/// Commits, with a point between what is durable and what is told.
struct Commits {
    inner: DiskBackend,
    points: Arc<Points>,
}

impl Backend for Commits {
    fn commit(&self, batch: &[Op]) -> Result<(), BackendError> {
        let done = self.inner.commit(batch);
        self.points.meet();
        done
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, BackendError> {
        self.inner.get(key)
    }

    fn scan(&self, prefix: &[u8], visit: Visit<'_>) -> Result<(), BackendError> {
        self.inner.scan(prefix, visit)
    }

    fn backup(&self, from: u16) -> Result<Option<PathBuf>, BackendError> {
        self.inner.backup(from)
    }

    fn has_unsettled(&self) -> bool {
        self.inner.has_unsettled()
    }

    fn settle(&self) -> Result<(), BackendError> {
        self.inner.settle()
    }

    fn count_quarantined(&self) -> Result<u64, BackendError> {
        self.inner.count_quarantined()
    }
}

fn open(path: &Path, points: &Arc<Points>) -> Result<StateStore, StateError> {
    let below = Arc::clone(points);
    let tree: Opener = Box::new(move |path, _| {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let disk = Disk { file: FileBackend::new(file)?, points: Arc::clone(&below) };
        redb::Builder::new().create_with_backend(disk)
    });
    let below = Arc::clone(points);
    let journal: JournalOpener = Box::new(move |path| {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).open(path)?;
        let file = FileBackend::new(file).map_err(io::Error::other)?;
        Ok(Some(Box::new(Disk { file, points: Arc::clone(&below) }) as JournalFile))
    });
    let openers = Openers { tree, journal, ..Openers::default() };
    let inner = DiskBackend::open_with(path, openers).expect("the state file opens");
    StateStore::with_backend(path, Arc::new(Commits { inner, points: Arc::clone(points) }))
}

/// A script that says that it starts and whether another instance lives.
fn says(dir: &Path, name: &str, script: &str) -> String {
    let dir = dir.display();
    format!(
        "exec 9>>{dir}/lock.{name}; flock -n 9 || echo double {name} >> {dir}/evidence; \
         echo start {name} >> {dir}/evidence; {script}"
    )
}

fn job(id: &str, kind: &str, attempts: u32, tasks: &str) -> Job {
    parse(&with_guests(&format!(
        "job \"{id}\" {{\n type = \"{kind}\"\n group \"g\" {{\n restart {{\n attempts = {attempts}\n \
         delay = \"100ms\"\n mode = \"fail\"\n }}\n {STAYS_FAILED}\n {tasks}\n }}\n}}"
    )))
}

/// The one device of the node, and the journal of its plugin.
fn config(dir: &Path) -> String {
    let dir = dir.display();
    format!(
        "plugin \"mock_device\" {{\n config {{\n dir = \"{dir}\"\n journal = true\n groups = [{{ \
         count = 1 }}]\n }}\n grants {{\n files \"{dir}\" {{ write = true }}\n }}\n }}\n"
    )
}

/// The jobs that end by themselves.
fn batches(dir: &Path) -> [Job; 4] {
    let lines = format!(
        "i=0; while [ $i -lt {LINES} ]; do echo line $i; i=$((i+1)); done; sleep 0.2; exit 7"
    );
    let around = [
        shell("pre", &says(dir, "pre", "exit 0"), &lifecycle("prestart", false)),
        wasm("main", "guest:toolbox", &["sleep", "300"], ""),
        shell("post", &says(dir, "post", "exit 0"), &lifecycle("poststop", false)),
    ];
    let device =
        "resources {\n cpu = 20\n memory = 32\n device \"mock/device\" {\n count = 1\n }\n }";
    let holds = shell("t", &says(dir, "holds", "[ \"$MOCK_DEVICES\" = 0 ]"), device);
    [
        job("holds", "batch", 3, &holds),
        job("fails", "batch", 0, &shell("t", &says(dir, "fails", &lines), "")),
        job("mixed", "batch", 9, &around.concat()),
        job("ends", "batch", 3, &shell("t", &says(dir, "ends", "exit 0"), "")),
    ]
}

/// The one that is updated in place, then stopped.
fn service(dir: &Path, kill_timeout: &str) -> Job {
    let more = format!("kill_timeout = \"{kill_timeout}\"");
    job("serves", "service", 3, &shell("t", &says(dir, "serves", "exec sleep 1000"), &more))
}

fn id(job: &str) -> JobId {
    JobId::new(job).unwrap()
}

/// One line in one write.
fn tell(line: &str) {
    io::stdout().lock().write_all(format!("{line}\n").as_bytes()).unwrap();
}

/// What is told of a job and what it placed.
fn acknowledge(what: &str, registered: &RegisterOutcome) {
    let placed = registered.placed.iter().fold(String::new(), |mut text, id| {
        let _infallible = write!(text, " {id}");
        text
    });
    tell(&format!("ack {what}{placed}"));
}

/// From wherever an earlier agent came, to the end.
async fn drive(agent: &AgentHandle, dir: &Path) {
    let register = async |job: Job| {
        agent.register(job, RegisterOptions::default()).await.unwrap_or_else(|e| panic!("{e}"))
    };
    eventually("the device is there", || {
        agent.node().devices.iter().any(|group| group.key.vendor == "mock")
    })
    .await;
    for job in batches(dir) {
        let name = job.id.to_string();
        acknowledge(&name, &register(job).await);
    }
    let (first, second) = (service(dir, "5s"), service(dir, "6s"));
    let known = agent.control().job(&first.id).map(|view| view.record);
    if known.as_ref().is_none_or(|record| *record.job == first) {
        acknowledge("serves", &register(first).await);
        eventually("the service runs", || {
            let mut allocs = agent.control().allocs().into_iter();
            allocs.any(|view| {
                view.allocation.job.id == id("serves")
                    && view.state.client_status == ClientStatus::Running
            })
        })
        .await;
        let updated = register(second).await;
        assert_eq!((updated.placed.len(), updated.updated.len()), (0, 1), "{updated:?}");
        acknowledge("updated", &updated);
    }
    if known.is_none_or(|record| !record.stopped) {
        agent.deregister(&id("serves"), StopOptions::default()).await.unwrap();
        tell("ack stopped");
    }
    eventually("all is over", || {
        agent.control().allocs().iter().all(|view| view.phase.has_ended())
    })
    .await;
    eventually("no device is held", || agent.control().device_holders().holders().next().is_none())
        .await;
}

/// What was acknowledged is there.
fn look_for(acknowledged: &str, agent: &AgentHandle, dir: &Path) {
    for words in acknowledged.lines().map(|line| line.split(' ').collect::<Vec<_>>()) {
        let [_, what, placed @ ..] = &words[..] else { panic!("{words:?}") };
        let job = if ["updated", "stopped"].contains(what) { "serves" } else { what };
        let record =
            agent.control().job(&id(job)).unwrap_or_else(|| panic!("{job} is lost")).record;
        match *what {
            "updated" => assert_eq!(*record.job, service(dir, "6s")),
            "stopped" => assert!(record.stopped, "the stop is lost"),
            _ => {}
        }
        let known: BTreeSet<String> =
            agent.control().allocs().iter().map(|view| view.allocation.id.to_string()).collect();
        assert!(placed.iter().all(|id| known.contains(*id)), "{words:?} of {known:?}");
    }
}

/// How everything ended.
fn check(agent: &AgentHandle) {
    let mut ends = BTreeMap::new();
    for view in agent.control().allocs() {
        let job = view.allocation.job.id.to_string();
        let text = format!("{job}: {:#?}", view.state);
        let exit = |task| {
            let state = view.state.tasks.get(&TaskName::new(task).unwrap());
            state.and_then(|state| state.last_exit.clone()).unwrap_or_else(|| panic!("{text}"))
        };
        match job.as_str() {
            "fails" => {
                assert_eq!(exit("t").exit_code, 7, "{text}");
                let logs =
                    agent.data_dir().join(format!("allocs/{}/alloc/logs", view.allocation.id));
                let printed = std::fs::read_to_string(logs.join("t.stdout.0")).unwrap();
                let expected: String = (0..LINES).map(|i| format!("line {i}\n")).collect();
                assert_eq!(printed, expected);
            }
            "mixed" => ["pre", "main", "post"].iter().for_each(|task| {
                assert!(exit(task).is_successful(), "{text}");
            }),
            "ends" | "holds" => assert!(exit("t").is_successful(), "{text}"),
            _ => assert_eq!(view.allocation.desired, DesiredStatus::Stop, "{text}"),
        }
        let other = ends.insert(job, view.state.client_status);
        assert_eq!(other, None, "a second allocation of {text}");
    }
    use ClientStatus::{Complete, Failed};
    let expected = [
        ("ends", Complete),
        ("fails", Failed),
        ("holds", Complete),
        ("mixed", Complete),
        ("serves", Complete),
    ];
    let expected = expected.map(|(job, status)| (job.to_owned(), status));
    assert_eq!(ends.into_iter().collect::<Vec<_>>(), expected);
}

/// The child; without its variables there is nothing to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "started by another test"]
async fn serves_until_it_is_killed() {
    let Some(dir) = std::env::var_os(DIR).map(PathBuf::from) else { return };
    let var = |name| std::env::var(name).unwrap();
    let points = Arc::new(Points { met: AtomicU64::new(0), last: var(POINT).parse().unwrap() });
    let below = Arc::clone(&points);
    let open = Box::new(move |path: &Path| open(path, &below));
    tell("");
    let options = serving(Path::new(&var(DATA)), &config(&dir));
    let agent = Agent::start_with_state(options, open).await.unwrap_or_else(|e| panic!("{e}"));
    look_for(&var(ACKNOWLEDGED), &agent, &dir);
    drive(&agent, &dir).await;
    for view in agent.control().allocs() {
        for (task, state) in view.state.tasks.iter() {
            for event in &state.events {
                let job = &view.allocation.job.id;
                tell(&format!("event {job}.{task} {} {}", event.kind, event.message));
            }
        }
    }
    check(&agent);
    agent.leave(LeaveMode::LeaveTasks).await;
    tell(&format!("points {}", points.met.load(Ordering::SeqCst)));
}

/// A directory, beside it what tasks wrote, and what was acknowledged so far.
struct World {
    data: DataDir,
    dir: tempfile::TempDir,
    acknowledged: String,
    /// Events of all tasks, as the last agent told them.
    events: String,
}

/// How a child ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Killed,
    /// All is done; points it met.
    Done(u64),
}

impl World {
    fn new() -> Self {
        Self {
            data: DataDir::new(),
            dir: tempfile::tempdir().unwrap(),
            acknowledged: String::new(),
            events: String::new(),
        }
    }

    /// An agent that is killed at a point, or comes to the end.
    async fn agent(&mut self, point: u64) -> End {
        let child = "crash_matrix::serves_until_it_is_killed";
        let child = tokio::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", child, "--ignored", "--nocapture", "--test-threads", "1"])
            .env(DIR, self.dir.path())
            .env(DATA, self.data.path())
            .env(POINT, point.to_string())
            .env(ACKNOWLEDGED, self.acknowledged.trim_end())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let ended = clock::timeout(PATIENCE, child.wait_with_output()).await;
        let ended = ended.expect("the agent ends").unwrap();
        let said = String::from_utf8_lossy(&ended.stdout);
        for line in said.lines().filter(|line| line.starts_with("ack ")) {
            self.acknowledged.push_str(line);
            self.acknowledged.push('\n');
        }
        self.events = said.lines().filter(|line| line.starts_with("event ")).fold(
            String::new(),
            |mut text, line| {
                let _infallible = writeln!(text, "{line}");
                text
            },
        );
        if ended.status.signal() == Some(9) {
            return End::Killed;
        }
        let stderr = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "point {point}, {}: {said}\n{stderr}", ended.status);
        let met = said.lines().find_map(|line| line.strip_prefix("points "));
        End::Done(met.expect("it says how many points it met").parse().unwrap())
    }

    /// What the tasks did, and that nothing of them is left.
    async fn check(&mut self, when: &str, kills: usize) {
        let evidence = std::fs::read_to_string(self.dir.path().join("evidence")).unwrap();
        assert!(!evidence.contains("double"), "{when}: {evidence}");
        let starts =
            |name: &str| evidence.lines().filter(|l| *l == format!("start {name}")).count();
        // `fails` may not be started again: a start that was cut short before its program ran is no
        // start.
        for name in ["pre", "post", "ends", "fails", "holds"] {
            assert_eq!(starts(name), 1, "{when}: {name} of\n{evidence}");
        }
        assert!(starts("serves") <= 1, "{when}: {evidence}\n{}", self.events);
        let journal = std::fs::read_to_string(self.dir.path().join("journal")).unwrap();
        let of_device: Vec<&str> = journal.lines().filter(|l| l.starts_with("re")).collect();
        let released = of_device.iter().filter(|line| line.starts_with("release")).count();
        // An agent killed between the plugin's answer and the ledger says so once more.
        assert!((1..=1 + kills).contains(&released), "{when}: {of_device:#?}");
        assert_eq!(of_device.last(), Some(&"release mock/device/mock 0"), "{when}: {of_device:#?}");
        let left = || {
            [self.dir.path(), self.data.path()].into_iter().flat_map(processes_of).next().is_some()
        };
        eventually("no process is left", || !left()).await;
        let exits = self.exits();
        if exits.is_empty() {
            return;
        }
        // A supervisor that never let its task go may say so after the next agent has looked.
        let held = |exit: &String| exit.contains("\"released\":false");
        assert!(exits.iter().all(held), "{when}: records of ends are left: {exits:#?}");
        self.agent(u64::MAX).await;
        assert!(self.exits().is_empty(), "{when}: {exits:#?}, then {:#?}", self.exits());
    }

    /// Records of ends.
    fn exits(&self) -> Vec<String> {
        let exits = std::fs::read_dir(self.data.path().join("exits")).unwrap().flatten();
        exits.map(|exit| std::fs::read_to_string(exit.path()).unwrap()).collect()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        [self.dir.path(), self.data.path()].into_iter().flat_map(processes_of).for_each(kill);
    }
}

/// Kill one agent after the other at these points, then let one come to the end.
async fn crash(points: Vec<u64>) -> usize {
    let mut world = World::new();
    let mut killed = 0;
    for point in &points {
        killed += usize::from(world.agent(*point).await == End::Killed);
    }
    let end = world.agent(u64::MAX).await;
    assert!(matches!(end, End::Done(_)), "{points:?}: killed by somebody else");
    world.check(&format!("killed at {points:?}"), killed).await;
    killed
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_killed_at_any_write_is_followed_by_one_that_makes_good() {
    let soak = std::env::var_os("OSTLER_SOAK").is_some_and(|value| value == "1");
    let mut world = World::new();
    let End::Done(all) = world.agent(u64::MAX).await else { panic!("nobody kills this one") };
    world.check("not killed", 0).await;
    // Done already: what a restart alone meets.
    let End::Done(restart) = world.agent(u64::MAX).await else { panic!("nobody kills this one") };
    drop(world);
    let seed = Rng::system().number_below(1 << 30);
    let rng = Rng::from_seed(seed);
    let wanted = if soak { all } else { SAMPLE };
    let (mut running, room) = (JoinSet::new(), Arc::new(Semaphore::new(3)));
    for number in 0..wanted {
        // One of each equal share.
        let (from, to) = (number * all / wanted, (number + 1) * all / wanted);
        let mut points = vec![1 + from + rng.number_below(to - from)];
        if number % 2 == 1 {
            points.push(1 + rng.number_below(2 * restart));
        }
        let room = Arc::clone(&room);
        running.spawn(async move {
            let _room = room.acquire().await.unwrap();
            crash(points).await
        });
    }
    let mut killed = 0;
    while let Some(crashed) = running.join_next().await {
        killed += crashed.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
    println!("{all} points, {restart} of a restart; {wanted} worlds, {killed} kills; seed {seed}");
    // Commits share work by chance, so the last points are not always met.
    assert!(killed as u64 * 10 >= wanted * 8, "only {killed} of {wanted} were killed");
}
