//! `ostler state …`: looking at the state of an agent that does not run; `stats`, `runs` and `end-run`
//! also ask one that does.

mod check;
mod dump;
mod runs;
mod stats;

use serde::Serialize;

use super::args::state::{CompactArgs, StateCommand, StateFileArgs};
use super::exit::Exit;
use super::input;
use super::output::{self, size};
use super::terminal::{Terminal, one_line};
use crate::agent::inspect::{self, InspectError, Target};
use crate::agent::{EndRunError, HeldRun};
use ostler_model::causes;

/// Runs that are held back, as a table.
pub(super) fn runs_text(held: &[HeldRun], terminal: &Terminal) -> String {
    runs::text(held, "", terminal)
}

/// Run a command on a state file.
pub(super) async fn run(command: &StateCommand, terminal: &Terminal) -> Exit {
    let done = match command {
        StateCommand::Check(args) => check::check(args, terminal),
        StateCommand::Dump(args) => dump::dump(args, terminal),
        StateCommand::Compact(args) => compact(args, terminal),
        StateCommand::Stats(args) => stats::stats(args, terminal).await,
        StateCommand::Runs(args) => runs::runs(args, terminal).await,
        StateCommand::EndRun(args) => runs::end(args, terminal).await,
    };
    done.unwrap_or_else(|exit| exit)
}

/// The file that the arguments mean.
fn target(args: &StateFileArgs, terminal: &Terminal) -> Result<Target, Exit> {
    if let Some(file) = &args.file {
        return Ok(Target::File(file.clone()));
    }
    if let Some(dir) = &args.data_dir {
        return Ok(Target::DataDir(dir.clone()));
    }
    let config = input::config(args.config.as_deref()).map_err(|error| {
        output::input_error(terminal, &error);
        Exit::Input
    })?;
    config.data_dir.map(Target::DataDir).ok_or_else(|| {
        let message = "no data directory is given: use --data-dir DIR or, for a state file by \
                       itself, --file FILE";
        output::error(terminal, message);
        Exit::Input
    })
}

/// Say why a state file cannot be looked at.
fn failed(error: &InspectError, terminal: &Terminal) -> Exit {
    output::error(terminal, &causes::chain(error));
    match error {
        InspectError::Missing { .. }
        | InspectError::NotAFile { .. }
        | InspectError::EndRun(EndRunError::Unknown { .. }) => Exit::Input,
        error if error.damaged() => Exit::Damaged,
        _ => Exit::Agent,
    }
}

#[derive(Debug, Serialize)]
struct Compacted {
    path: std::path::PathBuf,
    before_bytes: u64,
    after_bytes: u64,
}

fn compact(args: &CompactArgs, terminal: &Terminal) -> Result<Exit, Exit> {
    let target = target(&args.which, terminal)?;
    let done = inspect::compact(&target).map_err(|error| failed(&error, terminal))?;
    let path = target.file();
    if args.json {
        let (before_bytes, after_bytes) = (done.before, done.after);
        output::print_json(&Compacted { path, before_bytes, after_bytes }, terminal)?;
        return Ok(Exit::Success);
    }
    let path = one_line(&path.display().to_string());
    let text = match done.before.checked_sub(done.after) {
        Some(0) | None => format!("{path} is as small as it gets: {}\n", size(done.after)),
        Some(freed) => format!(
            "{path}: {} before, {} now, {} given back\n",
            size(done.before),
            size(done.after),
            size(freed)
        ),
    };
    output::print(&text, terminal)?;
    Ok(Exit::Success)
}
