//! One history of one node.
//!
//! ```text
//! begin ─► agent ─ steps ─ killed at a door, by a power cut, or left ─► gone ─► agent ─ steps ─ … ─► all is well again
//!      ─► rest: what was acknowledged is so, nothing lives unknown, an idle node writes nothing
//!      ─► every job purged ─► nothing is left
//! ```

pub(crate) mod agent;
pub(crate) mod disk;
mod files;
mod rest;
pub(crate) mod stops;

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ostler_control::ControlHandle;
use ostler_lifecycle::alloc::RestartScope;
use ostler_model::clock;
use ostler_model::ids::JobId;
use ostler_model::saved::JobOrigin;

use crate::checks::{Asked, JobState, Known};
use crate::files::SimFiles;
use crate::places;
use crate::plan::{Act, Disk, JOBS, Mode, Plan};
use crate::world::{DOORS_MAX, World};
pub(crate) use agent::job;
use agent::{Agent, AgentPlace};
use disk::SimDisk;
use ostler_control::{RegisterOptions, StopOptions, SubmitError};
use ostler_state::StateError;

/// Why a history failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// What must not be.
    pub what: String,
    /// Everything that happened.
    pub journal: Vec<String>,
}

/// How a history went that did not fail.
#[derive(Clone, Debug, Default)]
pub struct Played {
    /// Agents that lived.
    pub lives: u32,
    /// Doors that were passed.
    pub doors: u64,
    /// Virtual time.
    pub time: Duration,
    /// Everything that happened.
    pub journal: Vec<String>,
}

/// What outlives an agent.
struct Scene {
    world: World,
    disk: Arc<SimDisk>,
    asked: Arc<Mutex<Asked>>,
    /// Of a plan in which something happens to it.
    files: Option<SimFiles>,
    /// Versions of a job's environment are told apart by number.
    next: usize,
}

/// How the life of an agent ended.
enum End {
    Killed,
    Left(Duration),
    Rested(Result<(), String>),
}

fn lock(asked: &Mutex<Asked>) -> MutexGuard<'_, Asked> {
    asked.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Play a plan in a directory of its own.
///
/// # Errors
/// See [`Failure`].
pub fn play(plan: &Plan, dir: &Path) -> Result<Played, Box<Failure>> {
    clock::simulate();
    let world = World::new(plan.seed ^ 0x0057_1e12, &["g0", "g1", "g2"]);
    world.lock().doors_max = DOORS_MAX;
    let disk = SimDisk::new(world.clone(), plan.seed, dir, plan.file);
    let failed = |error: StateError| {
        Box::new(Failure { what: format!("no state file: {error}"), journal: Vec::new() })
    };
    let disk = Arc::new(disk.map_err(failed)?);
    let with_files = plan.steps.iter().any(|step| matches!(step.act, Act::Files(_)));
    let files = with_files.then(SimFiles::default);
    let mut scene = Scene { world: world.clone(), disk, asked: Arc::default(), files, next: 0 };
    let mut lives = 0;
    let mut gone = Duration::ZERO;
    let result = loop {
        lives += 1;
        if lives > 200 {
            break Err("the node does not come to rest in 200 lives".to_owned());
        }
        let end = match live(plan, dir, &mut scene, &mut gone) {
            Ok(end) => end,
            Err(why) => break Err(why),
        };
        match end {
            End::Killed => {
                let power = world.lock().power;
                world.end_life(true, gone);
                scene.disk.resume(power);
            }
            End::Left(gone) => world.end_life(false, gone),
            End::Rested(result) => break result,
        }
        if let Some(broken) = world.broken() {
            break Err(broken);
        }
    };
    // It holds the disk, which holds the world.
    world.lock().store = None;
    let what = match (result, world.broken()) {
        (_, Some(broken)) | (Err(broken), None) => broken,
        (Ok(()), None) => {
            let doors = world.lock().doors;
            let (time, journal) = (world.time(), world.journal());
            return Ok(Played { lives, doors, time, journal });
        }
    };
    Err(Box::new(Failure { what, journal: world.journal() }))
}

/// The life of one agent, on a runtime of its own, which goes with it.
fn live(plan: &Plan, dir: &Path, scene: &mut Scene, gone: &mut Duration) -> Result<End, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .map_err(|error| error.to_string())?;
    let world = scene.world.clone();
    runtime.block_on(async {
        world.begin_life(None);
        let mut killed = world.killed.subscribe();
        let end = tokio::select! {
            biased;
            _ = killed.wait_for(|killed| *killed) => Ok(End::Killed),
            end = steps(plan, dir, scene, gone) => end,
        };
        if let Ok(End::Killed) = end {
            scene.disk.cut();
        }
        world.stop_clock();
        end
    })
}

async fn steps(
    plan: &Plan,
    dir: &Path,
    scene: &mut Scene,
    gone: &mut Duration,
) -> Result<End, String> {
    let place = AgentPlace {
        world: &scene.world,
        disk: &scene.disk,
        dir,
        files: scene.files.as_ref(),
        node: agent::view(),
        max_allocs: 8,
    };
    let agent = match Agent::start(place).await {
        Ok(agent) => agent,
        // Whoever runs it sees to the disk and starts it again.
        Err(why) if scene.disk.refuses() => {
            scene.world.note(&why);
            scene.disk.set(Disk::Works);
            return Ok(End::Left(Duration::from_secs(60)));
        }
        Err(why) => return Err(why),
    };
    drop(tokio::spawn(stops::watch(scene.world.clone(), agent.control.clone())));
    if plan.ends {
        drop(tokio::spawn(places::watch(scene.world.clone(), agent.control.clone())));
    }
    while let Some(step) = plan.steps.get(scene.next) {
        clock::sleep(step.after).await;
        scene.next += 1;
        scene.world.note(&format!("{:?}", step.act));
        match &step.act {
            Act::Kill { doors, gone: time, power } => {
                *gone = *time;
                let mut inner = scene.world.lock();
                inner.power = *power;
                inner.kill_at = Some(inner.doors.saturating_add(*doors).saturating_add(1));
            }
            Act::Leave { drain, gone } => {
                let views = agent.control.allocs();
                scene.world.lock().places.stop(views.iter().filter(|_| *drain));
                agent.leave(*drain).await;
                return Ok(End::Left(*gone));
            }
            Act::Files(act) => files::happen(scene, &agent, *act, step.after).await?,
            act => happen(scene, &agent.control, act).await,
        }
        files::kept(scene, &agent)?;
        if let Some(broken) = scene.world.broken() {
            return Err(broken);
        }
    }
    Ok(End::Rested(rest::rest(scene, &agent, dir).await))
}

async fn happen(scene: &Scene, control: &ControlHandle, act: &Act) {
    let world = &scene.world;
    match act {
        Act::Register { .. } => register(scene, control, act),
        Act::Stop { job, purge } => stop(scene, control, *job, *purge),
        Act::StopAlloc(pick) => {
            if let Some(view) = nth(control.allocs(), *pick) {
                let control = control.clone();
                let job = view.allocation.job.id.clone();
                let id = view.allocation.id;
                world.lock().places.stop([&view]);
                drop(tokio::spawn(async move {
                    drop(control.stop_alloc(job, id, "simulated", false).await);
                }));
            }
        }
        Act::Restart(pick) => {
            if let Some(view) = nth(control.allocs(), *pick) {
                drop(tokio::spawn(async move {
                    drop(view.handle.restart(RestartScope::Running, "simulated").await);
                }));
            }
        }
        Act::Collect => {
            let control = control.clone();
            drop(tokio::spawn(async move { drop(control.collect(None).await) }));
        }
        Act::End(pick, code) => {
            let mut inner = world.lock();
            let live = inner.runs.iter().filter(|(_, run)| run.lives() && !run.held);
            if let Some(id) = nth(live.map(|(id, _)| id.clone()).collect(), *pick) {
                inner.end_itself(&id, *code);
            }
        }
        Act::Driver(mode) => world.lock().driver = *mode,
        Act::Device(mode) => {
            let mut inner = world.lock();
            inner.device = *mode;
            if *mode == Mode::Lies {
                // It was pulled out: what comes back holds nothing.
                inner.instances.values_mut().for_each(|one| one.reserved = false);
            } else if *mode != Mode::Works {
                // Releases are tried for some minutes.
                inner.instances.values_mut().for_each(|one| one.refused = one.reserved);
            }
        }
        Act::Health(pick, unhealthy) => {
            if let Some(one) = world.lock().instances.get_mut(&format!("g{pick}")) {
                one.unhealthy = *unhealthy;
            }
        }
        Act::Disk(disk) => scene.disk.set(*disk),
        Act::Jump(seconds) => {
            let mut inner = world.lock();
            inner.jumped = inner.jumped.saturating_add(seconds.saturating_mul(1_000_000_000));
        }
        Act::Kill { .. } | Act::Leave { .. } | Act::Files(_) => {}
    }
    world.lock().look_for_faults();
    // What was asked for is on its way before the next thing happens.
    tokio::task::yield_now().await;
}

fn nth<T>(mut of: Vec<T>, pick: u64) -> Option<T> {
    let count = u64::try_from(of.len()).ok().filter(|count| *count > 0)?;
    let at = usize::try_from(pick % count).ok()?;
    Some(of.swap_remove(at))
}

fn register(scene: &Scene, control: &ControlHandle, act: &Act) {
    let Act::Register { job, count, version, .. } = act else { return };
    let (count, version) = (*count, *version);
    let Some(name) = JOBS.get(*job) else { return };
    let Some(job) = agent::job(name, act) else { return };
    let number = lock(&scene.asked).ask(name, JobState::Runs { count, version });
    let (control, asked) = (control.clone(), Arc::clone(&scene.asked));
    let world = scene.world.clone();
    drop(tokio::spawn(async move {
        let done = control.register(Arc::new(job), RegisterOptions::default()).await;
        let known = match &done {
            Ok(_) => Known::Acknowledged,
            Err(
                SubmitError::State(_)
                | SubmitError::Runner(_)
                | SubmitError::Unanswered { .. }
                | SubmitError::Leaving,
            ) => Known::Unknown,
            Err(_) => Known::Refused,
        };
        world.note(&format!("register {name} #{number}: {known:?} {}", said(&done)));
        // Nobody hears of what a dead agent says.
        if !world.lock().dead {
            lock(&asked).told(name, number, known);
        }
    }));
}

fn stop(scene: &Scene, control: &ControlHandle, job: usize, purge: bool) {
    let Some(name) = JOBS.get(job).copied() else { return };
    let Ok(id) = JobId::new(name) else { return };
    let views = control.allocs();
    let of_job = views.iter().filter(|view| view.allocation.job.id == id);
    scene.world.lock().places.stop(of_job);
    let makes = if purge { JobState::Absent } else { JobState::Stopped };
    let number = lock(&scene.asked).ask(name, makes);
    let (control, asked) = (control.clone(), Arc::clone(&scene.asked));
    let world = scene.world.clone();
    drop(tokio::spawn(async move {
        let options = StopOptions { purge, ..StopOptions::default() };
        let done = control.deregister(&id, options, JobOrigin::Api).await;
        let known = match &done {
            Ok(stopped) if stopped.unwritten.is_none() => Known::Acknowledged,
            Ok(_) | Err(SubmitError::State(_) | SubmitError::Leaving) => Known::Unknown,
            Err(_) => Known::Refused,
        };
        world.note(&format!("stop {name} #{number}: {known:?} {}", said(&done)));
        // Nobody hears of what a dead agent says.
        if !world.lock().dead {
            lock(&asked).told(name, number, known);
        }
    }));
}

fn said<T, E: std::fmt::Display>(done: &Result<T, E>) -> String {
    done.as_ref().err().map(ToString::to_string).unwrap_or_default()
}
