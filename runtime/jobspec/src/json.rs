//! JSON with Nomad's field names → tree.
//!
//! ```text
//! text ─ reader: values with places ─► find the job ─► tree::Block, an attribute per member
//! ```
//!
//! A request to Nomad's API (`{"Job": {…}}`) and the job object alone are both read.

mod path;
mod reader;

use super::diagnostic::{Sink, Span, shown};
use super::tree::{Block, Body, Key, Value, ValueKind};

/// What may stand beside `Job` in a request to Nomad's API. All of it is for the API, not the job.
const ENVELOPE: [&str; 14] = [
    "Job",
    "Region",
    "Namespace",
    "SecretID",
    "AuthToken",
    "EnforceIndex",
    "JobModifyIndex",
    "PolicyOverride",
    "PreserveCounts",
    "PreserveResources",
    "EvalPriority",
    "Diff",
    "Submission",
    "IdempotencyToken",
];

/// Read `text` as JSON. `None` when it is none; the reason is in `sink`.
pub(super) fn value(text: &str, sink: &mut Sink) -> Option<Value> {
    reader::read(text, sink)
}

/// What leads to each of these places in `text`, in words; none of it where `text` is no JSON.
pub(super) fn paths(text: &str, places: &[Span]) -> Vec<Option<String>> {
    let read = reader::read(text, &mut Sink::default());
    let path = |place: &Span| {
        let path = path::at(read.as_ref()?, *place);
        Some(path).filter(|path| !path.is_empty())
    };
    places.iter().map(path).collect()
}

/// Read `text` as JSON: the job as the block it would be in HCL. `None` when there is no job in it;
/// the reason is in `sink`.
pub(super) fn read(text: &str, sink: &mut Sink) -> Option<Block> {
    let value = reader::read(text, sink)?;
    let (key, job) = job_object(value, sink)?;
    Some(Block { key, labels: Vec::new(), body: Body::of(job) })
}

/// The object that is the job, and the key it stands at.
fn job_object(value: Value, sink: &mut Sink) -> Option<(Key, Vec<(Key, Value)>)> {
    let span = value.span;
    let ValueKind::Object(members) = value.kind else {
        return sink.refuse(span, format!("a job is an object, not {}", value.kind.describe()));
    };
    let has = |name: &str| members.iter().any(|(key, _)| key.name == name);
    if !has("Job") && (has("ID") || has("TaskGroups") || has("Name")) {
        return Some((Key::new("Job", Span::new(span.start, span.start + 1)), members));
    }
    if has("job") {
        let message = "the JSON form of HCL is not supported; use HCL, or Nomad's API form: {\"Job\": {\"ID\": …, \"TaskGroups\": […]}}";
        return sink.refuse(span, message);
    }
    let mut job = None;
    for (key, value) in members {
        if key.name != "Job" {
            if !ENVELOPE.contains(&key.name.as_str()) {
                let instead = sink.nearest(&key.name, ENVELOPE);
                let message = format!("{} is unknown beside Job", shown(&key.name));
                sink.suggest(key.span, message, instead);
            }
            continue;
        }
        if job.is_some() {
            sink.error(key.span, "Job is given twice");
            continue;
        }
        match value.kind {
            ValueKind::Object(members) => job = Some((key, members)),
            kind => {
                sink.error(value.span, format!("Job must be an object, not {}", kind.describe()))
            }
        }
    }
    if job.is_none() && sink.is_empty() {
        let at = Span::new(span.start, span.start + 1);
        sink.error(at, "there is no job here; write {\"Job\": {\"ID\": …, \"TaskGroups\": […]}}");
    }
    job
}

#[cfg(test)]
mod tests;
