//! What must be so, whatever happens: what was acknowledged of jobs.
//!
//! Changes of one job are made in the order in which they are asked for. So what a job is in the end is
//! what the last acknowledged change made of it, or one after that of which nobody knows.

use std::collections::BTreeMap;

/// What a job is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobState {
    /// There is none.
    Absent,
    /// It is known, and nothing of it is to run.
    Stopped,
    /// It is to run: so many allocations, of this version of its environment.
    Runs {
        /// Allocations.
        count: u32,
        /// In its environment.
        version: u32,
    },
}

/// What is known of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// It was acknowledged.
    Acknowledged,
    /// Nobody knows whether it was made.
    Unknown,
    /// It was refused: nothing was changed.
    Refused,
}

/// What was asked of jobs, and what came of it.
#[derive(Clone, Debug, Default)]
pub struct Asked(BTreeMap<String, Vec<(JobState, Known)>>);

impl Asked {
    /// A change is asked for. Its number among those of the job.
    pub fn ask(&mut self, job: &str, makes: JobState) -> usize {
        let asked = self.0.entry(job.to_owned()).or_default();
        asked.push((makes, Known::Unknown));
        asked.len().saturating_sub(1)
    }

    /// What came of it.
    pub fn told(&mut self, job: &str, number: usize, known: Known) {
        if let Some(one) = self.0.get_mut(job).and_then(|asked| asked.get_mut(number)) {
            one.1 = known;
        }
    }

    /// What the job may be now.
    #[must_use]
    pub fn allowed(&self, job: &str) -> Vec<JobState> {
        let none = Vec::new();
        let asked = self.0.get(job).unwrap_or(&none);
        let last = asked.iter().rposition(|(_, known)| *known == Known::Acknowledged);
        let since = asked.iter().skip(last.unwrap_or(0));
        let made = since.filter(|(_, known)| *known != Known::Refused);
        let mut allowed = Vec::new();
        for (state, known) in made {
            allowed.push(state.clone());
            // A purge that is not on record is a stop.
            if (state, known) == (&JobState::Absent, &Known::Unknown) {
                allowed.push(JobState::Stopped);
            }
        }
        if last.is_none() {
            allowed.push(JobState::Absent);
        }
        allowed
    }
}
