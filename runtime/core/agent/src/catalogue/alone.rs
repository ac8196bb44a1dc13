//! One plugin of a catalogue by itself: found, judged, and loaded as an agent would load it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::find::{self, PluginCandidate};
use super::load::{self, Loader};
use super::verify::Registries;
use super::{CatalogueDirs, PluginStatus};
use crate::upgrade::copies::AcceptedCopies;
use ostler_artifact::trust;
use ostler_model::config::AgentConfig;
use ostler_model::json::JsonObject;
use ostler_plugin::{Plugin, PluginRuntime};

/// A plugin that was found but is not loaded.
pub(crate) struct Lone {
    config: AgentConfig,
    data_dir: PathBuf,
    candidate: PluginCandidate,
}

impl Lone {
    /// Find the plugin of this name, or the one in this file.
    pub(crate) fn find(
        mut config: AgentConfig,
        data_dir: PathBuf,
        which: &str,
    ) -> Result<Self, String> {
        let path = Path::new(which);
        let name = if which.contains('/') || path.extension().is_some_and(|end| end == "wasm") {
            let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
            let name = stem.ok_or_else(|| format!("{which:?} does not name a file"))?;
            let block = config.plugins.entry(name.clone()).or_default();
            block.file = Some(path.to_owned());
            block.source = None;
            name
        } else {
            which.to_owned()
        };
        let dirs = CatalogueDirs { data: &data_dir, socket: None };
        let found = find::candidates(&config, dirs, false);
        let known: Vec<_> = found.iter().map(|one| one.whose.name.clone()).collect();
        let mut named: Vec<_> = found.into_iter().filter(|one| one.whose.name == name).collect();
        // If a block names a file, the other candidates carry an error that says so.
        named.sort_by_key(|one| one.bytes.is_err());
        let Some(mut candidate) = named.into_iter().next() else {
            let known = known.join(", ");
            return Err(format!("there is no plugin named {name:?}; the plugins are: {known}"));
        };
        // Whoever names the plugin asks for it, so it counts as enabled.
        candidate.enabled |= !candidate.configured;
        if !candidate.enabled {
            return Err(format!(
                "the plugin block {name} of the configuration has enabled = false"
            ));
        }
        Ok(Self { config, data_dir, candidate })
    }

    /// Name of the plugin's block.
    pub(crate) fn name(&self) -> &str {
        &self.candidate.whose.name
    }

    /// The configuration of the plugin's block; for a built-in plugin without a block, the
    /// agent's default.
    pub(crate) const fn own_config(&self) -> &JsonObject {
        &self.candidate.config
    }

    /// Load the plugin. It gets no configuration if `config` is `None`; its schema then says what
    /// the configuration may be.
    pub(crate) async fn load(
        &self,
        runtime: PluginRuntime,
        config: Option<JsonObject>,
    ) -> Result<Plugin, String> {
        let dirs = CatalogueDirs { data: &self.data_dir, socket: None };
        let found = find::candidates(&self.config, dirs, false);
        let loader = Loader {
            runtime,
            policy: trust::read_policy(&self.config.trust),
            registries: Registries::new(&self.config, &self.data_dir),
            trust: self.config.trust.clone(),
            choice: AcceptedCopies::read(&self.data_dir),
            names: found.into_iter().map(|one| one.whose.name).collect(),
            configured: config.is_some(),
        };
        let mut candidate = self.candidate.clone();
        if let Some(config) = config {
            candidate.config = config;
        }
        let looked = load::load(candidate, Arc::new(loader)).await;
        match (looked.plugin, looked.entry.status) {
            (Some(plugin), _) => Ok(plugin),
            (None, PluginStatus::Refused(reason)) => Err(reason),
            (None, _) => Err("it is switched off".to_owned()),
        }
    }
}
