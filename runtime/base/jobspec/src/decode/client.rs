//! The `client` and `tls` blocks of the configuration: the node, and the cluster that it belongs to.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use super::artifact::{self, ArtifactLimitKeys};
use super::network::{self, HostNetworkKeys, NetworkConfigKeys};
use super::volume::{self, HostVolumeKeys};
use crate::keys::FieldBounds::{Time, Whole};
use crate::keys::{Context, MOST, Setting, Texts, hint, keys};
use ostler_model::artifact::ArtifactConfig;
use ostler_model::config::{ClientConfig, ClusterConfig, HttpConfig, TlsConfig};
use ostler_model::limits::{
    CLUSTER_SERVERS_MAX, DYNAMIC_USERS, DYNAMIC_USERS_MAX, KILL_TIMEOUT_CEILING,
};
use ostler_model::server_address::ServerAddress;

keys! {
    struct ClientKeys: "client" {
        /// MHz of processor time that jobs may reserve together.
        cpu_total_compute: Setting<u32> [Whole(1, MOST)], "cores times frequency";
        /// MiB of memory that jobs may reserve together.
        memory_total_mb: Setting<u32> [Whole(1, MOST)], "the memory of the machine";
        /// Longest `kill_timeout` of a task that is waited for; a longer one is cut, which is told.
        max_kill_timeout: Setting<Duration> [Time(Duration::from_secs(1), KILL_TIMEOUT_CEILING)], "`30s`";
        /// Servers of the cluster that this is a node of, `HOST[:PORT]`, with `ostler agent`.
        servers: Texts, "none; the agent keeps jobs of its own";
        /// Class of the node, for constraints of jobs.
        node_class: Setting<String>, "none";
        /// Pool of the node in the cluster; servers before 1.6 know none.
        node_pool: Setting<String>, "the servers'";
        /// What `${meta.…}` stands for on this node, as `meta` at the top.
        meta: BTreeMap<String, String>;
        /// A directory that jobs may mount, by its name.
        host_volumes "host_volume": Vec<HostVolumeKeys>;
        /// Directories of CNI plugins, with ':' between them.
        cni_path: Setting<String>, "`/opt/cni/bin:/usr/lib/cni`";
        /// Directory of the configurations for networks of mode `cni/NAME`.
        cni_config_dir: Setting<PathBuf>, "`/opt/cni/config`";
        /// The bridge of networks of mode `bridge`.
        bridge_network_name: Setting<String>, "`nomad`";
        /// Addresses at that bridge.
        bridge_network_subnet: Setting<String>, "`172.26.64.0/20`";
        /// Addresses of the node that ports may ask for by name.
        host_networks "host_network": Vec<HostNetworkKeys>;
        /// User ids that allocations have of their own.
        users: Option<UsersKeys>;
        /// Nobody runs a command inside a task of this node by `alloc exec`, Ostler's or Nomad's.
        disable_remote_exec: Setting<bool>, "`false`";
        /// An agent is always a client.
        enabled: Setting<bool>, "`true`";
        /// Bounds of what tasks bring along.
        artifact: Option<ArtifactLimitKeys>;
    }
    not_yet {
        "reserved" [hint("give the totals without it: memory_total_mb, cpu_total_compute")];
        "gc_interval" [hint("write gc { interval = … }")];
        "gc_max_allocs" [hint("write gc { max_allocs = … }")];
        "state_dir"; "alloc_dir"; "options";
        "network_interface"; "chroot_env";
        "disk_total_mb"; "cpu_disable_dmidecode"; "server_join" [hint("write servers = […]")];
        "template"; "drain_on_shutdown";
    }
}

keys! {
    struct UsersKeys: "users" {
        /// The first user id, and group id, of those for allocations: isolated tasks that name no user run as the one
        /// of their allocation.
        dynamic_user_min: Setting<u32> [Whole(USER_ID_LEAST, USER_ID_MOST)], "`80000`";
        /// The last of them. No user or group of the node may have one, nor another agent on the machine.
        dynamic_user_max: Setting<u32> [Whole(USER_ID_LEAST, USER_ID_MOST)], "`89999`";
    }
}

keys! {
    struct TlsKeys: "tls" {
        /// Servers are spoken to with TLS.
        rpc: Setting<bool>, "`true`";
        /// The authorities (PEM) that vouch for servers and for clients of the API. A node of a cluster needs
        /// it.
        ca_file: Setting<PathBuf>, "none";
        /// This node's certificate (PEM): for clients of the API, and for servers that ask for one.
        cert_file: Setting<PathBuf>, "none";
        /// The key of the certificate (PEM).
        key_file: Setting<PathBuf>, "none";
        /// Must a server's certificate name `server.REGION.nomad`? Nomad's default is `false`.
        verify_server_hostname: Setting<bool>, "`true`";
        /// The API over TCP, and other nodes, are answered with TLS.
        http: Setting<bool>, "`true`";
        /// Must clients of the API have a certificate of the authorities? Other nodes of a cluster must.
        verify_https_client: Setting<bool>, "`false`; `true` in a cluster";
    }
    not_yet {
        "rpc_upgrade_mode"; "tls_cipher_suites"; "tls_min_version";
        "tls_prefer_server_cipher_suites";
    }
}

/// The smallest user id that allocations can have: smaller ids belong to users of the system itself.
const USER_ID_LEAST: i64 = 1_000;
/// The largest user id that allocations can have: some file systems and tools take larger ids for negative ones,
/// or for no id.
const USER_ID_MOST: i64 = 2_147_483_647;

/// The content of a `client` block.
pub(super) struct ClientBlock {
    pub(super) node: ClientConfig,
    pub(super) cluster: ClusterConfig,
    pub(super) meta: BTreeMap<String, String>,
    pub(super) artifact: ArtifactConfig,
}

/// Decode a `client` block.
pub(super) fn client(
    keys: ClientKeys,
    region: Option<String>,
    tls: Option<TlsConfig>,
    http: HttpConfig,
    cx: &mut Context<'_>,
) -> ClientBlock {
    if keys.enabled.value == Some(false) {
        cx.error(keys.enabled.at, "enabled = false has no effect: an agent is always a client");
    }
    let at = keys.servers.at;
    let mut servers = Vec::new();
    for (text, at) in keys.servers.value.into_iter().flatten() {
        match text.parse::<ServerAddress>() {
            Ok(server) => servers.push(server),
            Err(error) => cx.error(at, error.to_string()),
        }
    }
    if servers.len() > CLUSTER_SERVERS_MAX {
        let many = servers.len();
        cx.error(at, format!("servers names {many}; give at most {CLUSTER_SERVERS_MAX}"));
    }
    let (cpu_total_compute, memory_total_mb) =
        (keys.cpu_total_compute.value, keys.memory_total_mb.value);
    let (node_class, node_pool) = (keys.node_class.non_empty(cx), keys.node_pool.non_empty(cx));
    let disable_remote_exec = keys.disable_remote_exec.value.unwrap_or(false);
    let cluster =
        ClusterConfig { servers, region, node_class, node_pool, disable_remote_exec, tls, http };
    let artifact = artifact::limits(keys.artifact, cx);
    let max_kill_timeout = keys.max_kill_timeout.value;
    let host_volumes = volume::host_volumes(keys.host_volumes, cx);
    let network = NetworkConfigKeys {
        cni_path: keys.cni_path,
        cni_config_dir: keys.cni_config_dir,
        bridge_name: keys.bridge_network_name,
        bridge_subnet: keys.bridge_network_subnet,
        host_networks: keys.host_networks,
    };
    let network = network::config(network, cx);
    let users = users(keys.users, cx);
    let node = ClientConfig {
        cpu_total_compute,
        memory_total_mb,
        host_volumes,
        network,
        users,
        max_kill_timeout,
    };
    ClientBlock { node, cluster, meta: keys.meta, artifact }
}

fn users(keys: Option<UsersKeys>, cx: &mut Context<'_>) -> Option<RangeInclusive<u32>> {
    let keys = keys?;
    let (first, last) = (keys.dynamic_user_min.value, keys.dynamic_user_max.value);
    if first.is_none() && last.is_none() {
        return None;
    }
    let ids = first.unwrap_or(*DYNAMIC_USERS.start())..=last.unwrap_or(*DYNAMIC_USERS.end());
    let count = u64::from(*ids.end()).saturating_add(1).saturating_sub(u64::from(*ids.start()));
    if count == 0 {
        cx.error(
            keys.at,
            format!(
                "dynamic_user_min is {}, above dynamic_user_max, which is {}",
                ids.start(),
                ids.end()
            ),
        );
    } else if count > DYNAMIC_USERS_MAX {
        cx.error(keys.at, format!("these are {count} user ids; give at most {DYNAMIC_USERS_MAX}"));
    }
    Some(ids)
}

pub(super) fn tls(keys: TlsKeys, cx: &mut Context<'_>) -> Option<TlsConfig> {
    if keys.rpc.value == Some(false) {
        cx.error(
            keys.rpc.at,
            "rpc = false: leave the tls block out to speak to servers without it",
        );
    }
    let at = keys.at;
    let own = match (keys.cert_file.value, keys.key_file.value) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        _ => {
            cx.error(at, "cert_file and key_file belong together: give both or none");
            None
        }
    };
    let verify_https_client = keys.verify_https_client.value;
    if verify_https_client == Some(true) && keys.ca_file.value.is_none() {
        let at = keys.verify_https_client.at;
        cx.error(at, "verify_https_client needs a ca_file: the authorities that sign the certificates of clients");
    }
    Some(TlsConfig {
        ca_file: keys.ca_file.value,
        own,
        verify_server_hostname: keys.verify_server_hostname.value.unwrap_or(true),
        http: keys.http.value.unwrap_or(true),
        verify_https_client,
    })
}
