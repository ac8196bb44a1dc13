//! The output and the states of an allocation, told as they come.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::progress::{Labels, Seen};
use super::report::{Label, Output, Report, Stream};
use ostler_lifecycle::alloc::AllocHandle;
use ostler_logs::{From, Line, LineFollower, LogStream};
use ostler_model::ids::TaskName;

/// Tell everything of `alloc` until it is done and its output was read to the end. One task per
/// task of the allocation and one for the states, all on `on`.
pub(super) fn follow(
    alloc: &AllocHandle,
    labels: Labels,
    reports: &mpsc::Sender<Report>,
    on: &mut JoinSet<()>,
) {
    for (task, label) in &labels {
        let (alloc, task, label) = (alloc.clone(), task.clone(), Arc::clone(label));
        on.spawn(task_output(alloc, task, label, reports.clone()));
    }
    on.spawn(states(alloc.clone(), labels, reports.clone()));
}

async fn states(alloc: AllocHandle, labels: Labels, reports: mpsc::Sender<Report>) {
    let (mut states, mut phase) = (alloc.state(), alloc.phase());
    let mut seen = Seen::new(alloc.allocation().as_ref().into(), labels);
    let mut last = false;
    loop {
        // In this order: the state seen when it has finished is the last one.
        last |= phase.borrow_and_update().ended();
        let news = seen.update(&states.borrow_and_update().clone());
        for report in news {
            if reports.send(report).await.is_err() {
                return;
            }
        }
        if last {
            return;
        }
        // When the owner is gone, what it left is the last state.
        last = tokio::select! {
            changed = states.changed() => changed.is_err(),
            changed = phase.changed() => changed.is_err(),
        };
    }
}

async fn task_output(
    alloc: AllocHandle,
    task: TaskName,
    label: Arc<Label>,
    reports: mpsc::Sender<Report>,
) {
    let Some(logs) = alloc.logs_opened(&task).await else {
        return;
    };
    let stdout = Output::of(alloc.id(), task, label);
    let stderr = Output { stream: Stream::Stderr, ..stdout.clone() };
    let (out, err) = (Arc::clone(&logs.stdout), Arc::clone(&logs.stderr));
    tokio::join!(lines(out, stdout, &reports), lines(err, stderr, &reports));
}

/// Tell the lines of a stream; `whose` is an empty one.
async fn lines(stream: Arc<LogStream>, whose: Output, reports: &mpsc::Sender<Report>) {
    // It looks at files, which may take as long as their disk.
    let follower = tokio::task::spawn_blocking(move || stream.follow(From::Start));
    let Ok(follower) = follower.await else { return };
    let mut lines = LineFollower::new(follower);
    while let Some(line) = lines.next().await {
        let Line { bytes, complete, skipped_bytes } = line;
        let output = Output { bytes, complete, skipped_bytes, ..whose.clone() };
        if reports.send(Report::Output(output)).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
#[path = "follow_tests.rs"]
mod tests;
