//! What is said of an error where a program reads it (`--json`): one object in one line of standard error.
//!
//! ```text
//! {"error":"…","cause":"…","next":["ostler job status"],"status":404,"exit_code":2}
//! ```

use serde::Serialize;

use super::connect::Stop;
use super::exit::Exit;
use super::input::InputError;
use ostler_api::client::{ClientError, Trouble};
use ostler_jobspec::FileDiagnostic;

/// An error, for programs.
#[derive(Debug, Default, Serialize)]
pub(super) struct Failure<'a> {
    /// All of it, as people read it.
    pub error: String,
    /// What the system or the agent said, in its own words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// The command lines that the text names as the next step.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub next: Vec<String>,
    /// The status of the agent's answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// What is wrong with a file, with the places.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub diagnostics: &'a [FileDiagnostic],
    /// How the program ends, where it ends by this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<u8>,
}

impl<'a> Failure<'a> {
    /// Of a message alone.
    pub(super) fn new(message: &str) -> Self {
        Self { error: message.to_owned(), next: commands(message), ..Self::default() }
    }

    /// Of a file that cannot be used.
    pub(super) fn of_input(error: &'a InputError) -> Self {
        let diagnostics = match error {
            InputError::Invalid { diagnostics, .. } => diagnostics.diagnostics.as_slice(),
            _ => &[],
        };
        let cause = match error {
            InputError::JobFile(error) => innermost(error),
            other => innermost(other),
        };
        Self { cause, diagnostics, ..Self::new(&error.to_string()) }
    }

    /// Of what ended a command with this exit code.
    pub(super) fn of_stop(stop: &'a Stop, exit: Exit) -> Self {
        let failure = match stop {
            Stop::Client(error) => Self::of_client(error),
            Stop::Input(error) => Self::of_input(error),
            other => Self::new(&other.to_string()),
        };
        Self { exit_code: Some(exit.code()), ..failure }
    }

    fn of_client(error: &ClientError) -> Self {
        let (cause, status) = match error {
            ClientError::Failed { trouble: Trouble::Refused { status, text }, .. } => {
                (Some(text.clone()), Some(*status))
            }
            other => (innermost(other), None),
        };
        let error = error.to_string();
        let cause = cause.filter(|cause| !cause.is_empty() && *cause != error);
        Self { cause, status, ..Self::new(&error) }
    }
}

/// The last of the causes of an error.
fn innermost(error: &dyn std::error::Error) -> Option<String> {
    let causes = std::iter::successors(error.source(), |error| error.source());
    causes.last().map(ToString::to_string)
}

/// Command lines of this program in a text.
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
        let stop = Stop::Wrong(text.to_owned());
        let failure = Failure::of_stop(&stop, Exit::Input);
        let json = serde_json::to_value(&failure).unwrap_or_default();
        let expected = serde_json::json!({
            "error": text, "next": ["ostler job status"], "exit_code": 2,
        });
        assert_eq!(json, expected);
    }
}
