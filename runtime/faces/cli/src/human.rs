//! Reports as text for people: the output of tasks as it is, everything else in a few words.

use super::output::short_id;
use super::report::{Label, OutputLine, PlacementReport, RenderBuffers, RunReport, TaskStream};
use super::terminal::{TerminalInfo, one_line, paint, plain, task_line};
use ostler_agent::{AllocResult, PluginEntry, PluginStatus};
use ostler_model::alloc::{AllocState, ClientStatus};
use ostler_model::cow_arc::CowArc;
use ostler_model::device::{Health, HealthState, Locality};
use ostler_model::event::{self, EventKind, TaskEvent};
use ostler_model::ids::{JobId, PluginName, TaskName};
use ostler_model::task::{ExitResult, TaskState};
use ostler_node::NodeView;

const DIM: &str = "2";
const RED: &str = "31";
const GREEN: &str = "32";
const YELLOW: &str = "33";
/// Colours of the tasks, in turn; none of them has another meaning.
const TASK_COLOURS: [&str; 6] = ["36", "35", "34", "96", "95", "94"];

/// Render a report for people: output of tasks for its own stream, the rest for standard error.
pub(super) fn render_human(report: &RunReport, terminal: &TerminalInfo, into: &mut RenderBuffers) {
    let colours = terminal.stderr_colours();
    let text = match report {
        RunReport::Output(line) => return render_output(line, terminal, into),
        RunReport::Node { node } => node_summary(node),
        RunReport::Plugin(entry) => plugin(entry, colours),
        RunReport::Notice { message } => {
            format!("{} {}", paint("notice:", YELLOW, colours), plain(message))
        }
        RunReport::Warning { rendered, .. } => rendered.trim_end().to_owned(),
        RunReport::Placed(placed) => placement(placed),
        RunReport::Event { event, label, .. } => task_event(event, label, colours),
        RunReport::EventsMissed { label, .. } => {
            format!("{}some events are not shown", prefix(label, colours))
        }
        RunReport::Status { alloc, name, status, description } => {
            let colour = match status {
                ClientStatus::Failed => RED,
                ClientStatus::Complete => GREEN,
                ClientStatus::Pending | ClientStatus::Running => "",
            };
            let status = paint(&status.to_string(), colour, colours && !colour.is_empty());
            let (name, why) = (one_line(name), one_line(description));
            format!("allocation {} of {name} is {status}: {why}", alloc.short())
        }
        RunReport::Health { alloc, name, healthy } => {
            let (word, colour) = if *healthy { ("healthy", GREEN) } else { ("unhealthy", RED) };
            let word = paint(word, colour, colours);
            format!("allocation {} of {} is {word}", alloc.short(), one_line(name))
        }
        RunReport::Progress { message } => paint(&plain(message), DIM, colours),
        RunReport::Error(failure) => {
            let message =
                format!("{} {}", paint("error:", "1;31", colours), plain(&failure.message));
            format!("{}{message}", failure.rendered)
        }
        RunReport::Result { job, successful, exit_code, allocs } => {
            result(job, *successful, *exit_code, allocs, colours)
        }
    };
    if !text.is_empty() {
        into.stderr.extend_from_slice(text.as_bytes());
        into.stderr.push(b'\n');
    }
}

fn prefix(label: &Label, colours: bool) -> String {
    let colour = TASK_COLOURS.get(label.number % TASK_COLOURS.len()).copied().unwrap_or(DIM);
    paint(&format!("{} |", label.text), colour, colours) + " "
}

fn render_output(line: &OutputLine, terminal: &TerminalInfo, into: &mut RenderBuffers) {
    if line.skipped_bytes > 0 {
        let prefix = prefix(&line.label, terminal.stderr_colours());
        let skipped = line.skipped_bytes;
        let text =
            format!("{prefix}({skipped} bytes were rotated away before they could be shown)\n");
        into.stderr.extend_from_slice(text.as_bytes());
        if line.bytes.is_empty() && !line.complete {
            return;
        }
    }
    let (out, is_terminal, colours) = match line.stream {
        TaskStream::Stdout => (&mut into.stdout, terminal.stdout, terminal.stdout_colours()),
        TaskStream::Stderr => (&mut into.stderr, terminal.stderr, terminal.stderr_colours()),
    };
    out.extend_from_slice(prefix(&line.label, colours).as_bytes());
    if is_terminal {
        // The next line must not have the colour of this one.
        if task_line(&line.bytes, out) {
            out.extend_from_slice(b"\x1b[0m");
        }
    } else {
        out.extend_from_slice(&line.bytes);
    }
    out.push(b'\n');
}

fn node_summary(node: &NodeView) -> String {
    let attribute = |name: &str| {
        node.attributes.get(name).map(|a| one_line(&a.to_string())).unwrap_or_default()
    };
    let id = short_id(&node.id.to_string());
    let mut text = format!(
        "node {} ({id}): {} {}, {} cores, {} MHz, {} MiB memory",
        plain(&node.name),
        attribute("os.name"),
        attribute("cpu.arch"),
        attribute("cpu.numcores"),
        node.resources.cpu_mhz,
        node.resources.memory_mb,
    );
    let drivers: Vec<String> = node
        .drivers
        .iter()
        .map(|(name, driver)| format!("{name} ({})", health(&driver.health)))
        .collect();
    if !drivers.is_empty() {
        text.push_str(&format!("\n  drivers: {}", drivers.join(", ")));
    }
    let devices: Vec<String> = node
        .devices
        .iter()
        .map(|group| format!("{} × {}", group.instances.len(), one_line(&group.key.to_string())))
        .collect();
    if !devices.is_empty() {
        text.push_str(&format!("\n  devices: {}", devices.join(", ")));
    }
    for (name, found) in &node.device_plugins {
        if found.state != HealthState::Healthy {
            text.push_str(&format!("\n  device plugin {}", device_plugin(name, found)));
        }
    }
    text
}

/// A health as one word and its reason.
pub(super) fn health(health: &Health) -> String {
    use HealthState::{Healthy, Undetected, Unhealthy};
    let state = match health.state {
        Healthy => "healthy",
        Unhealthy => "unhealthy",
        Undetected => "undetected",
    };
    match (health.state, health.reason.as_str()) {
        (Healthy, _) | (_, "") => state.to_owned(),
        (_, reason) => format!("{state}: {}", one_line(reason)),
    }
}

/// The text on a device plugin that does not work, or that found no device.
pub(super) fn device_plugin(name: &PluginName, found: &Health) -> String {
    match (found.state, found.reason.as_str()) {
        (HealthState::Undetected, "") => format!("{name}: no device found"),
        (HealthState::Undetected, reason) => {
            format!("{name}: no device found ({})", one_line(reason))
        }
        _ => format!("{name} is {}", health(found)),
    }
}

/// Where in the machine a device is; empty when that is not known.
pub(super) fn locality(locality: Option<&Locality>) -> String {
    let Some(Locality { pci_bus_id, numa_node }) = locality else { return String::new() };
    let numa = numa_node.map(|node| format!("numa {node}"));
    pci_bus_id.clone().into_iter().chain(numa).collect::<Vec<_>>().join(" ")
}

/// A line on a plugin that is refused. Plugins in use are in the summary of the node and have none.
fn plugin(entry: &PluginEntry, colours: bool) -> String {
    let PluginStatus::Refused(reason) = &entry.status else { return String::new() };
    let refused = paint("refused", RED, colours);
    let (name, source) = (plain(entry.own_name()), plain(&entry.source));
    format!("plugin {name} ({source}) is {refused}: {}", plain(reason))
}

fn placement(placed: &PlacementReport) -> String {
    let (name, alloc) = (one_line(&placed.name), placed.alloc.short());
    let mut text = format!("placed {name} as allocation {alloc}");
    if let Some(failed) = placed.follows {
        text.push_str(&format!(", in place of {} that failed", failed.short()));
    }
    for port in &placed.ports {
        let (label, ip) = (one_line(&port.label), one_line(&port.host_ip));
        text.push_str(&format!("\n  port {label}: {ip}:{}", port.value));
    }
    for (task, devices) in &placed.devices {
        for device in devices {
            let (group, ids) = (device.group.to_string(), device.ids.join(", "));
            text.push_str(&format!("\n  {task}: {} [{}]", one_line(&group), one_line(&ids)));
        }
    }
    text
}

fn task_event(event: &TaskEvent, label: &Label, colours: bool) -> String {
    let time = event.time.to_string();
    // Of 2026-01-02T03:04:05Z the time of day.
    let time = paint(time.get(11..19).unwrap_or(&time), DIM, colours);
    let kind = if event.fails_task {
        paint(event.kind.as_str(), RED, colours)
    } else {
        event.kind.as_str().to_owned()
    };
    let (prefix, message) = (prefix(label, colours), one_line(&event.message));
    match message.as_str() {
        "" => format!("{prefix}{time} {kind}"),
        message => format!("{prefix}{time} {kind}: {message}"),
    }
}

fn result(
    job: &JobId,
    successful: bool,
    exit_code: u8,
    allocs: &[AllocResult],
    colours: bool,
) -> String {
    let mut text = match (successful, exit_code) {
        (true, 0) => format!("job {job} is {}", paint("complete", GREEN, colours)),
        (true, _) => format!("job {job} was stopped"),
        (false, _) => {
            format!("job {job} {} with exit code {exit_code}", paint("failed", RED, colours))
        }
    };
    text.extend(allocs.iter().map(|alloc| failures(&alloc.name, &alloc.state)));
    text
}

/// A line for each failed task of an allocation, with the reason.
pub(super) fn failures(alloc: &str, state: &AllocState) -> String {
    let failed = state.tasks.iter().filter(|(_, state)| state.failed);
    let line = |(task, state): (&TaskName, &CowArc<TaskState>)| {
        let why = one_line(&why_failed(state));
        format!("\n  task {task} of {} failed: {why}", one_line(alloc))
    };
    failed.map(line).collect()
}

/// Why a task failed, in the words of the event that says so.
fn why_failed(state: &TaskState) -> String {
    let kinds: Vec<_> = state.events.iter().map(|e| (e.kind.as_str(), e.fails_task)).collect();
    let event = event::index_of_reason(&kinds).and_then(|index| state.events.get(index));
    match (event, &state.last_exit) {
        (Some(event), None) => event.message.clone(),
        (Some(event), _) if event.kind != EventKind::Terminated => event.message.clone(),
        (_, Some(exit)) => exit_text(exit),
        (None, None) => String::new(),
    }
}

fn exit_text(exit: &ExitResult) -> String {
    let code = (exit.exit_code != 0).then(|| format!("exit code {}", exit.exit_code));
    let parts: Vec<String> = exit.cause().into_iter().chain(code).collect();
    if parts.is_empty() { "exit code 0".to_owned() } else { parts.join(", ") }
}

#[cfg(test)]
#[path = "human_tests.rs"]
mod tests;
