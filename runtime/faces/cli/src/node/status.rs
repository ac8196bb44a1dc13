//! `ostler node status`

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::stats;
use crate::answer;
use crate::args::NodeStatusArgs;
use crate::connect::{self, CliError};
use crate::exit::Exit;
use crate::human;
use crate::output::{self, section, table};
use crate::state;
use crate::terminal::{TerminalInfo, one_line};
use ostler_agent::HeldReport;
use ostler_api::routes::endpoints as routes;
use ostler_model::device::{DeviceGroup, DeviceInstance, HealthState};
use ostler_node::NodeView;
use ostler_wire::NodeStub;

/// Show this node.
pub(super) async fn status(
    args: &NodeStatusArgs,
    terminal: &TerminalInfo,
) -> Result<Exit, CliError> {
    if args.stats {
        return show_with_stats(args, terminal).await;
    }
    let client = connect::find_agent(&args.of).await?;
    let node: NodeView = match &client {
        Some(client) => client.send(&routes::ReadNodeView::request([])).await?,
        None => connect::ask_own_agent(&args.of, |agent| (*agent.node()).clone()).await?,
    };
    answer::show(&node, || status_text(&node, terminal), terminal)?;
    if let Some(client) = client.filter(|_| !terminal.json) {
        let nodes = client.send(&routes::ListNodes::request([])).await?;
        if let Some(closed) = nodes.first().and_then(closed_reason) {
            output::print(&section("scheduling", closed, terminal), terminal)?;
        }
        let held = client.send(&routes::ListHeldRuns::request([])).await?;
        output::print(&held_text(&held, terminal), terminal)?;
    }
    Ok(Exit::Success)
}

/// Show the node and what it uses now. Only a running agent is asked: an agent that is started for
/// this command would measure itself.
async fn show_with_stats(args: &NodeStatusArgs, terminal: &TerminalInfo) -> Result<Exit, CliError> {
    let client = connect::connect(&args.of.address_args())?;
    let (node, stats) = (routes::ReadNodeView::request([]), routes::ReadNodeUsage::request([]));
    if terminal.json {
        let node = client.send(&node.read_as::<Value>()).await?;
        let stats = client.send(&stats.read_as::<Value>()).await?;
        output::print_json(&json!({ "node": node, "stats": stats }), terminal)?;
        return Ok(Exit::Success);
    }
    let (node, stats) = (client.send(&node).await?, client.send(&stats).await?);
    let text = status_text(&node, terminal) + &stats::text(&stats, terminal);
    output::print(&text, terminal)?;
    Ok(Exit::Success)
}

fn status_text(node: &NodeView, terminal: &TerminalInfo) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "node         {} ({})", one_line(&node.name), node.id);
    let _ = writeln!(text, "data center  {}", one_line(&node.datacenter));
    let _ = writeln!(text, "address      {}", node.host_ip);
    let (cpu, memory) = (node.resources.cpu_mhz, node.resources.memory_mb);
    let _ = writeln!(text, "resources    {cpu} MHz, {memory} MiB memory");
    let _ = if node.cores.ids.is_empty() {
        writeln!(text, "cores        none can be reserved: {}", one_line(&node.cores.missing))
    } else {
        writeln!(text, "cores        {} can be reserved", node.cores.ids)
    };
    let mut section =
        |title: &str, body: String| text.push_str(&output::section(title, &body, terminal));
    section("drivers", drivers(node, terminal) + &loading_text(node));
    section("devices", devices(node, terminal) + &failing_device_plugins(node));
    for group in node.devices.iter().filter(|group| !group.attributes.is_empty()) {
        let rows = group.attributes.iter().map(|a| [a.name.clone(), a.attribute.to_string()]);
        let title = format!("attributes of {}", one_line(&group.key.to_string()));
        section(&title, table(["ATTRIBUTE", "VALUE"], rows, terminal));
    }
    let attributes = node.attributes.iter().map(|(name, value)| [name.clone(), value.to_string()]);
    let of_drivers = node.drivers.iter().flat_map(|(driver, view)| {
        let prefix = format!("driver.{driver}.");
        view.attributes.iter().map(move |(name, value)| {
            let name =
                if name.starts_with(&prefix) { name.clone() } else { format!("{prefix}{name}") };
            [name, value.to_string()]
        })
    });
    let all = table(["ATTRIBUTE", "VALUE"], attributes.chain(of_drivers), terminal);
    section("attributes", all);
    if !node.meta.is_empty() {
        let meta = node.meta.iter().map(|(name, value)| [name.clone(), value.clone()]);
        section("meta", table(["NAME", "VALUE"], meta, terminal));
    }
    text
}

/// Why nothing new is placed on the node; `None` where new allocations are placed.
fn closed_reason(node: &NodeStub) -> Option<&'static str> {
    if node.drain {
        Some("being drained: nothing new is placed; `ostler node drain --disable` ends it\n")
    } else if node.scheduling_eligibility == "ineligible" {
        Some(
            "not eligible: nothing new is placed; `ostler node eligibility --enable` changes that\n",
        )
    } else {
        None
    }
}

/// What the agent found wrong with its state when it started; usually empty.
fn held_text(held: &HeldReport, terminal: &TerminalInfo) -> String {
    let mut text = String::new();
    if let Some(lacks) = held.lack_notice() {
        text.push_str(&section("state", &format!("{lacks}\n"), terminal));
    }
    if !held.runs.is_empty() {
        let runs = state::runs_text(&held.runs, terminal);
        text.push_str(&section("runs held back", &runs, terminal));
    }
    text
}

fn drivers(node: &NodeView, terminal: &TerminalInfo) -> String {
    if node.drivers.is_empty() {
        return "none\n".to_owned();
    }
    let rows = node.drivers.iter().map(|(name, view)| {
        let health = human::health(&view.health);
        [name.to_string(), view.version.clone(), health, view.capabilities.clone()]
    });
    table(["NAME", "VERSION", "HEALTH", "CAN"], rows, terminal)
}

/// A line about the plugins whose drivers and devices may still come.
fn loading_text(node: &NodeView) -> String {
    if node.loading.is_empty() {
        return String::new();
    }
    format!("plugins still loading: {}\n", one_line(&node.loading.join(", ")))
}

fn devices(node: &NodeView, terminal: &TerminalInfo) -> String {
    let rows: Vec<_> = node
        .devices
        .iter()
        .flat_map(|group| group.instances.iter().map(move |instance| device(group, instance)))
        .collect();
    if rows.is_empty() {
        return "none\n".to_owned();
    }
    table(["GROUP", "INSTANCE", "HEALTH", "LOCALITY", "PLUGIN"], rows, terminal)
}

/// Lines on device plugins that fail: such a plugin may have no device in the table.
fn failing_device_plugins(node: &NodeView) -> String {
    let failing = node.device_plugins.iter().filter(|(_, h)| h.state != HealthState::Healthy);
    failing.map(|(name, h)| format!("plugin {}\n", human::device_plugin(name, h))).collect()
}

fn device(group: &DeviceGroup, instance: &DeviceInstance) -> [String; 5] {
    [
        group.key.to_string(),
        instance.id.clone(),
        human::health(&instance.health),
        human::locality(instance.locality.as_ref()),
        group.plugin.to_string(),
    ]
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
