//! A configuration that was changed while the agent runs.
//!
//! ```text
//! file ─► as a whole wrong? ── yes ─► refused: the old one stays
//!           │ no
//!           ▼
//! running, new ─► diff (pure): which keys differ ─┬─ the agent's own ─► done here ───┬─► applied
//!                                                 ├─ of a part beside ─► Reloads ────┼─► refused, and why
//!                                                 └─ all others ─────────────────────┴─► needs a restart
//! ```
//! What needs a restart is told at each reload until there was one: `running` keeps what holds.

pub mod diff;
mod report;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use super::AgentHandle;
use super::startup::policy;
use diff::{Changed, Live};
use ostler_model::config::AgentConfig;
use ostler_model::ports::BoxFuture;
pub use report::{KeyReport, KeyVerdict, ReloadReport};

/// A part beside the agent that takes another configuration while it runs, such as the agent's log or what
/// is read from files for the API.
pub trait Reloads: Send + Sync {
    /// The keys that it takes, as [`Changed::key`] has them.
    fn keys(&self) -> &'static [&'static str];

    /// Take them. Called at each reload, whether or not they differ: files behind them may. One report for each
    /// key that differs, or whose file does; a key that differs and has none needs a restart. Bounded in time.
    fn reload<'a>(
        &'a self,
        running: &'a AgentConfig,
        new: &'a AgentConfig,
    ) -> BoxFuture<'a, Vec<KeyReport>>;
}

/// What holds, and who takes what is new.
pub(super) struct Reloading {
    /// One reload at a time.
    running: tokio::sync::Mutex<AgentConfig>,
    parts: Mutex<Vec<Arc<dyn Reloads>>>,
    last: Mutex<Option<ReloadReport>>,
}

impl Reloading {
    pub(super) fn new(config: AgentConfig) -> Self {
        let running = tokio::sync::Mutex::new(config);
        Self { running, parts: Mutex::default(), last: Mutex::default() }
    }
}

impl AgentHandle {
    /// Let a part beside the agent take what is new of its keys.
    pub fn reloads(&self, part: Arc<dyn Reloads>) {
        let parts = &self.0.reloading.parts;
        parts.lock().unwrap_or_else(PoisonError::into_inner).push(part);
    }

    /// Take another configuration, or say why it could not be read. The jobs directory is read again too.
    pub async fn reload(&self, read: Result<AgentConfig, String>) -> ReloadReport {
        let mut report = ReloadReport { at: self.0.clock.now(), refused: None, keys: Vec::new() };
        match read {
            Err(why) => report.refused = Some(why),
            Ok(new) => report.keys = self.take(&new).await,
        }
        self.rescan_jobs_dir();
        let last = &self.0.reloading.last;
        *last.lock().unwrap_or_else(PoisonError::into_inner) = Some(report.clone());
        report
    }

    /// How the last reload went; none before the first.
    #[must_use]
    pub fn last_reload(&self) -> Option<ReloadReport> {
        self.0.reloading.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn take(&self, new: &AgentConfig) -> Vec<KeyReport> {
        let mut running = self.0.reloading.running.lock().await;
        let parts = self.0.reloading.parts.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut told = Vec::new();
        for part in &parts {
            told.extend(part.reload(&running, new).await);
        }
        let mut reports = Vec::new();
        for Changed { key, live } in diff::diff(&running, new) {
            let of_part = told.iter().position(|report| report.key == key);
            let verdict = match (of_part, live) {
                (Some(at), _) => told.remove(at).verdict,
                (None, Some(live)) => self.apply(live, new).await,
                (None, None) => KeyVerdict::NeedsRestart,
            };
            if verdict == KeyVerdict::Applied {
                diff::take(&mut running, new, &key);
            }
            reports.push(KeyReport { key, verdict });
        }
        // Files behind keys that are the same.
        reports.extend(told);
        reports
    }

    async fn apply(&self, live: Live, new: &AgentConfig) -> KeyVerdict {
        let node = &self.0.node;
        match live {
            Live::Gc if self.0.mode.serves() => self.0.control.collect_by(policy(new.gc)).await,
            Live::Gc => {}
            Live::Meta => {
                node.update(|view| view.meta.clone_from(&new.node_meta));
            }
            Live::HostVolumes => {
                node.update(|view| view.host_volumes.clone_from(&new.client.host_volumes));
            }
            Live::RemoteExec => {
                let allowed = !new.cluster.disable_remote_exec;
                self.0.remote_exec.store(allowed, Ordering::Relaxed);
            }
        }
        KeyVerdict::Applied
    }
}
