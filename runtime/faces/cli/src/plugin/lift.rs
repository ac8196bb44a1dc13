//! `ostler plugin lift`

use super::status;
use crate::answer;
use crate::args::plugin::PluginLiftArgs;
use crate::connect::{self, CliError};
use crate::exit::Exit;
use crate::terminal::{TerminalInfo, one_line};
use ostler_agent::{LiftReport, PluginStatusReport};
use ostler_api::client::ApiClient;
use ostler_api::routes::endpoints as routes;

/// End a quarantine.
pub(super) async fn lift(args: &PluginLiftArgs, terminal: &TerminalInfo) -> Result<Exit, CliError> {
    let client = connect::connect(&args.agent)?;
    let lifted = match client.send(&routes::LiftQuarantine::request([&args.plugin])).await {
        Err(error) if error.is_not_found() => return Err(lift_error(&client, &args.plugin).await),
        lifted => lifted?,
    };
    answer::show(&lifted, || text(&lifted), terminal)
}

/// The error where nothing can be lifted: there is no such plugin, or it is not in use.
async fn lift_error(client: &ApiClient, name: &str) -> CliError {
    match client.send(&routes::ListPluginStates::request([])).await {
        Ok(all) => match status::find(&all, name) {
            Ok(known) => not_in_use_error(known, name),
            Err(stop) => stop,
        },
        Err(error) => error.into(),
    }
}

fn not_in_use_error(known: &PluginStatusReport, name: &str) -> CliError {
    let (state, name) = (status::state(known), one_line(name));
    CliError::Wrong(format!(
        "plugin {name} is not in use ({state}): there is no quarantine to lift; `ostler plugin status {name}` says more"
    ))
}

fn text(lifted: &[LiftReport]) -> String {
    let line = |one: &LiftReport| match &one.was {
        Some(was) => {
            let (name, reason) = (one_line(&one.name), one_line(&was.reason));
            format!("lifted the quarantine of {name} ({reason}); it is tried now\n")
        }
        None => format!(
            "{} was not in quarantine; {} strikes are forgotten\n",
            one_line(&one.name),
            one.strikes
        ),
    };
    lifted.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ostler_agent::Quarantine;
    use ostler_model::time::Timestamp;

    #[test]
    fn what_was_lifted_is_told_with_its_reason() {
        let was = Quarantine {
            since: Timestamp::from_nanos(1),
            until: None,
            reason: "5 strikes\u{1b}".to_owned(),
            relapses: 0,
        };
        let one = LiftReport { name: "nvidia".to_owned(), was: Some(was), strikes: 5 };
        let other = LiftReport { name: "pci".to_owned(), was: None, strikes: 2 };
        assert_eq!(
            text(&[one, other]),
            "lifted the quarantine of nvidia (5 strikes\\u{1b}); it is tried now\n\
             pci was not in quarantine; 2 strikes are forgotten\n"
        );
    }
}
