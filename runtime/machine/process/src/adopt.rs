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
use super::leftovers::{self, Certainty};
use super::live;
use super::supervise::note::Note;
use super::supervise::record::ExitRecordError;
use super::{ForkMode, HostProcess, ProcessHost, SignalTarget, ZygoteClient, identity, spawn};
use ostler_model::ids::RunId;
use ostler_model::ports::{Adoption, ProcessIdentity, RunNote};
use ostler_model::task::RawExit;

impl ProcessHost {
    /// Own the process of an earlier agent: from here on it is like a process that this host
    /// started, under the same id. Idempotent. Processes that the run spawns later are not held.
    ///
    /// # Errors
    /// When the process or its exit record cannot be looked up; nothing is changed then.
    pub fn adopt(&self, run: &RunId, identity: &ProcessIdentity) -> Result<Adoption, ProcessError> {
        let ForkMode::Supervised(line) = &self.inner.way else {
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
            // A supervisor that has ended and was not reaped by its new parent yet is gone as well.
            if let Some(pidfd) = opened.filter(|pidfd| !identity::has_ended(pidfd)) {
                let task = identity::open_same(identity.pid, identity.start_ticks);
                let task = task.map_err(|source| ProcessError::system("opening a task", source))?;
                let reach = SignalTarget::Supervisor { pidfd, task };
                let leaf = identity.cgroup.clone().and_then(Leaf::open_existing);
                self.own_process(
                    run,
                    spawn::supervised_process(self, run, identity.clone(), reach, leaf),
                );
                return Ok(Adoption::Running);
            }
        }
        // The record is read after the supervisor was looked for, which writes it before it ends.
        let exit = match record() {
            // The record stays until the run is forgotten: an agent after this one may ask too.
            Ok(Some(record)) if !record.released => {
                self.own_process(run, ended_process(identity.clone(), record.into_exit()));
                return Ok(Adoption::NotRun);
            }
            Ok(Some(record)) => {
                record.complain();
                record.into_exit()
            }
            // Nothing is known about the record.
            Err(error @ ExitRecordError::Directory { .. }) => return Err(error.into()),
            // No supervisor is on record.
            _ if identity.supervisor.is_none() => return Ok(Adoption::Unknown),
            // A record that the crash of the machine has torn does not count.
            _ if !same_boot => return Ok(Adoption::Rebooted),
            missing => {
                let left = leftovers::find_remaining(run, identity, Certainty::Recorded).map_err(
                    |source| ProcessError::system("looking for what a supervisor left", source),
                )?;
                let why = missing.err().map(ProcessError::from);
                let leaf = identity.cgroup.clone().and_then(Leaf::open_existing);
                if left.iter().any(|left| left.certain)
                    || leaf.as_ref().is_some_and(Leaf::is_populated)
                {
                    self.end_leftovers(run, identity.clone(), leaf, why);
                    return Ok(Adoption::Running);
                }
                self.lost_exit(why, &left)
            }
        };
        self.own_process(run, ended_process(identity.clone(), exit.clone()));
        Ok(Adoption::Ended(exit))
    }

    /// Remove the exit records of all runs but the `known` ones and of all processes but the `live`
    /// ones. Returns how many were removed. For the start of an agent, when every run that is still
    /// of interest was adopted.
    ///
    /// # Errors
    /// When the directory of the records cannot be read.
    pub fn sweep(&self, known: &[RunId], live: &[(u32, u64)]) -> Result<usize, ProcessError> {
        match &self.inner.way {
            ForkMode::Here(_) => Ok(0),
            ForkMode::Supervised(line) => Ok(line.records().sweep(known, live)?),
        }
    }

    /// Remove those exit records of these runs that say that the process was never let go. Returns
    /// how many were removed. No agent asks for such records, because their runs are on record only
    /// as intents.
    ///
    /// # Errors
    /// When the directory of the records cannot be read.
    pub fn forget_unreleased(&self, runs: &[RunId]) -> Result<usize, ProcessError> {
        match &self.inner.way {
            ForkMode::Here(_) => Ok(0),
            ForkMode::Supervised(line) => Ok(line.records().remove_unreleased(runs)?),
        }
    }

    /// Whether the supervisor of a process works for another data directory. Reads `/proc`; blocks.
    #[must_use]
    pub fn works_elsewhere(&self, identity: &ProcessIdentity) -> bool {
        let ForkMode::Supervised(line) = &self.inner.way else { return false };
        let elsewhere = |who| live::other_data_dir(who, line.records().path()).is_some();
        identity.supervisor.is_some_and(elsewhere)
    }

    /// Write a note beside the exit records that says which job a run belongs to. It is for an
    /// agent whose state file does not know the run, or knows only that it was to be started. A run
    /// without processes gets a note without a pid. Processes without a supervisor end with this
    /// agent and get no note.
    ///
    /// Blocks on the disk. A note that cannot be written is logged. Returns whether all notes
    /// were written.
    pub fn note(&self, run: &RunId, about: &RunNote) -> bool {
        let processes = self.processes_of(run);
        let ForkMode::Supervised(line) = &self.inner.way else { return processes.is_empty() };
        if processes.is_empty() {
            self.table().entry(run.clone()).or_default().noted = true;
            return self.put_note(line, run, self.absent_process(), about);
        }
        // Each process gets a note of its own.
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
        line: &ZygoteClient,
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

    /// The identity that stands for the process of a run without processes: pid 0.
    fn absent_process(&self) -> ProcessIdentity {
        let boot_id = self.inner.boot_id.clone();
        ProcessIdentity { pid: 0, start_ticks: 0, boot_id, cgroup: None, supervisor: None }
    }

    /// Remember that a run without processes may have a note of an earlier agent, to be removed
    /// with the run.
    pub fn adopt_note(&self, run: &RunId) {
        if let ForkMode::Supervised(_) = &self.inner.way {
            self.table().entry(run.clone()).or_default().noted = true;
        }
    }

    /// Remove the exit record and the note of a process of a run that no state file knows.
    pub fn forget_process(&self, pid: u32, start_ticks: u64) {
        if let ForkMode::Supervised(line) = &self.inner.way {
            line.records().remove_process(pid, start_ticks);
        }
    }

    fn own_process(&self, run: &RunId, process: Arc<HostProcess>) {
        let mut table = self.table();
        let of_run = table.entry(run.clone()).or_default();
        of_run.released = true;
        of_run.processes.insert(process.id(), process);
    }

    /// Own what a killed supervisor left, until all of that has ended.
    fn end_leftovers(
        &self,
        run: &RunId,
        identity: ProcessIdentity,
        leaf: Option<Leaf>,
        why: Option<ProcessError>,
    ) {
        let (process, exit) = spawn::new_process(identity, SignalTarget::Gone, leaf);
        self.own_process(run, Arc::clone(&process));
        let ending = super::oversee::end_leftovers(self.clone(), run.clone(), process, why, exit);
        self.inner.control.spawn(ending);
    }
}

/// A process that has ended already.
fn ended_process(identity: ProcessIdentity, exit: RawExit) -> Arc<HostProcess> {
    // Kept by nobody: a receiver keeps the last value.
    let (_, exit) = watch::channel(Some(exit));
    Arc::new(HostProcess {
        identity,
        reach: SignalTarget::Gone,
        leaf: None,
        held: std::sync::Mutex::new(None),
        forgotten: false.into(),
        unwatched: true.into(),
        exit,
    })
}
