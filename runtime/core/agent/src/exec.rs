//! Requests to run a command inside a task: they are read and checked, or refused with a status.
//!
//! A client that comes through servers gets the same answers as a client of the node itself.

use ostler_control::AllocError;
use ostler_lifecycle::task::RequestError;
use ostler_model::causes;
use ostler_model::ids::{AllocId, TaskName};
use ostler_model::limits::{EXEC_ARGUMENTS_MAX, EXEC_REASON_BYTES_MAX, EXEC_SESSIONS_MAX};
use ostler_model::printable::{REST_BYTES_MAX, printable_line, truncate_text};
use ostler_model::session::{ExecCommand, ExecSession, TerminalSize};

use super::AgentHandle;

/// The longest part of a name that is repeated in an answer, in bytes; there is room for
/// little more.
const NAME_BYTES_MAX: usize = 40;

/// Why a command is not run.
#[derive(Debug, thiserror::Error)]
pub enum ExecRefusal {
    /// The operator allows no commands inside tasks.
    #[error(
        "Permission denied: running commands inside tasks is disabled on this node (client {{ disable_remote_exec }})"
    )]
    Off,
    /// The request names no allocation.
    #[error("must provide an allocation ID")]
    NoAlloc,
    /// There is no such allocation.
    #[error("Unknown allocation \"{}\"", printable_line(.0, NAME_BYTES_MAX))]
    UnknownAlloc(String),
    /// The request names no task.
    #[error("must provide task name")]
    NoTask,
    /// The allocation has no such task.
    #[error("unknown task name \"{}\"", printable_line(.0, NAME_BYTES_MAX))]
    UnknownTask(String),
    /// There is no program.
    #[error("command is not present")]
    NoCommand,
    /// The program is an empty text.
    #[error("the command has no name")]
    NoName,
    /// The command is no list of texts.
    #[error("an argument of the command is not text")]
    NotText,
    /// The command has more words than the host takes.
    #[error("the command has {0} arguments; at most {EXEC_ARGUMENTS_MAX} are allowed")]
    TooManyWords(usize),
    /// The servers already run as many commands as they may.
    #[error(
        "the servers already run {EXEC_SESSIONS_MAX} commands inside tasks of this node, the most allowed at \
         once; end one \
         and try again"
    )]
    TooMany,
    /// The allocation, its task, its driver or the host refuses.
    #[error(transparent)]
    Alloc(#[from] AllocError),
}

impl ExecRefusal {
    /// The HTTP status for this refusal.
    #[must_use]
    pub const fn status(&self) -> u16 {
        match self {
            Self::Off => 403,
            Self::TooMany => 429,
            Self::UnknownAlloc(_) | Self::Alloc(AllocError::Unknown { .. }) => 404,
            Self::Alloc(
                AllocError::Ended { .. } | AllocError::Request(RequestError::NotRunning { .. }),
            ) => 404,
            Self::Alloc(_) => 500,
            Self::NoAlloc
            | Self::NoTask
            | Self::UnknownTask(_)
            | Self::NoCommand
            | Self::NoName
            | Self::NotText
            | Self::TooManyWords(_) => 400,
        }
    }

    /// The whole text for the client, with all causes.
    #[must_use]
    pub fn text(&self) -> String {
        causes::chain(self)
    }
}

/// The part of a reason that fits into an answer, see [`EXEC_REASON_BYTES_MAX`].
#[must_use]
pub fn short_reason(why: String) -> String {
    if why.len() > EXEC_REASON_BYTES_MAX {
        truncate_text(why, EXEC_REASON_BYTES_MAX.saturating_sub(REST_BYTES_MAX))
    } else {
        why
    }
}

/// A request to run a command inside a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecOrder {
    /// The id of the allocation.
    pub alloc: AllocId,
    /// The name of the task in the allocation.
    pub task: TaskName,
    /// Program and arguments; there is at least the program.
    pub argv: Vec<String>,
    /// The size of the terminal; `None` if there is no terminal.
    pub terminal: Option<TerminalSize>,
}

impl ExecOrder {
    /// Read a request from its texts.
    ///
    /// # Errors
    /// When one of them is missing, or cannot name anything.
    pub fn read(
        alloc: &str,
        task: &str,
        argv: Vec<String>,
        terminal: bool,
    ) -> Result<Self, ExecRefusal> {
        if alloc.is_empty() {
            return Err(ExecRefusal::NoAlloc);
        }
        let alloc = alloc.parse().map_err(|_| ExecRefusal::UnknownAlloc(alloc.to_owned()))?;
        if task.is_empty() {
            return Err(ExecRefusal::NoTask);
        }
        let task = task.parse().map_err(|_| ExecRefusal::UnknownTask(task.to_owned()))?;
        match argv.first() {
            None => return Err(ExecRefusal::NoCommand),
            Some(program) if program.is_empty() => return Err(ExecRefusal::NoName),
            Some(_) if argv.len() > EXEC_ARGUMENTS_MAX => {
                return Err(ExecRefusal::TooManyWords(argv.len()));
            }
            Some(_) => {}
        }
        Ok(Self { alloc, task, argv, terminal: terminal.then(TerminalSize::default) })
    }
}

impl AgentHandle {
    /// Check that the operator lets people run commands inside tasks of this node.
    ///
    /// # Errors
    /// When the operator does not.
    pub fn check_exec_allowed(&self) -> Result<(), ExecRefusal> {
        if self.0.remote_exec.load(std::sync::atomic::Ordering::Relaxed) {
            Ok(())
        } else {
            Err(ExecRefusal::Off)
        }
    }

    /// Run the command of a request. `on_node` says whether this is also allowed inside a task that
    /// sees the node's own files, or why not.
    ///
    /// # Errors
    /// As [`AgentHandle::exec_alloc`].
    pub async fn run_exec(
        &self,
        asked: ExecOrder,
        on_node: Result<(), String>,
    ) -> Result<ExecSession, ExecRefusal> {
        let ExecOrder { alloc, task, argv, terminal } = asked;
        let unknown = || ExecRefusal::UnknownAlloc(alloc.to_string());
        let view = self.0.control.alloc(alloc).ok_or_else(unknown)?;
        let group = view.allocation.task_group();
        if group.and_then(|group| group.task(&task)).is_none() {
            return Err(ExecRefusal::UnknownTask(task.to_string()));
        }
        Ok(self.exec_alloc(alloc, &task, ExecCommand { argv, terminal, on_node }).await?)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    const ALLOC: &str = "8ba85cef-0000-4000-8000-000000000000";

    #[test]
    fn words_are_a_command_and_what_is_wrong_with_them_is_said() {
        let read = |alloc: &str, task: &str, argv: &[&str]| {
            let argv = argv.iter().map(|word| (*word).to_owned()).collect();
            ExecOrder::read(alloc, task, argv, true)
        };
        let asked = read(ALLOC, "web", &["sh", "-c", ""]).unwrap();
        assert_eq!(asked.argv, ["sh", "-c", ""]);
        assert_eq!(asked.terminal, Some(TerminalSize::default()));
        let many = ["x"; EXEC_ARGUMENTS_MAX + 1];
        for (alloc, task, argv, status, text) in [
            ("", "web", &["x"][..], 400, "must provide an allocation ID"),
            ("x", "web", &["x"], 404, "Unknown allocation \"x\""),
            (ALLOC, "", &["x"], 400, "must provide task name"),
            (ALLOC, "a/b", &["x"], 400, "unknown task name \"a/b\""),
            (ALLOC, "web", &[], 400, "command is not present"),
            (ALLOC, "web", &["", "x"], 400, "the command has no name"),
            (ALLOC, "web", &many, 400, "1025 arguments"),
        ] {
            let refused = read(alloc, task, argv).unwrap_err();
            assert_eq!(refused.status(), status, "{refused}");
            assert!(refused.text().contains(text), "{refused}");
        }
    }

    #[test]
    fn states_of_the_allocation_are_not_found_and_what_fails_is_the_nodes() {
        let of = |error: RequestError| ExecRefusal::from(AllocError::from(error)).status();
        assert_eq!(of(RequestError::NotRunning { task: "t".parse().unwrap() }), 404);
        assert_eq!(of(RequestError::Gone), 500);
        assert_eq!(ExecRefusal::Off.status(), 403);
        assert_eq!(ExecRefusal::TooMany.status(), 429);
        for whole in [ExecRefusal::Off, ExecRefusal::TooMany] {
            assert!(whole.text().len() <= EXEC_REASON_BYTES_MAX, "{whole}");
        }
    }

    #[test]
    fn a_reason_is_no_longer_than_the_way_to_who_asked_takes() {
        assert_eq!(short_reason("x".repeat(123)), "x".repeat(123));
        for long in [124, 125, 10_000] {
            let cut = short_reason("ö".repeat(long));
            assert!(cut.len() <= 123 && cut.starts_with("öö"), "{} bytes", cut.len());
        }
        let long = ExecRefusal::UnknownTask("ö".repeat(200)).text();
        assert!(short_reason(long.clone()) == long, "{long}");
    }
}
