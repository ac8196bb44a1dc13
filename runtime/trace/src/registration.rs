//! The begin of a trace: a job is registered.

use tracing::Span;
use tracing::field::Empty;

use super::context::{TraceContext, TraceParent};
use super::recording;

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
    /// (`api`, `file`, `run`).
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

    /// It is done: what it made, and the evaluation that names it where there is one.
    pub fn done(&self, version: u64, index: u64, evaluation: Option<&str>) {
        if self.context.is_some() {
            self.span.record("version", version);
            self.span.record("index", index);
            self.span.record("evaluation", evaluation);
        }
    }

    /// It is refused.
    pub fn refused(&self, error: &dyn std::fmt::Display) {
        if self.context.is_some() {
            self.span.record("error", tracing::field::display(error));
        }
    }
}
