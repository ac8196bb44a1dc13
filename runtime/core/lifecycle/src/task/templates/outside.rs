//! What a template can read: the task's environment, its files, and what it may ask of the node.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::SystemTime;

use ostler_model::cancellation::CancelFlag;
use ostler_model::limits::TEMPLATE_FILE_BYTES_MAX;
use ostler_model::time::Timestamp;
use ostler_template::{Dependency, Outside, OutsideAnswer, Value};

use super::disk::ReadFileStamp;
use super::place::TemplateDirs;
use super::sources::Sources;
use crate::task::env::TaskEnv;

/// The state of a dependency just before a template read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DependencyState {
    /// The stamp of a file; `None`: there was no file.
    File(Option<ReadFileStamp>),
    /// The hash of the answer to any other question.
    Told(u128),
}

impl DependencyState {
    /// The present state of a dependency.
    pub(super) fn read_now(what: &Dependency, sandbox: &TemplateDirs, sources: &Sources) -> Self {
        match what {
            Dependency::File(path) => Self::File(sandbox.stamp(path)),
            other => Self::Told(sources.answer_hash(other)),
        }
    }
}

/// What one rendering can read.
pub(super) struct TaskOutside<'a> {
    sandbox: &'a TemplateDirs,
    env: &'a TaskEnv,
    sources: &'a Sources,
    now: Timestamp,
    wanted: &'a CancelFlag,
    /// The state of each dependency just before it was read.
    seen: RefCell<BTreeMap<Dependency, DependencyState>>,
}

impl<'a> TaskOutside<'a> {
    pub(super) fn new(
        sandbox: &'a TemplateDirs,
        env: &'a TaskEnv,
        sources: &'a Sources,
        now: Timestamp,
        wanted: &'a CancelFlag,
    ) -> Self {
        Self { sandbox, env, sources, now, wanted, seen: RefCell::default() }
    }

    pub(super) fn into_dependencies(self) -> BTreeMap<Dependency, DependencyState> {
        self.seen.into_inner()
    }
}

impl Outside for TaskOutside<'_> {
    fn now(&self) -> SystemTime {
        self.now.to_system_time()
    }

    fn variable(&self, name: &str) -> Option<String> {
        self.env.lookup(name).map(str::to_owned)
    }

    fn ask(&self, what: &Dependency) -> OutsideAnswer {
        // Taken before the read, so that a change in between is seen later, not missed.
        let seen = DependencyState::read_now(what, self.sandbox, self.sources);
        self.seen.borrow_mut().entry(what.clone()).or_insert(seen);
        let Dependency::File(path) = what else { return self.sources.answer(what) };
        match self.sandbox.read(path, TEMPLATE_FILE_BYTES_MAX) {
            Ok(text) => OutsideAnswer::Is(Value::text(text)),
            Err(error) => OutsideAnswer::Refused(error),
        }
    }

    fn is_given_up(&self) -> bool {
        self.wanted.is_cancelled()
    }
}
