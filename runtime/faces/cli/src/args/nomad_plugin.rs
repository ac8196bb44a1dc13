//! `ostler nomad-plugin`

use std::path::PathBuf;

use clap::Args;

/// `ostler nomad-plugin`.
#[derive(Debug, Args)]
#[command(
    long_about = "Serve an external plugin to a stock Nomad client: one driver or one device plugin, in its \
        sandbox and with its grants. The Nomad client runs this command: copy or link this \
        program into the client's plugin_dir, and give the options as args of its plugin block.\n\n\
        Run by Nomad under a name ostler-NAME and without args, it serves the plugin NAME.",
    after_long_help = "\
Examples:
  In the configuration of a Nomad client, for the program /opt/nomad/plugins/ostler-wasm:

  plugin \"ostler-wasm\" {
    args = [\"nomad-plugin\", \"--driver\", \"wasm\", \"--data-dir\", \"/var/lib/ostler-wasm\"]
  }

Exit codes:
  0    Nomad ended the plugin; tasks keep running
  1    it was not run by Nomad, or it could not be served
  2    the configuration is wrong"
)]
pub(crate) struct NomadPluginArgs {
    /// The driver: its name, or the file of a component
    #[arg(long, value_name = "NAME|FILE", required_unless_present_any = ["device", "plugin"])]
    pub driver: Option<String>,

    /// The device plugin: its name, or the file of a component
    #[arg(long, value_name = "NAME|FILE", conflicts_with = "driver")]
    pub device: Option<String>,

    /// The plugin, of either kind: its name, or the file of a component
    #[arg(long, value_name = "NAME|FILE", conflicts_with_all = ["driver", "device"])]
    pub plugin: Option<String>,

    /// Configuration file of an agent, for the plugin's block, its grants, and the keys that are trusted
    #[arg(long, value_name = "FILE", env = "OSTLER_CONFIG")]
    pub config: Option<PathBuf>,

    /// Where it keeps what outlives the process: records of tasks, compiled code; one for each plugin.
    /// Default: /var/lib/ostler-nomad-NAME, or below $HOME/.local/state
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
}
