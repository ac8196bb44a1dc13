//! `ostler state …`: commands on the state of an agent that does not run. `stats`, `runs` and
//! `end-run` also work with a running agent.

mod check;
mod dump;
mod runs;
mod stats;

use serde::Serialize;

use super::answer;
use super::args::state::{CompactArgs, StateCommand, StateFileArgs};
use super::connect::CliError;
use super::exit::Exit;
use super::input;
use super::terminal::{TerminalInfo, one_line};
use ostler_agent::inspect::{self, InspectError, Target};
use ostler_agent::{EndRunError, HeldRun};
use ostler_model::causes;
use ostler_model::words::format_bytes;

/// A table of the runs that are held back.
pub(super) fn runs_text(held: &[HeldRun], terminal: &TerminalInfo) -> String {
    runs::text(held, "", terminal)
}

/// Run a command on a state file.
pub(super) async fn run(command: &StateCommand, terminal: &TerminalInfo) -> Result<Exit, CliError> {
    match command {
        StateCommand::Check(args) => check::check(args, terminal),
        StateCommand::Dump(args) => dump::dump(args, terminal),
        StateCommand::Compact(args) => compact(args, terminal),
        StateCommand::Stats(args) => stats::stats(args, terminal).await,
        StateCommand::Runs(args) => runs::runs(args, terminal).await,
        StateCommand::EndRun(args) => runs::end_run(args, terminal).await,
    }
}

/// The state file that the arguments name.
fn target(args: &StateFileArgs) -> Result<Target, CliError> {
    if let Some(file) = &args.file {
        return Ok(Target::File(file.clone()));
    }
    if let Some(dir) = &args.data_dir {
        return Ok(Target::DataDir(dir.clone()));
    }
    input::read_config(args.config.as_deref())?.data_dir.map(Target::DataDir).ok_or_else(|| {
        let message = "no data directory is given: use --data-dir DIR or, for a state file by \
                       itself, --file FILE";
        CliError::Wrong(message.to_owned())
    })
}

impl From<InspectError> for CliError {
    fn from(error: InspectError) -> Self {
        let exit = match &error {
            InspectError::Missing { .. }
            | InspectError::NotAFile { .. }
            | InspectError::EndRun(EndRunError::Unknown { .. }) => Exit::Input,
            error if error.is_damaged() => Exit::Damaged,
            _ => Exit::Agent,
        };
        Self::Failed(causes::chain(&error), exit)
    }
}

#[derive(Debug, Serialize)]
struct CompactReport {
    path: std::path::PathBuf,
    before_bytes: u64,
    after_bytes: u64,
}

fn compact(args: &CompactArgs, terminal: &TerminalInfo) -> Result<Exit, CliError> {
    let target = target(&args.which)?;
    let done = inspect::compact(&target)?;
    let (path, before_bytes, after_bytes) = (target.file(), done.before, done.after);
    let shown = one_line(&path.display().to_string());
    let text = || match before_bytes.checked_sub(after_bytes) {
        Some(0) | None => {
            format!("{shown} is as small as it gets: {}\n", format_bytes(after_bytes))
        }
        Some(freed) => format!(
            "{shown}: {} before, {} now, {} given back\n",
            format_bytes(before_bytes),
            format_bytes(after_bytes),
            format_bytes(freed)
        ),
    };
    let compacted = CompactReport { path, before_bytes, after_bytes };
    answer::show(&compacted, text, terminal)
}
