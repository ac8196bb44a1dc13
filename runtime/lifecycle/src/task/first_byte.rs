//! The end of a task's way in its trace: the first byte that it prints.

use std::sync::Arc;

use ostler_logs::{Follower, From, TaskLogs};
use ostler_model::clock;
use ostler_model::limits::TRACE_FIRST_BYTE_WALL_MAX;
use ostler_model::time::Timestamp;

use super::TaskScope;

/// Wait for the first byte of a run that has begun, and make a span of that wait. A run that prints nothing has none.
pub(super) fn watch(scope: &Arc<TaskScope>, began: Timestamp) {
    let Some(logs) = scope.logs.get().filter(|_| scope.trace.is_some()) else { return };
    let (out, err) = (logs.stdout.follow(From::Start), logs.stderr.follow(From::Start));
    drop::<Arc<TaskLogs>>(logs);
    let scope = Arc::clone(scope);
    // Beside the owner: what a short run printed is found after its end.
    drop(tokio::spawn(async move {
        let printed = clock::timeout(TRACE_FIRST_BYTE_WALL_MAX, first(out, err)).await;
        if let Some(Some(stream)) = printed {
            let ids = ostler_trace::child_of(&scope.trace);
            let task = scope.task.name.as_str();
            drop(ostler_trace::span!(ids, "first byte", otel.start = began.nanos(), task, stream));
        }
    }));
}

/// The stream with the first byte; none where both end without one.
async fn first(mut out: Follower, mut err: Follower) -> Option<&'static str> {
    let printed = |chunk: Option<ostler_logs::Chunk>| chunk.is_some();
    tokio::select! {
        chunk = out.next(1) => match printed(chunk) {
            true => Some("stdout"),
            false => err.next(1).await.map(|_| "stderr"),
        },
        chunk = err.next(1) => match printed(chunk) {
            true => Some("stderr"),
            false => out.next(1).await.map(|_| "stdout"),
        },
    }
}
