//! All candidates for plugins, before any is examined: built in, from the plugin directory,
//! from blocks.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::json;

use super::CatalogueDirs;
use super::verify::{PluginBytesPlace, PluginSubject};
use ostler_artifact::trust::{self, Demand};
use ostler_control::RAW_EXEC;
use ostler_model::config::{AgentConfig, ConfigOrigin, FailurePolicy, PluginBlock, UpgradeMode};
use ostler_model::config::{AnswerGrants, CommandGrant, FileGrant, Grants, NodeGrant};
use ostler_model::isolation::IsolationGrant;
use ostler_model::json::JsonObject;
use ostler_model::limits::PluginLimits;
use ostler_model::printable::{code_point, first_unseen, printable_path};
use ostler_model::trust::PluginSource;

/// The largest number of files of a plugin directory that are examined.
const PLUGIN_DIR_FILES_MAX: usize = 256;

/// The device plugin that simulates devices, for tests. It is off unless its block is there.
const MOCK_DEVICE: &str = "mock_device";

/// A plugin before it is loaded.
#[derive(Clone)]
pub(super) struct PluginCandidate {
    /// The name of the block, the origin of the plugin, and the demands on its bytes.
    pub(super) whose: PluginSubject,
    /// The plugin's file; `None` for a built-in plugin and for one from a registry.
    pub(super) path: Option<PathBuf>,
    /// Whether a changed file is put in place by the agent or by the operator.
    pub(super) upgrade: UpgradeMode,
    /// Where the bytes of the plugin are, or why they must not be used.
    pub(super) bytes: Result<PluginBytesPlace, String>,
    pub(super) config: JsonObject,
    pub(super) grants: Grants,
    pub(super) limits: PluginLimits,
    pub(super) failure: FailurePolicy,
    pub(super) enabled: bool,
    /// Whether the configuration has a block of this name.
    pub(super) configured: bool,
    /// Where that block stands.
    pub(super) origin: Option<ConfigOrigin>,
}

impl PluginCandidate {
    fn new(
        name: &str,
        source: PluginSource,
        place: String,
        bytes: Result<PluginBytesPlace, String>,
    ) -> Self {
        let demand = Demand::default();
        Self {
            whose: PluginSubject { name: name.to_owned(), source, place, demand },
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
        let bytes = Ok(PluginBytesPlace::File(path.to_owned()));
        let bare = Self::new(name, source, printable_path(path), bytes);
        Self { path: Some(path.to_owned()), ..bare }
    }

    fn configure(&mut self, block: &PluginBlock) {
        if let Some(config) = &block.config {
            self.config = config.clone();
        }
        if let Some(grants) = &block.grants {
            // The grants of a block replace the defaults as a whole; the grants for answers do so
            // key by key.
            let defaults = std::mem::take(&mut self.grants.answers);
            self.grants = grants.clone();
            self.grants.answers = grants.answers.clone().or_defaults(defaults);
        }
        self.whose.demand = block_demand(block);
        self.enabled = block.enabled.unwrap_or(true);
        self.limits = block.limits.apply(PluginLimits::default());
        self.failure = block.failure.clone();
        self.upgrade = block.upgrade;
        self.configured = true;
        self.origin.clone_from(&block.origin);
    }
}

/// Every candidate, including several of the same name.
pub(super) fn candidates(
    config: &AgentConfig,
    dirs: CatalogueDirs<'_>,
    embedded: bool,
) -> Vec<PluginCandidate> {
    let mut found: BTreeMap<String, Vec<PluginCandidate>> = BTreeMap::new();
    for guest in ostler_guests::builtin_plugins() {
        let name = builtin_name(guest.name);
        let (config, grants) = builtin_defaults(name, dirs, embedded);
        let bytes = Ok(PluginBytesPlace::BuiltIn(Arc::from(guest.bytes)));
        let bare = PluginCandidate::new(name, PluginSource::BuiltIn, "built-in".to_owned(), bytes);
        // Only for operators who ask for it: by default a node has no device that fails on purpose,
        // and no driver whose tasks may do all that the agent may.
        let enabled = ![MOCK_DEVICE, RAW_EXEC].contains(&name);
        let one = PluginCandidate { config, grants, enabled, ..bare };
        found.entry(name.to_owned()).or_default().push(one);
    }
    for path in config.plugin_dir.iter().flat_map(|dir| wasm_files(dir)) {
        let name = path.file_stem().map(|s| printable_path(Path::new(s))).unwrap_or_default();
        let mut one = PluginCandidate::file(&name, PluginSource::PluginDir, &path);
        if let Some(hidden) = first_unseen(&path.to_string_lossy()) {
            let hidden = code_point(hidden);
            one.bytes =
                Err(format!("its name contains {hidden}, which is invisible; rename the file"));
        }
        if found.contains_key(&name) {
            one.bytes = Err(builtin_name_taken(&name, &path));
        }
        found.entry(name).or_default().push(one);
    }
    for (name, block) in &config.plugins {
        let named = found.entry(name.clone()).or_default();
        if let Some(one) = block_candidate(name, block) {
            // The operator said which one to use; the others are not even run.
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
            named.push(PluginCandidate::new(name, PluginSource::File, String::new(), absent));
        }
        named.iter_mut().for_each(|one| one.configure(block));
    }
    found.into_values().flatten().collect()
}

/// The sentence that says why a file of the plugin directory does not replace a built-in plugin.
fn builtin_name_taken(name: &str, path: &Path) -> String {
    format!(
        "{name} is the name of a built-in plugin, which a file in plugin_dir does not replace by itself; to \
         use the file instead, add this to the agent's configuration:\n\
         plugin \"{name}\" {{\n  file = {:?}\n}}\n",
        printable_path(path)
    )
}

/// The candidate that a block names by its file or its source.
fn block_candidate(name: &str, block: &PluginBlock) -> Option<PluginCandidate> {
    if let Some(file) = &block.file {
        return Some(PluginCandidate::file(name, PluginSource::File, file));
    }
    let reference = block.source.as_ref()?;
    let bytes = Ok(PluginBytesPlace::Registry(reference.clone()));
    Some(PluginCandidate::new(name, PluginSource::Oci, reference.to_string(), bytes))
}

/// The demands of a block on the bytes of its plugin.
pub(super) fn block_demand(block: &PluginBlock) -> Demand {
    Demand { digest: block.digest, require_signature: block.require_signature }
}

/// Name of the block that configures a built-in plugin, from the name of its crate.
fn builtin_name(guest: &str) -> &str {
    match guest {
        // The block `mock` configures the driver `mock_driver`.
        "device-mock" => MOCK_DEVICE,
        "driver-raw-exec" => RAW_EXEC,
        _ => guest.trim_start_matches("driver-").trim_start_matches("device-"),
    }
}

/// The least configuration and grants that a built-in plugin needs. An embedded agent, which runs
/// one job for the program that started it, isolates its tasks as far as this node can, and the
/// tasks report what is lacking. Any other agent runs no task that lacks something, unless it is
/// configured to.
fn builtin_defaults(name: &str, dirs: CatalogueDirs<'_>, embedded: bool) -> (JsonObject, Grants) {
    let data_dir = dirs.data;
    let object = |value: serde_json::Value| match value {
        serde_json::Value::Object(map) => JsonObject::from(map),
        _ => JsonObject::default(),
    };
    let read_only = |path: PathBuf| vec![FileGrant { path, write: false }];
    let mut config = JsonObject::default();
    let mut grants = Grants { answers: builtin_answers(name, data_dir), ..Grants::default() };
    match name {
        "exec" => {
            let demanded =
                if embedded { IsolationGrant::best_effort() } else { IsolationGrant::default() };
            let hidden = [Some(data_dir), dirs.socket].into_iter().flatten().map(Path::to_owned);
            grants.isolation = Some(IsolationGrant { hidden: hidden.collect(), ..demanded });
            grants.process = true;
            grants.users = vec!["*".to_owned()];
        }
        RAW_EXEC => {
            grants.process = true;
            grants.users = vec!["*".to_owned()];
        }
        "wasm" => grants.wasm_task = true,
        "files" => {
            let dir = data_dir.join("devices");
            config = object(json!({ "dir": dir.to_string_lossy() }));
            grants.files = read_only(dir);
        }
        // The block of this plugin names no directory. Its script and its journal are in this one.
        MOCK_DEVICE => grants.files = read_only(data_dir.join(MOCK_DEVICE)),
        "pci" => {
            // The plugin `nvidia` offers these cards, so that nobody gets one twice.
            config = object(json!({ "ignored_drivers": ["nvidia"] }));
            grants.files = read_only(PathBuf::from("/sys"));
        }
        "usb" | "hwmon" => grants.files = read_only(PathBuf::from("/sys")),
        "nvidia" => {
            let query = ["--query-gpu=*", "--format=csv,noheader,nounits"].map(str::to_owned);
            grants.commands = vec![CommandGrant {
                program: PathBuf::from("/usr/bin/nvidia-smi"),
                args: vec![query.to_vec()],
            }];
            let read = ["/sys", "/proc/driver/nvidia"].map(PathBuf::from);
            grants.files = read.into_iter().flat_map(read_only).collect();
        }
        _ => {}
    }
    (config, grants)
}

/// The effects that answers of a built-in plugin may have: its own devices, their description for
/// tasks, and the device nodes that may be shared out.
fn builtin_answers(name: &str, data_dir: &Path) -> AnswerGrants {
    let texts = |texts: &[&str]| Some(texts.iter().map(|text| (*text).to_owned()).collect());
    let nodes = |paths: &[&str]| {
        let node =
            |path: &&str| NodeGrant { path: (*path).to_owned(), permissions: "rw".to_owned() };
        Some(paths.iter().map(node).collect())
    };
    let read_only = |path: PathBuf| Some(vec![FileGrant { path, write: false }]);
    let none = AnswerGrants::default();
    match name {
        "mock" => AnswerGrants { driver: Some("mock_driver".to_owned()), ..none },
        "files" => AnswerGrants {
            groups: texts(&["ostler/file/*"]),
            task_env: texts(&["FILE_DEVICE_PATHS"]),
            mounts: read_only(data_dir.join("devices")),
            ..none
        },
        "pci" => AnswerGrants {
            groups: texts(&["*"]),
            device_nodes: nodes(&[
                "/dev/dri/*",
                "/dev/accel/*",
                "/dev/infiniband/*",
                "/dev/vfio/*",
            ]),
            ..none
        },
        "usb" => AnswerGrants {
            groups: texts(&["*/usb/*"]),
            device_nodes: nodes(&[
                "/dev/bus/usb/*",
                "/dev/hidraw*",
                "/dev/ttyUSB*",
                "/dev/ttyACM*",
                "/dev/usb/*",
                "/dev/cdc-wdm*",
                "/dev/video*",
            ]),
            ..none
        },
        "hwmon" => AnswerGrants {
            groups: texts(&["linux/sensor/*"]),
            mounts: read_only(PathBuf::from("/sys")),
            ..none
        },
        "nvidia" => AnswerGrants {
            groups: texts(&["nvidia/gpu/*"]),
            task_env: texts(&["CUDA_VISIBLE_DEVICES"]),
            device_nodes: nodes(&["/dev/nvidia*"]),
            ..none
        },
        // In tests it stands for devices of any plugin.
        MOCK_DEVICE => AnswerGrants {
            groups: texts(&["*"]),
            task_env: texts(&["*"]),
            mounts: read_only(data_dir.join(MOCK_DEVICE)),
            ..none
        },
        _ => none,
    }
}

/// Read the bytes of a plugin file, or say why they must not be used. Whether they are trusted is
/// not checked. Blocks.
pub(crate) fn read(path: &Path) -> Result<Arc<[u8]>, String> {
    let read = trust::read_component(path).map_err(|error| error.to_string());
    read.map(|content| content.bytes)
}

/// The `.wasm` files of a directory, by name.
fn wasm_files(dir: &Path) -> Vec<PathBuf> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) => {
            tracing::error!(dir = %printable_path(dir), %error, "cannot read the plugin directory");
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn a_file_whose_name_hides_something_is_shown_as_it_is_and_not_used() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a\nERROR forged.wasm"), "").unwrap();
        let plugin_dir = Some(dir.path().to_owned());
        let config = AgentConfig { plugin_dir, ..AgentConfig::default() };
        let dirs = CatalogueDirs { data: Path::new("/agent"), socket: None };
        let found = candidates(&config, dirs, false);
        let one = found.iter().find(|one| one.whose.name.contains("forged")).unwrap();
        assert_eq!(one.whose.name, r"a\nERROR forged");
        assert!(!one.whose.place.contains('\n'));
        assert!(one.bytes.as_ref().is_err_and(|why| why.contains("U+000A")));
    }

    /// Whoever opens the socket may do what the agent's user may do.
    #[test]
    fn isolated_tasks_see_neither_the_data_directory_nor_that_of_the_socket() {
        let (data, socket) = (Path::new("/agent/in-memory"), Path::new("/agent"));
        for (other, hidden) in [(None, vec![data]), (Some(socket), vec![data, socket])] {
            let dirs = CatalogueDirs { data, socket: other };
            let found = candidates(&AgentConfig::default(), dirs, false);
            let exec = found.iter().find(|one| one.whose.name == "exec").unwrap();
            assert_eq!(exec.grants.isolation.as_ref().unwrap().hidden, hidden);
        }
    }
}
