//! Plugins that are upgraded while tasks run, with two versions of real compiled guests.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ostler_agent::{
    Agent, AgentHandle, JobHandle, UpgradeError, UpgradeOptions, UpgradeOutcome, UpgradeReport,
    UpgradeStatus,
};
use ostler_device::manager::{DeviceManager, DeviceOptions};
use ostler_guests::fixtures::{DRIVER_RAW_EXEC, HOSTILE_DEVICE, HOSTILE_DRIVER};
use ostler_health::policy::FailurePolicy;
use ostler_health::refresh::Refresher;
use ostler_model::clock::{Clock, Stopwatch, timeout};
use ostler_model::device::{GroupKey, HealthState};
use ostler_model::ids::{AllocId, TaskName};
use ostler_model::json::JsonObject;
use ostler_model::limits::PluginLimits;
use ostler_model::ports::Devices as _;
use ostler_model::resources::AllocatedDevice;
use ostler_model::rng::Rng;
use ostler_node::watch::ChangeWatcher;
use ostler_node::{NodeId, NodePublisher, NodeView};
use ostler_plugin::device::LoadedDevice;
use ostler_plugin::{Plugin, PluginRuntime, PluginSpec};
use tokio::task::JoinSet;

use crate::support::agent_process::{AgentProcess, Home};
use crate::support::plugins::host_services;
use crate::support::system::{eventually, pid_in, runs, until};
use crate::support::{DataDir, KEEPS_ALONE, PATIENCE, TestAgent, options, parse};

/// The same code that calls itself by another name and version, of the same length.
pub(crate) fn patched(file: &str, from: &str, to: &str) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let mut bytes = std::fs::read(file).unwrap();
    let found: Vec<usize> = (0..bytes.len() - from.len())
        .filter(|at| &bytes[*at..at + from.len()] == from.as_bytes())
        .collect();
    let [at] = found[..] else { panic!("{from} is {} times in {file}", found.len()) };
    bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
    bytes
}

/// The hostile driver in another version.
fn hostile(version: &str) -> Vec<u8> {
    patched(HOSTILE_DRIVER, "hostile0.1.0", &format!("hostile{version}"))
}

/// The same component with one more import: the interface, of which it takes nothing.
fn with_import(bytes: &[u8], interface: &str) -> Vec<u8> {
    let types = wasmparser::Validator::new().validate_all(bytes).unwrap();
    let leb = |number: u32| match number {
        0..0x80 => vec![number as u8],
        _ => vec![(number & 0x7f) as u8 | 0x80, (number >> 7) as u8],
    };
    let section =
        |id: u8, content: Vec<u8>| [vec![id], leb(content.len() as u32), content].concat();
    // A type: an instance with nothing in it. An import of that type.
    let nothing = section(7, vec![1, 0x42, 0]);
    let name = [leb(interface.len() as u32), interface.as_bytes().to_vec()].concat();
    let index = leb(types.as_ref().component_type_count());
    let import = section(10, [vec![1, 0], name, vec![5], index].concat());
    [bytes.to_vec(), nothing, import].concat()
}

/// Put a file in its place at once, as a package manager does.
fn install(path: &Path, bytes: &[u8]) {
    let staging = path.with_extension("new");
    std::fs::write(&staging, bytes).unwrap();
    std::fs::rename(&staging, path).unwrap();
}

/// An agent with the hostile driver in a file that may change.
struct Bench {
    agent: TestAgent,
    file: PathBuf,
    dir: tempfile::TempDir,
}

fn config(file: &Path, more: &str) -> String {
    granted(file, "process = true", more)
}

fn granted(file: &Path, grants: &str, more: &str) -> String {
    format!(
        "plugin \"hostile\" {{\n file = \"{}\"\n grants {{\n {grants}\n }}\n {more}\n}}\n",
        file.display()
    )
}

impl Bench {
    async fn new(more: &str) -> Self {
        Self::granted("process = true", more).await
    }

    async fn granted(grants: &str, more: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("hostile.wasm");
        install(&file, &std::fs::read(HOSTILE_DRIVER).unwrap());
        let agent = TestAgent::with_config(&granted(&file, grants, more)).await;
        Self { agent, file, dir }
    }

    /// Offer these bytes as another file.
    async fn offer(&self, bytes: &[u8], consents: bool) -> UpgradeReport {
        let file = self.dir.path().join("offered.wasm");
        install(&file, bytes);
        let options = UpgradeOptions { file: Some(file), consents };
        self.agent.handle.upgrade_plugin("hostile", options).await.unwrap()
    }

    fn status(&self) -> UpgradeStatus {
        status(&self.agent.handle)
    }

    fn version(&self) -> String {
        version(&self.agent.handle)
    }
}

fn status(agent: &AgentHandle) -> UpgradeStatus {
    agent.plugin_status("hostile")[0].upgrade.clone().expect("it is in use")
}

fn version(agent: &AgentHandle) -> String {
    agent.plugin_status("hostile")[0].version.clone().unwrap()
}

/// A job of one task, with more in its configuration.
fn job(name: &str, more: &str) -> String {
    format!(
        "job \"{name}\" {{\n type = \"batch\"\n group \"g\" {{\n restart {{\n attempts = 0\n mode = \
         \"fail\"\n }}\n task \"t\" {{\n driver = \"hostile\"\n kill_timeout = \"1s\"\n config {{\n \
         command = \"/bin/sleep\"\n args = [\"1000\"]\n {more}\n }}\n resources {{\n cpu = 20\n \
         memory = 32\n }}\n }}\n }}\n}}\n"
    )
}

async fn running(agent: &AgentHandle, text: &str) -> JobHandle {
    let job = agent.submit(parse(text)).await.unwrap();
    for alloc in job.allocs() {
        let mut state = alloc.state();
        let runs = state.wait_for(|s| s.tasks.values().all(|t| t.started_at.is_some()));
        timeout(PATIENCE, runs).await.expect("it runs").unwrap();
    }
    job
}

/// How often its driver said something of its task.
fn events(job: &JobHandle) -> usize {
    job.allocs()[0].state().borrow().tasks["t"].events.len()
}

async fn ends(job: JobHandle) {
    job.stop("the end of the test").await;
    timeout(PATIENCE, job.wait()).await.expect("it ends");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_version_takes_the_place_of_one_whose_tasks_run_on_and_end_by_the_new_one() {
    let bench = Bench::new("failure {\n upgrade_window = \"1s\"\n }").await;
    let agent = &bench.agent.handle;
    let (first, second) =
        (running(agent, &job("a", "")).await, running(agent, &job("b", "")).await);
    let before = (events(&first), events(&second));

    let report = bench.offer(&hostile("0.2.0"), false).await;
    assert_eq!((report.outcome, report.tasks_tried), (UpgradeOutcome::Switched, 2));
    assert_eq!(report.from.version.as_deref(), Some("0.1.0"));
    assert_eq!(bench.version(), "0.2.0");
    let listed = agent.plugins_now().into_iter().find(|entry| entry.name == "hostile").unwrap();
    assert_eq!(listed.version.as_deref(), Some("0.2.0"));
    let told = bench.status();
    assert_eq!(told.previous.unwrap().version.as_deref(), Some("0.1.0"));
    assert!(told.upgraded_at.is_some());
    assert_eq!((events(&first), events(&second)), before, "tasks never notice");
    eventually("the new one is asked", || {
        agent.node().drivers["hostile"].version == "0.2.0"
            && agent.node().drivers["hostile"].health.state == HealthState::Healthy
    })
    .await;

    let accepted = || bench.status().last.is_some_and(|l| l.outcome == UpgradeOutcome::Accepted);
    eventually("it is accepted", accepted).await;
    assert_eq!(bench.status().proving_until, None);
    let third = running(agent, &job("c", "")).await;
    for job in [first, second, third] {
        ends(job).await;
    }
    let calls = agent.plugin_status("hostile")[0].activity.clone().unwrap().calls;
    assert_eq!((calls["start"].calls, calls["stop"].calls), (1, 3), "all by the new one");
    bench.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_would_not_serve_is_refused_with_the_reason_and_the_old_one_stays() {
    let bench = Bench::new("").await;
    let agent = &bench.agent.handle;
    let calls = |bytes: Vec<u8>| (bytes, false);
    let renamed = patched(HOSTILE_DRIVER, "hostile0.1.0", "hostilf0.2.0");
    let cases: [((Vec<u8>, bool), &str); 5] = [
        (calls(b"\0asm".to_vec()), "is not a plugin"),
        (calls(std::fs::read(HOSTILE_DEVICE).unwrap()), "it is a device plugin"),
        (calls(renamed), "calls itself hostilf"),
        (calls(hostile("0.2.0")[..100_000].to_vec()), "is not a plugin"),
        (calls(vec![0; 10]), "is not a plugin"),
    ];
    for ((bytes, consents), text) in cases {
        let report = bench.offer(&bytes, consents).await;
        let UpgradeOutcome::Refused { reason } = &report.outcome else { panic!("{report:?}") };
        assert!(reason.contains(text), "no {text:?} in {reason}");
        assert_eq!(bench.version(), "0.1.0");
        assert_eq!(bench.status().last, Some(report));
    }
    // A task that the new one cannot own: its handle says so, whatever the version.
    let task = running(agent, &job("a", "recover = \"trap\"")).await;
    let report = bench.offer(&hostile("0.2.0"), true).await;
    let UpgradeOutcome::Refused { reason } = &report.outcome else { panic!("{report:?}") };
    assert!(reason.contains("cannot take over task t of job a"), "{reason}");
    assert!(task.allocs()[0].state().borrow().tasks["t"].finished_at.is_none());
    ends(task).await;
    let unknown = agent.upgrade_plugin("nope", UpgradeOptions::default()).await;
    assert!(matches!(unknown, Err(UpgradeError::Unknown(_))), "{unknown:?}");
    let built_in = agent.upgrade_plugin("exec", UpgradeOptions::default()).await;
    assert!(matches!(built_in, Err(UpgradeError::NoFile(_))), "{built_in:?}");
    bench.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_asks_for_more_needs_a_person_who_agrees_and_the_grant() {
    let more = with_import(&hostile("0.2.0"), "ostler:plugin/wasm-task@0.1.0");
    let harmless = with_import(&hostile("0.3.0"), "wasi:clocks/wall-clock@0.2.6");
    let bench = Bench::new("upgrade = \"auto\"").await;
    let asks = vec!["ostler:plugin/wasm-task".to_owned()];
    let needed = UpgradeOutcome::ConsentNeeded { asks, downgrade: None };
    assert_eq!(bench.offer(&more, false).await.outcome, needed);
    install(&bench.file, &more);
    let told = || bench.status().last.is_some_and(|l| l.by_itself && l.outcome == needed);
    eventually("an automatic one asks, too", told).await;
    let refused = bench.offer(&more, true).await;
    let UpgradeOutcome::Refused { reason } = &refused.outcome else { panic!("{refused:?}") };
    assert!(reason.contains("wasm_task = true"), "{reason}");
    assert_eq!(bench.version(), "0.1.0");
    assert_eq!(bench.offer(&harmless, false).await.outcome, UpgradeOutcome::Switched);
    bench.agent.stop().await;

    let bench = Bench::granted("process = true\n wasm_task = true", "").await;
    assert_eq!(bench.offer(&more, false).await.outcome, needed);
    assert_eq!(bench.offer(&more, true).await.outcome, UpgradeOutcome::Switched);
    assert_eq!(bench.version(), "0.2.0");
    bench.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_that_start_and_end_all_the_time_never_notice_upgrades() {
    let bench = Bench::new("").await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut load = JoinSet::new();
    for worker in 0..3 {
        let (agent, stop) = (bench.agent.handle.clone(), Arc::clone(&stop));
        load.spawn(async move {
            let (mut ended, mut turn) = (0, 0);
            while !stop.load(Ordering::SeqCst) {
                turn += 1;
                let text = job(&format!("w{worker}-{turn}"), "").replace("/bin/sleep", "/bin/true");
                let job = agent.submit(parse(&text)).await.unwrap_or_else(|e| panic!("{e}"));
                let result = timeout(PATIENCE, job.wait()).await.expect("it ends");
                let task = &result.allocs[0].state.tasks["t"];
                assert!(task.is_successful() && task.restarts == 0, "{:?}", task.events);
                ended += 1;
            }
            ended
        });
    }
    let resident = running(&bench.agent.handle, &job("resident", "")).await;
    for minor in 2..=6 {
        let report = bench.offer(&hostile(&format!("0.{minor}.0")), false).await;
        assert_eq!(report.outcome, UpgradeOutcome::Switched, "{minor}");
        assert!(report.tasks_tried >= 1, "the one that is there all the time");
    }
    stop.store(true, Ordering::SeqCst);
    let mut ended = 0;
    while let Some(worker) = load.join_next().await {
        ended += worker.unwrap();
    }
    assert!(ended >= 3, "{ended}");
    ends(resident).await;
    assert_eq!(bench.version(), "0.6.0");
    assert_eq!(
        bench.agent.handle.plugin_status("hostile")[0].activity.as_ref().unwrap().strikes,
        0
    );
    bench.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_fails_after_the_switch_is_rolled_back_by_itself_and_tasks_run_on() {
    let bench = Bench::new("failure {\n upgrade_strikes = 2\n upgrade_window = \"1h\"\n }").await;
    let agent = &bench.agent.handle;
    let task = running(agent, &job("a", "")).await;
    // What was poisonous before is no fault of the new one.
    assert!(!bench.agent.run(&job("old", "start = \"trap\"")).await.is_successful());
    assert_eq!(bench.offer(&hostile("0.2.0"), false).await.outcome, UpgradeOutcome::Switched);
    for _ in 0..3 {
        assert!(!bench.agent.run(&job("old", "start = \"trap\"")).await.is_successful());
    }
    assert_eq!(bench.version(), "0.2.0");
    for name in ["x", "y"] {
        assert!(!bench.agent.run(&job(name, "start = \"trap\"")).await.is_successful());
    }
    eventually("the old one is back", || bench.version() == "0.1.0").await;
    let told = bench.status();
    let back = told.rolled_back.expect("it is told");
    let UpgradeOutcome::RolledBack { reason } = &back.outcome else { panic!("{back:?}") };
    assert!(reason.contains("2 strikes") && reason.contains("start: "), "{reason}");
    assert_eq!((told.proving_until, told.upgraded_at), (None, None));
    let shown = || agent.node().drivers["hostile"].version.clone();
    eventually("the old one is asked again", || shown() == "0.1.0").await;
    assert!(task.allocs()[0].state().borrow().tasks["t"].finished_at.is_none());
    ends(task).await;
    let stops = || {
        let calls = agent.plugin_status("hostile")[0].activity.clone().unwrap().calls;
        calls.get("stop").map_or(0, |stats| stats.calls)
    };
    let before = stops();
    ends(running(agent, &job("b", "")).await).await;
    assert_eq!(stops(), before + 1, "the old code is called");
    bench.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_file_is_taken_by_itself_and_an_older_one_is_not() {
    let bench = Bench::new("upgrade = \"auto\"\n failure {\n upgrade_window = \"1s\"\n }").await;
    install(&bench.file, &hostile("0.3.0"));
    eventually("it is upgraded", || bench.version() == "0.3.0").await;
    let last = || bench.status().last;
    assert!(last().unwrap().by_itself);
    eventually("it is accepted", || last().unwrap().outcome == UpgradeOutcome::Accepted).await;
    install(&bench.file, &hostile("0.2.0"));
    let needs = || matches!(last().unwrap().outcome, UpgradeOutcome::ConsentNeeded { .. });
    eventually("it needs consent", needs).await;
    assert_eq!(bench.version(), "0.3.0");
    let options = UpgradeOptions { file: None, consents: true };
    let agreed = bench.agent.handle.upgrade_plugin("hostile", options).await.unwrap();
    assert_eq!((agreed.outcome, bench.version()), (UpgradeOutcome::Switched, "0.2.0".to_owned()));
    bench.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_accepted_is_what_the_next_agent_loads_until_the_file_is_changed_again() {
    let bench = Bench::new("failure {\n upgrade_window = \"1s\"\n }").await;
    let report = bench.offer(&hostile("0.2.0"), false).await;
    assert_eq!(report.outcome, UpgradeOutcome::Switched);
    let accepted = || bench.status().last.is_some_and(|l| l.outcome == UpgradeOutcome::Accepted);
    eventually("it is accepted", accepted).await;
    let kept = bench.agent.data.path().join("plugins/kept.json");
    eventually("it is noted", || kept.exists()).await;
    let Bench { agent, file, dir } = bench;
    let data: DataDir = agent.leave().await;
    // The file that was offered may go.
    std::fs::remove_file(dir.path().join("offered.wasm")).unwrap();
    let config = || {
        ostler_jobspec::parse_agent_config(config(&file, "").as_bytes(), "/test/o.hcl".as_ref())
            .unwrap()
    };
    let again = Agent::start(options(data.path(), config())).await.unwrap();
    assert_eq!(version(&again), "0.2.0");
    let source = again.plugin_status("hostile")[0].source.clone();
    assert!(source.contains("accepted before"), "{source}");
    assert!(!again.notices().iter().any(|n| n.contains("changed since")), "{:?}", again.notices());
    again.shutdown().await;
    drop(again);
    install(&file, &hostile("0.1.5"));
    let changed = Agent::start(options(data.path(), config())).await.unwrap();
    assert_eq!(version(&changed), "0.1.5");
    changed.shutdown().await;
}

#[tokio::test]
async fn the_command_line_asks_for_consent_with_a_code_of_its_own() {
    let data = Home::new();
    let (file, exec) = (data.path().join("ostler.hcl"), data.path().join("exec.wasm"));
    install(&exec, &patched(DRIVER_RAW_EXEC, "0.1.0{", "0.3.0{"));
    let text = format!(
        "plugin \"raw_exec\" {{\n file = \"{}\"\n grants {{\n process = true\n }}\n}}\n",
        exec.display()
    );
    std::fs::write(&file, format!("{KEEPS_ALONE}{text}")).unwrap();
    let agent = AgentProcess::start_in(data, &["--config", file.to_str().unwrap()]).await;
    let pid_file = agent.data.path().join("pid");
    let service = format!(
        "job \"svc\" {{\n group \"g\" {{\n task \"t\" {{\n driver = \"raw_exec\"\n config {{\n command = \
         \"/bin/sh\"\n args = [\"-c\", \"echo $$ > {}; exec sleep 600\"]\n }}\n resources {{\n cpu = \
         20\n memory = 64\n }}\n }}\n }}\n}}\n",
        pid_file.display()
    );
    agent.run(&service).await.said(0, &["job svc runs"]);
    let pid = pid_in(&pid_file).await;

    let older = agent.data.path().join("older.wasm");
    install(&older, &patched(DRIVER_RAW_EXEC, "0.1.0{", "0.2.0{"));
    let upgrade = async |more: &[&str]| {
        let args = ["plugin", "upgrade", "raw_exec"];
        agent.ask(&[&args[..], more].concat()).await
    };
    upgrade(&[]).await.said(0, &[]);
    let older = older.to_str().unwrap();
    let asked = upgrade(&["--file", older]).await;
    assert_eq!(asked.code, Some(4), "{asked:#?}");
    assert!(asked.stdout.contains("- version 0.3.0\n  + version 0.2.0"), "{asked:#?}");
    let agreed = upgrade(&["--file", older, "--yes"]).await;
    assert_eq!(agreed.code, Some(0), "{agreed:#?}");
    assert!(agreed.stdout.contains("it was tried with 1 running task"), "{agreed:#?}");
    let shown = agent.ask(&["plugin", "status", "raw_exec"]).await.stdout;
    assert!(shown.contains("driver plugin 0.2.0") && shown.contains("proving"), "{shown}");
    let broken = agent.data.path().join("broken.wasm");
    std::fs::write(&broken, "x").unwrap();
    let refused = upgrade(&["--json", "--file", broken.to_str().unwrap()]).await;
    assert_eq!(refused.code, Some(1), "{refused:#?}");
    assert!(refused.stdout.contains("\"outcome\": \"refused\""), "{refused:#?}");
    assert_eq!(upgrade(&["--file", "/no/such.wasm"]).await.code, Some(2));
    assert!(runs(pid), "the task never noticed");
    agent.ask(&["job", "stop", "svc"]).await.said(0, &[]);
    until("the task ends", async || !runs(pid)).await;
}

async fn device(runtime: &PluginRuntime, bytes: Vec<u8>) -> LoadedDevice {
    let bytes: Arc<[u8]> = Arc::from(bytes);
    let spec = PluginSpec {
        name: "hostile".to_owned(),
        config: JsonObject::default(),
        grants: ostler_model::grants::Grants::default(),
        limits: PluginLimits::default(),
        failure: FailurePolicy::default(),
    };
    match runtime.load(spec, ostler_plugin::manifest::read(&bytes).unwrap(), bytes).await {
        Ok(Plugin::Device(plugin)) => plugin,
        Ok(Plugin::Driver(_)) => panic!("a driver"),
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn under_load_no_call_is_lost_made_twice_or_fails_because_of_a_switch() {
    let data = DataDir::new();
    let runtime = PluginRuntime::new(host_services(&data)).unwrap();
    let node = NodePublisher::new(NodeView::new(NodeId::new(Rng::system().uuid()), "box"));
    let refresher = Refresher::new(ChangeWatcher::new(), Rng::system());
    let manager = DeviceManager::new(
        node,
        DeviceOptions { clock: Clock::system(), ..DeviceOptions::default() },
        refresher,
    );
    let old = device(&runtime, std::fs::read(HOSTILE_DEVICE).unwrap()).await;
    manager.add(old).unwrap().await;
    let name = ostler_model::ids::PluginName::new("hostile-device").unwrap();

    // Tasks come and go all the time, each with calls of its own.
    let (stop, made, failed) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
        Arc::new(AtomicU64::new(0)),
    );
    let mut load = JoinSet::new();
    for worker in 0..16_u32 {
        let (manager, stop) = (manager.clone(), Arc::clone(&stop));
        let (made, failed) = (Arc::clone(&made), Arc::clone(&failed));
        load.spawn(async move {
            let task = TaskName::new("t").unwrap();
            let assigned = [AllocatedDevice {
                group: GroupKey {
                    vendor: "hostile".to_owned(),
                    kind: "thing".to_owned(),
                    name: "one".to_owned(),
                },
                ids: vec!["a".to_owned()],
            }];
            let mut turn = 0_u64;
            while !stop.load(Ordering::SeqCst) {
                turn += 1;
                let alloc = AllocId::new(uuid::Uuid::from_u64_pair(worker.into(), turn));
                match manager.reserve(alloc, &task, &assigned).await {
                    Ok(reservation) if reservation.env.len() == 1 => {
                        made.fetch_add(1, Ordering::SeqCst)
                    }
                    _ => failed.fetch_add(1, Ordering::SeqCst),
                };
                manager.release(alloc, &task).await;
                manager.end_alloc(alloc);
            }
        });
    }
    let watch = Stopwatch::start();
    // Ten switches, back and forth, each in the middle of calls.
    let mut plugins = Vec::new();
    for switch in 1..=10_u64 {
        let before = made.load(Ordering::SeqCst);
        let (made, failed) = (&made, &failed);
        eventually("calls go on", || {
            made.load(Ordering::SeqCst) > before + 100 || failed.load(Ordering::SeqCst) > 0
        })
        .await;
        let version = format!("hostile-device0.{}.0", switch % 10);
        let bytes = match switch {
            1 | 11 => patched(HOSTILE_DEVICE, "hostile-device0.1.0", "hostile-device0.1.1"),
            _ => patched(HOSTILE_DEVICE, "hostile-device0.1.0", &version),
        };
        plugins.push(manager.source(&name).unwrap());
        let new = Arc::new(device(&runtime, bytes).await);
        manager.switch(new).unwrap().await;
    }
    plugins.push(manager.source(&name).unwrap());
    stop.store(true, Ordering::SeqCst);
    while load.join_next().await.is_some() {}
    let took = watch.elapsed();
    manager.shutdown().await;

    assert_eq!(failed.load(Ordering::SeqCst), 0);
    let made = made.load(Ordering::SeqCst);
    let of = |call: &str| -> Vec<(u64, u64)> {
        let calls = plugins.iter().map(|plugin| plugin.meter().report().calls);
        calls.map(|c| c.get(call).map_or((0, 0), |stats| (stats.calls, stats.failed))).collect()
    };
    println!("{made} reserves and as many releases in {took:?}, over ten switches");
    for call in ["reserve", "release"] {
        let counts = of(call);
        assert_eq!(counts.iter().map(|(calls, _)| calls).sum::<u64>(), made, "{call}: {counts:?}");
        assert!(counts.iter().all(|(_, failed)| *failed == 0), "{call}: {counts:?}");
        assert!(counts.iter().take(10).all(|(calls, _)| *calls > 0), "{call}: {counts:?}");
    }
}
