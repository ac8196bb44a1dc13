//! `ostler plugin …`

mod check;
mod inspect;
mod lift;
mod list;
mod pull;
mod record;
mod replay;
mod status;
mod upgrade;
mod verify;

use super::args::PluginCommand;
use super::connect::CliError;
use super::exit::Exit;
use super::terminal::TerminalInfo;

/// Run one of the commands on plugins.
pub(super) async fn run(
    command: &PluginCommand,
    terminal: &TerminalInfo,
) -> Result<Exit, CliError> {
    match command {
        PluginCommand::List(args) => list::list(args, terminal).await,
        PluginCommand::Lift(args) => lift::lift(args, terminal).await,
        PluginCommand::Record(args) => record::record(args, terminal).await,
        PluginCommand::Upgrade(args) => upgrade::upgrade(args, terminal).await,
        PluginCommand::Inspect(args) => inspect::inspect(args, terminal),
        PluginCommand::Replay(args) => replay::replay(args, terminal).await,
        PluginCommand::Check(args) => check::check(args, terminal).await,
        PluginCommand::Verify(args) => verify::verify(args, terminal),
        PluginCommand::Pull(args) => pull::pull(args, terminal).await,
        PluginCommand::Status(args) => status::status(args, terminal).await,
    }
}
