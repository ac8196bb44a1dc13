//! Reads JSON with Nomad's field names into the tree.
//!
//! ```text
//! text ─ reader: values with places ─► find the job ─► tree::Block, an attribute per member
//! ```
//!
//! Both a request to Nomad's API (`{"Job": {…}}`) and the job object alone are accepted.

mod path;
mod reader;

use super::diagnostic::{Sink, Span, quote_text};
use super::keys::is_empty;
use super::tree::{Block, Body, SpannedKey, SpannedValue, ValueKind};

/// How a key beside `Job` is treated when nobody acts on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EnvelopeRule {
    /// A warning is given, with a reason if there is one.
    Warned(&'static str),
    /// An error is reported, because the key would change the job.
    Refused,
    /// The key is ignored: it decides nothing, and newer clients always send it.
    Ignored,
}

const TOKEN: &str = "a token is taken from the header X-Nomad-Token";

/// The keys that may stand beside `Job` in a request to Nomad's API. They are for the API, not for the job.
pub(super) const ENVELOPE: [(&str, EnvelopeRule); 15] = [
    ("Job", EnvelopeRule::Ignored),
    ("Region", EnvelopeRule::Warned("")),
    ("Namespace", EnvelopeRule::Warned("")),
    ("SecretID", EnvelopeRule::Warned(TOKEN)),
    ("AuthToken", EnvelopeRule::Warned(TOKEN)),
    ("EnforceIndex", EnvelopeRule::Warned("")),
    ("JobModifyIndex", EnvelopeRule::Warned("")),
    ("PolicyOverride", EnvelopeRule::Warned("there are no Sentinel policies")),
    ("PreserveCounts", EnvelopeRule::Warned("")),
    ("PreserveResources", EnvelopeRule::Refused),
    ("EvalPriority", EnvelopeRule::Warned("no evaluation waits for another")),
    ("Diff", EnvelopeRule::Warned("")),
    // This key is one of Ostler.
    ("Rerun", EnvelopeRule::Warned("")),
    // The key has the text of the file, which Nomad's servers show on their web page.
    ("Submission", EnvelopeRule::Ignored),
    ("IdempotencyToken", EnvelopeRule::Warned("the same job given twice is one version anyway")),
];

/// The place that a job comes from, which decides what may stand beside it.
pub(super) enum JobSource<'a> {
    /// In a file.
    File,
    /// In a request to the API.
    Request {
        /// The keys that the handler of the request acts on.
        acted_on: &'a [&'a str],
    },
}

impl JobSource<'_> {
    /// Report a key beside `Job` that has no effect.
    fn report_key(
        &self,
        key: &SpannedKey,
        value: &SpannedValue,
        unread: EnvelopeRule,
        sink: &mut Sink,
    ) {
        let (name, acted_on, place) = match self {
            Self::File => (&key.name, &[][..], "in a file: it is for the API"),
            Self::Request { acted_on } => (&key.name, *acted_on, "in this request"),
        };
        if is_empty(value) || acted_on.contains(&name.as_str()) {
            return;
        }
        match unread {
            EnvelopeRule::Ignored => {}
            EnvelopeRule::Refused => {
                let message = format!("{name} is valid in Nomad, not supported by Ostler yet");
                sink.error(key.span, message);
            }
            EnvelopeRule::Warned(why) => {
                let why = if why.is_empty() { String::new() } else { format!("; {why}") };
                sink.warn(key.span, format!("{name} beside Job has no effect {place}{why}"));
            }
        }
    }
}

/// Read a text as JSON. `None` means that it is none, and the reason is in `sink`.
pub(super) fn value(text: &str, sink: &mut Sink) -> Option<SpannedValue> {
    reader::read(text, sink)
}

/// The keys that lead to each of these places in a text, as words; `None` where the text is no JSON.
pub(super) fn paths(text: &str, places: &[Span]) -> Vec<Option<String>> {
    let read = reader::read(text, &mut Sink::default());
    let path = |place: &Span| {
        let path = path::key_path(read.as_ref()?, *place);
        Some(path).filter(|path| !path.is_empty())
    };
    places.iter().map(path).collect()
}

/// Read a job in JSON as the block that it would be in HCL. `None` means that there is no job in the text, and the
/// reason is in `sink`.
pub(super) fn read(text: &str, beside: &JobSource<'_>, sink: &mut Sink) -> Option<Block> {
    let value = reader::read(text, sink)?;
    let (key, job) = job_object(value, beside, sink)?;
    Some(Block { key, labels: Vec::new(), body: Body::from_members(job) })
}

/// The object that is the job, with the key that it stands at.
fn job_object(
    value: SpannedValue,
    beside: &JobSource<'_>,
    sink: &mut Sink,
) -> Option<(SpannedKey, Vec<(SpannedKey, SpannedValue)>)> {
    let span = value.span;
    let ValueKind::Object(members) = value.kind else {
        return sink.refuse(span, format!("a job is an object, not {}", value.kind.describe()));
    };
    let has = |name: &str| members.iter().any(|(key, _)| key.name == name);
    if !has("Job") && (has("ID") || has("TaskGroups") || has("Name")) {
        return Some((SpannedKey::new("Job", Span::new(span.start, span.start + 1)), members));
    }
    if has("job") {
        let message = "the JSON form of HCL is not supported; use HCL, or Nomad's API form: {\"Job\": {\"ID\": …, \"TaskGroups\": […]}}";
        return sink.refuse(span, message);
    }
    let mut job = None;
    for (key, value) in members {
        if key.name != "Job" {
            match ENVELOPE.iter().find(|(name, _)| *name == key.name) {
                Some((_, unread)) => beside.report_key(&key, &value, *unread, sink),
                None => {
                    let instead = sink.nearest(&key.name, ENVELOPE.map(|(name, _)| name));
                    let message = format!("{} is unknown beside Job", quote_text(&key.name));
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
