//! What a template sees of the world: the task's environment and its files.

use std::cell::RefCell;
use std::collections::BTreeMap;

use ostler_model::limits::TEMPLATE_FILE_BYTES_MAX;
use ostler_model::time::Timestamp;
use ostler_template::{Dependency, Outside, OutsideAnswer, Value};

use super::disk::Stamp;
use super::place::Sandbox;
use crate::task::env::TaskEnv;

/// The world of one render.
pub(super) struct TaskOutside<'a> {
    sandbox: &'a Sandbox,
    env: &'a TaskEnv,
    now: Timestamp,
    /// Files that were read, as they were just before.
    stamps: RefCell<BTreeMap<String, Option<Stamp>>>,
}

impl<'a> TaskOutside<'a> {
    pub(super) fn new(sandbox: &'a Sandbox, env: &'a TaskEnv, now: Timestamp) -> Self {
        Self { sandbox, env, now, stamps: RefCell::default() }
    }

    pub(super) fn into_stamps(self) -> BTreeMap<String, Option<Stamp>> {
        self.stamps.into_inner()
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
        let path = match what {
            Dependency::File(path) => path,
            Dependency::Service { .. } | Dependency::Services => {
                return OutsideAnswer::Refused(
                    "templates do not know the services of this node yet".into(),
                );
            }
            Dependency::Variable { .. } | Dependency::Variables(_) => {
                return OutsideAnswer::Refused("this agent keeps no variables yet".into());
            }
        };
        // Before it is read: a change in between is seen later, not missed.
        let stamp = self.sandbox.stamp(path);
        self.stamps.borrow_mut().entry(path.clone()).or_insert(stamp);
        match self.sandbox.read(path, TEMPLATE_FILE_BYTES_MAX) {
            Ok(text) => OutsideAnswer::Is(Value::text(text)),
            Err(error) => OutsideAnswer::Refused(error),
        }
    }
}
