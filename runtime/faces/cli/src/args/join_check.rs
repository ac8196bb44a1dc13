//! `ostler node join-check`

use std::path::PathBuf;

use clap::Args;

use super::servers::ServersArgs;

/// `ostler node join-check`.
#[derive(Debug, Args)]
#[command(
    long_about = "Check the way into a cluster of Nomad's servers, step by step: the servers' names, \
        the connection, TLS, whether a server answers, whether it knows the region, whether it takes a \
        node and its heartbeats.\n\n\
        For the last three a node is made up. It takes no work, and is removed again; where the servers \
        control access they may keep it until they collect nodes that are down. No agent is needed and \
        none is changed.",
    after_long_help = "\
Examples:
  ostler node join-check --servers 10.0.0.7
  ostler node join-check --config /etc/ostler.hcl
  ostler node join-check --servers a.example.com,b.example.com:14647 --region eu --datacenter dc2
  ostler node join-check --servers 10.0.0.7 --ca-file ca.pem --cert-file node.pem --key-file node-key.pem
  ostler node join-check --servers 10.0.0.7 --json | jq '.findings[] | select(.works | not)'

Exit codes:
  0    a node can join
  1    a step does not work
  2    a certificate file, the configuration or the usage is wrong
  141  the reader of standard output closed it"
)]
pub(crate) struct JoinCheckArgs {
    #[command(flatten)]
    pub to: ServersArgs,

    /// An agent's configuration (HCL): its servers, region, TLS and data center
    #[arg(long, value_name = "FILE", env = "OSTLER_CONFIG", hide_env_values = true)]
    pub config: Option<PathBuf>,

    /// Data center that the node would be in; overrides the configuration; default: dc1
    #[arg(long, value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub datacenter: Option<String>,

    /// Print the findings as one JSON object
    #[arg(long)]
    pub json: bool,
}
