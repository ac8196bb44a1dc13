//! The input of CNI plugins: lists of them in the form of the specification (0.4.0), and the list
//! for mode `bridge`. Pure.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use ostler_model::limits::{CNI_PLUGINS_MAX, CNI_TEXT_BYTES_MAX, NAME_BYTES_MAX};

/// The supported versions of the specification. The first is used if a configuration names none.
const VERSIONS: [&str; 4] = ["0.4.0", "0.3.1", "0.3.0", "1.0.0"];
/// The chain of rules that the operator may write to, as in Nomad.
pub const ADMIN_CHAIN: &str = "NOMAD-ADMIN";

/// A network: plugins that fill a namespace, one after the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CniNetwork {
    /// The name of the network, as jobs and plugins use it.
    pub name: String,
    /// The version of the specification.
    pub version: String,
    /// The plugins of the network, at least one.
    pub plugins: Vec<CniPlugin>,
}

/// One plugin of a network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CniPlugin {
    /// The name of the plugin's program.
    pub kind: String,
    /// The plugin's configuration, as it stands in the list.
    pub config: Map<String, Value>,
}

/// A port of the node that leads to one in the namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CniPortMapping {
    /// The port on the node.
    pub host: u16,
    /// The port in the namespace.
    pub inside: u16,
    /// The address of the node; `None` means all addresses.
    pub host_ip: Option<String>,
}

/// Why a configuration is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConflistError {
    /// The text is too long.
    #[error("it is longer than {CNI_TEXT_BYTES_MAX} bytes")]
    TooLong,
    /// The text is no JSON.
    #[error("it is not JSON: {0}")]
    Json(String),
    /// Something is missing or has another type.
    #[error("{0}")]
    Form(&'static str),
    /// The version is not supported.
    #[error("it is of CNI version {0}; supported are 0.3.0, 0.3.1, 0.4.0 and 1.0.0")]
    Version(String),
}

/// The network of mode `bridge`.
#[must_use]
pub fn bridge(bridge: &str, subnet: &str) -> CniNetwork {
    let plugin = |config: Value| CniPlugin {
        kind: config.get("type").and_then(Value::as_str).unwrap_or_default().to_owned(),
        config: config.as_object().cloned().unwrap_or_default(),
    };
    let plugins = [
        json!({"type": "loopback"}),
        json!({
            "type": "bridge",
            "bridge": bridge,
            "ipMasq": true,
            "isGateway": true,
            "forceAddress": true,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": subnet}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }),
        json!({"type": "firewall", "backend": "iptables", "iptablesAdminChainName": ADMIN_CHAIN}),
        json!({"type": "portmap", "capabilities": {"portMappings": true}, "snat": true}),
    ];
    CniNetwork {
        // Addresses are kept by this name, for all agents of a machine. A bridge of another name
        // has its own.
        name: bridge.to_owned(),
        version: "0.4.0".to_owned(),
        plugins: plugins.into_iter().map(plugin).collect(),
    }
}

/// The programs that mode `bridge` needs.
pub const BRIDGE_PLUGINS: [&str; 5] = ["loopback", "bridge", "host-local", "firewall", "portmap"];

/// Read a configuration: a list of plugins (`.conflist`), or one plugin.
///
/// # Errors
/// What is wrong with it.
pub fn parse(text: &[u8]) -> Result<CniNetwork, ConflistError> {
    if text.len() > CNI_TEXT_BYTES_MAX {
        return Err(ConflistError::TooLong);
    }
    let whole: Value =
        serde_json::from_slice(text).map_err(|error| ConflistError::Json(error.to_string()))?;
    let whole = whole.as_object().ok_or(ConflistError::Form("it is not an object"))?;
    let name = whole.get("name").and_then(Value::as_str);
    let name = name.filter(|name| !name.is_empty() && name.len() <= NAME_BYTES_MAX);
    let name = name.ok_or(ConflistError::Form("it has no name"))?.to_owned();
    let version = whole.get("cniVersion").and_then(Value::as_str).unwrap_or(VERSIONS[0]);
    if !VERSIONS.contains(&version) {
        let told: String = version.chars().take(32).collect();
        return Err(ConflistError::Version(told));
    }
    let version = version.to_owned();
    let listed = match whole.get("plugins") {
        None => vec![whole.clone()],
        Some(Value::Array(plugins)) => {
            let objects = plugins.iter().map(|plugin| plugin.as_object().cloned());
            let objects: Option<Vec<_>> = objects.collect();
            objects.ok_or(ConflistError::Form("plugins must be a list of objects"))?
        }
        Some(_) => return Err(ConflistError::Form("plugins must be a list of objects")),
    };
    if listed.is_empty() || listed.len() > CNI_PLUGINS_MAX {
        return Err(ConflistError::Form("it has no plugins, or more than 16"));
    }
    let plugins = listed.into_iter().map(|config| {
        let kind = config.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
        if !is_program(&kind) {
            return Err(ConflistError::Form("type of a plugin must be the name of a program"));
        }
        Ok(CniPlugin { kind, config })
    });
    Ok(CniNetwork { name, version, plugins: plugins.collect::<Result<_, _>>()? })
}

/// Whether this is a plain file name, which leads to no other directory.
fn is_program(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    !name.is_empty()
        && name.len() <= NAME_BYTES_MAX
        && name.chars().all(allowed)
        && !name.starts_with('.')
}

impl CniNetwork {
    /// The input of a plugin on its standard input.
    #[must_use]
    pub fn input(
        &self,
        plugin: &CniPlugin,
        before: Option<&Value>,
        ports: &[CniPortMapping],
    ) -> Value {
        let mut config = plugin.config.clone();
        config.remove("capabilities");
        config.insert("name".to_owned(), self.name.clone().into());
        config.insert("cniVersion".to_owned(), self.version.clone().into());
        if let Some(before) = before {
            config.insert("prevResult".to_owned(), before.clone());
        }
        let capabilities = plugin.config.get("capabilities");
        let takes = capabilities.and_then(|all| all.get("portMappings")).and_then(Value::as_bool);
        if takes == Some(true) && !ports.is_empty() {
            let mappings = ports.iter().flat_map(|port| {
                ["tcp", "udp"].map(|protocol| {
                    let mut mapping = json!({
                        "hostPort": port.host, "containerPort": port.inside, "protocol": protocol,
                    });
                    if let (Some(ip), Some(fields)) = (&port.host_ip, mapping.as_object_mut()) {
                        fields.insert("hostIP".to_owned(), ip.clone().into());
                    }
                    mapping
                })
            });
            let mappings: Vec<Value> = mappings.collect();
            config.insert("runtimeConfig".to_owned(), json!({"portMappings": mappings}));
        }
        config.into()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_bridge_is_a_list_of_loopback_bridge_firewall_and_portmap() {
        let network = bridge("nomad", "172.26.64.0/20");
        let kinds: Vec<_> = network.plugins.iter().map(|plugin| plugin.kind.as_str()).collect();
        assert_eq!(kinds, ["loopback", "bridge", "firewall", "portmap"]);
        let input = network.input(&network.plugins[1], None, &[]);
        assert_eq!(input["ipam"]["ranges"][0][0]["subnet"], "172.26.64.0/20");
        assert_eq!((&input["name"], &input["cniVersion"]), (&json!("nomad"), &json!("0.4.0")));
        assert!(input.get("runtimeConfig").is_none());
    }

    #[test]
    fn ports_are_told_to_plugins_that_take_them_for_both_protocols() {
        let network = bridge("nomad", "172.26.64.0/20");
        let port = |host_ip: Option<&str>| CniPortMapping {
            host: 20_000,
            inside: 80,
            host_ip: host_ip.map(str::to_owned),
        };
        let before = json!({"ips": []});
        let input = network.input(
            &network.plugins[3],
            Some(&before),
            &[port(None), port(Some("127.0.0.1"))],
        );
        assert_eq!(input["prevResult"], before);
        assert!(input.get("capabilities").is_none());
        let mappings = input["runtimeConfig"]["portMappings"].as_array().unwrap();
        assert_eq!(mappings.len(), 4);
        assert_eq!(
            mappings[1],
            json!({"hostPort": 20_000, "containerPort": 80, "protocol": "udp"})
        );
        assert_eq!(mappings[2]["hostIP"], "127.0.0.1");
        let firewall = network.input(&network.plugins[2], None, &[port(None)]);
        assert!(firewall.get("runtimeConfig").is_none());
    }

    #[test]
    fn a_list_and_a_single_plugin_are_read() {
        let list = br#"{"cniVersion": "1.0.0", "name": "x", "plugins": [{"type": "ptp", "a": 1}]}"#;
        let list = parse(list).unwrap();
        assert_eq!((list.name.as_str(), list.version.as_str()), ("x", "1.0.0"));
        assert_eq!(list.plugins[0].config["a"], 1);
        let one = parse(br#"{"name": "y", "type": "macvlan"}"#).unwrap();
        assert_eq!((one.version.as_str(), one.plugins[0].kind.as_str()), ("0.4.0", "macvlan"));
    }

    #[test]
    fn what_is_no_configuration_is_refused() {
        for (text, why) in [
            ("", "not JSON"),
            ("[]", "not an object"),
            ("{}", "no name"),
            (r#"{"name": "x"}"#, "name of a program"),
            (r#"{"name": "x", "plugins": []}"#, "no plugins"),
            (r#"{"name": "x", "plugins": {}}"#, "list of objects"),
            (r#"{"name": "x", "plugins": [{"type": "../sh"}]}"#, "name of a program"),
            (r#"{"name": "x", "type": "ptp", "cniVersion": "9.0"}"#, "version 9.0"),
        ] {
            let error = parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
        let long = vec![b' '; CNI_TEXT_BYTES_MAX + 1];
        assert_eq!(parse(&long), Err(ConflistError::TooLong));
    }

    proptest! {
        #[test]
        fn nothing_that_is_read_breaks_it(text in any::<Vec<u8>>()) {
            let _any = parse(&text);
        }
    }
}
