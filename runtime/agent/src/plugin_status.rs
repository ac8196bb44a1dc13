//! How the plugins do: what `ostler plugin status` shows.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::AgentHandle;
use super::catalogue::{PluginEntry, PluginStatus};
use super::upgrade::UpgradeStatus;
use ostler_health::meter::PluginActivity;
use ostler_health::policy::Quarantine;
use ostler_model::device::Health;
use ostler_model::ids::PluginName;
use ostler_model::plugin::PluginKind;
use ostler_model::trust::Voucher;
use ostler_node::watch::WatchReport;

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
    /// SHA-256 of the file.
    #[serde(default)]
    pub digest: Option<String>,
    /// Who says that it may be used; absent when nobody does.
    #[serde(default)]
    pub trust: Option<Voucher>,
    /// In use or not, and why.
    pub status: PluginStatus,
    /// What it says of itself; of a plugin in use that has answered.
    #[serde(default)]
    pub health: Option<Health>,
    /// How it does; of a plugin in use. Counted since it is in its place.
    pub activity: Option<PluginActivity>,
    /// How its upgrades went; of a plugin in use.
    #[serde(default)]
    pub upgrade: Option<UpgradeStatus>,
}

/// What lifting a quarantine did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiftReport {
    /// The name the plugin gives itself.
    pub name: String,
    /// The quarantine that was lifted; absent when there was none.
    pub was: Option<Quarantine>,
    /// Strikes that are forgotten.
    pub strikes: usize,
}

/// What was written down of a plugin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordReport {
    /// The name it gives itself.
    pub name: String,
    /// The recording; absent: nothing is kept of it, or it could not be written.
    pub file: Option<PathBuf>,
    /// Why it could not be written.
    pub error: Option<String>,
}

impl AgentHandle {
    /// End the quarantine of the plugins in use that give themselves this name, or whose block has
    /// it. Their strikes are forgotten, and they are asked at once. None: there is no such plugin.
    pub fn lift_plugin(&self, name: &str) -> Vec<LiftReport> {
        let mut lifted = Vec::new();
        for entry in self.plugins_now().iter().filter(|entry| entry.status == PluginStatus::Loaded)
        {
            let (Some(kind), Some(own)) = (entry.kind, &entry.describes_as) else { continue };
            if own != name && entry.name != name {
                continue;
            }
            let meter = self.meters().get(&(kind, own.clone())).cloned();
            let Some(meter) = meter else { continue };
            let (was, strikes) = (meter.quarantine(), meter.report().strikes);
            meter.lift();
            lifted.push(LiftReport { name: own.clone(), was, strikes });
        }
        lifted
    }

    /// Write down the last calls of the plugins in use that give themselves this name, or whose block
    /// has it. None: there is no such plugin.
    pub async fn record_plugin(&self, name: &str) -> Vec<RecordReport> {
        let mut recorded = Vec::new();
        for entry in self.plugins_now().iter().filter(|entry| entry.status == PluginStatus::Loaded)
        {
            let Some(own) = entry.describes_as.as_deref().map(PluginName::new) else { continue };
            let Some(own) = own.ok().filter(|own| own.as_str() == name || entry.name == name)
            else {
                continue;
            };
            let written = match entry.kind {
                Some(PluginKind::Driver) => match self.0.drivers.plugin(&own) {
                    Some(plugin) => plugin.record().await,
                    None => continue,
                },
                Some(PluginKind::Device) => match self.0.devices.source(&own) {
                    Some(plugin) => plugin.record().await,
                    None => continue,
                },
                None => continue,
            };
            let (file, error) = match written {
                Ok(file) => (file, None),
                Err(error) => (None, Some(error.to_string())),
            };
            recorded.push(RecordReport { name: own.to_string(), file, error });
        }
        recorded
    }

    /// How every plugin does that was looked at, in the order of [`AgentHandle::plugins`].
    #[must_use]
    pub fn plugins_status(&self) -> Vec<PluginStatusReport> {
        self.plugins_now().iter().map(|entry| self.status_of(entry)).collect()
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

    /// What a plugin in use says of itself.
    fn health_of(&self, entry: &PluginEntry) -> Option<Health> {
        let name = PluginName::new(entry.describes_as.as_ref()?).ok()?;
        let node = self.node();
        match (&entry.status, entry.kind?) {
            (PluginStatus::Loaded, PluginKind::Driver) => {
                node.drivers.get(&name).map(|driver| driver.health.clone())
            }
            (PluginStatus::Loaded, PluginKind::Device) => node.device_plugins.get(&name).cloned(),
            _ => None,
        }
    }

    fn status_of(&self, entry: &PluginEntry) -> PluginStatusReport {
        let used = entry.status == PluginStatus::Loaded;
        let key = entry.kind.zip(entry.describes_as.clone()).filter(|_| used);
        let meter = key.and_then(|key| self.meters().get(&key).cloned());
        let (upgrade, entry) = (self.upgrades_of(entry), &self.entry_now(entry));
        PluginStatusReport {
            name: entry.own_name().to_owned(),
            block: entry.name.clone(),
            kind: entry.kind,
            version: entry.version.clone(),
            source: entry.source.clone(),
            digest: entry.digest.clone(),
            trust: entry.trust.clone(),
            status: entry.status.clone(),
            health: self.health_of(entry),
            activity: meter.map(|meter| meter.report()),
            upgrade,
        }
    }
}
