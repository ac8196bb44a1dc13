//! The output and the states of an allocation, told as they come.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::progress::Seen;
use super::report::{Label, Output, Report, Stream};
use ostler_lifecycle::alloc::AllocHandle;
use ostler_logs::{From, LineFollower, LogStream};
use ostler_model::ids::{AllocId, TaskName};

/// Tell everything of `alloc` until it is done and its output was read to the end. One task per
/// task of the allocation and one for the states, all on `on`.
pub(super) fn follow(
    alloc: &AllocHandle,
    labels: BTreeMap<TaskName, Arc<Label>>,
    reports: &mpsc::Sender<Report>,
    on: &mut JoinSet<()>,
) {
    for (task, label) in &labels {
        let (alloc, task, label) = (alloc.clone(), task.clone(), Arc::clone(label));
        on.spawn(task_output(alloc, task, label, reports.clone()));
    }
    on.spawn(states(alloc.clone(), labels, reports.clone()));
}

async fn states(
    alloc: AllocHandle,
    labels: BTreeMap<TaskName, Arc<Label>>,
    reports: mpsc::Sender<Report>,
) {
    let (mut states, mut phase) = (alloc.state(), alloc.phase());
    let allocation = alloc.allocation();
    let mut seen = Seen::new(Arc::clone(&allocation), labels);
    if reports.send(Report::Placed(allocation.as_ref().into())).await.is_err() {
        return;
    }
    loop {
        // In this order: the state seen when it has finished is the last one.
        let finished = phase.borrow_and_update().ended();
        let news = seen.update(&states.borrow_and_update().clone());
        for report in news {
            if reports.send(report).await.is_err() {
                return;
            }
        }
        if finished {
            return;
        }
        let gone = tokio::select! {
            changed = states.changed() => changed.is_err(),
            changed = phase.changed() => changed.is_err(),
        };
        if gone {
            // The owner is gone; what it left is the last state.
            let last = states.borrow().clone();
            for report in seen.update(&last) {
                if reports.send(report).await.is_err() {
                    return;
                }
            }
            return;
        }
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
    let stdout = Source { alloc: alloc.id(), task, label, stream: Stream::Stdout };
    let stderr = Source { stream: Stream::Stderr, ..stdout.clone() };
    let (out, err) = (Arc::clone(&logs.stdout), Arc::clone(&logs.stderr));
    tokio::join!(lines(out, stdout, &reports), lines(err, stderr, &reports));
}

/// Whose lines they are.
#[derive(Clone)]
struct Source {
    alloc: AllocId,
    task: TaskName,
    stream: Stream,
    label: Arc<Label>,
}

async fn lines(stream: Arc<LogStream>, source: Source, reports: &mpsc::Sender<Report>) {
    // It looks at files, which may take as long as their disk.
    let follower = tokio::task::spawn_blocking(move || stream.follow(From::Start));
    let Ok(follower) = follower.await else { return };
    let mut lines = LineFollower::new(follower);
    while let Some(line) = lines.next().await {
        let output = Report::Output(Output {
            alloc: source.alloc,
            task: source.task.clone(),
            stream: source.stream,
            bytes: line.bytes,
            complete: line.complete,
            skipped_bytes: line.skipped_bytes,
            label: Arc::clone(&source.label),
        });
        if reports.send(output).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
