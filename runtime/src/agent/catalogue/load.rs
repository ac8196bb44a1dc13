//! One candidate: read, checked, linked, asked who it is.

use std::path::PathBuf;

use super::choose::{Contender, Source};
use super::find::Candidate;
use super::{PluginEntry, PluginStatus};
use crate::agent::config::{ConfigOrigin, UpgradeMode};
use crate::driver::api::Diagnostic;
use crate::plugin::manifest::{Manifest, PluginKind};
use crate::plugin::{Plugin, PluginError, PluginRuntime, PluginSpec};

/// A candidate that was looked at.
pub(super) struct Looked {
    pub(super) entry: PluginEntry,
    /// When it can be used.
    pub(super) plugin: Option<Plugin>,
    pub(super) source: Source,
    pub(super) configured: bool,
    /// What another version of it would be loaded with; absent where it was not loaded.
    pub(super) seed: Option<Seed>,
}

/// What another version of a plugin is loaded with.
pub(in crate::agent) struct Seed {
    /// Configuration, grants, limits, policy.
    pub(in crate::agent) spec: PluginSpec,
    /// Where the configuration stands.
    pub(in crate::agent) origin: Option<ConfigOrigin>,
    /// Its file; absent for a built-in one.
    pub(in crate::agent) path: Option<PathBuf>,
    /// Who puts a changed file in its place.
    pub(in crate::agent) mode: UpgradeMode,
}

impl Looked {
    /// It as one of several that could be used.
    pub(super) fn contender(&self) -> Option<Contender> {
        let (kind, name, version) = match self.plugin.as_ref()? {
            Plugin::Driver(plugin) => (PluginKind::Driver, &plugin.name, &plugin.version),
            Plugin::Device(plugin) => (PluginKind::Device, &plugin.name, &plugin.version),
        };
        Some(Contender {
            kind,
            name: name.to_string(),
            version: version.clone(),
            configured: self.configured,
            source: self.source,
            place: self.entry.source.clone(),
            block: self.entry.name.clone(),
        })
    }
}

/// What there is to say of a candidate, and the plugin when it can be used.
pub(super) async fn load(candidate: Candidate, runtime: &PluginRuntime) -> Looked {
    let (source, configured) = (candidate.source, candidate.configured);
    let (entry, loaded) = look(candidate, runtime).await;
    let (plugin, seed) = loaded.unzip();
    Looked { entry, plugin, source, configured, seed }
}

async fn look(
    candidate: Candidate,
    runtime: &PluginRuntime,
) -> (PluginEntry, Option<(Plugin, Seed)>) {
    let mut entry = PluginEntry {
        name: candidate.name.clone(),
        source: candidate.place,
        kind: None,
        describes_as: None,
        version: None,
        interface_version: None,
        digest: None,
        size_bytes: 0,
        status: PluginStatus::Disabled,
        grants: candidate.grants.clone(),
        asks: Vec::new(),
    };
    let bytes = match candidate.bytes {
        Ok(bytes) => bytes,
        Err(reason) => {
            entry.status = PluginStatus::Refused(reason);
            return (entry, None);
        }
    };
    entry.size_bytes = bytes.len() as u64;
    let manifest = Manifest::read(&bytes);
    if let Ok(manifest) = &manifest {
        entry.kind = Some(manifest.kind);
        entry.asks = manifest.asks().into_iter().map(|(authority, _)| authority).collect();
        entry.interface_version = Some(manifest.interface_version.clone());
        entry.digest = Some(manifest.digest.clone());
    }
    if !candidate.enabled {
        return (entry, None);
    }
    let spec = PluginSpec {
        name: candidate.name,
        config: candidate.config,
        grants: candidate.grants,
        limits: candidate.limits,
        failure: candidate.failure,
    };
    let seed = Seed {
        spec: spec.clone(),
        origin: candidate.origin.clone(),
        path: candidate.path,
        mode: candidate.upgrade,
    };
    let loaded = match manifest {
        Ok(manifest) => runtime.load(spec, manifest, bytes).await,
        Err(error) => Err(error.into()),
    };
    match loaded {
        Ok(plugin) => {
            let (name, version) = match &plugin {
                Plugin::Driver(plugin) => (&plugin.name, &plugin.version),
                Plugin::Device(plugin) => (&plugin.name, &plugin.version),
            };
            entry.describes_as = Some(name.to_string());
            entry.version = Some(version.clone());
            (entry, Some((plugin, seed)))
        }
        Err(error) => {
            entry.status = PluginStatus::Refused(reason(&error, candidate.origin.as_ref()));
            (entry, None)
        }
    }
}

/// Why it is refused; a wrong configuration with the places where it is written.
pub(in crate::agent) fn reason(error: &PluginError, origin: Option<&ConfigOrigin>) -> String {
    match (error, origin) {
        (PluginError::Config(problems), Some(origin)) => {
            let lines: Vec<String> = problems.iter().map(|one| placed(one, origin)).collect();
            format!("its configuration is wrong: {}", lines.join("; "))
        }
        _ => error.to_string(),
    }
}

fn placed(problem: &Diagnostic, origin: &ConfigOrigin) -> String {
    let place = origin.place(&problem.path);
    let dot = if problem.path.is_empty() { "" } else { "." };
    format!("{place}: config{dot}{}: {}", problem.path, problem.message)
}
