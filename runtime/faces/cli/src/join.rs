//! Joining a cluster: from the flags to the tasks of a node, and which flags are refused.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use tokio_util::sync::CancellationToken;

use super::connect::CliError;
use super::output;
use super::terminal::TerminalInfo;
use ostler_agent::AgentHandle;
use ostler_cluster::NodeStanding;
use ostler_cluster::client::{ClusterNodes, ClusterOptions};
use ostler_cluster::tls::{ServerTls, TlsError, TlsFiles};
use ostler_cluster::tls_nodes::NodeTls;
use ostler_cluster_agent::JoinOptions;
use ostler_model::causes;
use ostler_model::clock::Clock;
use ostler_model::config::{ClusterConfig, TlsConfig};
use ostler_model::limits::{CLUSTER_SERVERS_MAX, CLUSTER_TOKEN_BYTES_MAX};
use ostler_model::rng::Rng;
use ostler_model::server_address::ServerAddress;

/// The file in the data directory with the introduction token, as Nomad's client has it.
const INTRODUCTION_FILE: &str = "intro_token.jwt";

/// The TLS settings towards servers and towards other nodes.
pub(super) struct ClusterTls {
    pub(super) servers: ServerTls,
    nodes: NodeTls,
}

/// What a node needs to join, beside its configuration.
pub(super) struct JoinInputs {
    pub(super) tls: Option<ClusterTls>,
    pub(super) introduction: Option<String>,
    pub(super) others: ClusterNodes,
}

/// The TLS settings towards servers and other nodes; `None` where no authorities are
/// named. Prints nothing.
///
/// # Errors
/// When there are too many servers, or a file of certificates cannot be used.
pub(super) fn cluster_tls(to: &ClusterConfig) -> Result<Option<ClusterTls>, CliError> {
    if to.servers.len() > CLUSTER_SERVERS_MAX {
        let many = to.servers.len();
        return Err(CliError::Wrong(format!(
            "--servers names {many} servers: give at most {CLUSTER_SERVERS_MAX}"
        )));
    }
    let given = to.cluster_only_keys();
    if to.servers.is_empty() && !given.is_empty() {
        return Err(CliError::Wrong(format!(
            "no server is given, so {} would have no effect: give --servers, or client {{ servers = […] }} \
             in the configuration, or leave this out",
            given.join(", ")
        )));
    }
    if to.servers.is_empty() {
        return Ok(None);
    }
    let files = to.tls.as_ref().map(tls_files).transpose()?;
    let read = |files: TlsFiles| {
        let servers = ServerTls::read(&files, to.region())?;
        Ok(ClusterTls { servers, nodes: NodeTls::read(&files, to.region())? })
    };
    let tls = files.map(read).transpose();
    tls.map_err(|error: TlsError| CliError::Wrong(causes::chain(&error)))
}

/// The files that a `tls` block names for servers and other nodes.
fn tls_files(tls: &TlsConfig) -> Result<TlsFiles, CliError> {
    let wrong = |what: &str| Err(CliError::Wrong(format!("tls of a node of a cluster: {what}")));
    let Some(authorities) = tls.ca_file.clone() else {
        return wrong("it needs a ca_file: the authorities that sign the certificates of servers");
    };
    if !tls.http {
        return wrong(
            "http = false: other nodes are answered with TLS or, by ports { http = 0 }, not at all",
        );
    }
    if tls.verify_https_client == Some(false) {
        return wrong(
            "verify_https_client = false: other nodes must have a certificate of the authorities",
        );
    }
    Ok(TlsFiles { authorities, own: tls.own.clone(), verify_name: tls.verify_server_hostname })
}

/// Read the introduction token that an operator put into the data directory.
fn read_introduction(data_dir: &Path) -> Result<Option<String>, CliError> {
    let path = data_dir.join(INTRODUCTION_FILE);
    let mut text = String::new();
    let read = File::open(&path)
        .and_then(|file| file.take(CLUSTER_TOKEN_BYTES_MAX).read_to_string(&mut text));
    match read {
        Ok(_) => Ok(Some(text.trim().to_owned()).filter(|token| !token.is_empty())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(CliError::Cannot(format!(
            "cannot read the introduction token in {}: {error}",
            path.display()
        ))),
    }
}

/// Be a node of the cluster until the token ends it.
///
/// # Errors
/// When the agent has jobs of its own, or its secret cannot be had.
pub(super) async fn join(
    agent: &AgentHandle,
    to: &ClusterConfig,
    JoinInputs { tls, introduction, others }: JoinInputs,
    ended: CancellationToken,
) -> Result<(), CliError> {
    if !agent.join() {
        return Err(CliError::Cannot(
            "the agent has jobs of its own, or a jobs directory: a node of a cluster runs what its servers \
             say; stop them and start without servers, or give another --data-dir"
                .to_owned(),
        ));
    }
    let secret = agent.node_secret().await;
    let secret = secret.map_err(|error| CliError::Cannot(causes::chain(&error)))?;
    let standing =
        agent.read_standing().await.map_err(|error| CliError::Cannot(causes::chain(&error)))?;
    let standing = NodeStanding {
        registered: standing.is_some(),
        identity: standing.filter(|identity| !identity.is_empty()),
    };
    let introduction = match introduction {
        None => read_introduction(agent.data_dir())?,
        given => given,
    };
    let bare = |server: &&ServerAddress| {
        let address = server.host.parse::<std::net::IpAddr>();
        !address.is_ok_and(|address| address.is_loopback())
    };
    if let Some(server) = to.servers.iter().find(bare).filter(|_| tls.is_none()) {
        let warning = format!(
            "the connection to {server} does not use TLS: whoever is on the network path can read what this \
             node runs and make it run other things; give --ca-file, or a tls block in the configuration"
        );
        output::warning(&TerminalInfo::detect(), &warning);
    }
    let cluster = ClusterOptions {
        servers: to.servers.clone(),
        region: to.region().to_owned(),
        class: to.node_class.clone().unwrap_or_default(),
        pool: to.node_pool.clone(),
        secret,
        introduction,
        standing,
        clock: Clock::system(),
        rng: Rng::system(),
    };
    let (tls, node_tls) = tls.map(|tls| (tls.servers, tls.nodes)).unzip();
    let http = to.http.clone();
    let options = JoinOptions { cluster, tls, node_tls, http, others };
    drop(tokio::spawn(ostler_cluster_agent::run(agent.clone(), options, ended)));
    Ok(())
}
