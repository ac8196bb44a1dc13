//! `ostler state …`: looking at the state of an agent that does not run; `stats`, `runs` and `end-run`
//! also ask one that does.

mod check;
mod dump;
mod runs;
mod stats;

use serde::Serialize;

use super::args::state::{CompactArgs, StateCommand, StateFileArgs};
use super::connect::Stop;
use super::exit::Exit;
use super::input;
use super::output::{self, size};
use super::terminal::{Terminal, one_line};
use ostler_agent::inspect::{self, InspectError, Target};
use ostler_agent::{EndRunError, HeldRun};
use ostler_model::causes;

/// Runs that are held back, as a table.
pub(super) fn runs_text(held: &[HeldRun], terminal: &Terminal) -> String {
    runs::text(held, "", terminal)
}

/// Run a command on a state file.
pub(super) async fn run(command: &StateCommand, terminal: &Terminal) -> Result<Exit, Stop> {
    match command {
        StateCommand::Check(args) => check::check(args, terminal),
        StateCommand::Dump(args) => dump::dump(args, terminal),
        StateCommand::Compact(args) => compact(args, terminal),
        StateCommand::Stats(args) => stats::stats(args, terminal).await,
        StateCommand::Runs(args) => runs::runs(args, terminal).await,
        StateCommand::EndRun(args) => runs::end(args, terminal).await,
    }
}

/// The file that the arguments mean.
fn target(args: &StateFileArgs) -> Result<Target, Stop> {
    if let Some(file) = &args.file {
        return Ok(Target::File(file.clone()));
    }
    if let Some(dir) = &args.data_dir {
        return Ok(Target::DataDir(dir.clone()));
    }
    input::config(args.config.as_deref())?.data_dir.map(Target::DataDir).ok_or_else(|| {
        let message = "no data directory is given: use --data-dir DIR or, for a state file by \
                       itself, --file FILE";
        Stop::Wrong(message.to_owned())
    })
}

impl From<InspectError> for Stop {
    fn from(error: InspectError) -> Self {
        let exit = match &error {
            InspectError::Missing { .. }
            | InspectError::NotAFile { .. }
            | InspectError::EndRun(EndRunError::Unknown { .. }) => Exit::Input,
            error if error.damaged() => Exit::Damaged,
            _ => Exit::Agent,
        };
        Self::Failed(causes::chain(&error), exit)
    }
}

#[derive(Debug, Serialize)]
struct Compacted {
    path: std::path::PathBuf,
    before_bytes: u64,
    after_bytes: u64,
}

fn compact(args: &CompactArgs, terminal: &Terminal) -> Result<Exit, Stop> {
    let target = target(&args.which)?;
    let done = inspect::compact(&target)?;
    let (path, before_bytes, after_bytes) = (target.file(), done.before, done.after);
    let shown = one_line(&path.display().to_string());
    let text = || match before_bytes.checked_sub(after_bytes) {
        Some(0) | None => format!("{shown} is as small as it gets: {}\n", size(after_bytes)),
        Some(freed) => format!(
            "{shown}: {} before, {} now, {} given back\n",
            size(before_bytes),
            size(after_bytes),
            size(freed)
        ),
    };
    let compacted = Compacted { path, before_bytes, after_bytes };
    output::show(args.json, &compacted, text, terminal)?;
    Ok(Exit::Success)
}
