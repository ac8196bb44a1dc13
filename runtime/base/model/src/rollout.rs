//! Changes of a job over time: failed allocations get successors, and a new version takes over step
//! by step. This has the policies of the job and the records of their progress.

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
    /// The wait stays the same.
    Constant,
    /// Each wait is twice the one before.
    #[default]
    Exponential,
    /// Each wait is the sum of the two before.
    Fibonacci,
}

/// When an allocation that failed gets a successor (`reschedule`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReschedulePolicy {
    /// Most successors in one interval, unless `unlimited` is set.
    pub attempts: u32,
    /// Length of the window in which attempts are counted.
    pub interval: Duration,
    /// Wait before the first successor.
    pub delay: Duration,
    /// How the wait grows.
    pub delay_function: DelayFunction,
    /// Longest wait before a successor.
    pub max_delay: Duration,
    /// The number of successors is not limited.
    pub unlimited: bool,
}

impl ReschedulePolicy {
    /// The policy under which there are no successors.
    pub const NEVER: Self = Self {
        attempts: 0,
        interval: Duration::ZERO,
        delay: Duration::ZERO,
        delay_function: DelayFunction::Constant,
        max_delay: Duration::ZERO,
        unlimited: false,
    };

    /// Nomad's default for a kind of job. Services get successors without limit, after 30 s and
    /// then ever longer up to an hour; batch jobs once a day after 5 s; jobs that run on every
    /// node never.
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

    /// Whether there are successors at all.
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
    /// How long the wait before it was.
    pub delay: Duration,
}

/// How a new version of a job takes over (`update`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpdatePolicy {
    /// Allocations of a group replaced at the same time; 0: all, without a deployment.
    pub max_parallel: u32,
    /// For system jobs: time between the replacements of two groups.
    pub stagger: Duration,
    /// A deployment fails when nothing becomes healthy for this long. Zero: it fails as soon as an
    /// allocation is unhealthy.
    pub progress_deadline: Duration,
    /// When it fails, the last stable version comes back.
    pub auto_revert: bool,
    /// When all canaries are healthy, the rest follows by itself.
    pub auto_promote: bool,
    /// Allocations of the new version that run beside the old ones first.
    pub canary: u32,
}

impl Default for UpdatePolicy {
    /// As in Nomad: one allocation after the other, and at most 10 min until the next healthy one.
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

/// The state of a deployment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeploymentPhase {
    /// The deployment goes on, or waits for promotion.
    #[default]
    Running,
    /// A person halted it.
    Paused,
    /// The new version runs and is healthy.
    Successful,
    /// The deployment was given up.
    Failed,
    /// Another version came, or the job was stopped.
    Cancelled,
}

impl DeploymentPhase {
    /// Whether the deployment is running or paused.
    #[must_use]
    pub const fn is_active(self) -> bool {
        matches!(self, Self::Running | Self::Paused)
    }
}

/// The rollout of one version of a job, with the progress of each group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deployment {
    /// Unique for ever: a UUID.
    pub id: Box<str>,
    /// Version of the job that is rolled out.
    pub version: u64,
    /// Index at which the job first came.
    pub job_create_index: u64,
    /// Index at which the version came.
    pub job_modify_index: u64,
    /// State of the deployment.
    pub phase: DeploymentPhase,
    /// A sentence on the state.
    pub description: String,
    /// The task groups that take part.
    pub groups: BTreeMap<GroupName, DeployedGroup>,
    /// Index when it began.
    pub create_index: u64,
    /// Index of its last change.
    pub modify_index: u64,
}

/// Progress of one group in a deployment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeployedGroup {
    /// When it fails, the last stable version comes back.
    pub auto_revert: bool,
    /// When all canaries are healthy, the rest follows by itself.
    pub auto_promote: bool,
    /// The deadline of [`UpdatePolicy::progress_deadline`], as the group has it.
    pub progress_deadline: Duration,
    /// The deployment fails when nothing has become healthy by this time. `None` while nothing
    /// was placed.
    pub require_progress_by: Option<Timestamp>,
    /// The canaries were accepted.
    pub promoted: bool,
    /// Number of canaries that are wanted.
    pub desired_canaries: u32,
    /// Canaries that were placed, failed ones included.
    pub canaries: Vec<AllocId>,
    /// Number of allocations of the new version that are wanted.
    pub desired_total: u32,
    /// Number of allocations that the deployment has placed or taken over.
    pub placed: u32,
    /// Number of those allocations that are healthy.
    pub healthy: u32,
    /// Number of those allocations that are unhealthy and will stay so.
    pub unhealthy: u32,
}

impl DeployedGroup {
    /// Whether the deployment waits until its canaries are accepted or refused.
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
    /// The deployments, at most [`crate::limits::DEPLOYMENTS_PER_JOB_MAX`].
    pub all: Vec<Arc<Deployment>>,
}

/// Earlier versions of a job, oldest first, on record under the job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct JobVersions {
    /// Index at which the job first came.
    pub create_index: u64,
    /// The versions, at most [`crate::limits::JOB_VERSIONS_MAX`].
    pub all: Vec<Arc<JobRecord>>,
}
