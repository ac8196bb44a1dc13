//! Arguments of the commands on trust.

use std::path::PathBuf;

use clap::Args;

/// `ostler plugin verify`.
#[derive(Debug, Args)]
#[command(
    long_about = "Show who signed a plugin, what its digest is, and whether an agent with this \
        configuration would run it. The signature is FILE.minisig beside the plugin, made with \
        minisign (Ed25519). Nothing of the plugin is run or compiled.\n\n\
        With --trust and without --config a signature is required.",
    after_long_help = "\
Examples:
  ostler plugin verify --config ostler.hcl mine.wasm
  ostler plugin verify --trust trust.hcl mine.wasm
  ostler plugin verify --json mine.wasm | jq .signature

Exit codes:
  0    the agent would run it, as far as trust goes
  1    it would not; the reason and what to do are shown
  2    the file, the configuration or the usage is wrong
  141  the reader of standard output closed it"
)]
pub(crate) struct VerifyArgs {
    /// The plugin, a WebAssembly component
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// Trust the keys and digests of this file; overrides the configuration
    #[arg(long, value_name = "FILE")]
    pub trust: Option<PathBuf>,

    /// The agent's configuration (HCL)
    #[arg(long, value_name = "FILE", env = "OSTLER_CONFIG", hide_env_values = true)]
    pub config: Option<PathBuf>,

    /// Print the result as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `ostler plugin pull`.
#[derive(Debug, Args)]
#[command(
    long_about = "Pull a plugin from an OCI registry into the data directory and pin its tag: the \
        agent uses what is pinned and does not ask the registry again. A tag that was moved since is an \
        error that shows both digests; --update accepts the new one.\n\n\
        Every byte is checked against the manifest's digest. Whether the plugin is trusted is \
        decided when an agent loads it, or with ostler plugin verify.\n\n\
        Credentials: OSTLER_REGISTRY with OSTLER_REGISTRY_USERNAME and OSTLER_REGISTRY_PASSWORD, \
        else the configuration file of Docker.",
    after_long_help = "\
Examples:
  ostler plugin pull --data-dir /var/lib/ostler oci://registry.example/team/plugin:1.2
  ostler plugin pull --to ./plugins oci://registry.example/team/plugin:1.2
  ostler plugin pull --update oci://registry.example/team/plugin:1.2

Exit codes:
  0    the plugin is there and pinned
  1    the registry does not give it, or its tag was moved
  2    the reference, the configuration or the usage is wrong
  141  the reader of standard output closed it"
)]
pub(crate) struct PullArgs {
    /// The plugin, as oci://registry/repository:tag or oci://registry/repository@sha256:…
    #[arg(value_name = "REFERENCE")]
    pub reference: String,

    /// Also put the plugin and its signature into this directory
    #[arg(long, value_name = "DIR")]
    pub to: Option<PathBuf>,

    /// Accept that the tag points to another plugin than when it was pinned
    #[arg(long)]
    pub update: bool,

    /// Directory in which pulled plugins and pins are kept; overrides the configuration;
    /// without either, DIR/.ostler of --to
    #[arg(long, value_name = "DIR", env = "OSTLER_DATA_DIR", hide_env_values = true)]
    pub data_dir: Option<PathBuf>,

    /// The agent's configuration (HCL), for its registries and its data directory
    #[arg(long, value_name = "FILE", env = "OSTLER_CONFIG", hide_env_values = true)]
    pub config: Option<PathBuf>,

    /// Print the result as one JSON object
    #[arg(long)]
    pub json: bool,
}
