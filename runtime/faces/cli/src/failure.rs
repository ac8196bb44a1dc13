//! An error as programs read it (`--json`): one object in one line of standard error.
//!
//! ```text
//! {"error":"…","cause":"…","next":["ostler job status"],"status":404,"exit_code":2}
//! ```

use serde::Serialize;

use super::connect::CliError;
use super::input::InputError;
use ostler_api::client::{ClientError, ClientTrouble};
use ostler_jobspec::FileDiagnostic;

/// An error, for programs.
#[derive(Debug, Default, Serialize)]
pub(super) struct ErrorReport<'a> {
    /// The whole message, as people read it.
    pub error: String,
    /// The cause, in the words of the system or the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// The command lines that the message names as the next step.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub next: Vec<String>,
    /// The HTTP status of the agent's answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// What is wrong with a file, with the places in it.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub diagnostics: &'a [FileDiagnostic],
    /// The exit code, where the program ends with this error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<u8>,
}

impl<'a> ErrorReport<'a> {
    /// A report of a message alone.
    pub(super) fn new(message: &str) -> Self {
        Self { error: message.to_owned(), next: commands(message), ..Self::default() }
    }

    /// A report of a file that cannot be used.
    pub(super) fn from_input(error: &'a InputError) -> Self {
        let diagnostics = match error {
            InputError::Invalid { diagnostics, .. } => diagnostics.diagnostics.as_slice(),
            _ => &[],
        };
        let cause = match error {
            InputError::JobFile(error) => innermost_cause(error),
            other => innermost_cause(other),
        };
        Self { cause, diagnostics, ..Self::new(&error.to_string()) }
    }

    fn from_client(error: &ClientError) -> Self {
        let (cause, status) = match error {
            ClientError::Failed { trouble: ClientTrouble::Refused { status, text }, .. } => {
                (Some(text.clone()), Some(*status))
            }
            other => (innermost_cause(other), None),
        };
        let error = error.to_string();
        let cause = cause.filter(|cause| !cause.is_empty() && *cause != error);
        Self { cause, status, ..Self::new(&error) }
    }
}

/// The error that ended a command, with its exit code.
impl<'a> From<&'a CliError> for ErrorReport<'a> {
    fn from(stop: &'a CliError) -> Self {
        let failure = match stop {
            CliError::Client(error) => Self::from_client(error),
            CliError::Input(error) => Self::from_input(error),
            other => Self::new(&other.to_string()),
        };
        Self { exit_code: Some(stop.exit().code()), ..failure }
    }
}

/// The last of the causes of an error.
fn innermost_cause(error: &dyn std::error::Error) -> Option<String> {
    let causes = std::iter::successors(error.source(), |error| error.source());
    causes.last().map(ToString::to_string)
}

/// The command lines of this program that a text has between backquotes.
fn commands(text: &str) -> Vec<String> {
    let quoted = text.split('`').skip(1).step_by(2);
    quoted.filter(|quoted| quoted.starts_with("ostler ")).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_needs_stands_by_itself() {
        let text = "there is no job web; `ostler job status` lists them, and `x` does not";
        let stop = CliError::Wrong(text.to_owned());
        let failure = ErrorReport::from(&stop);
        let json = serde_json::to_value(&failure).unwrap_or_default();
        let expected = serde_json::json!({
            "error": text, "next": ["ostler job status"], "exit_code": 2,
        });
        assert_eq!(json, expected);
    }
}
