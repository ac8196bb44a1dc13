//! The exit codes of the program.

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
    use super::*;

    #[test]
    fn codes_are_those_the_help_promises() {
        let codes = [
            (Exit::Success, 0),
            (Exit::Job(7), 7),
            (Exit::Damaged, 1),
            (Exit::Failed, 1),
            (Exit::Changes, 1),
            (Exit::Input, 2),
            (Exit::Agent, 3),
            (Exit::Consent, 4),
            (Exit::Signal(2), 130),
            (Exit::Signal(15), 143),
            (Exit::OutputClosed, 141),
        ];
        for (exit, code) in codes {
            assert_eq!(exit.code(), code, "{exit:?}");
        }
    }
}
