//! Rules for drivers.

use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::bench::{Bench, BenchSurroundings, CallReply, call_reply};
use super::report::Findings;
use super::settings::as_object;
use super::{Subject, rules};
use ostler_model::clock;
use ostler_model::cores::CoreSet;
use ostler_model::grants::answers::AnswerCheck;
use ostler_model::ids::{AllocId, GroupName, JobId, RunId, TaskName};
use ostler_model::json::JsonObject;
use ostler_model::limits::{HANDLE_BYTES_MAX, MIB};
use ostler_model::plugin::PluginManifest;
use ostler_model::ports::{ByteSink, PluginCallError, StartedTask, TaskConfig, TaskContext};
use ostler_model::task::{DriverHandle, RawExit};
use ostler_plugin::Plugin;
use ostler_plugin::convert::DriverFingerprint;
use ostler_plugin::driver::LoadedDriver;

/// How long a start runs before it is given up, for the rule on cancelled tasks.
const GIVEN_UP_AFTER: Duration = Duration::from_micros(200);
/// How long after `stop` the task is killed.
const STOP_TIMEOUT: Duration = Duration::from_millis(100);

pub(super) async fn check(
    bench: &Bench,
    subject: &Subject,
    manifest: &PluginManifest,
    driver: &LoadedDriver,
    findings: &mut Findings,
) {
    match call_reply("", driver.fingerprint().await) {
        Ok(CallReply::Yes(found)) => {
            findings.pass(rules::FINGERPRINT, format!("{:?}", found.health.state));
            findings.outcome(
                rules::STABLE,
                check_stable(bench, subject, manifest, driver, &found).await,
            );
        }
        Ok(CallReply::No(error)) => findings.warn(rules::FINGERPRINT, format!("cannot: {error}")),
        Err(text) => findings.fail(rules::FINGERPRINT, text),
    }
    let answers = AnswerCheck { name: &subject.name, grants: &subject.grants };
    match answers.check_driver(driver.name.as_str()) {
        Ok(()) => findings.pass(rules::ANSWERS, "it is called as it may be"),
        Err(excess) => findings.warn(rules::ANSWERS, excess.to_string()),
    }
    let scene = match Scene::new(bench) {
        Ok(scene) => scene,
        Err(error) => {
            return findings.skip_rest(manifest.kind, &format!("no temporary directory: {error}"));
        }
    };
    findings.outcome(rules::HANDLES, call_odd_handles(driver, &scene).await);
    findings.outcome(rules::RECOVER, recover_unknown(driver, &scene).await);
    findings.outcome(rules::UNKNOWN_TASK, end_unknown_task(driver, &scene).await);
    findings.outcome(rules::START_WRONG, start_odd_configs(driver, &scene).await);
    match &subject.task_config {
        None => {
            let reason = "give a task's config with --task-config, and the grants it needs";
            findings.skip(rules::LIFE, reason);
            findings.skip(rules::CANCELLED, reason);
        }
        Some(config) => {
            findings.outcome(rules::LIFE, run_life(driver, &scene, config).await);
            findings.outcome(rules::CANCELLED, cancel_start(driver, &scene, config).await);
        }
    }
}

/// The surroundings of a task, which lead nowhere.
struct Scene<'a> {
    bench: &'a Bench,
    dir: tempfile::TempDir,
}

struct DiscardingSink;

impl ByteSink for DiscardingSink {
    fn write(&self, _bytes: &[u8]) {}
}

impl<'a> Scene<'a> {
    fn new(bench: &'a Bench) -> std::io::Result<Self> {
        // Nobody else may read or change what a driver under test starts.
        let owner_alone = std::fs::Permissions::from_mode(0o700);
        let dir = tempfile::Builder::new().prefix("ostler-").permissions(owner_alone).tempdir()?;
        Ok(Self { bench, dir })
    }

    /// A new run.
    fn run(&self) -> Option<Arc<TaskContext>> {
        let rng = &self.bench.services().rng;
        let alloc_id = AllocId::new(rng.uuid());
        let task = TaskName::new("check").ok()?;
        let (task_dir, alloc_dir) = (self.dir.path().join("check"), self.dir.path().join("alloc"));
        for (dir, names) in
            [(&task_dir, ["local", "secrets", "tmp"]), (&alloc_dir, ["data", "logs", "tmp"])]
        {
            for name in names {
                std::fs::create_dir_all(dir.join(name)).ok()?;
            }
        }
        Some(Arc::new(TaskContext {
            run_id: RunId::new(
                alloc_id,
                &task,
                u32::try_from(rng.number_below(1 << 32)).unwrap_or(0),
            ),
            alloc_id,
            job_id: JobId::new("check").ok()?,
            group: GroupName::new("check").ok()?,
            task,
            stdout: Arc::new(DiscardingSink),
            stderr: Arc::new(DiscardingSink),
            record_identity: Arc::new(|_| Box::pin(std::future::ready(Ok(())))),
            events: Arc::new(|_, _| {}),
            cpu_mhz: 100,
            cores: CoreSet::new(),
            memory_bytes_max: 64 * MIB,
            disk_bytes_max: 64 * MIB,
            ports: vec![],
            user: None,
            alloc_user: None,
            named: Arc::from([]),
            env: Arc::from([]),
            network: None,
            secrets: Arc::default(),
            task_dir,
            alloc_dir,
            dirs: ostler_model::ports::dirs_are_made(),
            mounts: vec![],
            device_nodes: vec![],
        }))
    }

    fn task(&self, context: &TaskContext, config: JsonObject) -> Option<TaskConfig> {
        Some(TaskConfig {
            run_id: context.run_id.clone(),
            alloc_id: context.alloc_id,
            job_id: JobId::new("check").ok()?,
            group: GroupName::new("check").ok()?,
            task: context.task.clone(),
            config,
            env: vec![("PATH".to_owned(), "/usr/bin:/bin".to_owned())],
            cpu_mhz: context.cpu_mhz,
            memory_bytes: context.memory_bytes_max,
            memory_max_bytes: None,
            ports: vec![],
            mounts: vec![],
            device_nodes: vec![],
            task_dir: context.task_dir.clone(),
            alloc_dir: context.alloc_dir.clone(),
            user: None,
        })
    }

    /// End what the host owns of a run.
    fn end_run(&self, context: &TaskContext) {
        let services = self.bench.services();
        services.processes.kill_run(&context.run_id);
        services.processes.forget_run(&context.run_id);
        services.wasm_tasks.kill_run(&context.run_id);
        services.wasm_tasks.forget_run(&context.run_id);
    }

    fn exit(&self) -> RawExit {
        RawExit {
            exit_code: Some(0),
            signal: None,
            oom_killed: false,
            error: None,
            finished_at: self.bench.services().clock.now(),
        }
    }
}

const NO_SCENE: &str = "no task could be made up: a mistake in this program";

async fn check_stable(
    bench: &Bench,
    subject: &Subject,
    manifest: &PluginManifest,
    driver: &LoadedDriver,
    first: &DriverFingerprint,
) -> Result<String, String> {
    let names = |found: &DriverFingerprint| -> Vec<String> {
        found.attributes.iter().map(|one| one.name.clone()).collect()
    };
    let state = first.health.state;
    let same = |what: &str, again: &DriverFingerprint| match (
        again.health.state == state,
        names(again) == names(first),
    ) {
        (true, true) => Ok(()),
        (false, _) => Err(format!("{what} its health is {:?}, not {state:?}", again.health.state)),
        (true, false) => Err(format!("{what} it has the attributes {:?}", names(again))),
    };
    let again = driver.fingerprint().await.map_err(|error| format!("the second time: {error}"))?;
    same("the second time", &again)?;
    if let Ok(Plugin::Driver(driver)) =
        bench.load(subject, manifest, BenchSurroundings::Elsewhere).await
    {
        let what = "at another time, with other random numbers,";
        let again = driver.fingerprint().await.map_err(|error| format!("{what} {error}"))?;
        same(what, &again)?;
    }
    Ok(format!("health and {} attributes are the same three times", first.attributes.len()))
}

fn handle_with(driver: &LoadedDriver, version: u32, data: &[u8]) -> DriverHandle {
    DriverHandle { plugin: driver.name.to_string(), version, data: data.to_owned() }
}

/// Handles that the driver cannot have made, and what is odd about each.
fn odd_driver_handles(driver: &LoadedDriver) -> Vec<(&'static str, DriverHandle)> {
    let nested = [b"[".repeat(10_000), b"{\"a\":".repeat(2_000)].concat();
    vec![
        ("garbage", handle_with(driver, 1, &[0xff, 0x00, 0x80, 0x7f, 0xc3])),
        ("nothing", handle_with(driver, 1, b"")),
        ("JSON of another shape", handle_with(driver, 1, br#"{"id":7,"state":[null]}"#)),
        ("deep JSON", handle_with(driver, 1, &nested)),
        ("64 KiB", handle_with(driver, 1, &vec![b'x'; HANDLE_BYTES_MAX])),
        ("an older version", handle_with(driver, 0, br#"{"id":"x"}"#)),
        ("a version of the future", handle_with(driver, u32::MAX, br#"{"id":"x"}"#)),
    ]
}

/// Call every function that takes a handle, with handles that cannot exist.
async fn call_odd_handles(driver: &LoadedDriver, scene: &Scene<'_>) -> Result<String, String> {
    let odd = odd_driver_handles(driver);
    for (what, handle) in &odd {
        let what = format!("a handle of {what}");
        let run = scene.run().ok_or(NO_SCENE)?;
        let (of, handle) = (|| Arc::clone(&run), || handle.clone());
        call_reply(&what, driver.inspect(of(), handle()).await)?;
        call_reply(&what, driver.interpret_exit(of(), handle(), scene.exit()).await)?;
        let signal = Some("SIGTERM".to_owned());
        call_reply(&what, driver.stop(of(), handle(), signal, STOP_TIMEOUT).await)?;
        call_reply(&what, driver.signal(of(), handle(), "SIGNOTHING".to_owned()).await)?;
        call_reply(&what, driver.kill(of(), handle()).await)?;
        call_reply(&what, driver.destroy(of(), handle(), false).await)?;
        call_reply(&what, driver.destroy(of(), handle(), true).await)?;
    }
    Ok(format!("7 functions answer for {} handles that are not its own", odd.len()))
}

async fn recover_unknown(driver: &LoadedDriver, scene: &Scene<'_>) -> Result<String, String> {
    let mut odd = odd_driver_handles(driver);
    odd.retain(|(what, _)| !what.contains("version"));
    let tried = odd.len();
    for (what, handle) in odd {
        let what = format!("a handle of {what}");
        let run = scene.run().ok_or(NO_SCENE)?;
        if let CallReply::Yes(_) = call_reply(&what, driver.recover(run, handle).await)? {
            return Err(format!("{what} is recovered as a task that runs"));
        }
    }
    Ok(format!("{tried} handles of no task are refused"))
}

/// Stop, kill and destroy a task that does not exist, which must succeed.
async fn end_unknown_task(driver: &LoadedDriver, scene: &Scene<'_>) -> Result<String, String> {
    let nobody = handle_with(driver, 1, br#"{"id":"ostler-check-none"}"#);
    let run = scene.run().ok_or(NO_SCENE)?;
    let (of, handle) = (|| Arc::clone(&run), || nobody.clone());
    let what = "a task that was never started";
    let calls = [
        ("stop", driver.stop(of(), handle(), None, STOP_TIMEOUT).await),
        ("kill", driver.kill(of(), handle()).await),
        ("destroy", driver.destroy(of(), handle(), true).await),
    ];
    let mut words = Vec::new();
    for (call, answer) in calls {
        words.push(match call_reply(what, answer)? {
            CallReply::Yes(()) => format!("{call} answers well"),
            CallReply::No(PluginCallError::NotFound(_)) => format!("{call} finds nothing"),
            CallReply::No(error) => format!("{call} is refused ({error})"),
        });
    }
    Ok(words.join(", "))
}

async fn start_odd_configs(driver: &LoadedDriver, scene: &Scene<'_>) -> Result<String, String> {
    let odd = [
        json!({}),
        json!({ "command": 7, "args": "x", "run_for": [], "path": null }),
        json!({ "command": "", "args": ["\0"], "path": "../../etc/passwd" }),
        (0..64).fold(json!({}), |inner, _| json!({ "a": inner })),
    ];
    let mut refused = 0;
    for config in odd {
        let what = format!("a task with the config {config}");
        let run = scene.run().ok_or(NO_SCENE)?;
        let task = scene.task(&run, as_object(config)).ok_or(NO_SCENE)?;
        let answer = driver.start(Arc::clone(&run), task).await;
        scene.end_run(&run);
        refused += usize::from(matches!(call_reply(&what, answer)?, CallReply::No(_)));
    }
    Ok(format!("{refused} of 4 odd configurations are refused, none with a trap"))
}

async fn start(
    driver: &LoadedDriver,
    scene: &Scene<'_>,
    run: &Arc<TaskContext>,
    config: &JsonObject,
) -> Result<StartedTask, String> {
    let problems = driver.task_schema.check(config);
    if !problems.is_empty() {
        let problems = ostler_plugin::schema::one_line(&problems);
        return Err(format!("the given task config does not fit the driver's schema: {problems}"));
    }
    let task = scene.task(run, config.clone()).ok_or(NO_SCENE)?;
    driver.start(Arc::clone(run), task).await.map_err(|error| format!("start: {error}"))
}

/// Run one task from start to destroy, with each call that may come twice.
async fn run_life(
    driver: &LoadedDriver,
    scene: &Scene<'_>,
    config: &JsonObject,
) -> Result<String, String> {
    let run = scene.run().ok_or(NO_SCENE)?;
    let lived = run_life_calls(driver, scene, config, &run).await;
    scene.end_run(&run);
    lived
}

async fn run_life_calls(
    driver: &LoadedDriver,
    scene: &Scene<'_>,
    config: &JsonObject,
    run: &Arc<TaskContext>,
) -> Result<String, String> {
    let started = start(driver, scene, run, config).await?;
    let (of, handle) = (|| Arc::clone(run), || started.handle.clone());
    let refused = |call: &str| {
        let call = call.to_owned();
        move |error: PluginCallError| format!("{call}: {error}")
    };
    let again = driver.recover(of(), handle()).await.map_err(refused("recover"))?;
    if again.workload != started.workload {
        return Err("recover answers another workload than start".to_owned());
    }
    call_reply("after start", driver.inspect(of(), handle()).await)?;
    call_reply("after start", driver.destroy(of(), handle(), false).await)?;
    call_reply("after start", driver.stop(of(), handle(), None, STOP_TIMEOUT).await)?;
    call_reply("after stop", driver.stop(of(), handle(), None, STOP_TIMEOUT).await)?;
    call_reply("after stop", driver.kill(of(), handle()).await)?;
    let exit =
        driver.interpret_exit(of(), handle(), scene.exit()).await.map_err(refused("exited"))?;
    if exit.exit_code != 0 || exit.signal != 0 {
        return Err(format!(
            "an exit with code 0 is taken for {} ({})",
            exit.exit_code, exit.signal
        ));
    }
    call_reply("after the exit", driver.kill(of(), handle()).await)?;
    call_reply("after the exit", driver.destroy(of(), handle(), true).await)?;
    call_reply("the second time", driver.destroy(of(), handle(), true).await)?;
    call_reply("after destroy", driver.inspect(of(), handle()).await)?;
    Ok("start, recover, inspect, stop twice, kill, exited, destroy twice".to_owned())
}

/// Give up a start half-way, and check the next one.
async fn cancel_start(
    driver: &LoadedDriver,
    scene: &Scene<'_>,
    config: &JsonObject,
) -> Result<String, String> {
    let run = scene.run().ok_or(NO_SCENE)?;
    let task = scene.task(&run, config.clone()).ok_or(NO_SCENE)?;
    let start_again = driver.start(Arc::clone(&run), task);
    let ended = clock::timeout(GIVEN_UP_AFTER, start_again).await;
    scene.end_run(&run);
    let given_up = ended.is_none();
    let run = scene.run().ok_or(NO_SCENE)?;
    let started = start(driver, scene, &run, config).await;
    scene.end_run(&run);
    started.map_err(|error| format!("after a start that was given up: {error}"))?;
    Ok(if given_up {
        "the start after one that was given up succeeds".to_owned()
    } else {
        "the start after one whose handle was lost succeeds".to_owned()
    })
}
