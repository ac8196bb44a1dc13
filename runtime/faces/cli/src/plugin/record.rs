//! `ostler plugin record`

use crate::answer;
use crate::args::plugin::PluginRecordArgs;
use crate::connect::{self, CliError};
use crate::exit::Exit;
use crate::terminal::{TerminalInfo, one_line};
use ostler_agent::RecordReport;
use ostler_api::routes::endpoints as routes;

/// Have the agent write a plugin's last calls to a file.
pub(super) async fn record(
    args: &PluginRecordArgs,
    terminal: &TerminalInfo,
) -> Result<Exit, CliError> {
    let client = connect::connect(&args.agent)?;
    let recorded = client.send(&routes::RecordPlugin::request([&args.plugin])).await?;
    answer::show(&recorded, || text(&recorded), terminal)?;
    let all = recorded.iter().all(|one| one.file.is_some());
    Ok(if all { Exit::Success } else { Exit::Failed })
}

fn text(recorded: &[RecordReport]) -> String {
    let line = |one: &RecordReport| {
        let name = one_line(&one.name);
        match (&one.file, &one.error) {
            (Some(file), _) => {
                let file = one_line(&file.to_string_lossy());
                format!(
                    "{name}: {file}\nmake its calls again: ostler plugin replay {file} --component FILE\n"
                )
            }
            (None, Some(error)) => format!("{name}: not written: {}\n", one_line(error)),
            (None, None) => format!(
                "{name}: no call of it is kept; limits {{ recorded_calls = 8 }} in its block keeps \
                 the last eight\n"
            ),
        }
    };
    recorded.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_it_was_written_is_told_or_why_not() {
        let name = "nvidia".to_owned();
        let one = RecordReport { name, file: Some("/d/1.rec".into()), error: None };
        let text_of = |one: RecordReport| text(&[one]);
        assert!(
            text_of(one.clone()).starts_with("nvidia: /d/1.rec\nmake its calls again: ostler ")
        );
        let error = Some("no space\u{1b}".to_owned());
        let full = RecordReport { file: None, error, ..one.clone() };
        assert_eq!(text_of(full), "nvidia: not written: no space\\u{1b}\n");
        let none = RecordReport { file: None, ..one };
        assert!(text_of(none).contains("recorded_calls = 8"));
    }
}
