//! The runs on record, and the notes that complete them.

use std::collections::BTreeMap;

use super::NodeRecords;
use ostler_lifecycle::task::handle::{LocalState, RunRecord, StartedRecord};
use ostler_model::ids::RunId;
use ostler_model::ports::{ProcessIdentity, RunNote};
use ostler_model::task::{DriverHandle, Workload};

impl NodeRecords {
    /// Complete the runs of which only the intent is on record, by the notes that were kept of
    /// them. A run without a note was never started, unless the machine was restarted since.
    pub fn complete_runs(&mut self, noted: impl Fn(&RunId) -> Option<RunNote>) {
        for local in self.tasks() {
            let Some(run) = local.run.as_mut().filter(|run| run.started.is_none()) else {
                continue;
            };
            let Some(note) = noted(&run.id) else { continue };
            match serde_json::from_value::<RunRecord>(note.record) {
                Ok(known) if known.id == run.id && known.started.is_some() => {
                    *run = known;
                    // What was decided for an earlier run does not hold for this one.
                    local.delayed_until = None;
                }
                Ok(_) => {}
                Err(error) => tracing::warn!(run = %run.id, %error, "its note says nothing of it"),
            }
        }
    }

    /// Complete the runs of which only the intent is on record and whose note is lost. A run whose
    /// exit is on record was started. What its driver recorded of it is not known.
    pub fn complete_ended(&mut self, ended: &BTreeMap<RunId, ProcessIdentity>) {
        for local in self.tasks() {
            let Some(run) = local.run.as_mut().filter(|run| run.started.is_none()) else {
                continue;
            };
            let Some(identity) = ended.get(&run.id) else { continue };
            tracing::warn!(run = %run.id, "the note of a run is lost; its exit is known");
            run.identities = vec![identity.clone()];
            run.started = Some(StartedRecord {
                handle: DriverHandle::default(),
                workload: Workload::Process(identity.id()),
                network: None,
            });
            local.delayed_until = None;
        }
    }

    /// Every run on record. Any other run that lives or has an exit belongs to nobody.
    #[must_use]
    pub fn runs(&self) -> Vec<RunId> {
        let tasks = self.allocs.values().flat_map(|found| found.restored.tasks.values());
        let runs = tasks.filter_map(|task| task.local.as_ref()?.run.as_ref());
        runs.map(|run| run.id.clone()).collect()
    }

    /// Runs of which only the intent is on record and that have no note: they were never started.
    #[must_use]
    pub fn intents(&self) -> Vec<RunId> {
        let tasks = self.allocs.values().flat_map(|found| found.restored.tasks.values());
        let runs = tasks.filter_map(|task| task.local.as_ref()?.run.as_ref());
        let intents = runs.filter(|run| run.started.is_none() && run.identities.is_empty());
        intents.map(|run| run.id.clone()).collect()
    }

    fn tasks(&mut self) -> impl Iterator<Item = &mut LocalState> {
        let tasks = self.allocs.values_mut().flat_map(|found| found.restored.tasks.values_mut());
        tasks.filter_map(|task| task.local.as_mut())
    }
}
