//! Ends the trace of a task's start: with the first byte that the task prints.

use std::sync::Arc;

use ostler_logs::{FollowFrom, StreamFollower, TaskLogs};
use ostler_model::clock;
use ostler_model::limits::TRACE_FIRST_BYTE_WALL_MAX;
use ostler_model::time::Timestamp;

use super::TaskScope;

/// Wait for the first byte of a run that has begun, and make a span of the wait. A run that prints
/// nothing gets no span.
pub(super) fn trace_first_byte(scope: &Arc<TaskScope>, began: Timestamp) {
    let Some(logs) = scope.logs.get().filter(|_| scope.context.trace.is_some()) else { return };
    let (out, err) = (logs.stdout.follow(FollowFrom::Start), logs.stderr.follow(FollowFrom::Start));
    drop::<Arc<TaskLogs>>(logs);
    let scope = Arc::clone(scope);
    // This runs beside the owner, so that the output of a short run is found after its end.
    drop(tokio::spawn(async move {
        let printed = clock::timeout(TRACE_FIRST_BYTE_WALL_MAX, first_stream(out, err)).await;
        if let Some(Some(stream)) = printed {
            let ids = ostler_trace::child_span(&scope.context.trace);
            let task = scope.task.name.as_str();
            drop(ostler_trace::span!(ids, "first byte", otel.start = began.nanos(), task, stream));
        }
    }));
}

/// The stream with the first byte; `None` where both streams end without one.
async fn first_stream(mut out: StreamFollower, mut err: StreamFollower) -> Option<&'static str> {
    let printed = |chunk: Option<ostler_logs::Chunk>| chunk.is_some();
    tokio::select! {
        chunk = out.next(1) => if printed(chunk) {
            Some("stdout")
        } else {
            err.next(1).await.map(|_| "stderr")
        },
        chunk = err.next(1) => if printed(chunk) {
            Some("stderr")
        } else {
            out.next(1).await.map(|_| "stdout")
        },
    }
}
