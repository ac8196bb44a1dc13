//! Which plugins this agent has: built in, from the plugin directory, from the configuration.
//!
//! Each is loaded with the grants its block gives it, or (built-in ones) with the least it needs.
//! What is refused stays in the list with the reason.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::task::JoinSet;

use super::config::{AgentConfig, PluginBlock};
use crate::device::manager::DeviceManager;
use crate::driver::api::BoxFuture;
use crate::driver::manager::DriverManager;
use crate::limits::{PLUGIN_FILE_BYTES_MAX, PluginLimits};
use crate::model::ids::PluginName;
use crate::model::json::JsonObject;
use crate::plugin::capability::{Authority, FileGrant, Grants};
use crate::plugin::manifest::{Manifest, PluginKind};
use crate::plugin::{Plugin, PluginRuntime, PluginSpec};

/// Most files of a plugin directory that are looked at.
const PLUGIN_DIR_FILES_MAX: usize = 256;

/// The device plugin that pretends, for tests; off unless its block is there.
const MOCK_DEVICE: &str = "mock_device";

/// A plugin and its fate.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PluginEntry {
    /// Name of its block in the configuration.
    pub name: String,
    /// `built-in`, or the file.
    pub source: String,
    /// Driver or device plugin; absent when it could not be told.
    pub kind: Option<PluginKind>,
    /// What it calls itself: the name jobs use.
    pub describes_as: Option<String>,
    /// Its version.
    pub version: Option<String>,
    /// Version of the plugin contract it was built for.
    pub interface_version: Option<String>,
    /// SHA-256 of the file.
    pub digest: Option<String>,
    /// Bytes of the file.
    pub size_bytes: u64,
    /// In use or not, and why.
    pub status: PluginStatus,
    /// What it may do.
    pub grants: Grants,
    /// What it asks for.
    pub asks: Vec<Authority>,
}

/// See [`PluginEntry`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state", content = "reason")]
pub enum PluginStatus {
    /// In use.
    Loaded,
    /// Not in use, and why.
    Refused(String),
    /// Switched off in the configuration.
    Disabled,
}

/// A plugin before it is loaded.
struct Candidate {
    name: String,
    source: String,
    bytes: Result<Arc<[u8]>, String>,
    config: JsonObject,
    grants: Grants,
    limits: PluginLimits,
    enabled: bool,
}

/// What [`load_all`] did.
pub(super) struct Loaded {
    /// Every plugin that was looked at.
    pub(super) entries: Vec<PluginEntry>,
    /// First fingerprints on their way; each ends with the plugin's own name.
    pub(super) first: JoinSet<PluginName>,
    /// The names of those.
    pub(super) waiting: BTreeSet<PluginName>,
}

/// Load every plugin and hand it to its manager. Loads run side by side; the order of the result,
/// and who keeps a name that two give themselves, is by name. First fingerprints are begun, not
/// waited for.
pub(super) async fn load_all(
    config: &AgentConfig,
    data_dir: &Path,
    runtime: &PluginRuntime,
    drivers: &DriverManager,
    devices: &DeviceManager,
) -> Loaded {
    let mut loads = JoinSet::new();
    for candidate in candidates(config, data_dir) {
        let runtime = runtime.clone();
        loads.spawn(async move { load(candidate, &runtime).await });
    }
    let mut loaded = all(loads).await;
    loaded.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));

    let mut first = JoinSet::new();
    let mut waiting = BTreeSet::new();
    let mut entries = Vec::with_capacity(loaded.len());
    for (mut entry, plugin) in loaded {
        if let Some(plugin) = plugin {
            waiting.extend(admit(&mut entry, plugin, drivers, devices, &mut first));
        }
        entries.push(entry);
    }
    Loaded { entries, first, waiting }
}

async fn all<T: 'static>(mut set: JoinSet<T>) -> Vec<T> {
    let mut results = Vec::with_capacity(set.len());
    while let Some(result) = set.join_next().await {
        match result {
            Ok(result) => results.push(result),
            Err(error) => tracing::error!(%error, "loading a plugin was given up"),
        }
    }
    results
}

fn candidates(config: &AgentConfig, data_dir: &Path) -> Vec<Candidate> {
    let mut found: BTreeMap<String, Candidate> = BTreeMap::new();
    for guest in ostler_guests::builtin_plugins() {
        let name = builtin_name(guest.name);
        let (default_config, grants) = builtin_defaults(name, data_dir);
        let candidate = Candidate {
            name: name.to_owned(),
            source: "built-in".to_owned(),
            bytes: Ok(Arc::from(guest.bytes)),
            config: default_config,
            grants,
            limits: PluginLimits::default(),
            // Only for those who ask for it: by default a node has no device that fails on purpose.
            enabled: name != MOCK_DEVICE,
        };
        found.insert(name.to_owned(), candidate);
    }
    for path in config.plugin_dir.iter().flat_map(|dir| wasm_files(dir)) {
        let name = path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
        found.insert(name.clone(), from_file(name, &path));
    }
    for (name, block) in &config.plugins {
        if let Some(file) = &block.file {
            found.insert(name.clone(), from_file(name.clone(), file));
        }
        let absent = || Candidate {
            bytes: Err("there is no such built-in plugin and no such file in plugin_dir; give \
                        file = \"/path/x.wasm\""
                .to_owned()),
            ..from_file(name.clone(), Path::new(""))
        };
        configure(found.entry(name.clone()).or_insert_with(absent), block);
    }
    found.into_values().collect()
}

fn configure(candidate: &mut Candidate, block: &PluginBlock) {
    if let Some(config) = &block.config {
        candidate.config = config.clone();
    }
    if let Some(grants) = &block.grants {
        candidate.grants = grants.clone();
    }
    candidate.enabled = block.enabled.unwrap_or(true);
    candidate.limits = block.limits.apply(PluginLimits::default());
}

/// Name of the block that configures a built-in plugin, from the name of its crate.
fn builtin_name(guest: &str) -> &str {
    match guest {
        // The driver `mock_driver` was there first and has the block `mock`.
        "device-mock" => MOCK_DEVICE,
        _ => guest.trim_start_matches("driver-").trim_start_matches("device-"),
    }
}

/// The least a built-in plugin needs.
fn builtin_defaults(name: &str, data_dir: &Path) -> (JsonObject, Grants) {
    let object = |value: serde_json::Value| match value {
        serde_json::Value::Object(map) => JsonObject::from(map),
        _ => JsonObject::default(),
    };
    let read_only = |path: PathBuf| vec![FileGrant { path, write: false }];
    match name {
        "exec" => (JsonObject::default(), Grants { process: true, ..Grants::default() }),
        "wasm" => (JsonObject::default(), Grants { wasm_task: true, ..Grants::default() }),
        "files" => {
            let dir = data_dir.join("devices");
            let config = object(json!({ "dir": dir.to_string_lossy() }));
            (config, Grants { files: read_only(dir), ..Grants::default() })
        }
        // No directory is needed by what its block can say; its script and journal need this one.
        MOCK_DEVICE => {
            let files = read_only(data_dir.join(MOCK_DEVICE));
            (JsonObject::default(), Grants { files, ..Grants::default() })
        }
        "pci" => {
            let grants = Grants { files: read_only(PathBuf::from("/sys")), ..Grants::default() };
            (JsonObject::default(), grants)
        }
        _ => (JsonObject::default(), Grants::default()),
    }
}

fn from_file(name: String, path: &Path) -> Candidate {
    Candidate {
        name,
        source: path.display().to_string(),
        bytes: read(path),
        config: JsonObject::default(),
        grants: Grants::default(),
        limits: PluginLimits::default(),
        enabled: true,
    }
}

fn read(path: &Path) -> Result<Arc<[u8]>, String> {
    let meta = std::fs::metadata(path).map_err(|e| format!("{}: {e}", path.display()))?;
    if !meta.is_file() {
        return Err(format!("{} is no regular file", path.display()));
    }
    if meta.len() > PLUGIN_FILE_BYTES_MAX {
        return Err(format!(
            "{} has {} bytes; a plugin has at most {PLUGIN_FILE_BYTES_MAX}",
            path.display(),
            meta.len()
        ));
    }
    std::fs::read(path).map(Arc::from).map_err(|e| format!("{}: {e}", path.display()))
}

/// The `.wasm` files of a directory, by name.
fn wasm_files(dir: &Path) -> Vec<PathBuf> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) => {
            tracing::error!(dir = %dir.display(), %error, "cannot read the plugin directory");
            return Vec::new();
        }
    };
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|end| end == "wasm"))
        .take(PLUGIN_DIR_FILES_MAX)
        .collect();
    files.sort();
    files
}

/// What there is to say of a candidate, and the plugin when it is to be used.
async fn load(candidate: Candidate, runtime: &PluginRuntime) -> (PluginEntry, Option<Plugin>) {
    let mut entry = PluginEntry {
        name: candidate.name.clone(),
        source: candidate.source,
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
    };
    let loaded = match manifest {
        Ok(manifest) => runtime.load(spec, manifest, bytes).await,
        Err(error) => Err(error.into()),
    };
    match loaded {
        Ok(plugin) => (entry, Some(plugin)),
        Err(error) => {
            entry.status = PluginStatus::Refused(error.to_string());
            (entry, None)
        }
    }
}

/// Hand a plugin to its manager, unless another has its name. Its name when it was taken.
fn admit(
    entry: &mut PluginEntry,
    plugin: Plugin,
    drivers: &DriverManager,
    devices: &DeviceManager,
    first: &mut JoinSet<PluginName>,
) -> Option<PluginName> {
    let (name, version) = match &plugin {
        Plugin::Driver(plugin) => (plugin.name.clone(), plugin.version.clone()),
        Plugin::Device(plugin) => (plugin.name.clone(), plugin.version.clone()),
    };
    let asked: Option<BoxFuture<'static, ()>> = match plugin {
        Plugin::Driver(plugin) => drivers.add(plugin).map(|first| Box::pin(first) as _),
        Plugin::Device(plugin) => devices.add(plugin).map(|first| Box::pin(first) as _),
    };
    entry.describes_as = Some(name.to_string());
    entry.version = Some(version);
    let Some(asked) = asked else {
        let taken = format!("another plugin already calls itself {name}");
        entry.status = PluginStatus::Refused(taken);
        return None;
    };
    entry.status = PluginStatus::Loaded;
    let own = name.clone();
    first.spawn(async move {
        asked.await;
        own
    });
    Some(name)
}
