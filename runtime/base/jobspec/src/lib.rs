//! Job files and the agent's configuration: text → [`Job`] or [`AgentConfig`], or everything that is
//! wrong with it.
//!
//! ```text
//! bytes ─ UTF-8, size ─┬─ hcl:  scan ─► hcl-edit ─► expressions evaluated ─┐
//!                      └─ json: reader with places ────────────────────────┴─► tree
//!                                                                               │ keys: what may stand where
//!                                                    Job, or Diagnostics ◄─── decode
//! ```
//! [`nomad_json`] goes the other way. Start with [`read`] and `decode/job.rs`.
//!
//! All input is untrusted: sizes, nesting and the results of expressions are bounded, nothing panics, and
//! nothing is skipped in silence. A feature that Nomad has and Ostler lacks is an error that says so.

pub mod access;
mod agent_config;

mod changes;
mod decode;
mod diagnostic;
mod disk;
mod encode;
mod file;
mod hcl;
mod inputs;
mod json;
mod keys;
mod places;
mod text;
mod tree;

use std::path::{Path, PathBuf};

pub use agent_config::parse_agent_config;
pub use changes::changes;
pub use decode::{agent_key, agent_key_paths, parse_trust_file};
pub use diagnostic::{Diagnostics, FileDiagnostic, Severity};
use diagnostic::{Sink, Span};
pub use encode::nomad_json;
pub use file::{JobFile, JobFileError, parse_file, read_file, read_file_with, read_open_file};
pub use inputs::{Inputs, VAR_PREFIX, VarFile};
use keys::Context;
#[cfg(doc)]
use ostler_model::config::AgentConfig;
use ostler_model::job::Job;
use ostler_model::limits::JOB_FILE_BYTES_MAX;
pub use places::{ConfigFault, ConfigPlaces};
use tree::{Block, Body, Item};

/// The syntax of a job file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syntax {
    /// HCL, as in Nomad's job files.
    Hcl,
    /// JSON, as Nomad's API takes it: `{"Job": {"ID": …}}` or the inner object alone.
    Json,
}

impl Syntax {
    /// Guess the syntax from the name of the file, or else from the first character: no HCL file starts
    /// with a bracket.
    fn guess(text: &str, file: &Path) -> Self {
        let named_json = file.extension().is_some_and(|end| end.eq_ignore_ascii_case("json"));
        if named_json || text.trim_start().starts_with(['{', '[']) { Self::Json } else { Self::Hcl }
    }
}

/// A job that was read, and what goes with it.
#[derive(Clone, Debug)]
pub struct ParsedJob {
    /// The job that the text describes.
    pub job: Job,
    /// Warnings of what is accepted and has no effect, or another effect than it says.
    pub warnings: Diagnostics,
    /// The places of the tasks' `config` in the text.
    pub places: ConfigPlaces,
}

/// Read a job as [`read`] does, and return the job alone.
///
/// # Errors
/// As [`read`].
pub fn parse(input: &[u8], file: &Path, syntax: Option<Syntax>) -> Result<Job, Diagnostics> {
    read(input, file, syntax).map(|parsed| parsed.job)
}

/// Read a job from `input`. `file` is the path for messages, and `${job.dir}` stands for its directory; the
/// path is empty or `-` when there is no file. Without `syntax`, the syntax is guessed.
///
/// # Errors
/// All problems of the text, with their places; never empty.
pub fn read(input: &[u8], file: &Path, syntax: Option<Syntax>) -> Result<ParsedJob, Diagnostics> {
    read_with(input, file, syntax, &Inputs::default())
}

/// Read a job as [`read`] does, with values for its variables.
///
/// # Errors
/// As [`read`].
pub fn read_with(
    input: &[u8],
    file: &Path,
    syntax: Option<Syntax>,
    inputs: &Inputs,
) -> Result<ParsedJob, Diagnostics> {
    let ((job, places), _, warnings) =
        text::read_whole(input, file, JOB_FILE_BYTES_MAX, "the job", |text, sink| {
            parse_text(text, file, syntax, inputs, sink)
        })?;
    Ok(ParsedJob { job, places, warnings })
}

/// A job of a request to the API.
#[derive(Clone, Debug)]
pub struct JobBody {
    /// The job and what goes with it.
    pub parsed: ParsedJob,
    /// Whether the job is to be stopped, or to stay stopped.
    pub stop: bool,
}

/// Read the body of a request to the API: `{"Job": …}`, or the job alone. `acted_on` names the keys beside
/// the job that the caller acts on. For each other key there is a warning, or an error where the key would
/// change the job.
///
/// # Errors
/// As [`read`].
pub fn read_request(input: &[u8], acted_on: &[&str]) -> Result<JobBody, Diagnostics> {
    let file = Path::new("");
    let ((job, places, stop), _, warnings) =
        text::read_whole(input, file, JOB_FILE_BYTES_MAX, "the job", |text, sink| {
            sink.set_json();
            let block = json::read(text, &json::JobSource::Request { acted_on }, sink)?;
            let mut cx = Context::new(sink, Syntax::Json);
            let job = decode::job(block, None, &mut cx)?;
            let (places, stop) = (cx.places, cx.stop.is_some());
            Some((with_needed_dir(job, sink), places, stop))
        })?;
    Ok(JobBody { parsed: ParsedJob { job, places, warnings }, stop })
}

fn parse_text(
    text: &str,
    file: &Path,
    syntax: Option<Syntax>,
    inputs: &Inputs,
    sink: &mut Sink,
) -> Option<(Job, ConfigPlaces)> {
    if text.trim().is_empty() {
        return sink.refuse(Span::default(), "the file is empty; write job \"name\" { … }");
    }
    let syntax = syntax.unwrap_or_else(|| Syntax::guess(text, file));
    let block = match syntax {
        Syntax::Hcl => {
            let body = hcl::read(text, inputs, sink)?;
            job_block(body, sink)?
        }
        Syntax::Json => {
            sink.set_json();
            json::read(text, &json::JobSource::File, sink)?
        }
    };
    let mut cx = Context::new(sink, syntax);
    let job = decode::job(block, source_dir(file), &mut cx)?;
    if let Some(at) = cx.stop {
        let message =
            "Stop is true: the job of such a text stays stopped; leave Stop out to run it";
        cx.error(at, message);
    }
    let places = cx.places;
    Some((with_needed_dir(job, sink), places))
}

/// The name of the job's directory in the texts of a job.
const JOB_DIR: &str = "job.dir";
const JOB_DIR_REFERENCE: &str = "${job.dir}";

/// The job with its directory, if a text of the job refers to the directory; otherwise without it. So the same
/// text gives the same job, wherever it comes from.
fn with_needed_dir(mut job: Job, sink: &mut Sink) -> Job {
    let text = nomad_json(&job).to_string();
    if !text.contains(JOB_DIR) {
        job.source_dir = None;
    } else if job.source_dir.is_none() && text.contains(JOB_DIR_REFERENCE) {
        let message = "${job.dir} has no value, because the job does not come from a file: what refers to it \
                       fails; give the file itself, or in JSON a SourceDir";
        sink.warn(Span::default(), message);
    }
    job
}

/// The one job of an HCL file.
fn job_block(body: Body, sink: &mut Sink) -> Option<Block> {
    let mut job: Option<Block> = None;
    for item in body.items {
        let key = item.key();
        let span = key.span;
        match item {
            Item::Block(block) if block.key.name == "job" => match (&job, block.labels.get(1)) {
                (Some(_), _) => sink.error(span, "a file holds one job; put this one into another"),
                (None, Some(second)) => sink.error(second.span, "job takes one label"),
                (None, None) => job = Some(block),
            },
            Item::Attribute(attribute) if attribute.key.name == "job" => {
                sink.error(span, "job is a block; write job \"name\" { … }");
            }
            other => {
                let name = &other.key().name;
                let instead = sink.nearest(name, ["job", "variable", "variables", "locals"]);
                let name = diagnostic::quote_text(name);
                let message = format!("{name} is unknown at the top of a job file");
                sink.suggest(span, message, instead);
            }
        }
    }
    if job.is_none() && sink.is_empty() {
        sink.error(Span::default(), "there is no job in this file; write job \"name\" { … }");
    }
    job
}

fn source_dir(file: &Path) -> Option<PathBuf> {
    if file.as_os_str().is_empty() || file == Path::new("-") {
        return None;
    }
    match file.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Some(PathBuf::from(".")),
        parent => parent.map(Path::to_path_buf),
    }
}

#[cfg(test)]
mod tests;
