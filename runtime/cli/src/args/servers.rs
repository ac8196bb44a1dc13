//! Where a cluster's servers are, and how they are spoken to.

use std::path::PathBuf;

use clap::Args;
use ostler_cluster::address::ServerAddress;

/// Nomad's servers.
#[derive(Clone, Debug, Args)]
pub(crate) struct ServersArgs {
    /// The servers of a cluster, several with commas between them; port 4647 where none is given
    #[arg(long, value_name = "HOST[:PORT]", value_delimiter = ',')]
    pub servers: Vec<ServerAddress>,

    /// Region of the servers
    #[arg(long, default_value = "global", requires = "servers")]
    pub region: String,

    /// Speak TLS, with servers that these authorities (PEM) vouch for
    #[arg(long, value_name = "FILE", requires = "servers")]
    pub ca_file: Option<PathBuf>,

    /// This node's certificate (PEM), for servers that ask for one
    #[arg(long, value_name = "FILE", requires = "ca_file", requires = "key_file")]
    pub cert_file: Option<PathBuf>,

    /// The key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "cert_file")]
    pub key_file: Option<PathBuf>,

    /// Take any certificate of the authorities for a server's, also another node's
    #[arg(long, requires = "ca_file")]
    pub no_verify_server_hostname: bool,
}
