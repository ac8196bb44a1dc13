//! `ostler alloc status`

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::answer;
use crate::args::alloc::AllocStatusArgs;
use crate::connect::{self, CliError};
use crate::exit::Exit;
use crate::output::{self, age_text, section, table};
use crate::report::PlacementReport;
use crate::stat_values;
use crate::terminal::{TerminalInfo, one_line};
use ostler_agent::{EventTopic, KeptEvent};
use ostler_api::client::ApiClient;
use ostler_api::routes::{QueryKey, endpoints as routes};
use ostler_explain::fold;
use ostler_model::clock::Clock;
use ostler_model::cores::CoreSet;
use ostler_model::ids::{AllocId, NAMESPACE};
use ostler_model::limits::MIB;
use ostler_model::task::TaskStatus;
use ostler_model::time::Timestamp;
use ostler_model::words::format_bytes;
use ostler_wire::{
    Alloc, AllocUsage, AllocatedPortMapping, CheckQueryResult, Cpu, ResourceUsage,
    TaskLifecycleConfig, TaskResources, WireTaskEvent, WireTaskState,
};

/// How times and ids are shown.
#[derive(Clone, Copy)]
struct StatusStyle {
    now: Timestamp,
    /// Whether ids and times are shown in full.
    verbose: bool,
    terminal: TerminalInfo,
}

impl StatusStyle {
    fn id(&self, id: AllocId) -> String {
        if self.verbose { id.to_string() } else { id.short() }
    }

    fn time(&self, at: Timestamp) -> String {
        match (self.verbose, at == Timestamp::default()) {
            (_, true) => String::new(),
            (true, false) => at.to_string(),
            (false, false) => age_text(at, self.now),
        }
    }
}

/// List allocations, or show one.
pub(super) async fn status(
    args: &AllocStatusArgs,
    verbose: bool,
    terminal: &TerminalInfo,
) -> Result<Exit, CliError> {
    let client = connect::connect(&args.answer.agent)?;
    let style = StatusStyle { now: Clock::system().now(), verbose, terminal: *terminal };
    let Some(given) = &args.alloc else {
        let request = connect::in_namespaces(&client, routes::ListAllocs::request([]));
        let text = |mut allocs: Vec<Alloc>| list_text(&mut allocs, style);
        return answer::get(&client, request, text, terminal).await;
    };
    let id = connect::find_alloc(&client, given).await?;
    show_alloc(&client, id, args, style).await?;
    Ok(Exit::Success)
}

fn list_text(allocs: &mut [Alloc], style: StatusStyle) -> String {
    if allocs.is_empty() {
        return "no allocations\n".to_owned();
    }
    // Newest first: people mostly look for those.
    allocs.sort_by(|a, b| b.create_time.cmp(&a.create_time).then(a.name.cmp(&b.name)));
    // On a terminal, columns that say the same of all rows are left out. Other programs find every
    // column in its place.
    let short = style.terminal.stdout && !style.verbose;
    let one = short && allocs.iter().all(|alloc| alloc.namespace == NAMESPACE);
    let calm = |alloc: &Alloc| alloc.task_states.values().all(|task| task.restarts == 0);
    let calm = short && allocs.iter().all(calm);
    let unless = |left_out: bool, text: String| if left_out { String::new() } else { text };
    let rows = allocs.iter().map(|alloc| {
        let restarts: u64 = alloc.task_states.values().map(|task| task.restarts).sum();
        [
            style.id(alloc.id),
            alloc.name.to_string(),
            unless(one, alloc.namespace.to_string()),
            alloc.version().to_string(),
            alloc.desired_word().to_owned(),
            alloc.client_status.to_string(),
            health(alloc).to_owned(),
            unless(calm, restarts.to_string()),
            style.time(alloc.create_time),
            unless(short, style.time(alloc.modify_time)),
            alloc.description().to_owned(),
        ]
    });
    let header = [
        "ID",
        "NAME",
        "NAMESPACE",
        "VERSION",
        "DESIRED",
        "STATUS",
        "HEALTH",
        "RESTARTS",
        "CREATED",
        "MODIFIED",
        "WHY",
    ];
    table(header, rows, &style.terminal)
}

/// The health of an allocation in a word; empty where its health is not checked.
fn health(alloc: &Alloc) -> &'static str {
    match alloc.deployment_status.as_ref().map(|status| status.healthy) {
        None => "",
        Some(None) => "unset",
        Some(Some(true)) => "healthy",
        Some(Some(false)) => "unhealthy",
    }
}

async fn show_alloc(
    client: &ApiClient,
    id: AllocId,
    args: &AllocStatusArgs,
    style: StatusStyle,
) -> Result<(), CliError> {
    let (read, stats) = (routes::ReadAlloc::request([&id]), routes::ReadAllocUsage::request([&id]));
    let checks = routes::ListAllocChecks::request([&id]);
    if style.terminal.json {
        let mut alloc = client.send(&read.read_as::<Value>()).await?;
        let checks = client.send(&checks.read_as::<Value>()).await.unwrap_or_default();
        if let Some(alloc) = alloc.as_object_mut()
            && checks.as_object().is_some_and(|checks| !checks.is_empty())
        {
            alloc.insert("Checks".to_owned(), checks);
        }
        if args.stats {
            let stats = client.send(&stats.read_as::<Value>()).await?;
            alloc = json!({ "allocation": alloc, "stats": stats });
        }
        return Ok(output::print_json(&alloc, &style.terminal)?);
    }
    let alloc = client.send(&read).await?;
    let usage = if args.stats { Some(client.send(&stats).await?) } else { None };
    let mut text = facts(&alloc, style);
    text.push_str(&ports(&alloc, style));
    text.push_str(&tasks(&alloc, style));
    let checks = client.send(&checks).await.unwrap_or_default();
    text.push_str(&checks_text(&checks, style));
    if let Some(usage) = &usage {
        text.push_str(&usage_text(&alloc, usage, style));
    }
    text.push_str(&devices(&alloc, style));
    let kept = routes::ListNodeEvents::request([])
        .with(QueryKey::Namespace, "*")
        .with(QueryKey::Topic, EventTopic::Task.as_str())
        .with(QueryKey::Alloc, id)
        .read_as::<KeptEvents>();
    // The allocation itself keeps fewer events; an older agent has no such list.
    let kept = client.send(&kept).await.unwrap_or_default();
    text.push_str(&events(&alloc, &kept.events, style));
    Ok(output::print(&text, &style.terminal)?)
}

fn facts(alloc: &Alloc, style: StatusStyle) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| output::fact(&mut text, 12, name, value);
    let with = |word: &str, why: &str| match why {
        "" => word.to_owned(),
        why => format!("{word}: {why}"),
    };
    line("allocation", &alloc.id.to_string());
    line("name", &alloc.name);
    line("job", &format!("{} (version {})", alloc.job_id, alloc.version()));
    line("node", &alloc.node_name);
    line("status", &with(&alloc.client_status.to_string(), &alloc.client_description));
    line("desired", &with(alloc.desired_word(), &alloc.desired_description));
    line("health", health(alloc));
    line("created", &style.time(alloc.create_time));
    line("modified", &style.time(alloc.modify_time));
    line("replaces", alloc.previous_allocation.iter().flatten().next().map_or("", |id| id));
    if let Some(given) = alloc.allocated_resources.as_ref().filter(|g| g.shared.disk_mib > 0) {
        line("disk", &format!("{} MiB", given.shared.disk_mib));
    }
    text
}

fn ports(alloc: &Alloc, style: StatusStyle) -> String {
    let ports: &[AllocatedPortMapping] =
        alloc.allocated_resources.as_ref().map_or(&[], |given| &given.shared.ports);
    if ports.is_empty() {
        return String::new();
    }
    let rows = ports.iter().map(|port| {
        let to = if port.to == 0 { String::new() } else { port.to.to_string() };
        [port.label.to_string(), format!("{}:{}", port.host_ip, port.value), to]
    });
    let ports = table(["LABEL", "ADDRESS", "TO"], rows, &style.terminal);
    section("ports", &ports, &style.terminal)
}

/// The share of the processor that a task has.
fn processor(cpu: &Cpu) -> String {
    let cores: CoreSet = cpu.reserved_cores.iter().copied().collect();
    match cores.len() {
        0 => format!("{} MHz", cpu.cpu_shares),
        1 => format!("core {cores}, {} MHz", cpu.cpu_shares),
        _ => format!("cores {cores}, {} MHz", cpu.cpu_shares),
    }
}

fn tasks(alloc: &Alloc, style: StatusStyle) -> String {
    if alloc.task_states.is_empty() {
        return section("tasks", "none yet\n", &style.terminal);
    }
    let rows = alloc.task_states.iter().map(|(name, state)| {
        let given = task_resources(alloc, name);
        [
            name.to_string(),
            lifecycle(alloc, name),
            task_status(state).to_owned(),
            state.restarts.to_string(),
            short_time(state.started_at.as_deref()),
            short_time(state.finished_at.as_deref()),
            short_time(state.last_restart.as_deref()),
            given.map(|given| processor(&given.cpu)).unwrap_or_default(),
            given.map(|given| format!("{} MiB", given.memory.mib)).unwrap_or_default(),
        ]
    });
    let header = [
        "TASK",
        "LIFECYCLE",
        "STATE",
        "RESTARTS",
        "STARTED",
        "FINISHED",
        "LAST RESTART",
        "CPU",
        "MEMORY",
    ];
    section("tasks", &table(header, rows, &style.terminal), &style.terminal)
}

fn checks_text(checks: &BTreeMap<String, CheckQueryResult>, style: StatusStyle) -> String {
    if checks.is_empty() {
        return String::new();
    }
    let mut checks: Vec<_> = checks.values().collect();
    checks.sort_by(|a, b| (&a.service, &a.task, &a.check).cmp(&(&b.service, &b.task, &b.check)));
    let rows = checks.iter().map(|check| {
        let at = Timestamp::from_nanos(check.timestamp.saturating_mul(1_000_000_000));
        let output = one_line(check.output.lines().next().unwrap_or_default());
        let (service, task) = (check.service.to_string(), check.task.to_string());
        [service, task, check.check.to_string(), check.status.to_string(), style.time(at), output]
    });
    let header = ["SERVICE", "TASK", "CHECK", "STATUS", "ANSWERED", "OUTPUT"];
    section("checks", &table(header, rows, &style.terminal), &style.terminal)
}

fn task_resources<'a>(alloc: &'a Alloc<'_>, task: &str) -> Option<&'a TaskResources<'a>> {
    alloc.allocated_resources.as_ref()?.tasks.get(task)
}

fn lifecycle(alloc: &Alloc, task: &str) -> String {
    let of = alloc.allocated_resources.as_ref().and_then(|given| given.task_lifecycles.get(task));
    match of {
        Some(Some(TaskLifecycleConfig { hook, sidecar: true })) => format!("{hook} sidecar"),
        Some(Some(TaskLifecycleConfig { hook, sidecar: false })) => hook.to_string(),
        _ => "main".to_owned(),
    }
}

const fn task_status(state: &WireTaskState) -> &'static str {
    match (state.state, state.failed) {
        (TaskStatus::Pending, _) => "pending",
        (TaskStatus::Running, _) => "running",
        (TaskStatus::Dead, false) => "dead",
        (TaskStatus::Dead, true) => "dead, failed",
    }
}

/// A time like 2026-01-02T03:04:05.678901234Z without the fraction of its second; empty for
/// "never".
fn short_time(text: Option<&str>) -> String {
    match text {
        None => String::new(),
        Some(text) if text.starts_with("0001-") => String::new(),
        Some(text) => match text.split_once('.') {
            Some((seconds, _)) => format!("{seconds}Z"),
            None => text.to_owned(),
        },
    }
}

fn usage_text(alloc: &Alloc, usage: &AllocUsage, style: StatusStyle) -> String {
    let mut text = section("in use", "", &style.terminal);
    if usage.tasks.is_empty() {
        return text + "nothing is measured: no task runs, or its driver does not measure\n";
    }
    let rows = usage.tasks.iter().map(|(name, usage)| {
        let (cpu, memory) = usage_cells(&usage.resource_usage, task_resources(alloc, name));
        [name.to_string(), cpu, memory]
    });
    text.push_str(&table(["TASK", "CPU", "MEMORY"], rows, &style.terminal));
    text.push_str(&device_usage_text(usage, style));
    text
}

/// What the devices of each task measure: with --verbose every value, else only the summary.
fn device_usage_text(usage: &AllocUsage, style: StatusStyle) -> String {
    let mut rows = Vec::new();
    for (task, usage) in &usage.tasks {
        for group in &usage.resource_usage.device_stats {
            let stale = group.stale.as_ref().map(|why| format!("stale: {why}"));
            for (id, instance) in &group.instance_stats {
                let mut row = |name: &str, value: String| {
                    let stale = stale.clone().unwrap_or_default();
                    let (task, id) = (task.to_string(), id.to_string());
                    rows.push([task, group.group(), id, name.into(), value, stale]);
                };
                row("summary", stat_values::value(instance.summary.as_ref()));
                if style.verbose {
                    for [name, value] in stat_values::rows(&instance.stats) {
                        row(&name, value);
                    }
                }
            }
        }
    }
    if rows.is_empty() {
        return String::new();
    }
    let header = ["TASK", "GROUP", "DEVICE", "MEASURED", "VALUE", ""];
    section("devices in use", &table(header, rows, &style.terminal), &style.terminal)
}

/// The cells for processor and memory. What is not measured is not shown as zero.
fn usage_cells(usage: &ResourceUsage, given: Option<&TaskResources>) -> (String, String) {
    let (cpu, memory) = (&usage.cpu_stats, &usage.memory_stats);
    let cpu = match (cpu.measured.is_empty(), given) {
        (true, _) => "not measured".to_owned(),
        (false, Some(given)) if cpu.total_ticks > 0.0 => format!(
            "{:.1} % of a core, {:.0} of {} MHz",
            cpu.percent, cpu.total_ticks, given.cpu.cpu_shares
        ),
        (false, _) => format!("{:.1} % of a core", cpu.percent),
    };
    let memory = match (memory.measured.is_empty(), given) {
        (true, _) => "not measured".to_owned(),
        (false, Some(given)) => {
            format!(
                "{} of {}",
                format_bytes(memory.rss),
                format_bytes(given.memory.mib.saturating_mul(MIB))
            )
        }
        (false, None) => format_bytes(memory.rss),
    };
    (cpu, memory)
}

fn devices(alloc: &Alloc, style: StatusStyle) -> String {
    let placed = PlacementReport::from(alloc);
    let rows = placed.devices.iter().flat_map(|(task, devices)| {
        devices.iter().map(move |of| [task.to_string(), of.group.to_string(), of.ids.join(", ")])
    });
    if placed.devices.is_empty() {
        return String::new();
    }
    let devices = table(["TASK", "GROUP", "INSTANCES"], rows, &style.terminal);
    section("devices", &devices, &style.terminal)
}

/// What the agent's list of events says.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct KeptEvents {
    events: Vec<KeptEvent>,
}

/// The events of each task. Repetitions of an event are one row, in the place of the last of them.
/// The agent's list `kept` counts further back than the allocation.
fn events(alloc: &Alloc, kept: &[KeptEvent], style: StatusStyle) -> String {
    let mut text = String::new();
    for (task, state) in &alloc.task_states {
        let title = format!("events of {}", one_line(task));
        text.push_str(&section(&title, "", &style.terminal));
        let there = u64::try_from(state.events.len()).unwrap_or(u64::MAX);
        if state.events_total > there {
            let _ = writeln!(text, "({} older ones are not kept)", state.events_total - there);
        }
        let key = |event: &&WireTaskEvent| {
            let message = fold::message_key(&event.kind, &event.display_message).to_owned();
            (event.kind.to_string(), message, event.fails_task)
        };
        let rows = fold::fold(&state.events, key, |event| event.time).into_iter().map(|one| {
            let event = one.event;
            let times = one.times.max(event_count(kept, task, event));
            let again = match times {
                0 | 1 => String::new(),
                times => format!(" (x{times}, last {})", age_text(one.last, style.now)),
            };
            let fails = if event.fails_task { "fails the task" } else { "" };
            let (kind, message) =
                (event.kind.to_string(), format!("{}{again}", event.display_message));
            [event.time.to_string(), kind, message, fails.to_owned()]
        });
        text.push_str(&table(["TIME", "EVENT", "MESSAGE", ""], rows, &style.terminal));
    }
    text
}

/// How often the agent has seen the same event of a task.
fn event_count(kept: &[KeptEvent], task: &str, event: &WireTaskEvent) -> u64 {
    let message = fold::message_key(&event.kind, &event.display_message);
    let same = |one: &&KeptEvent| {
        let what = &one.what;
        what.task == task
            && what.kind == event.kind
            && fold::message_key(&what.kind, &what.message) == message
    };
    kept.iter().rev().find(same).map_or(0, |one| one.times)
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
