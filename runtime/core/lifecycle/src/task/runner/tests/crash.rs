//! The agent is gone at every durable write of a task's life, before and after it took place.
//!
//! ```text
//!   run 1 (fails) ─► delay ─► run 2 (ends well) ─► dead
//!     │ cut: the owner vanishes, the disk has what was durable, the node lives on
//!     └─► next owner, perhaps cut too ─► … ─► dead: two programs ran, never two at a time
//! ```

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::mpsc;

use super::*;
use ostler_state::BackendError;
use ostler_state::backend::{Op, Visit};

/// Where an agent is cut off.
#[derive(Clone, Copy, Debug)]
struct Cut {
    /// At this durable write of its store, from 1.
    commit: u64,
    /// It took place.
    applied: bool,
}

/// Lets nothing through from the cut on, and holds the cut until the owner is gone.
struct CutBackend {
    disk: Arc<MemBackend>,
    cut: Option<Cut>,
    commits: AtomicU64,
    over: AtomicBool,
    reached: mpsc::UnboundedSender<()>,
    go_on: Mutex<std::sync::mpsc::Receiver<()>>,
}

impl Backend for CutBackend {
    fn commit(&self, batch: &[Op]) -> Result<(), BackendError> {
        let commit = self.commits.fetch_add(1, Ordering::SeqCst) + 1;
        if self.over.load(Ordering::SeqCst) {
            return Err(BackendError::Injected { commit });
        }
        let Some(cut) = self.cut.filter(|cut| cut.commit == commit) else {
            return self.disk.commit(batch);
        };
        if cut.applied {
            self.disk.commit(batch)?;
        }
        self.over.store(true, Ordering::SeqCst);
        // An agent that has seen the end listens no more.
        let _over = self.reached.send(());
        let _gone = self.go_on.lock().unwrap().recv();
        Err(BackendError::Injected { commit })
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, BackendError> {
        self.disk.get(key)
    }

    fn scan(&self, prefix: &[u8], visit: Visit<'_>) -> Result<(), BackendError> {
        self.disk.scan(prefix, visit)
    }

    fn count_quarantined(&self) -> Result<u64, BackendError> {
        self.disk.count_quarantined()
    }
}

/// One agent over what is durable. `None`: it was cut. Else the task's end.
async fn agent(bench: &mut Bench, cut: Option<Cut>) -> Option<CowArc<TaskState>> {
    let (reached, mut at_cut) = mpsc::unbounded_channel();
    let (go_on, wait) = std::sync::mpsc::channel();
    let (disk, go_on_at) = (Arc::clone(&bench.disk), Mutex::new(wait));
    let backend = CutBackend {
        disk,
        cut,
        commits: AtomicU64::new(0),
        over: AtomicBool::new(false),
        reached,
        go_on: go_on_at,
    };
    bench.store = store(Arc::new(backend));
    let restored = bench.recorded();
    let handle = bench.restore(restored);
    tokio::select! {
        biased;
        _ = at_cut.recv() => {}
        () = handle.wait_gone() => return Some(handle.state()),
    }
    handle.owner.abort();
    handle.wait_gone().await;
    // The calls beside the owner go with it.
    for _ in 0..32 {
        tokio::task::yield_now().await;
    }
    drop(go_on);
    bench.node.agent_died();
    None
}

/// One life; whether every cut was reached.
async fn life(cuts: &[Cut], away: Duration, held: bool) -> bool {
    let mut bench = Bench::new(Task { restart: fixtures::restart(3, 15 * SECOND), ..web() });
    bench.node.set_starts_held(held);
    if held {
        bench.node.keep_notes();
    }
    let scripts = [native(Script::ends(5 * SECOND, 1)), native(Script::ends(5 * SECOND, 0))];
    // A start that came to nothing takes no script: what runs is told by the order of releases.
    bench.node.script_by_release("web", scripts);
    let mut end = None;
    let mut reached = 0;
    for cut in cuts {
        end = agent(&mut bench, Some(*cut)).await;
        if end.is_some() {
            break;
        }
        reached += 1;
        bench.pass(away).await;
    }
    if end.is_none() {
        end = agent(&mut bench, None).await;
    }
    let state = end.expect("an agent that is not cut sees the end");
    let case = format!("{cuts:?} away {away:?} held {held}: {state:?} {:?}", bench.node.journal());
    assert!(bench.node.started_twice().is_empty(), "two live runs: {case}");
    assert_eq!(bench.node.released().len(), 2, "an exit was lost: {case}");
    assert_eq!(bench.node.live(), 0, "{case}");
    assert_eq!(state.status, TaskStatus::Dead, "{case}");
    assert!(!state.failed, "{case}");
    assert_eq!(state.last_exit.as_ref().map(|exit| exit.exit_code), Some(0), "{case}");
    assert!((1..=1 + cuts.len() as u64).contains(&state.restarts), "{case}");
    assert_eq!(bench.recorded().state.as_ref(), Some(&*state), "{case}");
    // And no later agent starts it again.
    let starts = bench.count("start web");
    assert_eq!(agent(&mut bench, None).await, Some(state), "{case}");
    assert_eq!(bench.count("start web"), starts, "{case}");
    // What says that nothing follows may lag behind the end itself.
    bench.store.flush().await.unwrap();
    let local = bench.recorded().local.unwrap();
    assert!(local.run.is_none() && local.run_complete, "{case}");
    // The failure is counted once; the good end, which nothing follows, may not have been.
    assert!((1..=2).contains(&local.tracker.count()), "another budget: {case}");
    reached == cuts.len()
}

fn cuts(commit: u64) -> [Cut; 2] {
    [false, true].map(|applied| Cut { commit, applied })
}

#[tokio::test(start_paused = true)]
async fn whatever_the_moment_of_a_crash_two_programs_run_one_after_the_other() {
    // Where starts are held, one of two writes of each start need not be waited for.
    for (held, least) in [(false, 6), (true, 4)] {
        let mut points = 0;
        for commit in 1..40 {
            let mut reached = false;
            for cut in cuts(commit) {
                for away in [Duration::ZERO, 3 * SECOND, 60 * SECOND] {
                    reached |= life(&[cut], away, held).await;
                }
            }
            if !reached {
                break;
            }
            points += 1;
        }
        assert!(points >= least, "a life has more durable writes than {points}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_crash_during_the_recovery_from_a_crash_changes_nothing() {
    for first in 1..12 {
        for second in 1..6 {
            for cut in cuts(first) {
                for again in cuts(second) {
                    for held in [false, true] {
                        life(&[cut, again], 3 * SECOND, held).await;
                    }
                }
            }
        }
    }
}
