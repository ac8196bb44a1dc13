//! What an agent that ends leaves on the node, and what the next one finds.
//!
//! ```text
//!   start ─► held ── release ─► runs on, whatever becomes of the agent
//!             └──── agent_died ─► never ran (adopt: NotRun)
//! ```
//! Only processes with a pid are held; other runs live from their start on.

use std::sync::Arc;
use std::time::Duration;

use super::{Ending, FakeNode, Reply, Script};
use ostler_model::ids::RunId;
use ostler_model::ports::{Adoption, RunNote, TaskContext};
use ostler_model::task::RawExit;

impl FakeNode {
    /// A run of an earlier agent that is alive.
    pub fn plant(&self, run: &RunId, task: &str, script: &Script) {
        self.bring_to_life(run, task, script);
    }

    /// How the programs of a node's only task go, one after the other: a start that comes to
    /// nothing takes none of them.
    pub fn script_by_release(&self, task: &str, programs: impl Into<Vec<Script>>) {
        self.script(task, programs);
        self.lock().by_release = true;
    }

    /// How it ended while nobody looked.
    pub fn end_planted(&self, run: &RunId, code: i32) {
        self.end_with(run, RawExit { exit_code: Some(code), ..RawExit::default() });
    }

    /// The same, with every word the host has of it.
    pub fn end_with(&self, run: &RunId, exit: RawExit) {
        self.end(run, exit);
    }

    /// The driver plugin is not loaded, or is.
    pub fn set_missing(&self, missing: bool) {
        self.lock().missing = missing;
    }

    /// The driver's own deadline of a call.
    pub fn set_call_wall(&self, wall: Duration) {
        self.lock().call_wall = wall;
    }

    /// The driver can do nothing but spawn processes.
    pub fn set_starts_held(&self, held: bool) {
        self.lock().starts_held = held;
    }

    /// The host keeps notes of runs from now on.
    pub fn keep_notes(&self) {
        self.lock().notes.get_or_insert_default();
    }

    /// What is kept of a run.
    #[must_use]
    pub fn noted(&self, run: &RunId) -> Option<RunNote> {
        self.lock().notes.as_ref()?.get(run).cloned()
    }

    /// Does the host own the run, so that it can be killed without its identity?
    pub(super) fn owned_by_host(&self, run: &RunId) -> bool {
        !self.lock().unowned.contains(run)
    }

    /// A signal of the host's own does what `stop` does.
    pub(super) fn signalled_by_host(&self, run: &RunId) {
        if let Some(Script { on_stop: Ending::After(after, code), .. }) = self.script_of(run) {
            self.end_later(run, after, code);
        }
    }

    /// How `recover` goes; a good one still needs a live run.
    pub fn set_recover(&self, reply: Reply) {
        self.lock().recover = reply;
    }

    /// How `inspect` goes.
    pub fn set_inspect(&self, reply: Reply) {
        self.lock().inspect = reply;
    }

    /// What the host says of every run it is asked to adopt; absent: the truth.
    pub fn set_adoption(&self, adoption: Option<Adoption>) {
        self.lock().adoption = adoption;
    }

    /// The agent is gone: what it held never runs.
    pub fn agent_died(&self) {
        let held = std::mem::take(&mut self.lock().held);
        for run in held {
            self.end(&run, RawExit { signal: Some(9), ..RawExit::default() });
            self.lock().never.insert(run);
        }
    }

    /// Runs whose program was let go, in order: each may have had effects.
    #[must_use]
    pub fn released(&self) -> Vec<RunId> {
        self.lock().released.clone()
    }

    /// The contexts of all calls of `start` and `recover`, in order.
    #[must_use]
    pub fn contexts(&self) -> Vec<Arc<TaskContext>> {
        self.lock().contexts.clone()
    }

    pub(super) fn let_go(&self, run: &RunId) {
        let script = {
            let mut inner = self.lock();
            inner.released.push(run.clone());
            if inner.held.remove(run) {
                inner.runs.get(run).map(|r| r.script.clone())
            } else {
                None
            }
        };
        if let Some(script) = script
            && let Some(after) = script.runs_for
        {
            self.end_later(run, after, script.exit_code);
        }
    }
}
