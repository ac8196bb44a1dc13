//! The plugins there are, before any is looked at: built in, from the plugin directory, from blocks.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::json;

use super::believe::{Place, Whose};
use crate::agent::config::{AgentConfig, ConfigOrigin, FailurePolicy, PluginBlock, UpgradeMode};
use crate::limits::PluginLimits;
use crate::model::json::JsonObject;
use crate::model::trust::PluginSource;
use crate::plugin::capability::{CommandGrant, FileGrant, Grants};
use crate::trust::{self, Demand};

/// Most files of a plugin directory that are looked at.
const PLUGIN_DIR_FILES_MAX: usize = 256;

/// The device plugin that pretends, for tests; off unless its block is there.
const MOCK_DEVICE: &str = "mock_device";

/// A plugin before it is loaded.
pub(super) struct Candidate {
    /// Name of its block, whether there is one or not; where it comes from; what is demanded.
    pub(super) whose: Whose,
    /// Its file; absent for a built-in one and for one of a registry.
    pub(super) path: Option<PathBuf>,
    /// Who puts a changed file in its place.
    pub(super) upgrade: UpgradeMode,
    /// Where its bytes are, or why they are not to be used.
    pub(super) bytes: Result<Place, String>,
    pub(super) config: JsonObject,
    pub(super) grants: Grants,
    pub(super) limits: PluginLimits,
    pub(super) failure: FailurePolicy,
    pub(super) enabled: bool,
    /// The configuration has a block of its name.
    pub(super) configured: bool,
    /// Where that stands.
    pub(super) origin: Option<ConfigOrigin>,
}

impl Candidate {
    fn new(name: &str, source: PluginSource, place: String, bytes: Result<Place, String>) -> Self {
        let demand = Demand::default();
        Self {
            whose: Whose { name: name.to_owned(), source, place, demand },
            path: None,
            upgrade: UpgradeMode::default(),
            bytes,
            config: JsonObject::default(),
            grants: Grants::default(),
            limits: PluginLimits::default(),
            failure: FailurePolicy::default(),
            enabled: true,
            configured: false,
            origin: None,
        }
    }

    fn file(name: &str, source: PluginSource, path: &Path) -> Self {
        let bytes = Ok(Place::File(path.to_owned()));
        let bare = Self::new(name, source, path.display().to_string(), bytes);
        Self { path: Some(path.to_owned()), ..bare }
    }

    fn configure(&mut self, block: &PluginBlock) {
        if let Some(config) = &block.config {
            self.config = config.clone();
        }
        if let Some(grants) = &block.grants {
            self.grants = grants.clone();
        }
        self.whose.demand = demand(block);
        self.enabled = block.enabled.unwrap_or(true);
        self.limits = block.limits.apply(PluginLimits::default());
        self.failure = block.failure.clone();
        self.upgrade = block.upgrade;
        self.configured = true;
        self.origin.clone_from(&block.origin);
    }
}

/// Every plugin there is, several of one name among them.
pub(super) fn candidates(config: &AgentConfig, data_dir: &Path) -> Vec<Candidate> {
    let mut found: BTreeMap<String, Vec<Candidate>> = BTreeMap::new();
    let mut add = |one: Candidate| found.entry(one.whose.name.clone()).or_default().push(one);
    for guest in ostler_guests::builtin_plugins() {
        let name = builtin_name(guest.name);
        let (config, grants) = builtin_defaults(name, data_dir);
        let bytes = Ok(Place::BuiltIn(Arc::from(guest.bytes)));
        let bare = Candidate::new(name, PluginSource::BuiltIn, "built-in".to_owned(), bytes);
        // Only for those who ask for it: by default a node has no device that fails on purpose.
        let enabled = name != MOCK_DEVICE;
        add(Candidate { config, grants, enabled, ..bare });
    }
    for path in config.plugin_dir.iter().flat_map(|dir| wasm_files(dir)) {
        let name = path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
        add(Candidate::file(&name, PluginSource::PluginDir, &path));
    }
    for (name, block) in &config.plugins {
        let named = found.entry(name.clone()).or_default();
        if let Some(one) = of_block(name, block) {
            // The operator said which; the others are not even run.
            for other in named.iter_mut() {
                let instead = &one.whose.place;
                let why =
                    format!("the plugin block {name} of the configuration names {instead} instead");
                other.bytes = Err(why);
            }
            named.push(one);
        }
        if named.is_empty() {
            let nowhere = "there is no such built-in plugin and no such file in plugin_dir; give \
                           file = \"/path/x.wasm\" or source = \"oci://…\"";
            let absent = Err(nowhere.to_owned());
            named.push(Candidate::new(name, PluginSource::File, String::new(), absent));
        }
        named.iter_mut().for_each(|one| one.configure(block));
    }
    found.into_values().flatten().collect()
}

/// The plugin that a block itself names.
fn of_block(name: &str, block: &PluginBlock) -> Option<Candidate> {
    if let Some(file) = &block.file {
        return Some(Candidate::file(name, PluginSource::File, file));
    }
    let reference = block.source.as_ref()?;
    let bytes = Ok(Place::Registry(reference.clone()));
    Some(Candidate::new(name, PluginSource::Oci, reference.to_string(), bytes))
}

/// What a block demands of the bytes.
pub(super) fn demand(block: &PluginBlock) -> Demand {
    Demand { digest: block.digest, require_signature: block.require_signature }
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
        "exec" => {
            let users = vec!["*".to_owned()];
            (JsonObject::default(), Grants { process: true, users, ..Grants::default() })
        }
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
        "pci" | "usb" | "hwmon" => {
            let grants = Grants { files: read_only(PathBuf::from("/sys")), ..Grants::default() };
            (JsonObject::default(), grants)
        }
        "nvidia" => (JsonObject::default(), nvidia_grants()),
        _ => (JsonObject::default(), Grants::default()),
    }
}

/// To ask `nvidia-smi` about cards and nothing else, and to read where they are.
fn nvidia_grants() -> Grants {
    let query = ["--query-gpu=*", "--format=csv,noheader,nounits"].map(str::to_owned);
    let read_only = |path: &str| FileGrant { path: PathBuf::from(path), write: false };
    Grants {
        commands: vec![CommandGrant {
            program: PathBuf::from("/usr/bin/nvidia-smi"),
            args: vec![query.to_vec()],
        }],
        files: vec![read_only("/sys"), read_only("/proc/driver/nvidia")],
        ..Grants::default()
    }
}

/// The bytes of a plugin file, or why they are not to be used. Whether they are believed is not
/// asked. Blocks.
pub(in crate::agent) fn read(path: &Path) -> Result<Arc<[u8]>, String> {
    let read = trust::component(path).map_err(|error| error.to_string());
    read.map(|content| content.bytes)
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
