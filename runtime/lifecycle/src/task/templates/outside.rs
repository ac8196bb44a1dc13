//! What a template sees of the world: the task's environment, its files, and what it may ask of the node.

use std::cell::RefCell;
use std::collections::BTreeMap;

use ostler_model::limits::TEMPLATE_FILE_BYTES_MAX;
use ostler_model::time::Timestamp;
use ostler_model::wanted::Awaited;
use ostler_template::{Dependency, Outside, OutsideAnswer, Value};

use super::disk::Stamp;
use super::place::Sandbox;
use super::sources::Sources;
use crate::task::env::TaskEnv;

/// How something that a template read was, just before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// A file; absent: there was none.
    File(Option<Stamp>),
    /// What else it asked for.
    Told(u128),
}

impl Seen {
    /// How it is now.
    pub(super) fn now(what: &Dependency, sandbox: &Sandbox, sources: &Sources) -> Self {
        match what {
            Dependency::File(path) => Self::File(sandbox.stamp(path)),
            other => Self::Told(sources.seen(other)),
        }
    }
}

/// The world of one render.
pub(super) struct TaskOutside<'a> {
    sandbox: &'a Sandbox,
    env: &'a TaskEnv,
    sources: &'a Sources,
    now: Timestamp,
    wanted: &'a Awaited,
    /// What was read, as it was just before.
    seen: RefCell<BTreeMap<Dependency, Seen>>,
}

impl<'a> TaskOutside<'a> {
    pub(super) fn new(
        sandbox: &'a Sandbox,
        env: &'a TaskEnv,
        sources: &'a Sources,
        now: Timestamp,
        wanted: &'a Awaited,
    ) -> Self {
        Self { sandbox, env, sources, now, wanted, seen: RefCell::default() }
    }

    pub(super) fn into_seen(self) -> BTreeMap<Dependency, Seen> {
        self.seen.into_inner()
    }
}

impl Outside for TaskOutside<'_> {
    fn now(&self) -> Timestamp {
        self.now
    }

    fn variable(&self, name: &str) -> Option<String> {
        self.env.known(name).map(str::to_owned)
    }

    fn ask(&self, what: &Dependency) -> OutsideAnswer {
        // Before it is read: a change in between is seen later, not missed.
        let seen = Seen::now(what, self.sandbox, self.sources);
        self.seen.borrow_mut().entry(what.clone()).or_insert(seen);
        let Dependency::File(path) = what else { return self.sources.answer(what) };
        match self.sandbox.read(path, TEMPLATE_FILE_BYTES_MAX) {
            Ok(text) => OutsideAnswer::Is(Value::text(text)),
            Err(error) => OutsideAnswer::Refused(error),
        }
    }

    fn is_given_up(&self) -> bool {
        self.wanted.is_given_up()
    }
}
