//! Processes of an earlier agent.
//!
//! ```text
//!                      record? ── released ────────────────────────► Ended
//! supervisor gone ──────┤ └─ never released ──────────────────────► NotRun
//!                       └ none ── other boot ─────────────────────► Rebooted
//!                             └── same boot: nothing is left ───────► Ended, with an error text
//!                                            what is left is killed ─► Running, until it has ended
//! supervisor there (pid, start time and boot are those recorded) ──► Running: its end is waited for
//! ```

use std::sync::Arc;

use tokio::sync::watch;

use super::cgroup::Leaf;
use super::error::ProcessError;
use super::left::{self, Certainty};
use super::live;
use super::supervise::note::Note;
use super::supervise::record::ExitRecordError;
use super::{Line, Process, ProcessHost, Reach, Way, identity, spawn};
use ostler_model::ids::RunId;
use ostler_model::ports::{Adoption, ProcessIdentity, RunNote};
use ostler_model::task::RawExit;

impl ProcessHost {
    /// Own the process of an earlier agent: from here on it is as one started by this host, under
    /// the same id. Idempotent. What the run spawns later is not held.
    ///
    /// # Errors
    /// When the kernel or the exit records cannot be asked; nothing is changed then.
    pub fn adopt(&self, run: &RunId, identity: &ProcessIdentity) -> Result<Adoption, ProcessError> {
        let Way::Supervised(line) = &self.inner.way else {
            return Ok(Adoption::Unknown);
        };
        let id = identity.id();
        let record = || line.records().read(run, identity.pid, identity.start_ticks);
        if let Ok(known) = self.find(run, &id) {
            let exit = known.exit.borrow().clone();
            return Ok(match exit {
                None => Adoption::Running,
                Some(_) if record().is_ok_and(|record| record.is_some_and(|r| !r.released)) => {
                    Adoption::NotRun
                }
                Some(exit) => Adoption::Ended(exit),
            });
        }
        let same_boot = identity.boot_id == self.inner.boot_id;
        if let Some(supervisor) = identity.supervisor.filter(|_| same_boot) {
            let opened = identity::open_same(supervisor.pid, supervisor.start_ticks);
            let opened =
                opened.map_err(|source| ProcessError::system("opening a supervisor", source))?;
            // One that has ended and was not reaped by its new parent yet is gone as well.
            if let Some(pidfd) = opened.filter(|pidfd| !identity::has_ended(pidfd)) {
                let task = identity::open_same(identity.pid, identity.start_ticks);
                let task = task.map_err(|source| ProcessError::system("opening a task", source))?;
                let reach = Reach::Supervisor { pidfd, task };
                let leaf = identity.cgroup.clone().and_then(Leaf::existing);
                self.own(run, spawn::supervised(self, run, identity.clone(), reach, leaf));
                return Ok(Adoption::Running);
            }
        }
        // Looked for after the supervisor: it writes the record before it ends.
        let exit = match record() {
            // The record stays until the run is forgotten: an agent after this one may ask too.
            Ok(Some(record)) if !record.released => {
                self.own(run, ended(identity.clone(), record.into_exit()));
                return Ok(Adoption::NotRun);
            }
            Ok(Some(record)) => {
                record.complain();
                record.into_exit()
            }
            // Not a word about the record.
            Err(error @ ExitRecordError::Directory { .. }) => return Err(error.into()),
            // Nothing says who watched over it.
            _ if identity.supervisor.is_none() => return Ok(Adoption::Unknown),
            // A record that the crash of the machine has torn is none.
            _ if !same_boot => return Ok(Adoption::Rebooted),
            missing => {
                let left = left::of(run, identity, Certainty::Recorded).map_err(|source| {
                    ProcessError::system("looking for what a supervisor left", source)
                })?;
                let why = missing.err().map(ProcessError::from);
                let leaf = identity.cgroup.clone().and_then(Leaf::existing);
                if left.iter().any(|left| left.certain)
                    || leaf.as_ref().is_some_and(Leaf::is_populated)
                {
                    self.end_left(run, identity.clone(), leaf, why);
                    return Ok(Adoption::Running);
                }
                self.lost_exit(why, &left)
            }
        };
        self.own(run, ended(identity.clone(), exit.clone()));
        Ok(Adoption::Ended(exit))
    }

    /// Remove the exit records of all runs but these, and of all processes but `live` ones; how many.
    /// For the start of an agent, when every run that is still of interest was adopted.
    ///
    /// # Errors
    /// When the directory of the records cannot be read.
    pub fn sweep(&self, known: &[RunId], live: &[(u32, u64)]) -> Result<usize, ProcessError> {
        match &self.inner.way {
            Way::Here(_) => Ok(0),
            Way::Supervised(line) => Ok(line.records().sweep(known, live)?),
        }
    }

    /// Remove the exit records of these runs that say that their process was never let go; how many. No agent
    /// asks for them: their runs are on record as nothing but intents.
    ///
    /// # Errors
    /// When the directory of the records cannot be read.
    pub fn forget_unreleased(&self, runs: &[RunId]) -> Result<usize, ProcessError> {
        match &self.inner.way {
            Way::Here(_) => Ok(0),
            Way::Supervised(line) => Ok(line.records().remove_unreleased(runs)?),
        }
    }

    /// Does the supervisor of a process work for another data directory? Reads `/proc`; blocks.
    #[must_use]
    pub fn works_elsewhere(&self, identity: &ProcessIdentity) -> bool {
        let Way::Supervised(line) = &self.inner.way else { return false };
        let elsewhere = |who| live::elsewhere(who, line.records().path()).is_some();
        identity.supervisor.is_some_and(elsewhere)
    }

    /// Keep what a run is of beside its exit records, for an agent whose state file does not know
    /// it, or only that it was to be started. Blocks on the disk; what cannot be written is logged.
    /// Whether all of it is kept: processes that have no supervisor end with this agent, and nothing is
    /// kept of them; of a run without processes the note has no pid.
    pub fn note(&self, run: &RunId, about: &RunNote) -> bool {
        let processes = self.processes(|key| key == run);
        let Way::Supervised(line) = &self.inner.way else { return processes.is_empty() };
        if processes.is_empty() {
            self.table().entry(run.clone()).or_default().noted = true;
            return self.put_note(line, run, self.no_process(), about);
        }
        // Each of them gets one.
        let kept: Vec<bool> = processes
            .iter()
            .map(|process| {
                let identity = process.identity.clone();
                line.records().has_note(run.as_str(), &identity)
                    || self.put_note(line, run, identity, about)
            })
            .collect();
        kept.iter().all(|kept| *kept)
    }

    fn put_note(
        &self,
        line: &Line,
        run: &RunId,
        identity: ProcessIdentity,
        about: &RunNote,
    ) -> bool {
        let note = Note::new(run.to_string(), identity, about.clone());
        line.records().put_note(&note).unwrap_or_else(|error| {
            tracing::warn!(%run, %error, "the note of a run was not written");
            false
        })
    }

    /// In the place of a process, where a run has none.
    fn no_process(&self) -> ProcessIdentity {
        let boot_id = self.inner.boot_id.clone();
        ProcessIdentity { pid: 0, start_ticks: 0, boot_id, cgroup: None, supervisor: None }
    }

    /// A run without processes may have a note of an earlier agent, which goes with the run.
    pub fn adopt_note(&self, run: &RunId) {
        if let Way::Supervised(_) = &self.inner.way {
            self.table().entry(run.clone()).or_default().noted = true;
        }
    }

    /// Remove what is kept of a process of a run that no state file knows.
    pub fn forget_process(&self, pid: u32, start_ticks: u64) {
        if let Way::Supervised(line) = &self.inner.way {
            line.records().remove_process(pid, start_ticks);
        }
    }

    fn own(&self, run: &RunId, process: Arc<Process>) {
        let mut table = self.table();
        let of_run = table.entry(run.clone()).or_default();
        of_run.released = true;
        of_run.processes.insert(process.id(), process);
    }

    /// The supervisor was killed: own what it left until that has ended.
    fn end_left(
        &self,
        run: &RunId,
        identity: ProcessIdentity,
        leaf: Option<Leaf>,
        why: Option<ProcessError>,
    ) {
        let (process, exit) = spawn::process(identity, Reach::Gone, leaf);
        self.own(run, Arc::clone(&process));
        let ending = super::oversee::end_left(self.clone(), run.clone(), process, why, exit);
        self.inner.control.spawn(ending);
    }
}

/// A process that has ended already.
fn ended(identity: ProcessIdentity, exit: RawExit) -> Arc<Process> {
    // Kept by nobody: a receiver keeps the last value.
    let (_, exit) = watch::channel(Some(exit));
    Arc::new(Process {
        identity,
        reach: Reach::Gone,
        leaf: None,
        held: std::sync::Mutex::new(None),
        forgotten: false.into(),
        exit,
    })
}
