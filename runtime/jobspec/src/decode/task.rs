//! A task.

use std::time::Duration;

use super::super::diagnostic::{Span, shown};
use super::super::schema::Schema;
use super::super::tree::Block;
use super::group::inner;
use super::job::checked;
use super::{Context, Reader, constraint, resources, restart, service};
use ostler_model::ids::{PluginName, TaskName};
use ostler_model::job::{Lifecycle, LifecycleHook, LogConfig, RestartPolicy, Service, Task};
use ostler_model::json::JsonObject;
use ostler_model::limits::{KILL_TIMEOUT_DEFAULT, KILL_TIMEOUT_MAX};
use ostler_model::signal::SIGNALS;

/// Stands beside the tasks' directories in the allocation's.
const SHARED_DIRECTORY: &str = "alloc";

const HOOKS: [(&str, LifecycleHook); 3] = [
    ("prestart", LifecycleHook::Prestart),
    ("poststart", LifecycleHook::Poststart),
    ("poststop", LifecycleHook::Poststop),
];

/// A task block as far as it could be read.
pub(super) struct Decoded {
    /// Absent when something essential is missing.
    pub task: Option<Task>,
    /// `leader = true`.
    pub is_leader: bool,
    /// No `lifecycle` block.
    pub is_main: bool,
    /// What it offers.
    pub services: Vec<Service>,
}

/// Decode a task; `policy` is its group's.
pub(super) fn task(
    block: Block,
    policy: RestartPolicy,
    scope: service::Scope<'_>,
    cx: &mut Context<'_>,
) -> Decoded {
    let services = Vec::new();
    let mut decoded = Decoded { task: None, is_leader: false, is_main: true, services };
    let group = inner(&super::super::schema::JOB, "group");
    let Some(schema) = group.and_then(|group| inner(group, "task")) else {
        return decoded;
    };
    let header = block.key.span;
    let Some(label) = block.labels.into_iter().next() else {
        return decoded;
    };
    if label.name == SHARED_DIRECTORY {
        let message = "a task cannot be called alloc: the shared directory has that name";
        cx.error(label.span, message);
    }
    let name = checked(TaskName::new(label.name), label.span, cx);
    let mut reader = Reader::new(block.body, schema, cx);
    let driver = driver(&mut reader, header, cx);
    let lifecycle_block = reader.block("lifecycle");
    decoded.is_main = lifecycle_block.is_none();
    decoded.is_leader = reader.boolean("leader", cx).unwrap_or(false);
    let services = reader.blocks("service");
    if let Some(name) = &name {
        decoded.services = service::services(services, Some(name), scope, cx);
    }
    let config_at = reader.place("config").unwrap_or(header);
    let (config, mut places) = reader.free_with_places("config", cx);
    places.insert(String::new(), config_at);
    if let (Some(group), Some(name)) = (scope.group, &name) {
        cx.places.insert(group, name.as_str(), places);
    }
    let task = assemble(name, driver, policy, lifecycle_block, &mut reader, schema, cx);
    decoded.task = task.map(|task| Task { leader: decoded.is_leader, config, ..task });
    reader.finish();
    decoded
}

fn assemble(
    name: Option<TaskName>,
    driver: Option<PluginName>,
    policy: RestartPolicy,
    lifecycle_block: Option<Block>,
    reader: &mut Reader,
    schema: &'static Schema,
    cx: &mut Context<'_>,
) -> Option<Task> {
    let env = reader.text_map("env", cx);
    let meta = reader.text_map("meta", cx);
    let constraints = constraint::constraints(reader.blocks("constraint"), cx);
    let resources = resources::resources(reader.block("resources"), schema, cx);
    let restart = restart::policy(reader.block("restart"), policy, cx);
    let kill_timeout = kill_timeout(reader, cx);
    let kill_signal = reader.text("kill_signal", cx).and_then(|given| signal(given, cx));
    let lifecycle = lifecycle_block.and_then(|block| lifecycle(block, schema, cx));
    let logs = logs(reader.block("logs"), schema, cx);
    let user = reader.text("user", cx).map(|(user, _)| user).filter(|user| !user.is_empty());
    let shutdown_delay = reader.duration("shutdown_delay", cx).map(|(delay, _)| delay);
    Some(Task {
        name: name?,
        driver: driver?,
        config: JsonObject::default(),
        env,
        meta,
        constraints,
        resources,
        restart,
        kill_timeout,
        kill_signal,
        leader: false,
        lifecycle,
        logs,
        user,
        shutdown_delay: shutdown_delay.filter(|delay| !delay.is_zero()),
    })
}

/// How long the task may take to stop. The agent waits no longer than it is willing to.
fn kill_timeout(reader: &mut Reader, cx: &mut Context<'_>) -> Duration {
    let Some((timeout, at)) = reader.duration("kill_timeout", cx) else {
        return KILL_TIMEOUT_DEFAULT;
    };
    if timeout > KILL_TIMEOUT_MAX {
        let message = format!(
            "{} of {} is longer than this agent waits: a task is killed after {}",
            cx.name("kill_timeout", "KillTimeout"),
            humantime::format_duration(timeout),
            humantime::format_duration(KILL_TIMEOUT_MAX),
        );
        cx.sink.warn(at, message);
    }
    timeout
}

fn driver(reader: &mut Reader, header: Span, cx: &mut Context<'_>) -> Option<PluginName> {
    let Some((driver, at)) = reader.text("driver", cx) else {
        // A driver of a wrong type was reported where it stands.
        if !reader.was_given("driver") {
            let form = cx.name(
                "a task needs a driver; write driver = \"exec\" or another",
                "a task needs a Driver",
            );
            cx.error(header, form);
        }
        return None;
    };
    checked(PluginName::new(driver), at, cx)
}

fn signal((name, at): (String, Span), cx: &mut Context<'_>) -> Option<String> {
    if SIGNALS.contains(&name.as_str()) {
        return Some(name);
    }
    if name.is_empty() {
        return None;
    }
    let full = format!("SIG{}", name.to_ascii_uppercase().trim_start_matches("SIG"));
    let instead = cx.sink.nearest(&full, SIGNALS);
    let message = format!("{} is no signal; write for example \"SIGTERM\"", shown(&name));
    cx.sink.suggest(at, message, instead);
    None
}

fn lifecycle(block: Block, task: &'static Schema, cx: &mut Context<'_>) -> Option<Lifecycle> {
    let header = block.key.span;
    let mut reader = Reader::new(block.body, inner(task, "lifecycle")?, cx);
    let given = reader.text("hook", cx);
    if given.is_none() && !reader.was_given("hook") {
        let form = cx.name(
            "lifecycle needs a hook: prestart, poststart or poststop",
            "Lifecycle needs a Hook: prestart, poststart or poststop",
        );
        cx.error(header, form);
    }
    let hook = cx.choice("lifecycle hook", given, &HOOKS);
    let sidecar = reader.boolean("sidecar", cx).unwrap_or(false);
    reader.finish();
    Some(Lifecycle { hook: hook?, sidecar })
}

fn logs(block: Option<Block>, task: &'static Schema, cx: &mut Context<'_>) -> LogConfig {
    let defaults = LogConfig::default();
    let (Some(block), Some(schema)) = (block, inner(task, "logs")) else {
        return defaults;
    };
    let mut reader = Reader::new(block.body, schema, cx);
    let most = i64::from(u32::MAX);
    let logs = LogConfig {
        max_files: reader.number("max_files", 1..=most, cx).unwrap_or(defaults.max_files),
        max_file_size_mb: reader
            .number("max_file_size", 1..=most, cx)
            .unwrap_or(defaults.max_file_size_mb),
        disabled: reader.boolean("disabled", cx).unwrap_or(false),
    };
    reader.finish();
    logs
}
