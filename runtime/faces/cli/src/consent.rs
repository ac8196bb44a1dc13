//! Consent to a change: its target must be named in full, or the user must agree to what the
//! beginning of a name means.
//!
//! ```text
//! the whole name, or as much of an id as lists show ─► done
//! --yes                                             ─► done
//! a terminal                                        ─► asked
//! else                                              ─► refused, with the full name in the message
//! ```

use std::io::{self, BufRead as _, IsTerminal as _, Read as _};

use super::args::client::AgreeArgs;
use super::connect::{self, CliError};
use super::exit::Exit;
use super::output::{self, ID_CHARS_SHOWN};
use super::terminal::{TerminalInfo, one_line};
use ostler_api::client::ApiClient;
use ostler_model::ids::AllocId;

/// Most bytes of the user's answer that are read.
const ANSWER_BYTES_MAX: u64 = 64;

/// A change that the user asks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConsentRequest<'a> {
    /// The verb that says what happens to the target, such as `stop`.
    pub verb: &'a str,
    /// Whether the user agreed beforehand (`--yes`).
    pub agree: AgreeArgs,
    /// The terminal on which a question can be asked.
    pub terminal: &'a TerminalInfo,
}

/// The target of a change, and how much of its name was given.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChangeTarget<'a> {
    /// The kind of the target, such as `job` or `allocation`.
    pub what: &'a str,
    /// The name as it was given.
    pub given: &'a str,
    /// The full name of the target.
    pub meant: &'a str,
    /// The name is a random id, of which lists show only the beginning.
    pub drawn: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Decision {
    Go,
    Ask,
    Refuse,
}

/// Decide whether to make the change, to ask the user first, or to refuse it.
fn decide(named: &ChangeTarget<'_>, agreed: bool, people: bool) -> Decision {
    // A user who gives as much of an id as lists show has read it there.
    let enough = named.drawn && named.given.len() >= ID_CHARS_SHOWN;
    match (named.given == named.meant || enough || agreed, people) {
        (true, _) => Decision::Go,
        (false, true) => Decision::Ask,
        (false, false) => Decision::Refuse,
    }
}

/// Return an error unless the change is agreed to. Asks the user where a question is needed and a
/// terminal is there.
pub(super) fn require_consent(
    named: &ChangeTarget<'_>,
    change: ConsentRequest<'_>,
) -> Result<(), CliError> {
    let people = change.terminal.stderr && io::stdin().is_terminal();
    let (what, verb) = (named.what, change.verb);
    let (given, meant) = (one_line(named.given), one_line(named.meant));
    match decide(named, change.agree.yes, people) {
        Decision::Go => Ok(()),
        Decision::Refuse => {
            let message = format!(
                "{given} is only the beginning of {what} {meant}, and nothing was done: to {verb} it, give its \
                 full name or --yes"
            );
            Err(CliError::Failed(message, Exit::Consent))
        }
        Decision::Ask => {
            let asks =
                format!("{given} is only the beginning of {what} {meant}: {verb} it? [y/N] ");
            output::draw(&asks);
            let mut answer = String::new();
            let mut from = io::stdin().lock().take(ANSWER_BYTES_MAX);
            let read = from.read_line(&mut answer);
            let yes = ["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str());
            if read.is_ok() && yes {
                Ok(())
            } else {
                Err(CliError::Failed("nothing was done".to_owned(), Exit::Consent))
            }
        }
    }
}

/// Find the job to be changed, and make a client for its namespace.
pub(super) async fn find_job(
    client: ApiClient,
    given: &str,
    change: ConsentRequest<'_>,
) -> Result<(ApiClient, String), CliError> {
    let (client, job) = connect::find_job(client, given).await?;
    require_consent(&ChangeTarget { what: "job", given, meant: &job, drawn: false }, change)?;
    Ok((client, job))
}

/// Find the allocation to be changed.
pub(super) async fn find_alloc(
    client: &ApiClient,
    given: &str,
    change: ConsentRequest<'_>,
) -> Result<AllocId, CliError> {
    let id = connect::find_alloc(client, given).await?;
    let meant = id.to_string();
    require_consent(
        &ChangeTarget { what: "allocation", given, meant: &meant, drawn: true },
        change,
    )?;
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_named_whole_is_changed_without_a_word() {
        let name = |given, meant, drawn| ChangeTarget { what: "job", given, meant, drawn };
        let id = "0f01c0de-0000-4000-8000-000000000000";
        for (named, decision) in [
            (name("web", "web", false), Decision::Go),
            (name("we", "web", false), Decision::Refuse),
            (name("production", "production-db", false), Decision::Refuse),
            (name("0f01c0d", id, true), Decision::Refuse),
            (name("0f01c0de", id, true), Decision::Go),
            (name(id, id, true), Decision::Go),
        ] {
            assert_eq!(decide(&named, false, false), decision, "{named:?}");
            assert_eq!(decide(&named, true, false), Decision::Go, "{named:?}");
            let asked = if decision == Decision::Go { Decision::Go } else { Decision::Ask };
            assert_eq!(decide(&named, false, true), asked, "{named:?}");
        }
    }
}
