//! Ordinary runs: events, records, restarts, requests.

use super::*;
use crate::task::handle::{LocalState, find_leftovers};
use ostler_model::alloc::ClientStatus;
use ostler_model::job::{Lifecycle, LifecycleHook};
use ostler_model::resources::AllocatedDevice;
use ostler_model::saved::SavedAllocState;
use ostler_model::session::ExecCommand;
use ostler_model::task::Workload;
use ostler_state::records::{AllocStateKey, TaskLocalKey, TaskStateKey};
use ostler_testing::fake_driver::{Reply, Script};

#[tokio::test(start_paused = true)]
async fn a_task_runs_to_its_end_with_nomads_events_in_order() {
    let bench = Bench::new();
    bench.node.script("web", [Script::ends(3 * SECOND, 0)]);
    let handle = bench.run(vec![task("web")]);
    let state = handle.wait_done().await;
    assert_eq!(events(&state, "web"), ["Received", "Task Setup", "Started", "Terminated"]);
    let texts: Vec<_> = state.tasks["web"].events.iter().map(|e| e.message.as_str()).collect();
    assert_eq!(
        texts,
        [
            "Task received by client",
            "Building Task Directory",
            "Task started by client",
            "Exit Code: 0"
        ]
    );
    assert_eq!(state.client_status, ClientStatus::Complete);
    assert_eq!(
        bench.node.calls()[..4],
        ["start web", "exited web", "destroy web", "forget_run web"]
    );
    assert!(bench.node.calls().contains(&"release web".to_owned()));
    assert_eq!(bench.when("exited web"), 3.0);
    assert!(handle.task_logs(&name("web")).is_some());
    assert!(handle.dir().join("alloc/logs").is_dir());
}

#[tokio::test(start_paused = true)]
async fn at_the_end_the_last_state_is_durable_and_no_run_is_recorded() {
    let bench = Bench::new();
    bench.node.script("web", [Script { pid: Some(77), ..Script::ends(SECOND, 0) }]);
    let handle = bench.run(vec![task("web")]);
    let state = handle.wait_done().await;
    let stored: CowArc<TaskState> =
        bench.store.get(&TaskStateKey::of(handle.id(), name("web"))).unwrap().unwrap();
    assert_eq!(stored, state.tasks["web"]);
    let local: LocalState =
        bench.store.get(&TaskLocalKey::of(handle.id(), name("web"))).unwrap().unwrap();
    assert_eq!(local.run, None);
    assert!(local.run_complete);
    let saved: SavedAllocState = bench.store.get(&AllocStateKey::of(handle.id())).unwrap().unwrap();
    assert_eq!(saved, SavedAllocState { finished: true, ..SavedAllocState::from(&state) });
    assert_eq!(saved.client_status, ClientStatus::Complete);
}

/// Notes after the last task how often the disk was waited for.
struct Counting(StateStore, Seen<u64>);

impl AllocHook for Counting {
    fn name(&self) -> &'static str {
        "counting"
    }
    fn postrun<'a>(&'a self, _scope: &'a AllocScope) -> crate::alloc::hooks::HookResult<'a> {
        let stats = self.0.stats();
        self.1.lock().unwrap().push(stats.puts - stats.later);
        Box::pin(async { Ok(()) })
    }
}

#[tokio::test(start_paused = true)]
async fn the_end_of_an_allocation_is_told_after_a_durable_write_of_its_state() {
    let mut bench = Bench::new();
    let waited: Seen<u64> = Arc::default();
    bench.alloc_hooks.push(Arc::new(Counting(bench.store.clone(), Arc::clone(&waited))));
    bench.node.script("web", [Script::ends(SECOND, 0)]);
    bench.run(vec![task("web")]).wait_done().await;
    let stats = bench.store.stats();
    assert_eq!(vec![stats.puts - stats.later - 1], *waited.lock().unwrap(), "{stats:?}");
}

/// The intent, then the process with its handle: each is durable on its own, and nothing else of a
/// start is.
#[tokio::test(start_paused = true)]
async fn a_start_waits_for_the_disk_twice() {
    let bench = Bench::new();
    bench.node.script("web", [Script { pid: Some(77), ..Script::runs() }]);
    let handle = bench.run(vec![task("web")]);
    until_running(&handle, "web").await;
    bench.store.flush().await.unwrap();
    let stats = bench.store.stats();
    assert_eq!(stats.puts - stats.later, 2, "{stats:?}");
    // What lagged is there: the state of the task and of the allocation.
    let stored: CowArc<TaskState> =
        bench.store.get(&TaskStateKey::of(handle.id(), name("web"))).unwrap().unwrap();
    assert_eq!(&stored, &handle.state().borrow().tasks["web"]);
    let saved: SavedAllocState = bench.store.get(&AllocStateKey::of(handle.id())).unwrap().unwrap();
    assert_eq!(saved.client_status, ClientStatus::Running);
}

/// The intent; how the task ended; the last state of the allocation.
#[tokio::test(start_paused = true)]
async fn a_held_start_of_which_a_note_is_kept_waits_for_the_disk_once_and_its_end_twice() {
    let bench = Bench::new();
    bench.node.set_starts_held(true);
    bench.node.keep_notes();
    bench.node.script("web", [Script { pid: Some(77), ..Script::ends(SECOND, 0) }]);
    let handle = bench.run(vec![task("web")]);
    until_running(&handle, "web").await;
    let waited = |stats: ostler_state::Stats| stats.puts - stats.later;
    assert_eq!(waited(bench.store.stats()), 1, "{:?}", bench.store.stats());
    handle.wait_done().await;
    assert_eq!(waited(bench.store.stats()), 3, "{:?}", bench.store.stats());
}

/// Nothing of an owner has run before the first wait: what is written by then goes with the record of the
/// allocation.
#[tokio::test(start_paused = true)]
async fn the_intents_of_a_new_allocation_go_with_its_record_where_nothing_else_is_waited_for() {
    let of = |hook| Some(Lifecycle { hook, sidecar: false });
    let after = Task { lifecycle: of(LifecycleHook::Poststop), ..task("after") };
    let before = Task { lifecycle: of(LifecycleHook::Prestart), ..task("before") };
    for (held, tasks, intents) in [
        (true, vec![task("web"), task("log"), after.clone()], 2),
        (true, vec![task("web"), before], 0),
        (false, vec![task("web"), after], 0),
    ] {
        let bench = Bench::new();
        bench.node.set_starts_held(held);
        let handle = bench.run(tasks);
        let written = bench.store.stats();
        assert_eq!((written.puts, written.later, written.commits), (intents, 0, 0), "held: {held}");
        handle.destroy().await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_intent_is_durable_before_start_and_the_process_before_its_code_runs() {
    let bench = Bench::new();
    bench.node.script("web", [Script { pid: Some(77), ..Script::runs() }]);
    let seen: Seen<LocalState> = Arc::default();
    let (store, into) = (bench.store.clone(), Arc::clone(&seen));
    bench.node.set_probe(Arc::new(move |_context, config| {
        let key = TaskLocalKey::of(config.alloc_id, config.task.clone());
        into.lock().unwrap().push(store.get(&key).unwrap().unwrap());
    }));
    let handle = bench.run(vec![task("web")]);
    until_running(&handle, "web").await;

    let intent = seen.lock().unwrap()[0].run.clone().unwrap();
    assert!(intent.identities.is_empty() && intent.started.is_none());
    let key = TaskLocalKey::of(handle.id(), name("web"));
    let run = bench.store.get::<LocalState>(&key).unwrap().unwrap().run.unwrap();
    assert_eq!(run.id, intent.id);
    assert_eq!(run.identities[0].pid, 77);
    assert_eq!(run.started.unwrap().workload, Workload::Process("p1".to_owned()));
    // What an agent that crashed now leaves behind:
    let left = find_leftovers(&bench.store).unwrap();
    assert_eq!((left.len(), left[0].identities[0].pid, &left[0].run), (1, 77, &intent.id));
}

#[tokio::test(start_paused = true)]
async fn a_failing_task_is_restarted_after_its_delay_and_fails_for_good_after_its_attempts() {
    let bench = Bench::new();
    bench.node.script("web", [Script::ends(SECOND, 1)]);
    let restart = fixtures::restart(2, 15 * SECOND);
    let handle = bench.run(vec![Task { restart, ..task("web") }]);
    let state = handle.wait_done().await;
    assert_eq!(
        events(&state, "web")[2..],
        [
            "Started",
            "Terminated",
            "Restarting",
            "Started",
            "Terminated",
            "Restarting",
            "Started",
            "Terminated",
            "Not Restarting"
        ]
    );
    assert_eq!(state.client_status, ClientStatus::Failed);
    assert_eq!(state.tasks["web"].restarts, 2);
    let starts: Vec<f64> = bench
        .node
        .journal()
        .iter()
        .filter(|(_, what)| what == "start web")
        .map(|(at, _)| at.as_secs_f64())
        .collect();
    for pair in starts.windows(2) {
        let wait = pair[1] - pair[0] - 1.0;
        assert!((15.0..=18.76).contains(&wait), "15 s and up to a quarter more, not {wait}");
    }
    assert!(bench.node.started_twice().is_empty());
}

#[tokio::test(start_paused = true)]
async fn each_start_has_its_own_run_id_and_asks_for_its_devices_again() {
    let bench = Bench::new();
    bench.node.script("web", [Script::ends(SECOND, 1), Script::ends(SECOND, 0)]);
    let seen: Seen<String> = Arc::default();
    let into = Arc::clone(&seen);
    bench.node.set_probe(Arc::new(move |_context, config| {
        into.lock().unwrap().push(config.run_id.to_string());
    }));
    let tasks = vec![Task { restart: fixtures::restart(1, SECOND), ..task("web") }];
    let mut allocation = fixtures::allocation(JobKind::Batch, tasks, &Rng::from_seed(7)).unwrap();
    let group = ostler_model::device::GroupKey {
        vendor: "v".to_owned(),
        kind: "t".to_owned(),
        name: "n".to_owned(),
    };
    let assigned = vec![AllocatedDevice { group, ids: vec!["1".to_owned()] }];
    allocation.devices.insert(name("web"), assigned);
    let state = bench.run_allocation(allocation).wait_done().await;
    assert_eq!(state.client_status, ClientStatus::Complete);
    let ids = seen.lock().unwrap().clone();
    assert_eq!(ids.len(), 2);
    assert_ne!(ids[0], ids[1]);
    let calls = bench.node.calls();
    assert_eq!(calls.iter().filter(|c| *c == "reserve web").count(), 2);
    assert_eq!(calls.iter().filter(|c| *c == "release web").count(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_idle_allocation_writes_nothing() {
    let bench = Bench::new();
    let handle = bench.run(vec![task("a"), task("b")]);
    until_running(&handle, "a").await;
    until_running(&handle, "b").await;
    clock::sleep(60 * SECOND).await;
    bench.store.flush().await.unwrap();
    let before = bench.store.stats();
    clock::sleep(3_600 * SECOND).await;
    assert_eq!(bench.store.stats(), before);
}

#[tokio::test(start_paused = true)]
async fn a_polled_workload_ends_when_the_driver_says_so() {
    let bench = Bench::new();
    bench.node.script("web", [Script { poll: Some(2 * SECOND), ..Script::ends(3 * SECOND, 4) }]);
    let state = bench.run(vec![task("web")]).wait_done().await;
    assert_eq!(state.tasks["web"].last_exit.as_ref().unwrap().exit_code, 4);
    assert_eq!(bench.when("exited web"), 4.0);
}

#[tokio::test(start_paused = true)]
async fn a_signal_reaches_a_running_task_and_is_refused_by_others() {
    let bench = Bench::new();
    let handle = bench.run(vec![task("web")]);
    until_running(&handle, "web").await;
    handle.signal(None, "SIGHUP").await.unwrap();
    assert!(bench.node.calls().contains(&"signal web SIGHUP".to_owned()));
    let unknown = handle.signal(Some(&name("nobody")), "SIGHUP").await;
    assert_eq!(unknown, Err(RequestError::UnknownTask { task: name("nobody") }));
    handle.stop("enough").await;
    handle.wait_done().await;
    let late = handle.signal(Some(&name("web")), "SIGHUP").await;
    assert!(matches!(late, Err(RequestError::Gone | RequestError::NotRunning { .. })), "{late:?}");
}

fn command(on_node: bool) -> ExecCommand {
    let on_node = on_node.then_some(()).ok_or_else(|| "no policy".to_owned());
    ExecCommand { argv: ["ls", "-l"].map(str::to_owned).to_vec(), terminal: None, on_node }
}

#[tokio::test(start_paused = true)]
async fn a_command_runs_inside_a_running_task_as_its_driver_says() {
    let bench = Bench::new();
    let handle = bench.run(vec![task("web")]);
    until_running(&handle, "web").await;
    let session = handle.exec(&name("web"), command(true)).await.unwrap();
    assert_eq!(session.end.await, Ok(7));
    let calls = bench.node.calls();
    assert!(calls.contains(&"exec web ls -l".to_owned()), "{calls:?}");
    assert!(calls.contains(&"enter web ls -l".to_owned()), "{calls:?}");
    let unknown = handle.exec(&name("nobody"), command(true)).await.unwrap_err();
    assert_eq!(unknown, RequestError::UnknownTask { task: name("nobody") });
    bench.node.set_exec(Reply::Hang);
    let late = handle.exec(&name("web"), command(true)).await.unwrap_err();
    assert_eq!(late, RequestError::NoAnswer { task: name("web") });
    handle.stop("enough").await;
    handle.wait_done().await;
    let late = handle.exec(&name("web"), command(true)).await.unwrap_err();
    assert!(matches!(late, RequestError::Gone | RequestError::NotRunning { .. }), "{late:?}");
}

#[tokio::test(start_paused = true)]
async fn a_command_reaches_the_nodes_own_files_only_for_who_may() {
    let bench = Bench::new();
    let handle = bench.run(vec![task("web")]);
    until_running(&handle, "web").await;
    let refused = handle.exec(&name("web"), command(false)).await.unwrap_err();
    assert!(refused.to_string().contains("the task is not isolated: no policy"), "{refused}");
    assert!(!bench.node.calls().iter().any(|call| call.starts_with("exec")));
    bench.node.set_rooted();
    assert!(handle.exec(&name("web"), command(false)).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_restart_on_request_is_at_once_and_costs_no_attempt() {
    let bench = Bench::new();
    let handle = bench.run(vec![task("web")]);
    until_running(&handle, "web").await;
    handle.restart(RestartScope::Running, "User requested task to restart").await.unwrap();
    let state = until(&handle, |s| s.tasks["web"].restarts == 1).await;
    assert!(events(&state, "web").contains(&"Restart Signaled"));
    until_running(&handle, "web").await;
    assert_eq!(bench.node.live(), 1);
    assert!(bench.node.started_twice().is_empty());
}

#[tokio::test(start_paused = true)]
async fn shutdown_leaves_the_task_running_and_its_record_in_place() {
    let bench = Bench::new();
    bench.node.script("web", [Script { pid: Some(5), ..Script::runs() }]);
    let handle = bench.run(vec![task("web")]);
    until_running(&handle, "web").await;
    handle.shutdown().await;
    assert_eq!(*handle.phase().borrow(), AllocPhase::Left);
    assert_eq!(bench.node.live(), 1);
    assert_eq!(find_leftovers(&bench.store).unwrap().len(), 1);
    let stored: CowArc<TaskState> =
        bench.store.get(&TaskStateKey::of(handle.id(), name("web"))).unwrap().unwrap();
    assert_eq!(stored.status, TaskStatus::Running);
    assert!(!bench.node.calls().iter().any(|c| c.starts_with("release")));
}
