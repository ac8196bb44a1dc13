//! `ostler node …`

mod drain;
mod join_check;
mod stats;
mod status;

use super::args::NodeCommand;
use super::connect::CliError;
use super::exit::Exit;
use super::terminal::TerminalInfo;

/// Run one of the commands on the node.
pub(super) async fn run(command: &NodeCommand, terminal: &TerminalInfo) -> Result<Exit, CliError> {
    match command {
        NodeCommand::Status(args) => status::status(args, terminal).await,
        NodeCommand::Drain(args) => drain::drain(args, terminal).await,
        NodeCommand::Eligibility(args) => drain::eligibility(args, terminal).await,
        NodeCommand::JoinCheck(args) => join_check::check(args, terminal).await,
    }
}
