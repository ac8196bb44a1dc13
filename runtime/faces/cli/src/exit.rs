//! The exit codes of the program, all of them: every command ends with an [`Exit`], and only here
//! one becomes a number. `docs/commands.md` lists them, and the help of each command says what they
//! mean there.

use std::process::ExitCode;

use ostler_api::client::ClientError;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The command succeeded: 0.
    Success,
    /// The job ended by itself, with 0 or the code of the first task that failed; or the command
    /// inside a task ended with this code.
    Job(u8),
    /// A state file or a record in it is damaged: 1.
    Damaged,
    /// The job, the check or the operation failed: 1.
    Failed,
    /// A plan would change something: 1.
    Changes,
    /// A job file, a configuration, a plugin file, an id or the usage is wrong: 2.
    Input,
    /// The agent cannot start, is not there or cannot do it, the job cannot be placed, or output
    /// cannot be written: 3.
    Agent,
    /// The user must agree to the change first: 4.
    Consent,
    /// This signal ended the program: 128 plus its number.
    Signal(u8),
    /// Nobody reads the standard output any more: 141, as a program killed by SIGPIPE.
    OutputClosed,
}

impl Exit {
    /// The exit code.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Job(code) => code,
            Self::Damaged | Self::Failed | Self::Changes => 1,
            Self::Input => 2,
            Self::Agent => 3,
            Self::Consent => 4,
            Self::Signal(number) => 128_u8.saturating_add(number),
            Self::OutputClosed => 141,
        }
    }
}

impl From<&ClientError> for Exit {
    fn from(error: &ClientError) -> Self {
        if error.is_wrong_input() { Self::Input } else { Self::Agent }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::{Command, CommandFactory as _};

    use super::*;
    use crate::args::Cli;

    const DOCUMENT: &str = include_str!("../../../../docs/commands.md");

    /// The code as the documents write it. A new way to end does not compile without one.
    fn documented_code(exit: Exit) -> String {
        match exit {
            Exit::Job(_) => "1-255".to_owned(),
            Exit::Signal(_) => "128+N".to_owned(),
            Exit::Success
            | Exit::Damaged
            | Exit::Failed
            | Exit::Changes
            | Exit::Input
            | Exit::Agent
            | Exit::Consent
            | Exit::OutputClosed => exit.code().to_string(),
        }
    }

    const ALL: [Exit; 10] = [
        Exit::Success,
        Exit::Job(7),
        Exit::Damaged,
        Exit::Failed,
        Exit::Changes,
        Exit::Input,
        Exit::Agent,
        Exit::Consent,
        Exit::Signal(2),
        Exit::OutputClosed,
    ];

    #[test]
    fn the_codes_are_what_scripts_know() {
        let codes = ALL.map(Exit::code);
        assert_eq!(codes, [0, 7, 1, 1, 1, 2, 3, 4, 130, 141]);
        assert_eq!(Exit::Signal(15).code(), 143);
    }

    #[test]
    fn the_document_lists_each_code_and_no_other() {
        let part = DOCUMENT.split("## Exit codes").nth(1).unwrap_or_default();
        let part = part.split("\n## ").next().unwrap_or_default();
        let rows = part.lines().filter_map(|line| line.strip_prefix("| ")?.split(" |").next());
        let listed: BTreeSet<String> = rows.skip(1).map(str::to_owned).collect();
        assert_eq!(listed, ALL.map(documented_code).into());
    }

    /// The codes that the help of a command and of those below it names.
    fn codes_of_help(command: &Command, into: &mut BTreeSet<String>) {
        let help = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
        let lines = help.split("Exit codes:\n").skip(1).flat_map(str::lines);
        let words = lines.filter_map(|line| line.strip_prefix("  ")?.split("  ").next());
        let codes = words.filter(|word| word.starts_with(|c: char| c.is_ascii_digit()));
        into.extend(codes.map(str::to_owned));
        command.get_subcommands().for_each(|below| codes_of_help(below, into));
    }

    #[test]
    fn every_code_that_a_help_names_is_one_of_the_program() {
        let mut named = BTreeSet::new();
        codes_of_help(&Cli::command(), &mut named);
        let signals = [1, 2, 15].map(|number| Exit::Signal(number).code().to_string());
        let known: BTreeSet<String> = ALL.map(documented_code).into_iter().chain(signals).collect();
        assert!(named.len() > 5 && named.is_subset(&known), "{named:?}");
    }
}
