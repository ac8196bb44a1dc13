//! What happens to a job over time: failed allocations get successors, a new version takes over step by
//! step. What was asked, and what is on record of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ids::{AllocId, GroupName};
use super::job::JobKind;
use super::saved::JobRecord;
use super::time::Timestamp;

/// How the wait before a successor grows from one to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DelayFunction {
    /// It does not.
    Constant,
    /// Twice the one before.
    #[default]
    Exponential,
    /// The sum of the two before.
    Fibonacci,
}

/// When an allocation that failed gets a successor (`reschedule`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReschedulePolicy {
    /// Successors in one interval, where they are limited.
    pub attempts: u32,
    /// Window that attempts are counted in.
    pub interval: Duration,
    /// Wait before the first successor.
    pub delay: Duration,
    /// How the wait grows.
    pub delay_function: DelayFunction,
    /// The wait grows no longer than this.
    pub max_delay: Duration,
    /// However often.
    pub unlimited: bool,
}

impl ReschedulePolicy {
    /// No successors.
    pub const NEVER: Self = Self {
        attempts: 0,
        interval: Duration::ZERO,
        delay: Duration::ZERO,
        delay_function: DelayFunction::Constant,
        max_delay: Duration::ZERO,
        unlimited: false,
    };

    /// Nomad's for a kind of job: services without limit, after 30 s and ever longer up to an hour; batch
    /// jobs once a day after 5 s; those that run on every node never.
    #[must_use]
    pub fn default_for(kind: JobKind) -> Self {
        match kind {
            JobKind::Service => Self {
                delay: Duration::from_secs(30),
                delay_function: DelayFunction::Exponential,
                max_delay: Duration::from_secs(3_600),
                unlimited: true,
                ..Self::NEVER
            },
            JobKind::Batch => Self {
                attempts: 1,
                interval: Duration::from_secs(24 * 3_600),
                delay: Duration::from_secs(5),
                ..Self::NEVER
            },
            JobKind::System | JobKind::Sysbatch => Self::NEVER,
        }
    }

    /// Are there successors at all?
    #[must_use]
    pub const fn is_enabled(self) -> bool {
        self.attempts > 0 || self.unlimited
    }
}

/// A successor that was placed for an allocation that had failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RescheduleEvent {
    /// When it was placed.
    pub time: Timestamp,
    /// The allocation that had failed.
    pub previous: AllocId,
    /// How long was waited.
    pub delay: Duration,
}

/// How a new version of a job takes over (`update`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpdatePolicy {
    /// Allocations of a group replaced at the same time; 0: all, without a deployment.
    pub max_parallel: u32,
    /// Of system jobs: from one group's replacement to the next.
    pub stagger: Duration,
    /// A deployment fails when for this long nothing becomes healthy; zero: when something is
    /// unhealthy.
    pub progress_deadline: Duration,
    /// When it fails, the last stable version comes back.
    pub auto_revert: bool,
    /// When all canaries are healthy, the rest follows by itself.
    pub auto_promote: bool,
    /// Allocations of the new version that run beside the old ones first.
    pub canary: u32,
}

impl Default for UpdatePolicy {
    /// One after the other, 10 min to the next healthy one, as in Nomad.
    fn default() -> Self {
        Self {
            max_parallel: 1,
            stagger: Duration::from_secs(30),
            progress_deadline: Duration::from_secs(600),
            auto_revert: false,
            auto_promote: false,
            canary: 0,
        }
    }
}

/// Where a deployment is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeploymentPhase {
    /// It goes on, or waits for promotion.
    #[default]
    Running,
    /// Somebody halted it.
    Paused,
    /// The new version runs and is healthy.
    Successful,
    /// It was given up.
    Failed,
    /// Another version came, or the job was stopped.
    Cancelled,
}

impl DeploymentPhase {
    /// Running or paused.
    #[must_use]
    pub const fn is_active(self) -> bool {
        matches!(self, Self::Running | Self::Paused)
    }
}

/// One version of a job on its way: which groups, how far, and since when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deployment {
    /// Unique for ever: a UUID.
    pub id: Box<str>,
    /// The version it brings.
    pub version: u64,
    /// Index at which the job first came.
    pub job_create_index: u64,
    /// Index at which the version came.
    pub job_modify_index: u64,
    /// Where it is.
    pub phase: DeploymentPhase,
    /// A sentence on it.
    pub description: String,
    /// The groups it is about.
    pub groups: BTreeMap<GroupName, DeployedGroup>,
    /// Index when it began.
    pub create_index: u64,
    /// Index of its last change.
    pub modify_index: u64,
}

/// How far one group of a deployment is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeployedGroup {
    /// When it fails, the last stable version comes back.
    pub auto_revert: bool,
    /// When all canaries are healthy, the rest follows by itself.
    pub auto_promote: bool,
    /// See [`UpdatePolicy::progress_deadline`].
    pub progress_deadline: Duration,
    /// Fails when nothing has become healthy by then; none while nothing was placed.
    pub require_progress_by: Option<Timestamp>,
    /// The canaries were accepted.
    pub promoted: bool,
    /// How many canaries it wants; 0: none.
    pub desired_canaries: u32,
    /// Canaries that were placed, those included that failed.
    pub canaries: Vec<AllocId>,
    /// Allocations of the new version it wants.
    pub desired_total: u32,
    /// Allocations it has placed or taken over.
    pub placed: u32,
    /// Those of them that are healthy.
    pub healthy: u32,
    /// Those of them that are not, and will not be.
    pub unhealthy: u32,
}

impl DeployedGroup {
    /// Its canaries are to be accepted or refused before anything else happens.
    #[must_use]
    pub const fn awaits_promotion(&self) -> bool {
        self.desired_canaries > 0 && !self.promoted
    }
}

/// The deployments of a job, oldest first, on record under the job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobDeployments {
    /// Index at which the job first came: a job that is purged and comes again is another one.
    pub create_index: u64,
    /// See [`crate::limits::DEPLOYMENTS_PER_JOB_MAX`].
    pub all: Vec<Arc<Deployment>>,
}

/// Earlier versions of a job, oldest first, on record under the job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct JobVersions {
    /// Index at which the job first came.
    pub create_index: u64,
    /// See [`crate::limits::JOB_VERSIONS_MAX`].
    pub all: Vec<Arc<JobRecord>>,
}
