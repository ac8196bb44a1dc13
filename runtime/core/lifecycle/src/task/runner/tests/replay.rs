//! The effects of hooks after a restart of the agent: made again, not only marked as made.

use std::sync::Mutex;

use super::*;
use ostler_model::device::{GroupKey, Mount, Reservation};
use ostler_model::json::JsonObject;
use ostler_model::ports::{PluginCallError, TaskConfig, TaskContext};
use ostler_model::resources::{AllocatedDevice, AllocatedPort};
use ostler_testing::fake_driver::Reply;

fn reservation() -> Reservation {
    let mount = Mount {
        host_path: "/dev/shm".to_owned(),
        task_path: "/assigned".to_owned(),
        read_only: true,
    };
    let env = vec![("LENT".to_owned(), "gpu-0".to_owned())];
    Reservation { env, mounts: vec![mount], device_nodes: Vec::new() }
}

/// A task that has one of everything a driver is told about.
fn full() -> Bench {
    let mut task = Task { user: Some("nobody".to_owned()), ..web() };
    task.env.insert("PORT".to_owned(), "${NOMAD_PORT_http}".to_owned());
    task.meta.insert("kind".to_owned(), "full".to_owned());
    let config = serde_json::json!({ "args": ["${NOMAD_ALLOC_ID}", "${PORT}"] });
    task.config = serde_json::from_value::<JsonObject>(config).unwrap();
    task.restart = fixtures::restart(3, SECOND);
    let mut bench = Bench::new(task);
    let mut allocation = (*bench.allocation).clone();
    let (label, host_ip) = ("http".to_owned(), "127.0.0.1".to_owned());
    allocation.ports = vec![AllocatedPort { label, value: 20_123, to: 80, host_ip, task: None }];
    let group = GroupKey { vendor: "v".into(), kind: "t".into(), name: "n".into() };
    let assigned = AllocatedDevice { group, ids: vec!["0".to_owned()] };
    allocation.devices.insert(name("web"), vec![assigned]);
    bench.allocation = Arc::new(allocation);
    bench.node.set_reserve(Reply::Ok, reservation());
    bench.node.script("web", [native(Script::runs())]);
    bench
}

/// The contexts of start and recovery tell the same.
fn assert_alike(started: &TaskContext, recovered: &TaskContext) {
    assert_eq!(started.run_id, recovered.run_id);
    assert_eq!(started.alloc_id, recovered.alloc_id);
    assert_eq!(started.task, recovered.task);
    assert_eq!(started.cpu_mhz, recovered.cpu_mhz);
    assert_eq!(started.memory_bytes_max, recovered.memory_bytes_max);
    assert_eq!(started.ports, recovered.ports);
    assert_eq!(started.task_dir, recovered.task_dir);
    assert_eq!(started.alloc_dir, recovered.alloc_dir);
    assert_eq!(started.mounts, recovered.mounts);
    assert!(started.task_dir.is_absolute() && !started.mounts.is_empty());
}

fn address<T: ?Sized>(shared: &Arc<T>) -> *const () {
    Arc::as_ptr(shared).cast()
}

#[tokio::test(start_paused = true)]
async fn a_recovered_run_has_the_directories_logs_ports_and_mounts_of_its_start() {
    let mut bench = full();
    let handle = bench.spawn();
    until_running(&handle).await;
    let handle = bench.next_agent(&handle).await;
    until(&handle, |s| has(s, "Recovered")).await;
    let contexts = bench.node.contexts();
    assert_eq!(contexts.len(), 2);
    assert_alike(&contexts[0], &contexts[1]);
    let logs = handle.logs().expect("the logs are open again");
    assert_eq!(address(&contexts[1].stdout), address(&logs.stdout));
    assert_eq!(address(&contexts[1].stderr), address(&logs.stderr));
    (contexts[1].events)("still here".to_owned(), Vec::new());
    until(&handle, |s| s.events.iter().any(|e| e.message == "still here")).await;
}

#[tokio::test(start_paused = true)]
async fn a_restart_after_a_recovery_gives_the_driver_what_the_first_start_gave_it() {
    let mut bench = full();
    let configs: Arc<Mutex<Vec<TaskConfig>>> = Arc::default();
    let seen = Arc::clone(&configs);
    let probe = move |_: &TaskContext, config: &TaskConfig| {
        seen.lock().unwrap().push(config.clone());
    };
    bench.node.set_probe(Arc::new(probe));
    let handle = bench.spawn();
    until_running(&handle).await;
    let handle = bench.next_agent(&handle).await;
    until(&handle, |s| has(s, "Recovered")).await;
    handle.restart("asked").await.unwrap();
    until(&handle, |s| s.restarts == 1 && s.status == TaskStatus::Running).await;
    let configs = configs.lock().unwrap();
    let [first, again] = &configs[..] else { panic!("{configs:?}") };
    assert_ne!(first.run_id, again.run_id);
    assert_eq!(*first, TaskConfig { run_id: first.run_id.clone(), ..again.clone() });
    // Of everything something, so that the comparison compares something.
    assert!(first.env.contains(&("LENT".to_owned(), "gpu-0".to_owned())), "{first:?}");
    assert!(first.env.contains(&("PORT".to_owned(), "20123".to_owned())), "{first:?}");
    assert!(!first.mounts.is_empty() && !first.ports.is_empty() && first.user.is_some());
    assert!(format!("{:?}", first.config).contains("20123"), "{first:?}");
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_fails_while_the_driver_is_away_has_left_its_effect_when_it_is_back() {
    let mut bench = full();
    let handle = bench.spawn();
    until_running(&handle).await;
    bench.node.set_missing(true);
    let broken = PluginCallError::Recoverable("no devices yet".to_owned());
    bench.node.set_reserve(Reply::Fail(broken), Reservation::default());
    let handle = bench.next_agent(&handle).await;
    until(&handle, |s| has(s, "Driver")).await;
    bench.node.set_reserve(Reply::Ok, reservation());
    bench.node.set_missing(false);
    until(&handle, |s| has(s, "Recovered")).await;
    let contexts = bench.node.contexts();
    assert_alike(&contexts[0], &contexts[1]);
}

const ILL: &str = "device v/t/n instance 0 is unhealthy: the fan stopped";

#[tokio::test(start_paused = true)]
async fn a_run_goes_on_with_a_device_that_turned_unhealthy_and_the_next_start_is_told_of_it() {
    let mut bench = full();
    let handle = bench.spawn();
    until_running(&handle).await;
    bench.node.set_unfit(Some(ILL));
    let handle = bench.next_agent(&handle).await;
    let state = until(&handle, |s| has(s, "Recovered")).await;
    assert!(state.events.iter().all(|event| !event.message.contains(ILL)), "{state:#?}");
    let contexts = bench.node.contexts();
    assert_alike(&contexts[0], &contexts[1]);

    let reserved = bench.count("reserve web");
    handle.restart("asked").await.unwrap();
    let state = until(&handle, |s| has(s, "Setup Failure")).await;
    let told = |state: &TaskState| state.events.iter().any(|event| event.message.contains(ILL));
    assert!(told(&state), "{state:#?}");
    assert_eq!(bench.count("reserve web"), reserved, "its plugin was not asked for it");
    assert_ne!(state.status, TaskStatus::Running);
    bench.node.set_unfit(None);
    until_running(&handle).await;
}

#[tokio::test(start_paused = true)]
async fn a_device_that_stays_unhealthy_ends_the_task_as_its_restart_policy_says() {
    let bench = full();
    bench.node.set_unfit(Some(ILL));
    let handle = bench.spawn();
    let state = until(&handle, |s| s.status == TaskStatus::Dead).await;
    assert!(state.failed, "{state:#?}");
    let tries = kinds(&state).iter().filter(|kind| **kind == "Setup Failure").count();
    assert_eq!((tries, bench.count("reserve web"), bench.count("start web")), (4, 0, 0));
}
