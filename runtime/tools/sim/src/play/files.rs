//! What must be so of the jobs directory.

use std::path::PathBuf;
use std::time::Duration;

use super::Scene;
use super::agent::Agent;
use super::rest::{filled, state_of};
use crate::checks::JobState;
use crate::files::{FILE_JOBS, FileAct, FileJob, Kept, SimFiles, path};
use ostler_control::JobView;
use ostler_model::clock;
use ostler_model::ids::JobId;
use ostler_model::limits::JOBS_DIR_HOLD;
use ostler_model::saved::JobOrigin;

/// What a file asks for is asked for within this time, also when the kernel does not tell of it.
const SEEN: Duration = Duration::from_secs(120);
/// The job that requests give too.
const SHARED: usize = 2;

/// Something happens to it, after nothing happened for so long.
pub(super) async fn happen(
    scene: &Scene,
    agent: &Agent,
    act: FileAct,
    quiet: Duration,
) -> Result<(), String> {
    let Some(files) = &scene.files else { return Ok(()) };
    if act == FileAct::Rescan {
        agent.jobs_dir.rescan();
    }
    // What was asked for is done, unless the disk is in the way.
    let readable = files.readable();
    let settled = quiet > SEEN && scene.disk.works();
    if settled && readable {
        check(files, agent, false)?;
    }
    let (filled, covered) = (!files.is_empty(), files.covered());
    files.happen(act);
    let held = match act {
        FileAct::Empty => filled && by_files(agent).len() > 1,
        FileAct::Covered(true) => !covered,
        // For how long it was empty, nobody saw.
        FileAct::Readable(true) => !filled && by_files(agent).len() > 1,
        _ => false,
    };
    if settled && readable != (act == FileAct::Readable(true)) {
        files.keep(keeps(scene, agent, act, held));
    }
    // As requests are: on its way before the next thing happens.
    tokio::task::yield_now().await;
    Ok(())
}

/// Jobs that run by files, and by which.
fn by_files(agent: &Agent) -> Vec<(&'static str, PathBuf, JobState)> {
    let by_file = |name| match (view(agent, name)?.record.origin.clone(), state_of(agent, name)?) {
        (JobOrigin::File(path), is @ JobState::Runs { .. }) => Some((name, path, is)),
        _ => None,
    };
    FILE_JOBS.into_iter().filter_map(by_file).collect()
}

/// The jobs that run on after this, which just happened. `held`: nobody knows whether it was meant.
fn keeps(scene: &Scene, agent: &Agent, act: FileAct, held: bool) -> Vec<Kept> {
    let (by, until) = match act {
        FileAct::Break { file, .. } => (Some(file), Duration::MAX),
        FileAct::Readable(false) => (None, Duration::MAX),
        _ if held => (None, scene.world.time() + JOBS_DIR_HOLD),
        _ => return Vec::new(),
    };
    let mut jobs = by_files(agent);
    jobs.retain(|(_, of, _)| by.is_none_or(|by| path(by) == *of));
    jobs.into_iter().map(|(name, _, is)| Kept { name, is, by, until }).collect()
}

/// What is to run on as it is does.
pub(super) fn kept(scene: &Scene, agent: &Agent) -> Result<(), String> {
    let now = scene.world.time();
    for kept in scene.files.iter().flat_map(|files| files.kept(now)) {
        let (name, is) = (kept.name, state_of(agent, kept.name));
        if is.as_ref() != Some(&kept.is) {
            return Err(format!("job {name} is {is:?}, and was to run on as {:?}", kept.is));
        }
    }
    Ok(())
}

/// It can be read.
pub(super) fn well(scene: &Scene) {
    scene.files.iter().for_each(|files| files.happen(FileAct::Readable(true)));
}

fn view(agent: &Agent, name: &str) -> Option<JobView> {
    agent.control.job(&JobId::new(name).ok()?)
}

/// Did a file give the job last?
pub(super) fn has(agent: &Agent, name: &str) -> bool {
    view(agent, name).is_some_and(|view| matches!(view.record.origin, JobOrigin::File(_)))
}

/// What runs by files is what they say. `rest`: nothing happened for an hour.
pub(super) fn check(files: &SimFiles, agent: &Agent, rest: bool) -> Result<(), String> {
    for (job, name) in FILE_JOBS.iter().enumerate() {
        let is = state_of(agent, name).ok_or("a job of a file is not as it was made")?;
        if rest {
            filled(agent, name, &is)?;
        }
        let givers = files.givers(job);
        let JobState::Runs { count, version } = is else {
            match givers.first() {
                Some((path, _)) => {
                    return Err(format!("job {name} of {} is {is:?}", path.display()));
                }
                None => continue,
            }
        };
        let this = FileJob { job, count, version };
        let fits = match view(agent, name).map(|view| view.record.origin.clone()) {
            Some(JobOrigin::File(path)) if files.bad().contains(&path) => files.gave(&path, this),
            Some(JobOrigin::File(path)) => givers.contains(&(path, this)),
            Some(JobOrigin::Api) => job == SHARED,
            _ => false,
        };
        // A directory that was just emptied is held.
        if !fits && (rest || !files.is_empty()) {
            let now = view(agent, name).map(|view| view.record.origin.clone());
            return Err(format!("job {name} is {is:?} by {now:?}; files that give it: {givers:?}"));
        }
    }
    Ok(())
}

/// A bad file, a removed one, and an emptied directory, when all is well.
pub(super) async fn last(files: &SimFiles, scene: &Scene, agent: &Agent) -> Result<(), String> {
    let act = async |act, within: Duration| {
        scene.world.note(&format!("at last: {act:?}"));
        files.happen(act);
        clock::sleep(within).await;
    };
    let of = |job| FileJob { job, count: 1, version: 7 };
    act(FileAct::Covered(false), Duration::ZERO).await;
    for file in 0..FILE_JOBS.len() {
        act(FileAct::Write(file, of(file)), Duration::ZERO).await;
    }
    clock::sleep(SEEN * 10).await;
    let runs = JobState::Runs { count: 1, version: 7 };
    let is = |file: usize, wanted: &JobState, why: &str| {
        let name = FILE_JOBS.get(file).copied().unwrap_or_default();
        let is = state_of(agent, name);
        let by_api = view(agent, name).is_some_and(|view| view.record.origin == JobOrigin::Api);
        if by_api || is.as_ref() == Some(wanted) {
            return Ok(());
        }
        Err(format!("job {name} of {} is {is:?} {why}", path(file).display()))
    };
    for file in 0..FILE_JOBS.len() {
        is(file, &runs, "when its file is there")?;
    }
    act(FileAct::Break { file: 0, link: false }, SEEN).await;
    is(0, &runs, "when its file is bad")?;
    act(FileAct::Remove(1), SEEN).await;
    is(1, &JobState::Stopped, "when its file was removed")?;
    act(FileAct::Write(1, of(1)), SEEN).await;
    is(1, &runs, "when its file is there again")?;
    // Each time the hold begins anew.
    let almost = JOBS_DIR_HOLD - SEEN / 2;
    for emptied in [FileAct::Empty, FileAct::Readable(true), FileAct::Covered(true)] {
        act(emptied, almost).await;
        for file in 0..FILE_JOBS.len() {
            is(file, &runs, "when the directory was just emptied")?;
        }
        act(FileAct::Readable(emptied != FileAct::Empty), SEEN / 12).await;
    }
    clock::sleep(SEEN * 2).await;
    for file in 0..FILE_JOBS.len() {
        is(file, &JobState::Stopped, "when the directory was emptied long ago")?;
    }
    Ok(())
}
