//! Attacks by drivers.

use std::sync::Arc;
use std::time::Duration;

use ostler_guests::fixtures::HOSTILE_DRIVER;
use ostler_model::cores::CoreSet;
use ostler_model::grants::Grants;
use ostler_model::limits::PluginLimits;
use ostler_model::ports::TaskContext;
use ostler_model::task::Workload;
use ostler_plugin::Plugin;
use ostler_plugin::driver::LoadedDriver;
use ostler_process::ProcessSpec;
use serde_json::{Value, json};

use super::arena::{Arena, Outcome, load, spec, task_config};
use super::soon;
use crate::support::system::{host_process_id, processes_of, runs};

async fn driver(arena: &Arena) -> LoadedDriver {
    let far = Duration::from_secs(60);
    let limits = PluginLimits { call_wall_max: far, call_cpu_max: far, ..PluginLimits::default() };
    let grants = Grants { process: true, ..Grants::default() };
    match load(&arena.plugins, spec("hostile", json!({}), grants, limits), HOSTILE_DRIVER).await {
        Ok(Plugin::Driver(driver)) => driver,
        _ => panic!("the driver loads"),
    }
}

/// Start a task with this configuration: what the driver said, or the process.
async fn start(arena: &Arena, context: &Arc<TaskContext>, config: Value) -> Result<String, String> {
    let config = task_config(context, config);
    match driver(arena).await.start(Arc::clone(context), config).await {
        Ok(started) => match started.workload {
            Workload::Process(id) => Ok(id),
            other => Err(format!("{other:?}")),
        },
        Err(error) => Err(error.to_string()),
    }
}

/// End the run and see that none of its processes is left.
async fn end(arena: &Arena, context: &TaskContext) {
    arena.services.processes.kill_run(&context.run_id);
    soon("the run's processes are gone", || processes_of(&context.task_dir).is_empty()).await;
    arena.services.processes.forget_run(&context.run_id);
}

pub async fn storm(arena: &Arena) -> Outcome {
    let dir = arena.empty("storm");
    let (context, _) = arena.context(&dir);
    let mark = dir.display().to_string();
    let config = json!({
        "start": "storm", "command": "/bin/sh", "args": ["-c", "sleep 1000; exit", mark]
    });
    let said = start(arena, &context, config).await;
    let spawned = processes_of(&dir).len();
    end(arena, &context).await;
    let escaped = (spawned > 2 * ostler_model::limits::WORKLOADS_PER_RUN_MAX)
        .then(|| format!("{spawned} processes"));
    Outcome { escaped, ..Outcome::of(said.unwrap_or_else(|error| error)) }
}

pub async fn fork_storm(arena: &Arena) -> Outcome {
    let dir = arena.empty("forks");
    let (context, _) = arena.context(&dir);
    // Each of them stays; the name makes them easy to find. Bounded, since without a cgroup nothing
    // bounds how many there are until the kill.
    let script = "i=0; while [ $i -lt 60 ]; do sh -c 'while :; do sleep 1000; done' \"$0\" & \
                  i=$((i+1)); done; wait";
    let mark = dir.display().to_string();
    let config = json!({ "command": "/bin/sh", "args": ["-c", script, mark] });
    let id = match start(arena, &context, config).await {
        Ok(id) => id,
        Err(error) => return Outcome::of(error),
    };
    arena.services.processes.release(&context.run_id).await.unwrap();
    soon("they are many", || processes_of(&dir).len() > 30).await;
    let watch = ostler_model::clock::Stopwatch::start();
    arena.services.processes.kill(&context.run_id, &id).unwrap();
    soon("all are gone", || processes_of(&dir).is_empty()).await;
    let past = Some(watch.elapsed());
    end(arena, &context).await;
    Outcome { past, ..Outcome::of("all are gone") }
}

/// A process of another run, which must live on.
async fn victim(arena: &Arena, context: &TaskContext) -> String {
    let spec = ProcessSpec {
        run_id: context.run_id.clone(),
        command: "/bin/sleep".to_owned(),
        search: Vec::new(),
        args: vec!["1000".to_owned()],
        env: vec![("OSTLER_TEST_MARK".to_owned(), context.task_dir.display().to_string())],
        cwd: context.task_dir.clone(),
        user: None,
        isolation: None,
        network: None,
        stdout: Arc::clone(&context.stdout),
        stderr: Arc::clone(&context.stderr),
        record_identity: Arc::clone(&context.record_identity),
        cpu_mhz: 0,
        cores: CoreSet::new(),
        memory_bytes_max: 0,
    };
    let id = arena.services.processes.spawn(spec).await.unwrap();
    arena.services.processes.release(&context.run_id).await.unwrap();
    id
}

pub async fn strangers(arena: &Arena) -> Outcome {
    let (other_dir, dir) = (arena.empty("other"), arena.empty("strangers"));
    let (other, _) = arena.context(&other_dir);
    let (context, _) = arena.context(&dir);
    let id = victim(arena, &other).await;
    let pid: u32 = id.split('-').next().unwrap().parse().unwrap();
    let own = std::process::id();
    let ids = [
        id.clone(),
        pid.to_string(),
        format!("-{pid}"),
        host_process_id(own),
        own.to_string(),
        host_process_id(1),
        "1".to_owned(),
        "0".to_owned(),
        "-1".to_owned(),
        "self".to_owned(),
        String::new(),
        format!("{id}\0"),
        format!(" {id}"),
        "9".repeat(10_000),
    ];
    let config = json!({ "start": "strangers", "args": ids, "command": "/bin/true" });
    let said = start(arena, &context, config).await.unwrap_or_else(|error| error);
    let escaped = (!runs(pid)).then(|| "the other's process is dead".to_owned());
    end(arena, &context).await;
    end(arena, &other).await;
    Outcome { escaped, ..Outcome::of(format!("{said}\"")) }
}

/// A driver that may start one program starts it with other libraries and elsewhere.
pub async fn stray(arena: &Arena) -> Outcome {
    let dir = arena.empty("stray");
    let (context, _) = arena.context(&dir);
    std::os::unix::fs::symlink("/etc", dir.join("local/link")).unwrap();
    let far = Duration::from_secs(60);
    let limits = PluginLimits { call_wall_max: far, call_cpu_max: far, ..PluginLimits::default() };
    let (programs, users) = (Some(vec!["/bin/true".to_owned()]), vec!["root".to_owned()]);
    let grants = Grants { process: true, programs, users, ..Grants::default() };
    let spec = spec("hostile", json!({}), grants, limits);
    let Ok(Plugin::Driver(driver)) = load(&arena.plugins, spec, HOSTILE_DRIVER).await else {
        return Outcome::of("it does not load");
    };
    // The same driver may start it as the job wants it.
    let honest = task_config(&context, json!({ "command": "/bin/true" }));
    if let Err(error) = driver.start(Arc::clone(&context), honest).await {
        return Outcome::of(error);
    }
    let config = task_config(&context, json!({ "start": "stray", "command": "/bin/true" }));
    let said = driver.start(Arc::clone(&context), config).await;
    let said = said.map_or_else(|error| error.to_string(), |started| format!("{started:?}"));
    end(arena, &context).await;
    Outcome::of(format!("{said}\""))
}

pub async fn inject(arena: &Arena) -> Outcome {
    let dir = arena.empty("inject");
    let (context, _) = arena.context(&dir);
    let config = json!({ "start": "inject", "command": "/bin/true" });
    let said = start(arena, &context, config).await.unwrap_or_else(|error| error);
    end(arena, &context).await;
    Outcome::of(format!("{said}\""))
}
