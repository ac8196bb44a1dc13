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
use super::keys::is_empty;
use super::tree::{Block, Body, Key, Value, ValueKind};

/// What is done about a key beside `Job` that nobody acts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unread {
    /// It is told in a warning, with the reason there is.
    Told(&'static str),
    /// It would make another job of this one.
    Refused,
    /// Nothing: it decides nothing, and newer clients always send it.
    Kept,
}

const TOKEN: &str = "a token is taken from the header X-Nomad-Token";

/// What may stand beside `Job` in a request to Nomad's API. All of it is for the API, not the job.
pub(super) const ENVELOPE: [(&str, Unread); 15] = [
    ("Job", Unread::Kept),
    ("Region", Unread::Told("")),
    ("Namespace", Unread::Told("")),
    ("SecretID", Unread::Told(TOKEN)),
    ("AuthToken", Unread::Told(TOKEN)),
    ("EnforceIndex", Unread::Told("")),
    ("JobModifyIndex", Unread::Told("")),
    ("PolicyOverride", Unread::Told("there are no Sentinel policies")),
    ("PreserveCounts", Unread::Told("")),
    ("PreserveResources", Unread::Refused),
    ("EvalPriority", Unread::Told("no evaluation waits for another")),
    ("Diff", Unread::Told("")),
    // Ours.
    ("Rerun", Unread::Told("")),
    // The text of the file, for the page of such a server.
    ("Submission", Unread::Kept),
    ("IdempotencyToken", Unread::Told("the same job given twice is one version anyway")),
];

/// Where a job stands, for what stands beside it.
pub(super) enum Beside<'a> {
    /// In a file.
    File,
    /// In a request to the API.
    Request {
        /// The keys that whoever answers acts on.
        acted_on: &'a [&'a str],
    },
}

impl Beside<'_> {
    /// Say what is not done of a key beside `Job`.
    fn tell(&self, key: &Key, value: &Value, unread: Unread, sink: &mut Sink) {
        let (name, acted_on, place) = match self {
            Self::File => (&key.name, &[][..], "in a file: it is for the API"),
            Self::Request { acted_on } => (&key.name, *acted_on, "in this request"),
        };
        if is_empty(value) || acted_on.contains(&name.as_str()) {
            return;
        }
        match unread {
            Unread::Kept => {}
            Unread::Refused => {
                let message = format!("{name} is valid in Nomad, not supported by Ostler yet");
                sink.error(key.span, message);
            }
            Unread::Told(why) => {
                let why = if why.is_empty() { String::new() } else { format!("; {why}") };
                sink.warn(key.span, format!("{name} beside Job has no effect {place}{why}"));
            }
        }
    }
}

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
pub(super) fn read(text: &str, beside: &Beside<'_>, sink: &mut Sink) -> Option<Block> {
    let value = reader::read(text, sink)?;
    let (key, job) = job_object(value, beside, sink)?;
    Some(Block { key, labels: Vec::new(), body: Body::of(job) })
}

/// The object that is the job, and the key it stands at.
fn job_object(
    value: Value,
    beside: &Beside<'_>,
    sink: &mut Sink,
) -> Option<(Key, Vec<(Key, Value)>)> {
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
            match ENVELOPE.iter().find(|(name, _)| *name == key.name) {
                Some((_, unread)) => beside.tell(&key, &value, *unread, sink),
                None => {
                    let instead = sink.nearest(&key.name, ENVELOPE.map(|(name, _)| name));
                    let message = format!("{} is unknown beside Job", shown(&key.name));
                    sink.suggest(key.span, message, instead);
                }
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
