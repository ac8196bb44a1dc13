//! The beginning of a trace: the registration of a job.

use std::fmt::Display;

use tracing::Span;
use tracing::field::Empty;

use super::context::{TraceContext, TraceParent};
use super::recording;
use super::run_in;

/// A registration that is under way.
#[derive(Debug)]
pub struct Registration {
    /// The span in which the registration runs. It is disabled if the registration is not recorded.
    pub span: Span,
    /// The place in the trace for the allocations of the job.
    pub context: Option<TraceContext>,
}

impl Registration {
    /// Start the span of a registration. `parent` is the place that the request names. `by` is what
    /// gives the job (`api`, `file`, `run`), or how it is changed (`revert`, `scale`, `servers`).
    #[must_use]
    pub fn start_span(parent: Option<TraceParent>, job: &str, namespace: &str, by: &str) -> Self {
        let ids = recording::first_span(parent);
        let span = crate::span!(
            ids,
            "job register",
            otel.kind = "server",
            otel.remote = parent.is_some(),
            job,
            namespace,
            by,
            version = Empty,
            index = Empty,
            evaluation = Empty,
            error = Empty
        );
        Self { span, context: ids.map(|ids| ids.context()) }
    }

    /// Run the work that registers the job. An error is the reason why the job is refused.
    ///
    /// # Errors
    /// That of the work.
    pub async fn run<T, E: Display>(
        &self,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        run_in(self.span.clone(), work, |error| error).await
    }

    /// Record the result of the registration, and the evaluation that names it if there is one.
    pub fn record_result(&self, version: u64, index: u64, evaluation: Option<&str>) {
        self.span.record("version", version);
        self.span.record("index", index);
        self.span.record("evaluation", evaluation);
    }
}
