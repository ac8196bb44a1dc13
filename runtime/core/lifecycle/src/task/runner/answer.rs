//! The answers of the calls beside the owner.

use super::save::LastingState;
use crate::task::calls::{self, EndRequest, TaskStartError};
use crate::task::hooks::{HookError, Preparation};
use crate::task::recovery::Recovery;
use crate::task::templates::follow::TemplateNews;
use ostler_model::task::ExitResult;

/// What a call beside the owner ended with.
pub(super) enum TaskCallAnswer {
    Prepared(Box<Result<Preparation, HookError>>),
    Started(Result<(), TaskStartError>),
    WorkloadEnded,
    Stopped(Result<EndRequest, String>),
    Killed(Result<EndRequest, String>),
    ExitRead(ExitResult, Option<String>),
    Forgotten,
    Recovered(Recovery),
    /// True: nothing is left of the run. False: something did not end.
    Cleared(bool),
    /// The parts of the run that do not end.
    Undead(String),
    /// The run counts as over, for this reason, because nobody can tell that it ends.
    GivenUp(String),
    Ended,
    /// Contents of templates changed; `None`: they cannot change.
    Templates(Option<Box<TemplateNews>>),
    /// A signal or a command was handled; the asker has the answer already.
    Handled,
    /// The part of the public state that is durable now; `None` when the write failed.
    Written(Option<LastingState>),
}

/// The kind of a call; it decides the answer of a call that panicked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TaskCall {
    Prepare,
    Start,
    Watch,
    Stop,
    Kill,
    ReadExit,
    Forget,
    Recover,
    Clear,
    End,
    Signal,
    Exec,
    Tell,
    Templates,
    Write,
}

impl TaskCall {
    /// The answer of a call that panicked. The panic is a failure of that call and does not
    /// end the owner.
    pub(super) fn panic_answer(self) -> TaskCallAnswer {
        let error = format!("internal error: the call {self:?} panicked");
        match self {
            Self::Prepare => TaskCallAnswer::Prepared(Box::new(Err(HookError::Setup {
                error,
                recoverable: false,
            }))),
            Self::Start => {
                TaskCallAnswer::Started(Err(TaskStartError { error, recoverable: false }))
            }
            Self::Watch => TaskCallAnswer::WorkloadEnded,
            Self::Stop => TaskCallAnswer::Stopped(Err(error)),
            Self::Kill => TaskCallAnswer::Killed(Err(error)),
            Self::ReadExit => TaskCallAnswer::ExitRead(calls::unknown_exit(error), None),
            Self::Forget => TaskCallAnswer::Forgotten,
            Self::Recover => {
                TaskCallAnswer::Recovered(Recovery::NotReady { reason: error, held: false })
            }
            Self::Clear => TaskCallAnswer::Cleared(false),
            Self::End => TaskCallAnswer::Ended,
            Self::Signal | Self::Exec | Self::Tell => TaskCallAnswer::Handled,
            Self::Templates => TaskCallAnswer::Templates(None),
            Self::Write => TaskCallAnswer::Written(None),
        }
    }
}
