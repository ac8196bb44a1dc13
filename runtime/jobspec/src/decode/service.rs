//! `service` blocks of groups and tasks, with their checks.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::super::diagnostic::{Span, shown};
use super::super::schema::{JOB, Schema};
use super::super::tree::Block;
use super::group::inner;
use super::{Context, Reader};
use ostler_model::ids::TaskName;
use ostler_model::job::{Check, CheckKind, NetworkSpec, Service};
use ostler_model::limits::{
    CHECK_INTERVAL_MAX, CHECK_INTERVAL_MIN, CHECK_PATH_BYTES_MAX, CHECK_TIMEOUT_MAX,
    CHECK_TIMEOUT_MIN, NAME_BYTES_MAX, SERVICE_NAME_BYTES_MAX,
};

/// Where services stand.
#[derive(Clone, Copy)]
pub(super) struct Scope<'a> {
    /// The job's id; absent when it is wrong.
    pub job: Option<&'a str>,
    /// The group's name; absent when it is wrong.
    pub group: Option<&'a str>,
    /// The group's network.
    pub network: Option<&'a NetworkSpec>,
}

impl Scope<'_> {
    /// The name of a service that has none of its own.
    fn default_name(&self, task: Option<&TaskName>) -> Option<String> {
        let (job, group) = (self.job?, self.group?);
        Some(match task {
            None => format!("{job}-{group}"),
            Some(task) => format!("{job}-{group}-{task}"),
        })
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Tcp,
    Http,
    /// Nomad has it.
    Later(&'static str),
}

const KINDS: [(&str, Kind); 4] = [
    ("http", Kind::Http),
    ("tcp", Kind::Tcp),
    ("grpc", Kind::Later("grpc")),
    ("script", Kind::Later("script")),
];

const METHODS: [&str; 8] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"];

/// Decode the services of a group, or of one of its tasks.
pub(super) fn services(
    blocks: Vec<Block>,
    task: Option<&TaskName>,
    scope: Scope<'_>,
    cx: &mut Context<'_>,
) -> Vec<Service> {
    let Some(schema) = inner(&JOB, "group").and_then(|group| inner(group, "service")) else {
        return Vec::new();
    };
    let mut names = BTreeSet::new();
    let mut services = Vec::with_capacity(blocks.len());
    for block in blocks {
        let Some((service, at)) = service(block, task, scope, schema, cx) else {
            continue;
        };
        if !names.insert(service.name.clone()) {
            let name = shown(&service.name);
            cx.error(at, format!("a service {name} is here already; give this one another name"));
        }
        services.push(service);
    }
    services
}

fn service(
    block: Block,
    task: Option<&TaskName>,
    scope: Scope<'_>,
    schema: &'static Schema,
    cx: &mut Context<'_>,
) -> Option<(Service, Span)> {
    let header = block.key.span;
    let mut reader = Reader::new(block.body, schema, cx);
    let name = service_name(&mut reader, task, scope, header, cx);
    let port = port(&mut reader, scope, cx);
    check_provider(reader.text("provider", cx), cx);
    if let Some((of, at)) = reader.text("task", cx)
        && task.is_none_or(|task| task.as_str() != of)
    {
        let form = cx.name(
            "task in a service is valid in Nomad, not supported by Ostler yet; put the service into the task",
            "TaskName is valid in Nomad, not supported by Ostler yet; put the service into the task",
        );
        cx.error(at, form);
    }
    let blocks = reader.blocks("check");
    reader.finish();
    let (name, at) = name?;
    let checks = checks(blocks, &name, port.is_some(), scope, schema, cx);
    let port = port.map(|(label, _)| label);
    Some((Service { name, port, task: task.cloned(), checks }, at))
}

/// The name given, or the one of job, group and task.
fn service_name(
    reader: &mut Reader,
    task: Option<&TaskName>,
    scope: Scope<'_>,
    header: Span,
    cx: &mut Context<'_>,
) -> Option<(String, Span)> {
    let (name, at) = match reader.text("name", cx) {
        Some(given) => given,
        None if reader.was_given("name") => return None,
        None => (scope.default_name(task)?, header),
    };
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let fixed = without_references(&name);
    if name.is_empty() || fixed.len() > SERVICE_NAME_BYTES_MAX || !fixed.chars().all(allowed) {
        let message = format!(
            "service name {} must have 1 to {SERVICE_NAME_BYTES_MAX} letters, digits and dashes",
            shown(&name)
        );
        cx.error(at, message);
        return None;
    }
    Some((name, at))
}

/// The text less each `${…}`, which is replaced later.
fn without_references(text: &str) -> String {
    let mut fixed = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        fixed.push_str(before);
        rest = after.split_once('}').map_or("", |(_, after)| after);
    }
    fixed + rest
}

/// The label of a port the group has.
fn port(reader: &mut Reader, scope: Scope<'_>, cx: &mut Context<'_>) -> Option<(String, Span)> {
    let (label, at) = reader.text("port", cx)?;
    let labels = || scope.network.iter().flat_map(|network| &network.ports).map(|port| &port.label);
    if !labels().any(|known| *known == label) {
        let instead = cx.sink.nearest(&label, labels().map(String::as_str));
        let message =
            format!("the group's network has no port {}; give a label from there", shown(&label));
        cx.sink.suggest(at, message, instead);
    }
    // Kept even if wrong, so that no check complains of a missing port too.
    Some((label, at))
}

fn check_provider(given: Option<(String, Span)>, cx: &mut Context<'_>) {
    let Some((provider, at)) = given else {
        return;
    };
    match provider.as_str() {
        "nomad" => {}
        "consul" => {
            let message = cx.name(
                "provider consul is valid in Nomad, not supported by Ostler yet; write provider = \"nomad\"",
                "Provider consul is valid in Nomad, not supported by Ostler yet; write nomad",
            );
            cx.error(at, message);
        }
        _ => {
            let message = format!("{} is no provider; write nomad", shown(&provider));
            let instead = cx.sink.nearest(&provider, ["nomad"]);
            cx.sink.suggest(at, message, instead);
        }
    }
}

fn checks(
    blocks: Vec<Block>,
    service: &str,
    has_port: bool,
    scope: Scope<'_>,
    schema: &'static Schema,
    cx: &mut Context<'_>,
) -> Vec<Check> {
    let Some(schema) = inner(schema, "check") else {
        return Vec::new();
    };
    let mut names = BTreeSet::new();
    let mut checks = Vec::with_capacity(blocks.len());
    for block in blocks {
        let Some((check, at)) = check(block, service, has_port, scope, schema, cx) else {
            continue;
        };
        if !names.insert(check.name.clone()) {
            let name = shown(&check.name);
            cx.error(at, format!("a check {name} is here already; give this one another name"));
        }
        checks.push(check);
    }
    checks
}

fn check(
    block: Block,
    service: &str,
    has_port: bool,
    scope: Scope<'_>,
    schema: &'static Schema,
    cx: &mut Context<'_>,
) -> Option<(Check, Span)> {
    let header = block.key.span;
    cx.sink.warn(
        header,
        cx.name(
            "check is asked only until the allocation is judged healthy or unhealthy; nobody asks \
             it later yet",
            "Checks are asked only until the allocation is judged healthy or unhealthy; nobody \
             asks them later yet",
        ),
    );
    let mut reader = Reader::new(block.body, schema, cx);
    let name = reader.text("name", cx);
    let kind = kind(&mut reader, header, cx);
    let port = port(&mut reader, scope, cx);
    if port.is_none() && !has_port && !reader.was_given("port") {
        let form = cx.name(
            "a check needs a port; give it or its service one: port = \"label\"",
            "a check needs a port; give it or its service a PortLabel",
        );
        cx.error(header, form);
    }
    let (interval, timeout) =
        (CHECK_INTERVAL_MIN..=CHECK_INTERVAL_MAX, CHECK_TIMEOUT_MIN..=CHECK_TIMEOUT_MAX);
    let interval = time(&mut reader, "interval", "Interval", interval, header, cx);
    let timeout = time(&mut reader, "timeout", "Timeout", timeout, header, cx);
    reader.finish();
    let (name, at) = name.unwrap_or_else(|| (format!("service: {service} check"), header));
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
        let message = format!(
            "check name {} must have 1 to {NAME_BYTES_MAX} bytes and no control characters",
            shown(&name)
        );
        cx.error(at, message);
    }
    let port = port.map(|(label, _)| label);
    Some((Check { name, kind: kind?, port, interval: interval?, timeout: timeout? }, at))
}

/// What is asked. Path and method are read in any case, so that what is wrong in them is said.
fn kind(reader: &mut Reader, header: Span, cx: &mut Context<'_>) -> Option<CheckKind> {
    let given = reader.text("type", cx);
    if given.is_none() && !reader.was_given("type") {
        let form = cx.name(
            "a check needs a type; write type = \"http\" or \"tcp\"",
            "a check needs a Type: http or tcp",
        );
        cx.error(header, form);
    }
    let at = given.as_ref().map_or(header, |(_, at)| *at);
    let kind = cx.choice("type of check", given, &KINDS);
    let path = reader.text("path", cx);
    let method = reader.text("method", cx);
    match kind? {
        Kind::Http => http(path, method, header, reader, cx),
        Kind::Tcp => {
            for (_, at) in path.iter().chain(&method) {
                cx.error(*at, "a tcp check only connects; only http checks have path and method");
            }
            Some(CheckKind::Tcp)
        }
        Kind::Later(name) => {
            let message = format!(
                "checks of type {name} are valid in Nomad, not supported by Ostler yet; use http or tcp"
            );
            cx.error(at, message);
            None
        }
    }
}

fn http(
    path: Option<(String, Span)>,
    method: Option<(String, Span)>,
    header: Span,
    reader: &Reader,
    cx: &mut Context<'_>,
) -> Option<CheckKind> {
    if let Some((method, at)) = &method
        && !METHODS.contains(&method.as_str())
    {
        let instead = cx.sink.nearest(method, METHODS);
        let message = format!("{} is no method; valid are {}", shown(method), METHODS.join(", "));
        cx.sink.suggest(*at, message, instead);
    }
    let Some((path, at)) = path else {
        if !reader.was_given("path") {
            let form = cx.name(
                "an http check needs a path; write path = \"/\" or another",
                "an http check needs a Path: / or another",
            );
            cx.error(header, form);
        }
        return None;
    };
    if let Some(problem) = path_problem(&path) {
        cx.error(at, problem);
        return None;
    }
    Some(CheckKind::Http { method: method.map_or_else(|| "GET".to_owned(), |(m, _)| m), path })
}

/// Why a path cannot be asked for.
fn path_problem(path: &str) -> Option<String> {
    if path.contains("${") {
        let message =
            "${…} in a path is valid in Nomad, not supported by Ostler yet; write the path out";
        return Some(message.to_owned());
    }
    if !path.starts_with('/') || path.starts_with("//") {
        return Some(format!("path {} must begin with one slash", shown(path)));
    }
    if path.len() > CHECK_PATH_BYTES_MAX {
        return Some(format!(
            "the path is too long; at most {CHECK_PATH_BYTES_MAX} bytes are sent"
        ));
    }
    let allowed = |c: char| c.is_ascii_graphic() && !"\"#<>\\^`{|}".contains(c);
    let wrong = path.chars().find(|c| !allowed(*c))?;
    let shown = shown(&wrong.to_string());
    Some(format!("{shown} must not stand in a path; write it as % and two hex digits"))
}

/// A time of a check, within bounds.
fn time(
    reader: &mut Reader,
    name: &'static str,
    json: &'static str,
    bounds: RangeInclusive<Duration>,
    header: Span,
    cx: &mut Context<'_>,
) -> Option<Duration> {
    let Some((time, at)) = reader.duration(name, cx) else {
        if !reader.was_given(name) {
            let form = match cx.name(name, json) {
                name if cx.format == super::super::Format::Hcl => {
                    format!("a check needs {name}; write for example {name} = \"2s\"")
                }
                name => format!("a check needs {name}, in nanoseconds"),
            };
            cx.error(header, form);
        }
        return None;
    };
    if bounds.contains(&time) {
        return Some(time);
    }
    let message = format!(
        "{} must be {} to {}, not {}",
        cx.name(name, json),
        humantime::format_duration(*bounds.start()),
        humantime::format_duration(*bounds.end()),
        humantime::format_duration(time),
    );
    cx.error(at, message);
    None
}
