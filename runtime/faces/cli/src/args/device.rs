//! `ostler device …`

use clap::{Args, Subcommand};

use super::AgentArgs;
use super::client::{AddressArgs, CredentialArgs, examples};

/// Commands on devices.
#[derive(Debug, Subcommand)]
pub(crate) enum DeviceCommand {
    /// List the devices with their health and the tasks that use them
    List(DeviceListArgs),
    /// Show one device: the task that uses it, its attributes, what it measures
    Status(DeviceStatusArgs),
}

/// `ostler device list`.
#[derive(Debug, Args)]
#[command(
    long_about = "List the devices of the node, group by group: health with its reason, the \
        task that uses each, its bus address and NUMA node, its main measurement, and the plugin. \
        A job asks for devices with a device block; `ostler job plan` says which it would get and \
        why.\n\nA running agent is asked; if there is none, one is started for this command alone.",
    after_long_help = examples!("\
Examples:
  ostler device list
  ostler device list --data-dir ./data       of the agent with this data directory
  ostler device list --json | jq '.[] | select(.plugin == \"nvidia\").instances[].id'
")
)]
pub(crate) struct DeviceListArgs {
    /// Print the groups with everything known of each device as JSON
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub of: AgentSource,
}

/// `ostler device status`.
#[derive(Debug, Args)]
#[command(
    long_about = "Show one device: health with its reason, the task that uses it, \
        its bus address and NUMA node, the attributes constraints can ask about, and everything it \
        measures. Old statistics say why they are old.\n\n\
        The device is given by its id in the group or the beginning of it; where several groups \
        have such a one, by group and id as `ostler device list` shows them: vendor/type/name/id.",
    after_long_help = examples!("\
Examples:
  ostler device status 0000:3b:00.0
  ostler device status nvidia/gpu/H100/GPU-7
  ostler device status --json 0000:3b:00.0 | jq '.instances[0].stats'
")
)]
pub(crate) struct DeviceStatusArgs {
    /// The device: its id, the beginning of it, or vendor/type/name/id
    #[arg(value_name = "DEVICE")]
    pub device: String,

    /// Print the device in its group as one JSON object
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub of: AgentSource,
}

/// Which agent is asked, or how one is started.
#[derive(Debug, Args)]
pub(crate) struct AgentSource {
    /// Ask the agent at this address, as unix:///path/of/ostler.sock or https://node1.example:4646
    #[arg(long, value_name = "ADDRESS", env = "OSTLER_ADDR", hide_env_values = true)]
    pub address: Option<String>,

    #[command(flatten)]
    pub credentials: CredentialArgs,

    #[command(flatten)]
    pub agent: AgentArgs,
}

impl AgentSource {
    /// The address of a running agent.
    pub(crate) fn address_args(&self) -> AddressArgs {
        AddressArgs {
            address: self.address.clone(),
            data_dir: self.agent.data_dir.clone(),
            namespace: None,
            credentials: self.credentials.clone(),
        }
    }
}
