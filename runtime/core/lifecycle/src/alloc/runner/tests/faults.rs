//! What cannot work: hooks, drivers, configurations, the disk.

use super::*;
use crate::alloc::hooks::HookResult;
use ostler_model::alloc::ClientStatus;
use ostler_model::device::{GroupKey, Reservation};
use ostler_model::ids::PluginName;
use ostler_model::ports::{Diagnostic, PluginCallError};
use ostler_model::resources::AllocatedDevice;
use ostler_state::records::{AllocStateKey, TaskStateKey};
use ostler_state::testing::ErrorBackend;
use ostler_testing::fake_driver::{Reply, Script};

pub(super) struct Failing(pub(super) Seen<&'static str>);

impl AllocHook for Failing {
    fn name(&self) -> &'static str {
        "failing"
    }
    fn prerun<'a>(&'a self, _scope: &'a AllocScope) -> HookResult<'a> {
        Box::pin(async { Err("no space".to_owned().into()) })
    }
    fn postrun<'a>(&'a self, _scope: &'a AllocScope) -> HookResult<'a> {
        self.0.lock().unwrap().push("post of the failing");
        Box::pin(async { Err("again".to_owned().into()) })
    }
}

struct Last(Seen<&'static str>);

impl AllocHook for Last {
    fn name(&self) -> &'static str {
        "last"
    }
    fn postrun<'a>(&'a self, _scope: &'a AllocScope) -> HookResult<'a> {
        self.0.lock().unwrap().push("post of the last");
        Box::pin(async { Ok(()) })
    }
}

#[tokio::test(start_paused = true)]
async fn a_pre_run_hook_that_fails_fails_every_task_and_all_post_hooks_run() {
    let mut bench = Bench::new();
    let seen: Seen<&'static str> = Arc::default();
    bench.alloc_hooks.push(Arc::new(Failing(Arc::clone(&seen))));
    bench.alloc_hooks.push(Arc::new(Last(Arc::clone(&seen))));
    let state = bench.run(vec![task("a"), task("b")]).wait_done().await;
    assert_eq!(state.client_status, ClientStatus::Failed);
    for task in ["a", "b"] {
        assert_eq!(events(&state, task), ["Received", "Setup Failure", "Killing", "Killed"]);
        assert_eq!(state.tasks[task].events[1].message, "failing: no space");
        assert!(state.tasks[task].failed);
    }
    assert_eq!(*seen.lock().unwrap(), ["post of the failing", "post of the last"]);
    assert!(bench.node.calls().iter().all(|c| c.starts_with("release")));
}

struct Hanging;

impl AllocHook for Hanging {
    fn name(&self) -> &'static str {
        "hanging"
    }
    fn prerun<'a>(&'a self, _scope: &'a AllocScope) -> HookResult<'a> {
        Box::pin(std::future::pending())
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_during_the_pre_run_hooks_ends_the_allocation_without_a_start() {
    let mut bench = Bench::new();
    bench.alloc_hooks.push(Arc::new(Hanging));
    let handle = bench.run(vec![task("a")]);
    clock::sleep(SECOND).await;
    handle.stop("enough").await;
    let state = handle.wait_done().await;
    assert_eq!(events(&state, "a"), ["Received", "Killing", "Killed"]);
}

#[tokio::test(start_paused = true)]
async fn an_unknown_driver_is_a_setup_failure_that_names_those_there_are() {
    let bench = Bench::new();
    let driver = PluginName::new("docker").unwrap();
    let restart = fixtures::restart(3, SECOND);
    let state = bench.run(vec![Task { driver, restart, ..task("web") }]).wait_done().await;
    assert_eq!(events(&state, "web")[2..], ["Setup Failure", "Not Restarting"]);
    let text = &state.tasks["web"].events[2].message;
    assert!(text.contains("docker") && text.contains("fake"), "{text}");
    assert_eq!(state.tasks["web"].events[3].message, "Error was unrecoverable");
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_becomes_ready_later_starts_the_task_then() {
    let bench = Bench::new();
    bench.node.script("web", [Script::ends(SECOND, 0)]);
    bench.node.set_not_ready(Some("first fingerprint outstanding"));
    let handle = bench.run(vec![task("web")]);
    let state = until(&handle, |s| s.tasks["web"].events.len() == 3).await;
    assert!(state.tasks["web"].events[2].message.contains("first fingerprint outstanding"));
    assert_eq!(state.client_status, ClientStatus::Pending);
    clock::sleep(5 * SECOND).await;
    bench.node.set_not_ready(None);
    assert_eq!(handle.wait_done().await.client_status, ClientStatus::Complete);
    assert_eq!(bench.when("start web"), 7.0, "asked after 1, 2 and 4 seconds");
}

#[tokio::test(start_paused = true)]
async fn an_unknown_variable_stays_as_it_is_and_is_told_of() {
    let bench = Bench::new();
    let mut web = task("web");
    let mut config = std::mem::take(&mut web.config).into_map();
    config.insert("command".to_owned(), "${attr.no.such.thing}".into());
    web.config = config.into();
    bench.node.script("web", [Script::ends(SECOND, 0)]);
    let state = bench.run(vec![web]).wait_done().await;
    let event = &state.tasks["web"].events[2];
    assert_eq!(event.kind.as_str(), "Task hook message");
    assert!(event.message.contains("no.such.thing"), "{}", event.message);
    assert!(bench.node.calls().contains(&"start web".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_configuration_the_driver_refuses_is_a_failed_validation() {
    let bench = Bench::new();
    let (path, message) = ("command".to_owned(), "is missing".to_owned());
    let problem = Diagnostic { path, message, ..Diagnostic::default() };
    bench.node.set_problems(vec![problem]);
    let state = bench.run(vec![task("web")]).wait_done().await;
    assert_eq!(events(&state, "web")[2..], ["Failed Validation", "Not Restarting"]);
    assert!(state.tasks["web"].events[2].message.contains("config.command: is missing"));
}

fn with_device(task_name: &str, tasks: Vec<Task>) -> ostler_model::alloc::Allocation {
    let mut allocation = fixtures::allocation(JobKind::Batch, tasks, &Rng::from_seed(7)).unwrap();
    let text = || "x".to_owned();
    let group = GroupKey { vendor: text(), kind: text(), name: text() };
    let assigned = vec![AllocatedDevice { group, ids: vec![text()] }];
    allocation.devices.insert(name(task_name), assigned);
    allocation
}

#[tokio::test(start_paused = true)]
async fn a_device_that_cannot_be_reserved_is_a_setup_failure_and_passing_ones_are_retried() {
    let bench = Bench::new();
    let gone = PluginCallError::Recoverable("device is resetting".to_owned());
    bench.node.set_reserve(Reply::Fail(gone), Reservation::default());
    let web = Task { restart: fixtures::restart(1, SECOND), ..task("web") };
    let state = bench.run_allocation(with_device("web", vec![web])).wait_done().await;
    assert_eq!(
        events(&state, "web")[2..],
        ["Setup Failure", "Restarting", "Setup Failure", "Not Restarting"]
    );
    assert!(!bench.node.calls().contains(&"start web".to_owned()));
    assert!(bench.node.calls().contains(&"release web".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn the_variables_of_a_device_reach_the_task() {
    let bench = Bench::new();
    let env = vec![("GPU".to_owned(), "7".to_owned())];
    bench.node.set_reserve(Reply::Ok, Reservation { env, ..Reservation::default() });
    bench.node.script("web", [Script::ends(SECOND, 0)]);
    let seen: Seen<bool> = Arc::default();
    let into = Arc::clone(&seen);
    bench.node.set_probe(Arc::new(move |_context, config| {
        into.lock().unwrap().push(config.env.contains(&("GPU".to_owned(), "7".to_owned())));
    }));
    bench.run_allocation(with_device("web", vec![task("web")])).wait_done().await;
    assert_eq!(*seen.lock().unwrap(), [true]);
}

#[tokio::test(start_paused = true)]
async fn a_start_the_driver_refuses_is_retried_only_when_that_may_help() {
    let bench = Bench::new();
    let passing = Reply::Fail(PluginCallError::Recoverable("registry busy".to_owned()));
    let lasting = Reply::Fail(PluginCallError::Fatal("no such file".to_owned()));
    bench.node.script(
        "web",
        [Script { start: passing, ..Script::runs() }, Script { start: lasting, ..Script::runs() }],
    );
    let web = Task { restart: fixtures::restart(9, SECOND), ..task("web") };
    let state = bench.run(vec![web]).wait_done().await;
    assert_eq!(
        events(&state, "web")[2..],
        ["Driver Failure", "Restarting", "Driver Failure", "Not Restarting"]
    );
    assert_eq!(state.tasks["web"].started_at, None);
}

#[tokio::test(start_paused = true)]
async fn nothing_starts_while_the_intent_cannot_be_written() {
    let bench = Bench::new();
    bench.store.close().await;
    let state = bench.run(vec![task("web")]).wait_done().await;
    assert!(!bench.node.calls().contains(&"start web".to_owned()));
    assert_eq!(state.client_status, ClientStatus::Failed);
    let text = &state.tasks["web"].events[2].message;
    assert!(text.contains("record of task web"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn running_tasks_go_on_while_their_state_cannot_be_written() {
    let backend = ErrorBackend::new_healed();
    let store = StateStore::with_backend(std::path::Path::new("(test)"), backend.clone()).unwrap();
    let bench = Bench { store, ..Bench::new() };
    bench.node.script("web", [Script::runs()]);
    bench.node.script("side", [Script::ends(10 * SECOND, 0)]);
    let handle = bench.run(vec![task("web"), task("side")]);
    until_running(&handle, "web").await;
    until_running(&handle, "side").await;
    clock::sleep(SECOND).await;
    backend.fail();

    let state = until(&handle, |s| s.tasks["side"].status == TaskStatus::Dead).await;
    assert_eq!(bench.when("exited side"), 10.0, "of itself");
    assert!(!state.tasks["side"].failed);
    handle.signal(Some(&name("web")), "SIGHUP").await.unwrap();
    clock::sleep(3_600 * SECOND).await;
    assert!(backend.refused_calls() > 0);
    assert_eq!((bench.node.live(), bench.when("signal web SIGHUP")), (1, 10.0));
    assert_eq!(state.tasks["web"].status, TaskStatus::Running);

    // What could not be written is written with the next change.
    backend.heal();
    handle.stop("enough").await;
    let state = handle.wait_done().await;
    for task in ["web", "side"] {
        assert!(!state.tasks[task].failed, "{:?}", state.tasks[task]);
    }
    let key = TaskStateKey::of(handle.id(), name("web"));
    assert_eq!(
        bench.store.get::<CowArc<TaskState>>(&key).unwrap().as_ref(),
        state.tasks.get("web")
    );
}

/// Fails the disk when all tasks have ended.
struct FailsTheDisk(Arc<ErrorBackend>);

impl AllocHook for FailsTheDisk {
    fn name(&self) -> &'static str {
        "fails_the_disk"
    }
    fn postrun<'a>(&'a self, _scope: &'a AllocScope) -> HookResult<'a> {
        Box::pin(async {
            self.0.fail();
            Ok(())
        })
    }
}

/// One whose tasks ended, and whose end cannot be written.
async fn unsaved() -> (Bench, Arc<ErrorBackend>, AllocHandle) {
    let backend = ErrorBackend::new_healed();
    let store = StateStore::with_backend(std::path::Path::new("(test)"), backend.clone()).unwrap();
    let mut bench = Bench { store, ..Bench::new() };
    bench.alloc_hooks.push(Arc::new(FailsTheDisk(backend.clone())));
    bench.node.script("web", [Script::ends(SECOND, 0)]);
    let handle = bench.run(vec![task("web")]);
    until(&handle, |s| s.client_status == ClientStatus::Complete).await;
    clock::sleep(600 * SECOND).await;
    assert!(backend.refused_calls() > 10, "it is tried again and again");
    (bench, backend, handle)
}

#[tokio::test(start_paused = true)]
async fn an_end_that_is_not_durable_is_told_when_it_is() {
    let (bench, backend, handle) = unsaved().await;
    assert_eq!(*handle.phase().borrow(), AllocPhase::Cleaning);
    backend.heal();
    handle.wait_done().await;
    assert_eq!(*handle.phase().borrow(), AllocPhase::Done);
    let saved: SavedAllocState = bench.store.get(&AllocStateKey::of(handle.id())).unwrap().unwrap();
    assert!(saved.finished);
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_leaves_does_not_wait_for_a_disk_that_refuses_and_tells_no_end() {
    let (_bench, _backend, handle) = unsaved().await;
    let watch = FakeNode::new();
    handle.shutdown().await;
    assert!(watch.age() < SECOND, "{:?}", watch.age());
    assert_eq!(*handle.phase().borrow(), AllocPhase::Left);
}

#[tokio::test(start_paused = true)]
async fn one_whose_end_cannot_be_written_can_be_removed() {
    let (_bench, _backend, handle) = unsaved().await;
    assert_eq!(handle.destroy().await, AllocPhase::Destroyed);
}
