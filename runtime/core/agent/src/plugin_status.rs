//! The status of the plugins, for `ostler plugin status`.

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

/// The status of one plugin, in use or not.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PluginStatusReport {
    /// The name the plugin gives itself, which jobs use, or the name of its block if it could not
    /// be asked.
    pub name: String,
    /// Name of its block in the configuration.
    pub block: String,
    /// Driver or device plugin; `None` if that is unknown.
    pub kind: Option<PluginKind>,
    /// The version that the plugin reports, such as `1.2.0`.
    pub version: Option<String>,
    /// `built-in`, or the file.
    pub source: String,
    /// SHA-256 of the file.
    #[serde(default)]
    pub digest: Option<String>,
    /// Who vouches for the plugin; `None` if nobody does.
    #[serde(default)]
    pub trust: Option<Voucher>,
    /// In use or not, and why.
    pub status: PluginStatus,
    /// The health that a plugin in use reports; `None` before its first answer.
    #[serde(default)]
    pub health: Option<Health>,
    /// The calls, failures and costs of a plugin in use, counted since it was put in its place.
    pub activity: Option<PluginActivity>,
    /// The upgrades of a plugin in use.
    #[serde(default)]
    pub upgrade: Option<UpgradeStatus>,
}

/// The result of lifting a quarantine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiftReport {
    /// The name the plugin gives itself.
    pub name: String,
    /// The quarantine that was lifted; `None` if there was none.
    pub was: Option<Quarantine>,
    /// The number of strikes that are forgotten.
    pub strikes: usize,
}

/// The result of writing down the last calls of a plugin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordReport {
    /// The name the plugin gives itself.
    pub name: String,
    /// The path of the recording; `None` if no call is kept, or it could not be written.
    pub file: Option<PathBuf>,
    /// Why the recording could not be written.
    pub error: Option<String>,
}

impl AgentHandle {
    /// End the quarantine of the plugins in use that give themselves this name, or whose block has
    /// it. Their strikes are forgotten, and they are asked at once. The list is empty if there is
    /// no such plugin.
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

    /// Write down the last calls of the plugins in use that give themselves this name, or whose
    /// block has it. The list is empty if there is no such plugin.
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

    /// The status of every plugin that was examined, in the order of [`AgentHandle::plugins`].
    #[must_use]
    pub fn plugins_status(&self) -> Vec<PluginStatusReport> {
        self.plugins_now().iter().map(|entry| self.entry_status(entry)).collect()
    }

    /// The status of the plugins that give themselves this name, or whose block has it. Those in
    /// use come first.
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

    /// The events that trigger fingerprints before their interval is over, and those of them that
    /// do not work.
    #[must_use]
    pub fn watch_report(&self) -> WatchReport {
        self.0.watcher.report()
    }

    /// The health that a plugin in use reports.
    fn entry_health(&self, entry: &PluginEntry) -> Option<Health> {
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

    fn entry_status(&self, entry: &PluginEntry) -> PluginStatusReport {
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
            health: self.entry_health(entry),
            activity: meter.map(|meter| meter.report()),
            upgrade,
        }
    }
}
