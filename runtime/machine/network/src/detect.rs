//! Finds out which networks this node can make, and what it lacks.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::conflist::{self, BRIDGE_PLUGINS, CniNetwork};
use super::run::{find, iptables, missing_plugin};
use ostler_model::attribute::Attribute;
use ostler_model::limits::{CNI_NETWORKS_MAX, CNI_TEXT_BYTES_MAX};
use ostler_model::network::{BRIDGE_NAME, BRIDGE_SUBNET, CNI_CONFIG_DIR, CNI_PATHS, NetworkConfig};

/// The networks that this node can make.
#[derive(Clone, Debug)]
pub struct NetworkAbilities {
    /// The directories of plugins.
    pub paths: Vec<PathBuf>,
    config_dir: PathBuf,
    bridge: String,
    subnet: String,
}

impl NetworkAbilities {
    /// The abilities according to the configuration.
    #[must_use]
    pub fn new(config: &NetworkConfig) -> Self {
        let paths = config.cni_path.clone();
        Self {
            paths: paths.unwrap_or_else(|| CNI_PATHS.iter().map(PathBuf::from).collect()),
            config_dir: config.cni_config_dir.clone().unwrap_or_else(|| CNI_CONFIG_DIR.into()),
            bridge: config.bridge_name.clone().unwrap_or_else(|| BRIDGE_NAME.to_owned()),
            subnet: config.bridge_subnet.clone().unwrap_or_else(|| BRIDGE_SUBNET.to_owned()),
        }
    }

    /// The name of the bridge, and its subnet.
    #[must_use]
    pub fn bridge_and_subnet(&self) -> (&str, &str) {
        (&self.bridge, &self.subnet)
    }

    /// The network of mode `bridge`.
    #[must_use]
    pub fn bridge(&self) -> CniNetwork {
        conflist::bridge(&self.bridge, &self.subnet)
    }

    /// Why the agent can make no network namespaces; `None` if it can.
    fn namespace_obstacle() -> Option<String> {
        (!ostler_process::netns::may_create())
            .then(|| "the agent may not make network namespaces; run it as root".to_owned())
    }

    /// Why this node can make no bridge; `None` if it can.
    #[must_use]
    pub fn bridge_obstacle(&self) -> Option<String> {
        let programs = BRIDGE_PLUGINS.iter().find(|name| find(&self.paths, name).is_none());
        let missing = programs.map(|name| missing_plugin(name, &self.paths));
        missing.or_else(Self::namespace_obstacle).or_else(|| {
            iptables().is_none().then(|| {
                "iptables is not installed, and the CNI plugins firewall and portmap need it: install iptables"
                    .to_owned()
            })
        })
    }

    /// The configuration of this name. If several files have it, the first by file name counts.
    ///
    /// # Errors
    /// Why there is none.
    pub fn find_network(&self, name: &str) -> Result<CniNetwork, String> {
        let mut broken = Vec::new();
        for path in self.files() {
            match read(&path) {
                Ok(network) if network.name == name => return Ok(network),
                Ok(_) => {}
                Err(error) => broken.push(format!("{}: {error}", path.display())),
            }
        }
        let dir = self.config_dir.display();
        let broken =
            if broken.is_empty() { String::new() } else { format!(" ({})", broken.join("; ")) };
        Err(format!(
            "there is no CNI configuration named {name} in {dir}{broken}; put one there, or set client {{ \
             cni_config_dir = … }} to where it is"
        ))
    }

    /// The names of all configurations, each with what it lacks.
    fn networks(&self) -> BTreeMap<String, Option<String>> {
        let mut networks = BTreeMap::new();
        for network in self.files().iter().filter_map(|path| read(path).ok()) {
            let missed =
                network.plugins.iter().find(|plugin| find(&self.paths, &plugin.kind).is_none());
            let lacking = missed.map(|plugin| missing_plugin(&plugin.kind, &self.paths));
            networks.entry(network.name).or_insert(lacking.or_else(Self::namespace_obstacle));
        }
        networks
    }

    fn files(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(&self.config_dir).into_iter().flatten().flatten();
        let is_config = |path: &PathBuf| {
            let ending = path.extension().and_then(|ending| ending.to_str());
            ending.is_some_and(|ending| ["conf", "conflist", "json"].contains(&ending))
        };
        let mut files: Vec<_> = entries.map(|entry| entry.path()).filter(is_config).collect();
        files.sort();
        files.truncate(CNI_NETWORKS_MAX);
        files
    }
}

fn read(path: &Path) -> Result<CniNetwork, String> {
    let most = u64::try_from(CNI_TEXT_BYTES_MAX).unwrap_or(u64::MAX).saturating_add(1);
    let mut text = Vec::new();
    let read = File::open(path).and_then(|file| file.take(most).read_to_end(&mut text));
    read.map_err(|error| error.to_string())?;
    conflist::parse(&text).map_err(|error| error.to_string())
}

/// The facts that constraints and people can ask about: `network.none`, `network.bridge` and
/// `network.cni.NAME`, each with `.missing` if the node lacks something. Reads directories.
#[must_use]
pub fn facts(config: &NetworkConfig) -> BTreeMap<String, Attribute> {
    let can = NetworkAbilities::new(config);
    let mut facts = BTreeMap::new();
    let mut add = |name: String, lacking: Option<String>| {
        facts.insert(name.clone(), Attribute::from(lacking.is_none()));
        if let Some(lacking) = lacking {
            facts.insert(format!("{name}.missing"), Attribute::from(lacking.as_str()));
        }
    };
    add("network.none".to_owned(), NetworkAbilities::namespace_obstacle());
    add("network.bridge".to_owned(), can.bridge_obstacle());
    for (name, lacking) in can.networks() {
        add(format!("network.cni.{name}"), lacking);
    }
    facts
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn without_plugins_it_is_said_what_to_install() {
        let dir = tempfile::tempdir().unwrap();
        let config = NetworkConfig {
            cni_path: Some(vec![dir.path().to_owned()]),
            ..NetworkConfig::default()
        };
        let facts = facts(&config);
        assert_eq!(facts.get("network.bridge").unwrap().to_string(), "false");
        let missing = facts.get("network.bridge.missing").unwrap().to_string();
        assert!(missing.contains("install containernetworking-plugins"), "{missing}");
    }

    #[test]
    fn the_first_configuration_of_a_name_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        write("20.conflist", r#"{"name": "x", "plugins": [{"type": "second"}]}"#);
        write("10.conf", r#"{"name": "x", "type": "first"}"#);
        write("30.json", "{");
        write("readme", r#"{"name": "z", "type": "first"}"#);
        let config = NetworkConfig {
            cni_config_dir: Some(dir.path().to_owned()),
            ..NetworkConfig::default()
        };
        let can = NetworkAbilities::new(&config);
        assert_eq!(can.find_network("x").unwrap().plugins.first().unwrap().kind, "first");
        let error = can.find_network("z").unwrap_err();
        assert!(
            error.contains("no CNI configuration named z") && error.contains("30.json"),
            "{error}"
        );
        assert!(facts(&config).contains_key("network.cni.x.missing"));
    }
}
