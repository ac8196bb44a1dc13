//! What is found × what is recorded × what is wanted.

use super::*;
use crate::task::events;
use crate::task::restart::RestartTracker;
use ostler_model::ports::{Adoption, PluginCallError, ProcessIdentity};
use ostler_model::task::RawExit;
use ostler_testing::fake_driver::{self, Reply};

/// What the next agent finds of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// No run is recorded.
    Nothing,
    /// A run without a handle.
    NoHandle,
    /// It lives and its driver knows it.
    Good,
    /// It lives and its driver does not know it.
    Stale,
    /// It lives and its plugin is not loaded.
    Missing,
    /// It lives and its plugin traps.
    Broken,
    /// It ended meanwhile.
    Ended,
    /// It ended meanwhile and its plugin is not loaded.
    EndedMissing,
    /// It was never let go.
    NotRun,
    /// The machine was restarted.
    Rebooted,
    /// The host knows nothing of it.
    Unknown,
    /// The host knows nothing of it, and its process lives.
    UnknownAlive,
    /// It lives, and the host cannot find out now.
    NotNow,
}

const EVERY: [Found; 13] = [
    Found::Nothing,
    Found::NoHandle,
    Found::Good,
    Found::Stale,
    Found::Missing,
    Found::Broken,
    Found::Ended,
    Found::EndedMissing,
    Found::NotRun,
    Found::Rebooted,
    Found::Unknown,
    Found::UnknownAlive,
    Found::NotNow,
];

use TaskStatus::{Dead, Pending, Running};

/// What becomes of it: status, starts, stops by the driver, killed by the host, new events.
type Outcome = (TaskStatus, usize, usize, bool, &'static [&'static str]);

const LOST: &str = "Failed Restoring Task";

/// Left to run, and killed as soon as the next agent is there.
fn expected(found: Found, recorded: TaskStatus) -> (Outcome, Outcome) {
    let anew: Outcome = (Running, 1, 0, false, &["Started"]);
    let lost: Outcome = (Running, 1, 0, false, &[LOST, "Restarting", "Started"]);
    let lost_killed: Outcome = (Dead, 0, 0, false, &["Killing", LOST, "Killed"]);
    let late_killed: Outcome = (Dead, 0, 0, false, &[LOST, "Restarting", "Killing", "Killed"]);
    let waits: Outcome = (Running, 0, 0, false, &["Driver"]);
    let host: Outcome = (Dead, 0, 0, false, &["Killing", "Driver", "Terminated", "Killed"]);
    let ended: Outcome = (Dead, 0, 0, false, &["Terminated"]);
    let ended_killed: Outcome = (Dead, 0, 0, false, &["Killing", "Terminated"]);
    let never_killed: Outcome = (Dead, 0, 0, false, &["Killing", "Killed"]);
    match found {
        Found::Nothing if recorded == Pending => (anew, never_killed),
        Found::Nothing | Found::NoHandle => (lost, late_killed),
        Found::Good => (
            (Running, 0, 0, false, &["Recovered"]),
            (Dead, 0, 1, false, &["Killing", "Recovered", "Terminated", "Killed"]),
        ),
        Found::Stale => {
            ((Running, 1, 0, true, lost.4), (Dead, 0, 0, true, &["Killing", LOST, "Killed"]))
        }
        Found::Missing | Found::Broken => (waits, host),
        Found::Ended | Found::EndedMissing => (ended, ended_killed),
        Found::NotRun => (anew, never_killed),
        Found::Rebooted | Found::Unknown => (lost, lost_killed),
        Found::UnknownAlive => {
            ((Running, 1, 0, true, lost.4), (Dead, 0, 0, true, &["Killing", LOST, "Killed"]))
        }
        Found::NotNow => (
            (recorded, 0, 0, false, &["Driver"]),
            (Dead, 0, 0, true, &["Killing", "Driver", LOST, "Killed"]),
        ),
    }
}

fn state(recorded: TaskStatus) -> TaskState {
    let now = Timestamp::from_nanos(5);
    let mut state = TaskState { status: recorded, ..TaskState::default() };
    state.push_event(events::received_event(now));
    state.push_event(events::task_setup(now));
    state.finished_at = (recorded == Dead).then_some(now);
    state
}

fn record(bench: &Bench, found: Found, complete: bool) -> LocalState {
    let boot_id = "fake".to_owned();
    let identity =
        ProcessIdentity { pid: 77, start_ticks: 1, boot_id, cgroup: None, supervisor: None };
    let data = bench.run_id().as_str().as_bytes().to_vec();
    let handle = DriverHandle { plugin: "fake".to_owned(), version: 1, data };
    let started =
        StartedRecord { handle, workload: Workload::Process("p1".to_owned()), network: None };
    let run = match found {
        Found::Nothing => None,
        Found::NoHandle => {
            Some(RunRecord { id: bench.run_id(), identities: Vec::new(), started: None })
        }
        _ => Some(RunRecord {
            id: bench.run_id(),
            identities: vec![identity],
            started: Some(started),
        }),
    };
    let tracker = RestartTracker::new(Timestamp::from_nanos(5));
    LocalState { run, tracker, run_complete: complete, delayed_until: None }
}

/// Make the node as it is found.
fn set_up(bench: &Bench, found: Found) {
    let node = &bench.node;
    let lives = matches!(
        found,
        Found::Good
            | Found::Stale
            | Found::Missing
            | Found::Broken
            | Found::UnknownAlive
            | Found::NotNow
    );
    if lives {
        node.plant(&bench.run_id(), "web", &native(Script::runs()));
    }
    if matches!(found, Found::Ended | Found::EndedMissing) {
        node.plant(&bench.run_id(), "web", &native(Script::runs()));
        node.end_planted(&bench.run_id(), 0);
    }
    node.set_missing(matches!(found, Found::Missing | Found::EndedMissing));
    match found {
        Found::Stale => node.set_recover(Reply::Fail(PluginCallError::NotFound("it".to_owned()))),
        Found::Broken => node.set_recover(Reply::Fail(PluginCallError::CallFailed {
            plugin: "fake".to_owned(),
            call: "recover",
            reason: "trap".to_owned(),
        })),
        Found::NotRun => node.set_adoption(Some(Adoption::NotRun)),
        Found::Rebooted => node.set_adoption(Some(Adoption::Rebooted)),
        Found::Unknown | Found::UnknownAlive => node.set_adoption(Some(Adoption::Unknown)),
        Found::NotNow => node.set_adoption(Some(Adoption::NotNow("no descriptor".to_owned()))),
        _ => {}
    }
}

fn restarting_web() -> Task {
    Task { restart: fixtures::restart(2, 15 * SECOND), ..web() }
}

async fn restored(found: Found, recorded: TaskStatus, complete: bool, kill: bool) -> Bench {
    let bench = Bench::new(restarting_web());
    set_up(&bench, found);
    let local = Some(record(&bench, found, complete));
    let handle = bench.restore(RestoredTask { state: Some(state(recorded)), local });
    if kill {
        handle.kill(None, "wanted").await;
    }
    bench.pass(5 * SECOND).await;
    let now = handle.state();
    let (run, killed) = expected(found, recorded);
    let dead: Outcome = (Dead, 0, 0, false, &[]);
    let (status, starts, stops, by_host, new) = match (recorded, kill) {
        (Dead, _) => dead,
        (_, false) => run,
        (_, true) => killed,
    };
    let case = format!("{found:?} {recorded:?} complete={complete} kill={kill}: {now:?}");
    assert_eq!(now.status, status, "{case}");
    assert_eq!(kinds(&now)[2..], *new, "{case}");
    assert_eq!(bench.count("start web"), starts, "{case}");
    assert_eq!(bench.count("stop web"), stops, "{case}");
    if recorded != Dead {
        assert_eq!(bench.count("kill_run web") > 0, by_host, "{case}");
    }
    let lives = status == Running || found == Found::NotNow && status == Pending;
    assert_eq!(bench.node.live(), usize::from(lives), "{case}");
    assert!(bench.node.started_twice().is_empty(), "{case}");
    assert_eq!(handle.is_gone(), status == Dead, "{case}");
    assert!(!now.failed, "{case}");
    if status == Dead {
        await_write(bench.store.flush()).await.unwrap().unwrap();
        let left = bench.recorded();
        let complete = left.local.is_none_or(|local| local.run.is_none());
        assert!(complete, "{case}");
    }
    bench
}

#[tokio::test(start_paused = true)]
async fn a_task_of_an_earlier_agent_ends_up_where_it_belongs() {
    for found in EVERY {
        for recorded in [Pending, Running] {
            for kill in [false, true] {
                restored(found, recorded, false, kill).await;
            }
        }
        for (complete, kill) in [(false, false), (false, true), (true, false), (true, true)] {
            let bench = restored(found, Dead, complete, kill).await;
            let untouched = complete && found == Found::Nothing;
            let stopped = usize::from(!untouched);
            assert_eq!(bench.count("release web"), stopped, "stop hooks of {found:?} {complete}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_with_nothing_recorded_is_a_new_one() {
    let bench = Bench::new(web());
    let handle = bench.restore(RestoredTask::default());
    let state = until_running(&handle).await;
    assert_eq!(kinds(&state), ["Received", "Task Setup", "Started"]);
}

/// A live run whose plugin is not loaded when the next agent comes.
async fn waiting(task: Task) -> (Bench, TaskHandle) {
    let bench = Bench::new(task);
    set_up(&bench, Found::Missing);
    let local = Some(record(&bench, Found::Missing, false));
    let handle = bench.restore(RestoredTask { state: Some(state(Running)), local });
    let told = until(&handle, |s| has(s, "Driver")).await;
    assert!(told.events.last().unwrap().message.starts_with("Waiting for driver"), "{told:?}");
    (bench, handle)
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_comes_back_has_its_run_again_without_a_restart() {
    let (bench, handle) = waiting(restarting_web()).await;
    bench.pass(7 * SECOND).await;
    bench.node.set_missing(false);
    until(&handle, |s| has(s, "Recovered")).await;
    assert_eq!(kinds(&handle.state()).iter().filter(|k| **k == "Driver").count(), 1, "said once");
    assert_eq!(bench.count("start web"), 0);
    handle.kill(None, "wanted").await;
    handle.wait_gone().await;
    assert_eq!(bench.count("stop web"), 1, "the driver has it");
}

#[tokio::test(start_paused = true)]
async fn a_run_that_ends_while_its_driver_is_away_ended_as_the_host_saw_it() {
    let (bench, handle) = waiting(web()).await;
    bench.node.end_planted(&bench.run_id(), 3);
    let state = until(&handle, |s| s.status == Dead).await;
    assert_eq!(state.last_exit.clone().unwrap().exit_code, 3);
    assert_eq!(bench.count("exited web"), 0, "nobody to read it");
}

#[tokio::test(start_paused = true)]
async fn a_restart_forced_while_the_driver_is_away_is_done_when_it_is_back() {
    let (bench, handle) = waiting(restarting_web()).await;
    handle.force_restart("asked").await.unwrap();
    bench.pass(3 * SECOND).await;
    assert_eq!(bench.node.live(), 1, "its run goes on meanwhile");
    bench.node.set_missing(false);
    until(&handle, |s| has(s, "Started")).await;
    assert_eq!((bench.count("stop web"), bench.count("start web")), (1, 1));
    assert!(!handle.state().failed);
}

#[tokio::test(start_paused = true)]
async fn a_kill_does_not_wait_for_a_recovery_that_hangs() {
    let bench = Bench::new(web());
    set_up(&bench, Found::Good);
    bench.node.set_recover(Reply::Hang);
    let local = Some(record(&bench, Found::Good, false));
    let handle = bench.restore(RestoredTask { state: Some(state(Running)), local });
    clock::sleep(SECOND).await;
    let before = bench.node.age();
    handle.kill(None, "wanted").await;
    handle.wait_gone().await;
    assert_eq!((bench.node.age() - before).as_secs(), ostler_model::limits::KILL_GRACE.as_secs());
    assert_eq!((bench.count("host_signal web SIGINT"), bench.node.live()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_polled_run_is_not_asked_about_before_its_driver_has_recovered_it() {
    let bench = Bench::new(web());
    let script = Script { poll: Some(SECOND), ..Script::runs() };
    bench.node.plant(&bench.run_id(), "web", &script);
    bench.node.set_adoption(Some(Adoption::Unknown));
    bench.node.set_missing(true);
    // What a driver that has not recovered it yet would say.
    bench.node.set_inspect(Reply::Fail(PluginCallError::NotFound("it".to_owned())));
    let mut local = record(&bench, Found::Good, false);
    let run = local.run.as_mut().unwrap();
    run.identities.clear();
    run.started.as_mut().unwrap().workload = Workload::Poll(1_000);
    let restored = RestoredTask { state: Some(state(Running)), local: Some(local) };
    let handle = bench.restore(restored);
    until(&handle, |s| has(s, "Driver")).await;
    bench.node.set_recover(Reply::Hang);
    bench.node.set_missing(false);
    bench.pass(10 * SECOND).await;
    assert_eq!(handle.state().status, Running);
    bench.node.set_recover(Reply::Ok);
    bench.node.set_inspect(Reply::Ok);
    until(&handle, |s| has(s, "Recovered")).await;
    assert_eq!(bench.count("start web"), 0);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_ended_gets_no_second_run_beside_it() {
    let mut bench = Bench::new(restarting_web());
    bench.restartable = true;
    let undead = Script { host_kill_works: false, ..native(Script::runs()) };
    bench.node.plant(&bench.run_id(), "web", &undead);
    bench.node.set_recover(Reply::Fail(PluginCallError::NotFound("it".to_owned())));
    let local = Some(record(&bench, Found::Stale, false));
    let mut handle = bench.restore(RestoredTask { state: Some(state(Running)), local });
    for _agent in 0..2 {
        bench.pass(300 * SECOND).await;
        let state = handle.state();
        assert_eq!((state.status, state.failed), (Running, false), "{state:?}");
        assert!(state.events.iter().any(|event| event.details.contains_key("kill_error")));
        assert_eq!((bench.count("start web"), bench.node.live()), (0, 1));
        // The next agent tries on, by what is recorded.
        handle.shutdown().await;
        handle.wait_gone().await;
        // What is on record of the run was not touched.
        assert_eq!(bench.recorded().local, None);
        let (state, local) = (bench.recorded().state, Some(record(&bench, Found::Stale, false)));
        handle = bench.restore(RestoredTask { state, local });
    }
    bench.node.let_die();
    until(&handle, |s| has(s, "Started")).await;
    assert_eq!((bench.count("start web"), bench.node.live()), (1, 1));
    assert!(bench.node.started_twice().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_run_that_could_not_be_looked_at_is_owned_when_it_can_be() {
    let bench = Bench::new(web());
    set_up(&bench, Found::NotNow);
    let local = Some(record(&bench, Found::NotNow, false));
    let handle = bench.restore(RestoredTask { state: Some(state(Running)), local });
    bench.pass(60 * SECOND).await;
    assert_eq!((bench.node.live(), bench.count("start web")), (1, 0), "nothing beside it");
    bench.node.set_adoption(None);
    until(&handle, |s| has(s, "Recovered")).await;
    assert_eq!(bench.count("start web"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_kill_while_the_driver_is_away_sends_the_signal_and_waits_before_it_kills() {
    let stubborn = Script { on_stop: fake_driver::Ending::Ignored, ..native(Script::runs()) };
    for (script, kills) in [(native(Script::runs()), 0), (stubborn, 1)] {
        let task = Task { shutdown_delay: Some(4 * SECOND), ..web() };
        let patience = task.kill_timeout;
        let bench = Bench::new(task);
        bench.node.set_missing(true);
        bench.node.plant(&bench.run_id(), "web", &script);
        let local = Some(record(&bench, Found::Good, false));
        let handle = bench.restore(RestoredTask { state: Some(state(Running)), local });
        until(&handle, |s| has(s, "Driver")).await;
        let before = bench.node.age();
        handle.kill(None, "wanted").await;
        handle.wait_gone().await;
        let took = bench.node.age() - before;
        assert_eq!(bench.count("host_signal web SIGINT"), 1);
        assert_eq!(bench.count("kill_run web"), kills);
        let wanted = 4 * SECOND + if kills == 0 { Duration::ZERO } else { patience };
        assert!(took >= wanted && took < wanted + SECOND, "{took:?}, not {wanted:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_restart_or_a_signal_reaches_a_run_whose_driver_is_away() {
    let (bench, handle) = waiting(restarting_web()).await;
    handle.signal("SIGHUP").await.unwrap();
    assert_eq!(bench.count("host_signal web SIGHUP"), 1);
    bench.node.set_missing(true);
    handle.restart("asked").await.unwrap();
    bench.node.set_missing(false);
    until(&handle, |s| has(s, "Started")).await;
    assert_eq!((bench.count("stop web"), bench.count("start web")), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_start_that_was_held_back_is_made_again_also_where_no_attempt_is_allowed() {
    for (held, starts) in [(true, 1), (false, 0)] {
        let bench = Bench::new(Task { restart: fixtures::restart(0, SECOND), ..web() });
        bench.node.set_starts_held(held);
        bench.node.set_missing(true);
        let local = Some(record(&bench, Found::NoHandle, false));
        let handle = bench.restore(RestoredTask { state: Some(state(Pending)), local });
        bench.pass(5 * SECOND).await;
        assert_eq!(handle.state().status, Pending, "only its driver can tell");
        bench.node.set_missing(false);
        bench.pass(30 * SECOND).await;
        assert_eq!(bench.count("start web"), starts, "held {held}");
        assert_eq!(handle.state().failed, !held);
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_that_ends_before_it_was_let_go_is_no_failure_though_it_was_owned() {
    let bench = Bench::new(Task { restart: fixtures::restart(0, SECOND), ..web() });
    bench.node.plant(&bench.run_id(), "web", &native(Script::runs()));
    let local = Some(record(&bench, Found::Good, false));
    let handle = bench.restore(RestoredTask { state: Some(state(Pending)), local });
    until(&handle, |s| has(s, "Recovered")).await;
    // Its supervisor sees only now that the agent which was to let it go is gone.
    bench.node.set_adoption(Some(Adoption::NotRun));
    bench.node.end_with(&bench.run_id(), RawExit { signal: Some(9), ..RawExit::default() });
    until(&handle, |s| has(s, "Started")).await;
    assert!(!handle.state().failed && bench.count("start web") == 1);
}

#[tokio::test(start_paused = true)]
async fn a_policy_of_no_attempts_forbids_the_restart_of_a_lost_run_and_a_lost_run_uses_up_none() {
    for (attempts, starts) in [(0, 0), (1, 1)] {
        let bench = Bench::new(Task { restart: fixtures::restart(attempts, SECOND), ..web() });
        set_up(&bench, Found::Unknown);
        let local = Some(record(&bench, Found::Unknown, false));
        let handle = bench.restore(RestoredTask { state: Some(state(Running)), local });
        bench.pass(5 * SECOND).await;
        assert_eq!(bench.count("start web"), starts, "{attempts} attempts");
        assert_eq!(handle.state().failed, attempts == 0);
        assert_eq!(bench.recorded().local.unwrap().tracker.count(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn an_exit_without_a_word_of_its_supervisor_counts_as_a_failure() {
    let bench = Bench::new(web());
    bench.node.plant(&bench.run_id(), "web", &native(Script::runs()));
    let exit =
        RawExit { error: Some("its supervisor was killed".to_owned()), ..RawExit::default() };
    bench.node.end_with(&bench.run_id(), exit);
    let local = Some(record(&bench, Found::Ended, false));
    let handle = bench.restore(RestoredTask { state: Some(state(Running)), local });
    handle.wait_gone().await;
    assert!(handle.state().failed);
}

#[tokio::test(start_paused = true)]
async fn a_run_of_which_only_its_exit_is_kept_ended_as_the_host_saw_it_and_is_not_run_again() {
    let bench = Bench::new(Task { restart: fixtures::restart(0, SECOND), ..web() });
    bench.node.plant(&bench.run_id(), "web", &native(Script::runs()));
    bench.node.end_planted(&bench.run_id(), 3);
    let mut local = record(&bench, Found::Ended, false);
    let started = local.run.as_mut().and_then(|run| run.started.as_mut());
    started.unwrap().handle = DriverHandle::default();
    let handle = bench.restore(RestoredTask { state: Some(state(Pending)), local: Some(local) });
    handle.wait_gone().await;
    assert_eq!(handle.state().last_exit.clone().unwrap().exit_code, 3);
    assert_eq!(bench.count("start web"), 0);
    assert_eq!(bench.count("exited web"), 0, "no driver has a handle of it");
    assert!(!has(&handle.state(), "Driver Failure"), "{:?}", handle.state());
}
