//! Every hook fails, hangs and panics, in turn, in each phase.

use super::*;
use crate::alloc::HookKind;
use crate::alloc::hooks::HookResult;
use crate::task::RequestError;
use ostler_model::alloc::ClientStatus;
use ostler_state::KeyPrefix;
use ostler_state::records::AllocStateKey;
use ostler_testing::fake_driver::Script;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Fails,
    Hangs,
    Panics,
}

/// Does `fault` in one kind of call, and nothing in the others.
struct Faulty(HookKind, Fault);

impl Faulty {
    fn call(&self, kind: HookKind) -> HookResult<'_> {
        let fault = (self.0 == kind).then_some(self.1);
        Box::pin(async move {
            match fault {
                None => Ok(()),
                Some(Fault::Fails) => Err("broken".to_owned().into()),
                Some(Fault::Hangs) => std::future::pending().await,
                Some(Fault::Panics) => panic!("broken"),
            }
        })
    }
}

/// Writes down every call.
struct Recorder(&'static str, Seen<(&'static str, HookKind)>);

impl Recorder {
    fn call(&self, kind: HookKind) -> HookResult<'_> {
        self.1.lock().unwrap().push((self.0, kind));
        Box::pin(async { Ok(()) })
    }
}

macro_rules! every_call {
    ($hook:ty, $name:expr) => {
        impl AllocHook for $hook {
            fn name(&self) -> &'static str {
                $name
            }
            fn prerun<'a>(&'a self, _: &'a AllocScope) -> HookResult<'a> {
                self.call(HookKind::Prerun)
            }
            fn update<'a>(&'a self, _: &'a AllocScope) -> HookResult<'a> {
                self.call(HookKind::Update)
            }
            fn pre_restart<'a>(&'a self, _: &'a AllocScope) -> HookResult<'a> {
                self.call(HookKind::PreRestart)
            }
            fn pre_kill<'a>(&'a self, _: &'a AllocScope) -> HookResult<'a> {
                self.call(HookKind::PreKill)
            }
            fn postrun<'a>(&'a self, _: &'a AllocScope) -> HookResult<'a> {
                self.call(HookKind::Postrun)
            }
            fn destroy<'a>(&'a self, _: &'a AllocScope) -> HookResult<'a> {
                self.call(HookKind::Destroy)
            }
        }
    };
}
every_call!(Faulty, "faulty");
every_call!(Recorder, "recorder");

/// How an allocation comes to its end.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Life {
    /// Its task ends.
    OwnEnd,
    /// Its task fails, which ends the other one.
    TaskFails,
    /// It is stopped while it runs.
    Stopped,
    /// It is stopped before a task has started.
    StoppedPreparing,
    /// It is removed while it runs.
    Removed,
}

const LIVES: [Life; 5] =
    [Life::OwnEnd, Life::TaskFails, Life::Stopped, Life::StoppedPreparing, Life::Removed];
const KINDS: [HookKind; 6] = [
    HookKind::Prerun,
    HookKind::Update,
    HookKind::PreRestart,
    HookKind::PreKill,
    HookKind::Postrun,
    HookKind::Destroy,
];

fn counted(seen: &Seen<(&'static str, HookKind)>, who: &str, kind: HookKind) -> usize {
    seen.lock().unwrap().iter().filter(|(name, k)| *name == who && *k == kind).count()
}

/// One life with one fault at one place of the hook list.
async fn live(life: Life, kind: HookKind, fault: Fault, place: usize) {
    let case = format!("{life:?}, {kind:?} {fault:?} at {place}");
    let mut bench = Bench::new();
    let seen = Seen::default();
    let runs_for = |code| Script::ends(600 * SECOND, code);
    match life {
        Life::OwnEnd => bench.node.script("web", [runs_for(0)]),
        Life::TaskFails => bench.node.script("web", [runs_for(1)]),
        _ => bench.node.script("web", [Script::runs()]),
    }
    bench.alloc_hooks.insert(place, Arc::new(Faulty(kind, fault)));
    bench.alloc_hooks.insert(0, Arc::new(Recorder("first", Arc::clone(&seen))));
    bench.alloc_hooks.push(Arc::new(Recorder("last", Arc::clone(&seen))));
    let handle = bench.run(vec![task("web")]);
    let mut failed_to_prepare = kind == HookKind::Prerun;
    if life == Life::StoppedPreparing {
        handle.stop("enough").await;
        // A stop drops what hangs; a failure comes before it.
        failed_to_prepare = false;
    } else if !failed_to_prepare {
        until_running(&handle, "web").await;
        let newer = Allocation { modify_index: 2, ..handle.allocation().as_ref().clone() };
        handle.update(Arc::new(newer));
        let restarted = handle.restart(RestartScope::All, "wanted").await;
        if kind == HookKind::PreRestart {
            assert!(
                matches!(&restarted, Err(RequestError::Hook(e)) if e.contains("faulty")),
                "{case}: {restarted:?}"
            );
        } else {
            assert_eq!(restarted, Ok(()), "{case}");
        }
        until_running(&handle, "web").await;
        clock::sleep(120 * SECOND).await;
        match life {
            Life::Stopped => handle.stop("enough").await,
            Life::Removed => drop(handle.destroy().await),
            _ => {}
        }
    }
    let state = handle.wait_done().await;
    let expected = match life {
        _ if failed_to_prepare => ClientStatus::Failed,
        Life::TaskFails => ClientStatus::Failed,
        _ => ClientStatus::Complete,
    };
    if life != Life::StoppedPreparing {
        assert_eq!(state.client_status, expected, "{case}: {state:?}");
    }
    if failed_to_prepare {
        let text = &state.tasks["web"].events[1].message;
        assert!(text.starts_with("faulty: "), "{case}: {text}");
        assert!(!bench.node.calls().contains(&"start web".to_owned()), "{case}");
    }
    assert_eq!(handle.destroy().await, AllocPhase::Destroyed, "{case}");
    assert_eq!(bench.node.live(), 0, "{case}");
    assert!(!handle.dir().exists(), "{case}");
    assert!(bench.store.scan(&KeyPrefix::Alloc(handle.id())).unwrap().is_empty(), "{case}");
    for who in ["first", "last"] {
        for kind in [HookKind::PreKill, HookKind::Postrun, HookKind::Destroy] {
            assert_eq!(counted(&seen, who, kind), 1, "{case}: {kind:?} of the {who}");
        }
    }
    if !failed_to_prepare && life != Life::StoppedPreparing {
        assert_eq!(counted(&seen, "last", HookKind::Update), 1, "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn every_hook_that_fails_hangs_or_panics_in_any_phase_leaves_nothing_behind() {
    for life in LIVES {
        for kind in KINDS {
            for fault in [Fault::Fails, Fault::Hangs, Fault::Panics] {
                // Before the first and after the last of the standard ones.
                for place in [0, alloc_hooks::standard().len()] {
                    live(life, kind, fault, place).await;
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn hooks_are_called_in_order_and_none_when_the_agent_leaves() {
    let mut bench = Bench::new();
    let seen = Seen::default();
    bench.alloc_hooks.insert(0, Arc::new(Recorder("first", Arc::clone(&seen))));
    bench.alloc_hooks.push(Arc::new(Recorder("last", Arc::clone(&seen))));
    bench.node.script("web", [Script::runs()]);
    let handle = bench.run(vec![task("web")]);
    until_running(&handle, "web").await;
    handle.shutdown().await;
    let prerun = [("first", HookKind::Prerun), ("last", HookKind::Prerun)];
    assert_eq!(*seen.lock().unwrap(), prerun);
}

#[tokio::test(start_paused = true)]
async fn the_time_of_every_hook_is_kept() {
    let mut bench = Bench::new();
    bench.alloc_hooks.push(Arc::new(Faulty(HookKind::Postrun, Fault::Fails)));
    bench.node.script("web", [Script::ends(SECOND, 0)]);
    let handle = bench.run(vec![task("web")]);
    handle.wait_done().await;
    let times = handle.hook_times();
    let of = |hook, kind| times.iter().find(|t| t.hook == hook && t.kind == kind).unwrap().clone();
    let names: Vec<_> =
        times.iter().filter(|t| t.kind == HookKind::Prerun).map(|t| t.hook).collect();
    let order = [
        "alloc_dir",
        "await_previous",
        "disk_migration",
        "network",
        "services",
        "health",
        "max_run_duration",
        "disk_size",
        "faulty",
    ];
    assert_eq!(names, order);
    assert_eq!(
        (of("faulty", HookKind::Postrun).calls, of("faulty", HookKind::Postrun).failed),
        (1, 1)
    );
    assert_eq!(of("alloc_dir", HookKind::Prerun).failed, 0);
}

#[tokio::test(start_paused = true)]
async fn an_allocation_whose_pre_run_hook_failed_is_recorded_as_finished() {
    let mut bench = Bench::new();
    bench.alloc_hooks.push(Arc::new(Faulty(HookKind::Prerun, Fault::Fails)));
    let handle = bench.run(vec![task("web")]);
    handle.wait_done().await;
    let saved: SavedAllocState = bench.store.get(&AllocStateKey::of(handle.id())).unwrap().unwrap();
    assert_eq!((saved.client_status, saved.finished), (ClientStatus::Failed, true));
}
