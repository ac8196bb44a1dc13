//! Takes a configuration that was changed while the agent runs.
//!
//! ```text
//! file ─► as a whole wrong? ── yes ─► refused: the old one stays
//!           │ no
//!           ▼
//! running, new ─► diff (pure): which keys differ ─┬─ the agent's own ─► done here ───┬─► applied
//!                                                 ├─ of a part beside ─► ReloadPart ─┼─► refused, and why
//!                                                 └─ all others ─────────────────────┴─► needs a restart
//! ```
//! Keys that need a restart are reported at each reload until the restart: `running` keeps the
//! values in effect.

pub mod diff;
mod report;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use super::AgentHandle;
use super::startup::policy;
use diff::{ChangedKey, ReloadAction};
use ostler_model::config::AgentConfig;
use ostler_model::ports::BoxFuture;
pub use report::{KeyReport, KeyVerdict, ReloadReport};

/// A part beside the agent that takes a new configuration while it runs, such as the agent's log or
/// the files that the API reads.
pub trait ReloadPart: Send + Sync {
    /// The keys that this part takes, written as in [`ChangedKey::key`].
    fn keys(&self) -> &'static [&'static str];

    /// Take the values of these keys. This is called at each reload, whether or not they differ,
    /// because files behind them may differ. Returns one report for each key that differs or whose
    /// file does. A key that differs and has no report needs a restart. Bounded in time.
    fn reload<'a>(
        &'a self,
        running: &'a AgentConfig,
        new: &'a AgentConfig,
    ) -> BoxFuture<'a, Vec<KeyReport>>;
}

/// The configuration in effect, and the parts that take a new one.
pub(super) struct ReloadState {
    /// The configuration in effect. Its lock allows one reload at a time.
    running: tokio::sync::Mutex<AgentConfig>,
    parts: Mutex<Vec<Arc<dyn ReloadPart>>>,
    last: Mutex<Option<ReloadReport>>,
}

impl ReloadState {
    pub(super) fn new(config: AgentConfig) -> Self {
        let running = tokio::sync::Mutex::new(config);
        Self { running, parts: Mutex::default(), last: Mutex::default() }
    }
}

impl AgentHandle {
    /// Add a part beside the agent that takes its own keys.
    pub fn reloads(&self, part: Arc<dyn ReloadPart>) {
        let parts = &self.0.reloading.parts;
        parts.lock().unwrap_or_else(PoisonError::into_inner).push(part);
    }

    /// Take a new configuration, or report why it could not be read. The jobs directory is read
    /// again too.
    pub async fn reload(&self, read: Result<AgentConfig, String>) -> ReloadReport {
        let mut report =
            ReloadReport { at: self.0.context.clock.now(), refused: None, keys: Vec::new() };
        match read {
            Err(why) => report.refused = Some(why),
            Ok(new) => report.keys = self.take(&new).await,
        }
        self.rescan_jobs_dir();
        let last = &self.0.reloading.last;
        *last.lock().unwrap_or_else(PoisonError::into_inner) = Some(report.clone());
        report
    }

    /// The report of the last reload; `None` before the first.
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
        for ChangedKey { key, live } in diff::diff(&running, new) {
            let of_part = told.iter().position(|report| report.key == key);
            let verdict = match (of_part, live) {
                (Some(at), _) => told.remove(at).verdict,
                (None, Some(live)) => self.apply(live, new).await,
                (None, None) => KeyVerdict::NeedsRestart,
            };
            if verdict == KeyVerdict::Applied {
                diff::take_key(&mut running, new, &key);
            }
            reports.push(KeyReport { key, verdict });
        }
        // These are files behind keys that did not change.
        reports.extend(told);
        reports
    }

    async fn apply(&self, live: ReloadAction, new: &AgentConfig) -> KeyVerdict {
        let node = &self.0.node;
        match live {
            ReloadAction::Gc if self.0.mode.serves() => {
                self.0.control.set_gc_policy(policy(new.gc)).await
            }
            ReloadAction::Gc => {}
            ReloadAction::Meta => {
                node.update(|view| view.meta.clone_from(&new.node_meta));
            }
            ReloadAction::HostVolumes => {
                node.update(|view| view.host_volumes.clone_from(&new.client.host_volumes));
            }
            ReloadAction::RemoteExec => {
                let allowed = !new.cluster.disable_remote_exec;
                self.0.remote_exec.store(allowed, Ordering::Relaxed);
            }
        }
        KeyVerdict::Applied
    }
}
