//! A task group, its network and what concerns its tasks together.

use std::collections::{BTreeMap, BTreeSet};

use super::super::diagnostic::{Span, shown};
use super::super::schema::{Schema, Shape};
use super::super::tree::{Block, Item};
use super::job::checked;
use super::{Context, Reader, constraint, health, restart, service, task};
use ostler_model::ids::{GroupName, JobId};
use ostler_model::job::{
    EphemeralDisk, JobKind, NetworkSpec, PortSpec, RestartPolicy, Service, Task, TaskGroup,
};
use ostler_model::limits::{EPHEMERAL_DISK_MB_MIN, GROUP_CHECKS_MAX};

/// What a group takes from its job.
#[derive(Clone, Copy)]
pub(super) struct Outer<'a> {
    /// Absent when it is wrong.
    pub job: Option<&'a JobId>,
    /// The job's kind.
    pub kind: JobKind,
    /// The job's `update` and `migrate`.
    pub rules: health::Rules,
}

/// The table of a block inside another. Absent only if the tables were wrong.
pub(super) fn inner(outer: &'static Schema, name: &str) -> Option<&'static Schema> {
    match outer.field(name)?.shape {
        Shape::Block { schema, .. } => Some(schema),
        _ => None,
    }
}

/// How many tasks a group block has, wrong ones included.
pub(super) fn task_blocks(block: &Block) -> u64 {
    let tasks = block
        .body
        .items
        .iter()
        .filter(|item| matches!(item, Item::Block(block) if block.key.name == "task"));
    u64::try_from(tasks.count()).unwrap_or(u64::MAX)
}

/// Decode a group.
pub(super) fn group(block: Block, outer: Outer<'_>, cx: &mut Context<'_>) -> Option<TaskGroup> {
    let schema = inner(&super::super::schema::JOB, "group")?;
    let kind = outer.kind;
    let header = block.key.span;
    let label = block.labels.into_iter().next()?;
    let name = checked(GroupName::new(label.name), label.span, cx);
    let mut reader = Reader::new(block.body, schema, cx);
    let count = count(&mut reader, kind, cx);
    let meta = reader.text_map("meta", cx);
    let constraints = constraint::constraints(reader.blocks("constraint"), cx);
    let policy = RestartPolicy::default_for(kind);
    let policy = restart::policy(reader.block("restart"), policy, cx);
    let rules = health::rules(&mut reader, schema, kind, outer.rules, cx);
    let health = health::policy(rules, kind, cx);
    health::told_at_once(rules, kind, count, cx);
    let ephemeral_disk = ephemeral_disk(reader.block("ephemeral_disk"), schema, cx);
    let network = network(reader.blocks("network"), schema, cx);
    let scope = service::Scope {
        job: outer.job.map(JobId::as_str),
        group: name.as_ref().map(GroupName::as_str),
        network: network.as_ref(),
    };
    let mut services = service::services(reader.blocks("service"), None, scope, cx);
    let tasks = tasks(&mut reader, header, policy, scope, &mut services, cx);
    check_count(&services, header, cx);
    let [shutdown_delay, max_run_duration] = ["shutdown_delay", "max_run_duration"]
        .map(|key| reader.duration(key, cx).map(|(time, _)| time).filter(|time| !time.is_zero()));
    reader.finish();
    Some(TaskGroup {
        name: name?,
        count,
        meta,
        constraints,
        network,
        tasks,
        shutdown_delay,
        ephemeral_disk,
        health,
        services,
        max_run_duration,
    })
}

fn count(reader: &mut Reader, kind: JobKind, cx: &mut Context<'_>) -> u32 {
    let count = reader.integer("count", 0..=i64::from(u32::MAX), cx);
    if let Some((count, at)) = count
        && count > 1
        && matches!(kind, JobKind::System | JobKind::Sysbatch)
    {
        cx.error(at, "a system job runs once on each node; count must be 0 or 1");
    }
    count.and_then(|(count, _)| u32::try_from(count).ok()).unwrap_or(1)
}

fn ephemeral_disk(
    block: Option<Block>,
    group: &'static Schema,
    cx: &mut Context<'_>,
) -> EphemeralDisk {
    let defaults = EphemeralDisk::default();
    let (Some(block), Some(schema)) = (block, inner(group, "ephemeral_disk")) else {
        return defaults;
    };
    let mut reader = Reader::new(block.body, schema, cx);
    let sizes = i64::from(EPHEMERAL_DISK_MB_MIN)..=i64::from(u32::MAX);
    let disk = EphemeralDisk {
        sticky: reader.boolean("sticky", cx).unwrap_or(defaults.sticky),
        migrate: reader.boolean("migrate", cx).unwrap_or(defaults.migrate),
        size_mb: reader.number("size", sizes, cx).unwrap_or(defaults.size_mb),
    };
    reader.finish();
    disk
}

/// All checks of an allocation are asked by one task of the agent.
fn check_count(services: &[Service], header: Span, cx: &mut Context<'_>) {
    let checks: usize = services.iter().map(|service| service.checks.len()).sum();
    if checks > GROUP_CHECKS_MAX {
        let message =
            format!("the group has {checks} checks; at most {GROUP_CHECKS_MAX} are allowed");
        cx.error(header, message);
    }
}

/// The tasks; their services are added to those of the group.
fn tasks(
    reader: &mut Reader,
    header: Span,
    policy: RestartPolicy,
    scope: service::Scope<'_>,
    services: &mut Vec<Service>,
    cx: &mut Context<'_>,
) -> Vec<Task> {
    let blocks = reader.blocks("task");
    if !reader.was_given("task") {
        let form = cx.name(
            "a group needs at least one task; write task \"name\" { … }",
            "Tasks must hold at least one task",
        );
        cx.error(header, form);
    }
    let is_empty = blocks.is_empty();
    let mut names = BTreeSet::new();
    let mut tasks = Vec::with_capacity(blocks.len());
    let mut leaders = 0_usize;
    let mut mains = 0_usize;
    for block in blocks {
        let Some(label) = block.labels.first().cloned() else {
            continue;
        };
        if !names.insert(label.name.clone()) {
            cx.error(label.span, format!("a task {} is here already", shown(&label.name)));
        }
        let decoded = task::task(block, policy, scope, cx);
        mains += usize::from(decoded.is_main);
        if decoded.is_leader {
            leaders += 1;
            if leaders == 2 {
                cx.error(label.span, "the group has a leader already; only one task can lead");
            }
            if !decoded.is_main {
                let message = "a task with a lifecycle cannot lead; the leader must be a main task";
                cx.error(label.span, message);
            }
        }
        tasks.extend(decoded.task);
        services.extend(decoded.services);
    }
    if mains == 0 && !is_empty {
        cx.error(header, "a group needs at least one main task: one without lifecycle");
    }
    tasks
}

fn network(
    blocks: Vec<Block>,
    group: &'static Schema,
    cx: &mut Context<'_>,
) -> Option<NetworkSpec> {
    let schema = inner(group, "network")?;
    let mut blocks = blocks.into_iter();
    let block = blocks.next()?;
    for more in blocks {
        cx.error(more.key.span, "a group has one network; put all ports into the first");
    }
    let mut reader = Reader::new(block.body, schema, cx);
    if let Some((mode, at)) = reader.text("mode", cx) {
        check_mode(&mode, at, cx);
    }
    let mut labels = BTreeSet::new();
    let mut fixed: BTreeMap<u16, String> = BTreeMap::new();
    let mut ports = Vec::new();
    for block in reader.blocks("port") {
        let at = block.labels.first().map_or(block.key.span, |label| label.span);
        let Some((port, static_at)) = port(block, schema, cx) else {
            continue;
        };
        if !labels.insert(port.label.clone()) {
            cx.error(at, format!("a port {} is here already", shown(&port.label)));
        }
        if let Some(number) = port.fixed
            && let Some(other) = fixed.insert(number, port.label.clone())
        {
            let message = format!("port {number} is taken by {} already", shown(&other));
            cx.error(static_at, message);
        }
        ports.push(port);
    }
    reader.finish();
    // JSON has two lists. In this order a job is the same whichever way it comes.
    ports.sort_by_key(|port| port.fixed.is_none());
    Some(NetworkSpec { ports })
}

fn check_mode(mode: &str, at: Span, cx: &mut Context<'_>) {
    match mode {
        "host" => {}
        "bridge" => {
            let message =
                "network mode bridge is valid in Nomad, not supported by Ostler yet; use host";
            cx.error(at, message);
        }
        "none" => {
            let message = "network mode none is valid in Nomad, not supported by Ostler for a group \
                           yet; use network_mode = \"none\" in the config of its tasks (driver exec)";
            cx.error(at, message);
        }
        _ if mode.starts_with("cni/") => {
            let message =
                "network mode cni is valid in Nomad, not supported by Ostler yet; use host";
            cx.error(at, message);
        }
        _ => {
            let instead = cx.sink.nearest(mode, ["host", "bridge", "none"]);
            cx.sink.suggest(at, format!("{} is no network mode; use host", shown(mode)), instead);
        }
    }
}

fn port(block: Block, network: &'static Schema, cx: &mut Context<'_>) -> Option<(PortSpec, Span)> {
    let schema = inner(network, "port")?;
    let label = block.labels.into_iter().next()?;
    let mut reader = Reader::new(block.body, schema, cx);
    let fixed = reader.integer("static", 1..=65_535, cx);
    // −1 is Nomad's word for: the same port as on the node.
    let to = reader.integer("to", -1..=65_535, cx);
    reader.finish();
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let name = label.name;
    if name.is_empty()
        || !name.chars().all(allowed)
        || name.len() > ostler_model::limits::NAME_BYTES_MAX
    {
        let message = format!(
            "port label {} becomes part of NOMAD_PORT_<label>: 1 to {} letters, digits and underscores",
            shown(&name),
            ostler_model::limits::NAME_BYTES_MAX
        );
        cx.error(label.span, message);
        return None;
    }
    let port = |(number, _): (i64, Span)| u16::try_from(number).ok().filter(|port| *port != 0);
    let at = fixed.map_or(label.span, |(_, at)| at);
    Some((PortSpec { label: name, fixed: fixed.and_then(port), to: to.and_then(port) }, at))
}
