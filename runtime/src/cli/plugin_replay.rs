//! `ostler plugin replay`

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;

use super::args::plugin_check::PluginReplayArgs;
use super::exit::Exit;
use super::input;
use super::output::{self, table};
use super::plugin_check::code_dir;
use super::terminal::{Terminal, one_line, plain};
use crate::agent::offline::{
    self, Again, OfflineError, Outcome, Place, Recording, ReplayVerdict, Replayed,
};
use ostler_model::causes::chain;
use ostler_model::limits::{PLUGIN_FILE_BYTES_MAX, PLUGIN_RECORDING_BYTES_MAX};
use ostler_model::time::Timestamp;
use ostler_model::words::{counted, took};

/// Make a recorded call again, and say how it compares.
pub(super) async fn replay(args: &PluginReplayArgs, terminal: &Terminal) -> Exit {
    let wrong = |message: String| {
        output::error(terminal, &message);
        Exit::Input
    };
    let recording = match recording(&args.file) {
        Ok(recording) => recording,
        Err(message) => return wrong(message),
    };
    let Some(component) = args.component.as_ref().filter(|_| !args.list) else {
        return list(&recording, args.json, terminal)
            .map_or_else(|failed| failed, |()| Exit::Success);
    };
    let component = match input::file(component, PLUGIN_FILE_BYTES_MAX) {
        Ok(bytes) => Arc::from(bytes),
        Err(error) => return wrong(error.to_string()),
    };
    let (code_dir, _temporary) = match code_dir() {
        Ok(dirs) => dirs,
        Err(error) => {
            output::error(terminal, &format!("cannot make a temporary directory: {error}"));
            return Exit::Agent;
        }
    };
    let again = Again { call: args.call, any_component: args.any_component };
    let place = Place { code_dir, compiler: None };
    let replayed = match offline::replay(&recording, component, again, place).await {
        Ok(replayed) => replayed,
        Err(OfflineError::Replay(error)) => return wrong(chain(&error)),
        Err(error @ OfflineError::Place(_)) => {
            output::error(terminal, &chain(&error));
            return Exit::Agent;
        }
    };
    let printed = match args.json {
        true => output::print_json(&replayed, terminal),
        false => output::print(&text(&recording, &replayed), terminal),
    };
    match (printed, replayed.verdict) {
        (Err(failed), _) => failed,
        (Ok(()), ReplayVerdict::Same) => Exit::Success,
        (Ok(()), _) => Exit::Failed,
    }
}

fn recording(path: &Path) -> Result<Recording, String> {
    let bytes = input::file(path, PLUGIN_RECORDING_BYTES_MAX).map_err(|error| error.to_string())?;
    offline::recording(&bytes).map_err(|error| format!("{}: {error}", path.display()))
}

/// A call of a recording, as it is listed.
#[derive(Debug, Serialize)]
struct Listed<'a> {
    call: usize,
    function: &'a str,
    at: u64,
    took_nanos: u64,
    host_calls: u32,
    #[serde(flatten)]
    outcome: &'a Outcome,
}

/// A recording, as it is listed.
#[derive(Debug, Serialize)]
struct Contents<'a> {
    plugin: &'a str,
    digest: &'a str,
    agent: &'a str,
    redacted: u32,
    calls: Vec<Listed<'a>>,
}

fn list(recording: &Recording, json: bool, terminal: &Terminal) -> Result<(), Exit> {
    let calls = recording.calls.iter().zip(1..).map(|(call, number)| Listed {
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
    if json {
        return output::print_json(&contents, terminal);
    }
    let mut text = of(recording);
    text.push('\n');
    let rows = contents.calls.iter().map(|call| {
        [
            call.call.to_string(),
            Timestamp::from_nanos(call.at).to_string(),
            call.function.to_owned(),
            took(call.took_nanos),
            call.host_calls.to_string(),
            ended(call.outcome),
        ]
    });
    text.push_str(&table(
        ["CALL", "AT", "FUNCTION", "TOOK", "HOST CALLS", "ENDED"],
        rows,
        terminal,
    ));
    output::print(&text, terminal)
}

fn of(recording: &Recording) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "plugin    {}", one_line(&recording.plugin));
    let _ = writeln!(text, "digest    sha256:{}", one_line(&recording.digest));
    let _ = writeln!(text, "agent     {}", one_line(&recording.agent));
    let _ = writeln!(text, "redacted  {}", counted(recording.redacted, "value"));
    text
}

fn ended(outcome: &Outcome) -> String {
    match outcome.text.is_empty() {
        true => outcome.end.clone(),
        false => format!("{}: {}", outcome.end, outcome.text),
    }
}

fn text(recording: &Recording, replayed: &Replayed) -> String {
    let mut text = of(recording);
    let _ = writeln!(text, "call      {}", one_line(&replayed.function));
    let _ = writeln!(text, "recorded  {}", plain(&ended(&replayed.recorded)));
    let _ = writeln!(text, "replayed  {}", plain(&ended(&replayed.replayed)));
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
            let place = replayed.departure.as_deref().unwrap_or_default();
            format!("another way: {}", one_line(place))
        }
    };
    let _ = writeln!(text, "\n{verdict}");
    text
}
