//! Who changes something names it whole, or agrees to what the beginning of its name means.
//!
//! ```text
//! the whole name, or as much of an id as lists show ─► done
//! --yes                                             ─► done
//! a terminal                                        ─► asked
//! else                                              ─► refused: what was meant is said
//! ```

use std::io::{self, BufRead as _, IsTerminal as _, Read as _};

use super::args::client::AgreeArgs;
use super::connect::{self, Stop};
use super::exit::Exit;
use super::output;
use super::terminal::{Terminal, one_line};
use ostler_api::client::ApiClient;
use ostler_model::ids::AllocId;

/// Characters of an id in lists: whoever gives so many has read them there.
const ID_CHARS_SHOWN: usize = 8;
/// Bytes of an answer that are read.
const ANSWER_BYTES_MAX: u64 = 64;

/// A change that is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change<'a> {
    /// What happens to what is named: `stop`.
    pub verb: &'a str,
    /// Whether somebody agreed beforehand.
    pub agree: AgreeArgs,
    /// Where people are.
    pub terminal: &'a Terminal,
}

/// What is named, and by how much of its name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Named<'a> {
    /// `job`, `allocation`.
    pub what: &'a str,
    /// What was given.
    pub given: &'a str,
    /// What it means.
    pub meant: &'a str,
    /// It is an id that was drawn, of which lists show the beginning.
    pub drawn: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Decision {
    Go,
    Ask,
    Refuse,
}

/// See the module.
fn decide(named: &Named<'_>, agreed: bool, people: bool) -> Decision {
    let enough = named.drawn && named.given.len() >= ID_CHARS_SHOWN;
    match (named.given == named.meant || enough || agreed, people) {
        (true, _) => Decision::Go,
        (false, true) => Decision::Ask,
        (false, false) => Decision::Refuse,
    }
}

/// May this be changed? Asks where there is somebody to ask.
pub(super) fn agreed(named: &Named<'_>, change: Change<'_>) -> Result<(), Stop> {
    let people = change.terminal.stderr && io::stdin().is_terminal();
    let (what, verb) = (named.what, change.verb);
    let (given, meant) = (one_line(named.given), one_line(named.meant));
    match decide(named, change.agree.yes, people) {
        Decision::Go => Ok(()),
        Decision::Refuse => {
            let message = format!(
                "{given} is only the beginning of {what} {meant}, and nothing was done: to {verb} it, name it \
                 whole or give --yes"
            );
            Err(Stop::Failed(message, Exit::Consent))
        }
        Decision::Ask => {
            let asks =
                format!("{given} is only the beginning of {what} {meant}: {verb} it? [y/N] ");
            output::draw(&asks);
            let mut answer = String::new();
            let mut from = io::stdin().lock().take(ANSWER_BYTES_MAX);
            let read = from.read_line(&mut answer);
            let yes = ["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str());
            match read.is_ok() && yes {
                true => Ok(()),
                false => Err(Stop::Failed("nothing was done".to_owned(), Exit::Consent)),
            }
        }
    }
}

/// The job to be changed, and a client for its namespace.
pub(super) async fn find_job(
    client: ApiClient,
    given: &str,
    change: Change<'_>,
) -> Result<(ApiClient, String), Stop> {
    let (client, job) = connect::find_job(client, given).await?;
    agreed(&Named { what: "job", given, meant: &job, drawn: false }, change)?;
    Ok((client, job))
}

/// The allocation to be changed.
pub(super) async fn find_alloc(
    client: &ApiClient,
    given: &str,
    change: Change<'_>,
) -> Result<AllocId, Stop> {
    let id = connect::find_alloc(client, given).await?;
    let meant = id.to_string();
    agreed(&Named { what: "allocation", given, meant: &meant, drawn: true }, change)?;
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_named_whole_is_changed_without_a_word() {
        let name = |given, meant, drawn| Named { what: "job", given, meant, drawn };
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
