//! What the calls beside the owner answer.

use super::save::Lasting;
use crate::task::calls::{self, EndRequest, StartError};
use crate::task::hooks::{HookError, Preparation};
use crate::task::recovery::Recovery;
use crate::task::templates::follow::TemplateNews;
use ostler_model::task::ExitResult;

/// What a call beside the owner ended with.
pub(super) enum Answer {
    Prepared(Box<Result<Preparation, HookError>>),
    Started(Result<(), StartError>),
    WorkloadEnded,
    Stopped(Result<EndRequest, String>),
    Killed(Result<EndRequest, String>),
    ExitRead(ExitResult, Option<String>),
    Forgotten,
    Recovered(Recovery),
    /// Nothing is left, or something that did not end.
    Cleared(bool),
    /// This of the run does not end.
    Undead(String),
    /// Nobody can tell that it ends, for this reason.
    GivenUp(String),
    Ended,
    /// Templates read otherwise; absent: none of them can.
    Templates(Option<Box<TemplateNews>>),
    /// A signal was delivered or not, a command runs or not; the asker has its answer already.
    Told,
    /// What of the public state is durable now; absent when the write failed.
    Written(Option<Lasting>),
}

/// Which call; what is made of one that panicked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
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

impl Call {
    /// The answer of a call that panicked: that call's failure, not the owner's end.
    pub(super) fn panicked(self) -> Answer {
        let error = format!("internal error: the call {self:?} panicked");
        match self {
            Self::Prepare => {
                Answer::Prepared(Box::new(Err(HookError::Setup { error, recoverable: false })))
            }
            Self::Start => Answer::Started(Err(StartError { error, recoverable: false })),
            Self::Watch => Answer::WorkloadEnded,
            Self::Stop => Answer::Stopped(Err(error)),
            Self::Kill => Answer::Killed(Err(error)),
            Self::ReadExit => Answer::ExitRead(calls::not_known(error), None),
            Self::Forget => Answer::Forgotten,
            Self::Recover => Answer::Recovered(Recovery::NotReady { reason: error, held: false }),
            Self::Clear => Answer::Cleared(false),
            Self::End => Answer::Ended,
            Self::Signal | Self::Exec | Self::Tell => Answer::Told,
            Self::Templates => Answer::Templates(None),
            Self::Write => Answer::Written(None),
        }
    }
}
