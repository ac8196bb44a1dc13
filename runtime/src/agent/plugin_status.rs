//! How the plugins do: what `ostler plugin status` shows.

use serde::{Deserialize, Serialize};

use super::AgentHandle;
use super::catalogue::{PluginEntry, PluginStatus};
use crate::model::plugin::PluginKind;
use crate::node::watch::WatchReport;
use crate::plugin::meter::PluginActivity;

/// One plugin, in use or not.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PluginStatusReport {
    /// The name it gives itself, which jobs use; of one that could not be asked, its block's.
    pub name: String,
    /// Name of its block in the configuration.
    pub block: String,
    /// Driver or device plugin; absent when it could not be told.
    pub kind: Option<PluginKind>,
    /// Its version.
    pub version: Option<String>,
    /// `built-in`, or the file.
    pub source: String,
    /// In use or not, and why.
    pub status: PluginStatus,
    /// How it does; of a plugin in use.
    pub activity: Option<PluginActivity>,
}

impl AgentHandle {
    /// How every plugin does that was looked at, in the order of [`AgentHandle::plugins`].
    #[must_use]
    pub fn plugins_status(&self) -> Vec<PluginStatusReport> {
        self.0.plugins.iter().map(|entry| self.status_of(entry)).collect()
    }

    /// How the plugins do that give themselves this name, or whose block has it; those in use first.
    #[must_use]
    pub fn plugin_status(&self, name: &str) -> Vec<PluginStatusReport> {
        let mut found: Vec<_> = self
            .plugins_status()
            .into_iter()
            .filter(|report| report.name == name || report.block == name)
            .collect();
        found.sort_by_key(|report| report.activity.is_none());
        found
    }

    /// What wakes fingerprints before their interval is over, and what of it does not work.
    #[must_use]
    pub fn watches(&self) -> WatchReport {
        self.0.watcher.report()
    }

    fn status_of(&self, entry: &PluginEntry) -> PluginStatusReport {
        let used = entry.status == PluginStatus::Loaded;
        let key = entry.kind.zip(entry.describes_as.clone()).filter(|_| used);
        let meter = key.and_then(|key| self.0.meters.get(&key));
        PluginStatusReport {
            name: entry.describes_as.clone().unwrap_or_else(|| entry.name.clone()),
            block: entry.name.clone(),
            kind: entry.kind,
            version: entry.version.clone(),
            source: entry.source.clone(),
            status: entry.status.clone(),
            activity: meter.map(|meter| meter.report()),
        }
    }
}
