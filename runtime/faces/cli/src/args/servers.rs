//! The addresses of a cluster's servers, and the TLS settings towards them.

use std::path::PathBuf;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;

use super::key_help;
use ostler_model::config::{ClusterConfig, TlsConfig};
use ostler_model::server_address::ServerAddress;

/// Nomad's servers. Each flag overrides the key of the configuration.
#[derive(Clone, Debug, Args)]
pub(crate) struct ServersArgs {
    /// The servers of a cluster, separated by commas; the default port is 4647. Overrides
    /// client.servers of the configuration
    #[arg(long, value_name = "HOST[:PORT]", value_delimiter = ',')]
    pub servers: Vec<ServerAddress>,

    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new(), help = key_help("region", "Overrides \
        the configuration; default: global"))]
    pub region: Option<String>,

    /// Speak TLS, with servers whose certificates these authorities (PEM) signed. Overrides the tls block of
    /// the configuration
    #[arg(long, value_name = "FILE")]
    pub ca_file: Option<PathBuf>,

    /// This node's certificate (PEM), for servers that ask for one
    #[arg(long, value_name = "FILE", requires = "ca_file", requires = "key_file")]
    pub cert_file: Option<PathBuf>,

    /// The key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "cert_file")]
    pub key_file: Option<PathBuf>,

    /// Accept any certificate of the authorities as a server's, even another node's
    #[arg(long, requires = "ca_file")]
    pub no_verify_server_hostname: bool,
}

impl ServersArgs {
    /// The cluster of the configuration, overridden by the flags of the command line.
    pub(crate) fn override_cluster(&self, configured: ClusterConfig) -> ClusterConfig {
        let tls = self.ca_file.clone().map(|ca_file| TlsConfig {
            ca_file: Some(ca_file),
            own: self.cert_file.clone().zip(self.key_file.clone()),
            verify_server_hostname: !self.no_verify_server_hostname,
            http: true,
            verify_https_client: None,
        });
        let servers =
            if self.servers.is_empty() { configured.servers } else { self.servers.clone() };
        ClusterConfig {
            servers,
            region: self.region.clone().or(configured.region),
            tls: tls.or(configured.tls),
            ..configured
        }
    }
}
