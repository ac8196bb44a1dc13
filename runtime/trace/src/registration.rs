//! The begin of a trace: a job is registered.

use std::fmt::Display;

use tracing::Span;
use tracing::field::Empty;

use super::context::{TraceContext, TraceParent};
use super::recording;
use super::run_in;

/// A registration that is under way.
#[derive(Debug)]
pub struct Registration {
    /// What it runs in. Of a registration that is not recorded, nothing.
    pub span: Span,
    /// Where its allocations belong.
    pub context: Option<TraceContext>,
}

impl Registration {
    /// A registration begins. `parent`: what the request says of where it comes from; `by`: what gives the job
    /// (`api`, `file`, `run`), or how it is changed (`revert`, `scale`, `servers`).
    #[must_use]
    pub fn begin(parent: Option<TraceParent>, job: &str, namespace: &str, by: &str) -> Self {
        let ids = recording::begin(parent);
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

    /// Run what registers the job; an error is why it is refused.
    ///
    /// # Errors
    /// That of the work.
    pub async fn run<T, E: Display>(
        &self,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        run_in(self.span.clone(), work, |error| error).await
    }

    /// It is done: what it made, and the evaluation that names it where there is one.
    pub fn done(&self, version: u64, index: u64, evaluation: Option<&str>) {
        self.span.record("version", version);
        self.span.record("index", index);
        self.span.record("evaluation", evaluation);
    }
}
