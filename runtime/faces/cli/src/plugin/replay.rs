//! `ostler plugin replay`

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;

use super::check::code_dir;
use crate::answer;
use crate::args::plugin_check::PluginReplayArgs;
use crate::connect::CliError;
use crate::exit::Exit;
use crate::input;
use crate::output::{self, table};
use crate::terminal::{TerminalInfo, one_line, plain};
use ostler_agent::offline::{
    self, CallOutcome, OfflineError, OfflinePlace, Recording, ReplayOptions, ReplayVerdict,
    ReplayedCall,
};
use ostler_model::causes::chain;
use ostler_model::limits::{PLUGIN_FILE_BYTES_MAX, PLUGIN_RECORDING_BYTES_MAX};
use ostler_model::time::Timestamp;
use ostler_model::words::{count_noun, format_nanos};

/// Make a recorded call again, and compare the result.
pub(super) async fn replay(
    args: &PluginReplayArgs,
    terminal: &TerminalInfo,
) -> Result<Exit, CliError> {
    let recording = read_recording(&args.file)?;
    let Some(component) = args.component.as_ref().filter(|_| !args.list) else {
        return list(&recording, terminal);
    };
    let component = Arc::from(input::read_file(component, PLUGIN_FILE_BYTES_MAX)?);
    let (code_dir, _temporary) = code_dir()?;
    let again = ReplayOptions { call: args.call, any_component: args.any_component };
    let place = OfflinePlace { code_dir, compiler: None };
    let replayed = offline::replay(&recording, component, again, place).await;
    let replayed = replayed.map_err(|error| match error {
        OfflineError::Replay(error) => CliError::Wrong(chain(&error)),
        error @ OfflineError::Place(_) => CliError::Cannot(chain(&error)),
    })?;
    answer::show(&replayed, || text(&recording, &replayed), terminal)?;
    let same = replayed.verdict == ReplayVerdict::Same;
    Ok(if same { Exit::Success } else { Exit::Failed })
}

fn read_recording(path: &Path) -> Result<Recording, CliError> {
    let bytes = input::read_file(path, PLUGIN_RECORDING_BYTES_MAX)?;
    let read = offline::recording(&bytes);
    read.map_err(|error| CliError::Wrong(format!("{}: {error}", path.display())))
}

/// A call of a recording, as it is listed.
#[derive(Debug, Serialize)]
struct CallEntry<'a> {
    call: usize,
    function: &'a str,
    at: u64,
    took_nanos: u64,
    host_calls: u32,
    #[serde(flatten)]
    outcome: &'a CallOutcome,
}

/// A recording, as it is listed.
#[derive(Debug, Serialize)]
struct Contents<'a> {
    plugin: &'a str,
    digest: &'a str,
    agent: &'a str,
    redacted: u32,
    calls: Vec<CallEntry<'a>>,
}

fn list(recording: &Recording, terminal: &TerminalInfo) -> Result<Exit, CliError> {
    let calls = recording.calls.iter().zip(1..).map(|(call, number)| CallEntry {
        call: number,
        function: &call.function,
        at: call.at,
        took_nanos: call.took,
        host_calls: call.host_calls,
        outcome: &call.outcome,
    });
    let contents = Contents {
        plugin: &recording.plugin,
        digest: &recording.digest,
        agent: &recording.agent,
        redacted: recording.redacted,
        calls: calls.collect(),
    };
    let text = || recording_text(recording) + "\n" + &calls_table(&contents.calls, terminal);
    answer::show(&contents, text, terminal)
}

fn calls_table(calls: &[CallEntry<'_>], terminal: &TerminalInfo) -> String {
    let rows = calls.iter().map(|call| {
        [
            call.call.to_string(),
            Timestamp::from_nanos(call.at).to_string(),
            call.function.to_owned(),
            format_nanos(call.took_nanos),
            call.host_calls.to_string(),
            outcome_text(call.outcome),
        ]
    });
    table(["CALL", "AT", "FUNCTION", "TOOK", "HOST CALLS", "ENDED"], rows, terminal)
}

fn recording_text(recording: &Recording) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| output::fact(&mut text, 10, name, value);
    line("plugin", &recording.plugin);
    line("digest", &format!("sha256:{}", recording.digest));
    line("agent", &recording.agent);
    line("redacted", &count_noun(recording.redacted, "value"));
    text
}

fn outcome_text(outcome: &CallOutcome) -> String {
    if outcome.text.is_empty() {
        outcome.end.clone()
    } else {
        format!("{}: {}", outcome.end, outcome.text)
    }
}

fn text(recording: &Recording, replayed: &ReplayedCall) -> String {
    let mut text = recording_text(recording);
    let _ = writeln!(text, "call      {}", one_line(&replayed.function));
    let _ = writeln!(text, "recorded  {}", plain(&outcome_text(&replayed.recorded)));
    let _ = writeln!(text, "replayed  {}", plain(&outcome_text(&replayed.replayed)));
    if replayed.recorded.frames.len() > 1 {
        let _ = writeln!(text, "frames    {}", one_line(&replayed.recorded.frames.join(" < ")));
    }
    let (made, recorded) = (replayed.host_calls, replayed.recorded_host_calls);
    let _ = writeln!(text, "host      {made} calls, {recorded} recorded");
    for note in &replayed.notes {
        let _ = writeln!(text, "note      {}", one_line(note));
    }
    let verdict = match replayed.verdict {
        ReplayVerdict::Same => "the same end".to_owned(),
        ReplayVerdict::Differs => "another end".to_owned(),
        ReplayVerdict::Departed => {
            let place = replayed.divergence.as_deref().unwrap_or_default();
            format!("another way: {}", one_line(place))
        }
    };
    let _ = writeln!(text, "\n{verdict}");
    text
}
