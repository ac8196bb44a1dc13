//! The output and the states of an allocation, sent as reports while they come.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::progress::{AllocProgress, Labels};
use crate::report::{Label, OutputLine, RunReport, TaskStream};
use ostler_lifecycle::alloc::AllocHandle;
use ostler_logs::{FollowFrom, LineFollower, LogStream, StreamLine};
use ostler_model::ids::TaskName;

/// Send reports about `alloc` until it has ended and its output was read to the end. Spawns on `on`
/// one task for each task of the allocation, and one for the states.
pub(super) fn follow(
    alloc: &AllocHandle,
    labels: Labels,
    reports: &mpsc::Sender<RunReport>,
    on: &mut JoinSet<()>,
) {
    for (task, label) in &labels {
        let (alloc, task, label) = (alloc.clone(), task.clone(), Arc::clone(label));
        on.spawn(follow_output(alloc, task, label, reports.clone()));
    }
    on.spawn(follow_states(alloc.clone(), labels, reports.clone()));
}

async fn follow_states(alloc: AllocHandle, labels: Labels, reports: mpsc::Sender<RunReport>) {
    let (mut states, mut phase) = (alloc.state(), alloc.phase());
    let mut seen = AllocProgress::new(alloc.allocation().as_ref().into(), labels);
    let mut last = false;
    loop {
        // In this order: the state that is read after the end of the allocation is the last one.
        last |= phase.borrow_and_update().has_ended();
        let news = seen.update(&states.borrow_and_update().clone());
        for report in news {
            if reports.send(report).await.is_err() {
                return;
            }
        }
        if last {
            return;
        }
        // When the owner of the allocation is gone, the state that it left is the last one.
        last = tokio::select! {
            changed = states.changed() => changed.is_err(),
            changed = phase.changed() => changed.is_err(),
        };
    }
}

async fn follow_output(
    alloc: AllocHandle,
    task: TaskName,
    label: Arc<Label>,
    reports: mpsc::Sender<RunReport>,
) {
    let Some(logs) = alloc.wait_for_logs(&task).await else {
        return;
    };
    let stdout = OutputLine::empty_line(alloc.id(), task, label);
    let stderr = OutputLine { stream: TaskStream::Stderr, ..stdout.clone() };
    let (out, err) = (Arc::clone(&logs.stdout), Arc::clone(&logs.stderr));
    tokio::join!(send_lines(out, stdout, &reports), send_lines(err, stderr, &reports));
}

/// Send the lines of a stream. `whose` is an empty line of it, with the task and its label.
async fn send_lines(stream: Arc<LogStream>, whose: OutputLine, reports: &mpsc::Sender<RunReport>) {
    // This reads files, which may take as long as their disk.
    let follower = tokio::task::spawn_blocking(move || stream.follow(FollowFrom::Start));
    let Ok(follower) = follower.await else { return };
    let mut lines = LineFollower::new(follower);
    while let Some(line) = lines.next().await {
        let StreamLine { bytes, complete, skipped_bytes } = line;
        let output = OutputLine { bytes, complete, skipped_bytes, ..whose.clone() };
        if reports.send(RunReport::Output(output)).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
#[path = "follow_tests.rs"]
mod tests;
