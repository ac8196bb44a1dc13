//! `service` blocks of groups and tasks, with their checks.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::Syntax;
use crate::diagnostic::{Span, shown};
use crate::keys::Bounds::Time;
use crate::keys::{Context, Given, choice, keys, keyword, neutral};
use ostler_model::ids::TaskName;
use ostler_model::job::{Check, CheckKind, NetworkSpec, Service};
use ostler_model::limits::{
    CHECK_INTERVAL_MAX, CHECK_INTERVAL_MIN, CHECK_PATH_BYTES_MAX, CHECK_TIMEOUT_MAX,
    CHECK_TIMEOUT_MIN, NAME_BYTES_MAX, SERVICE_NAME_BYTES_MAX,
};

keys! {
    struct ServiceKeys: "a service" {
        /// Letters, digits, dashes and `${…}`.
        name / Name: Given<String>, "`JOB-GROUP`, in a task `JOB-GROUP-TASK`";
        /// Label of a port of the group's network.
        port / PortLabel: Given<String>, "none";
        /// Who keeps the list of services: `nomad`, which is the agent.
        provider / Provider: Given<String>, "`nomad`";
        /// The task it stands in; of another one, not supported yet.
        task / TaskName: Given<String>, "the task it stands in";
        /// What is asked to find out whether it works.
        checks "check" / Checks: Vec<CheckKeys>;
    }
    not_yet {
        "tags" / Tags [neutral("", &["[]"])] => null;
        "canary_tags" / CanaryTags [neutral("", &["[]"])] => null;
        "enable_tag_override" / EnableTagOverride [neutral("", &["false"])] => false;
        "address_mode" / AddressMode [neutral("", &["auto", "host"])] => "auto";
        "on_update" / OnUpdate [neutral("", &["require_healthy"])] => "require_healthy";
        "cluster" / Cluster [neutral("", &["default"])];
        "namespace" / Namespace [neutral("", &["default"])];
        "address" / Address; "check_restart" / CheckRestart => null; "connect" / Connect => null;
        "identity" / Identity; "kind" / Kind; "meta" / Meta => null; "canary_meta" / CanaryMeta => null;
        "tagged_addresses" / TaggedAddresses; "weights" / Weights; "id" / Id => "";
    }
}

keys! {
    struct CheckKeys: "a check" {
        /// For people; unique in its service.
        name / Name: Given<String>, "`service: NAME check`";
        /// A connection is accepted (`tcp`), or a request is answered with a status from 200 to 299
        /// (`http`); the others are not supported yet.
        kind "type" / Type: Given<CheckType> => (
            "a check needs a type; write type = \"http\" or \"tcp\"",
            "a check needs a Type: http or tcp"
        );
        /// Of `http`: what is asked for, from the first slash on.
        path / Path: Given<String>, "needed by `http`";
        /// Of `http`: `GET`, `HEAD`, `POST`, `PUT`, `PATCH`, `DELETE`, `OPTIONS` or `TRACE`.
        method / Method: Given<String>, "`GET`";
        /// Label of a port of the group's network.
        port / PortLabel: Given<String>, "the service's";
        /// From one question to the next.
        interval / Interval: Given<Duration> [Time(CHECK_INTERVAL_MIN, CHECK_INTERVAL_MAX)], "needed";
        /// How long an answer may take.
        timeout / Timeout: Given<Duration> [Time(CHECK_TIMEOUT_MIN, CHECK_TIMEOUT_MAX)], "needed";
    }
    not_yet {
        "protocol" / Protocol [neutral("", &["http"])] => "";
        "address_mode" / AddressMode [neutral("", &["auto", "host"])] => "";
        "on_update" / OnUpdate [neutral("", &["require_healthy"])] => "require_healthy";
        "success_before_passing" / SuccessBeforePassing [neutral("", &["0"])] => 0;
        "failures_before_critical" / FailuresBeforeCritical [neutral("", &["0"])] => 0;
        "failures_before_warning" / FailuresBeforeWarning [neutral("", &["0"])];
        "expose" / Expose [neutral("", &["false"])] => false;
        "tls_skip_verify" / TLSSkipVerify [neutral("", &["false"])] => false;
        "initial_status" / InitialStatus [neutral("", &["critical"])] => "";
        "tls_server_name" / TLSServerName; "header" / Header => null; "body" / Body => "";
        "command" / Command => ""; "args" / Args => null; "check_restart" / CheckRestart => null;
        "grpc_service" / GRPCService => ""; "grpc_use_tls" / GRPCUseTLS => false;
        "task" / TaskName => ""; "notes" / Notes; "id" / Id => "";
    }
}

#[derive(Clone, Copy)]
pub(crate) enum CheckType {
    Http,
    Tcp,
    /// Nomad has them.
    Grpc,
    Script,
}

keyword! {
    CheckType, "type of check": "http" = Http, "tcp" = Tcp, "grpc" = Grpc, "script" = Script;
}

const METHODS: [&str; 8] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"];

/// Where services stand.
#[derive(Clone, Copy)]
pub(super) struct ServiceScope<'a> {
    /// The job's id; absent when it is wrong.
    pub job: Option<&'a str>,
    /// The group's name; absent when it is wrong.
    pub group: Option<&'a str>,
    /// The group's network.
    pub network: Option<&'a NetworkSpec>,
    /// The task they stand in; absent: the group as a whole.
    pub task: Option<&'a TaskName>,
}

impl ServiceScope<'_> {
    /// The name of a service that has none of its own.
    fn default_name(&self) -> Option<String> {
        let (job, group) = (self.job?, self.group?);
        Some(match self.task {
            None => format!("{job}-{group}"),
            Some(task) => format!("{job}-{group}-{task}"),
        })
    }

    /// The label has to be that of a port the group has.
    fn check_port(&self, given: &Given<String>, cx: &mut Context<'_>) {
        let Some(label) = &given.value else { return };
        let ports = || self.network.iter().flat_map(|network| &network.ports);
        if ports().any(|port| port.label == *label) {
            return;
        }
        let instead = cx.sink.nearest(label, ports().map(|port| port.label.as_str()));
        let message =
            format!("the group's network has no port {}; give a label from there", shown(label));
        cx.sink.suggest(given.at, message, instead);
    }
}

/// Decode the services of a group, or of one of its tasks.
pub(super) fn services(
    blocks: Vec<ServiceKeys>,
    scope: ServiceScope<'_>,
    cx: &mut Context<'_>,
) -> Vec<Service> {
    let mut names = BTreeSet::new();
    let mut services = Vec::with_capacity(blocks.len());
    for keys in blocks {
        let at = keys.name.at;
        let Some(service) = service(keys, scope, cx) else { continue };
        if !names.insert(service.name.clone()) {
            let name = shown(&service.name);
            cx.error(at, format!("a service {name} is here already; give this one another name"));
        }
        services.push(service);
    }
    services
}

fn service(keys: ServiceKeys, scope: ServiceScope<'_>, cx: &mut Context<'_>) -> Option<Service> {
    let name = service_name(keys.name, scope, cx);
    scope.check_port(&keys.port, cx);
    check_provider(keys.provider.placed(), cx);
    if keys.task.value.is_some_and(|of| scope.task.is_none_or(|task| task.as_str() != of)) {
        let message = format!(
            "{} is valid in Nomad, not supported by Ostler yet; put the service into the task",
            cx.name("task in a service", keys.task.key),
        );
        cx.error(keys.task.at, message);
    }
    let name = name?;
    let checks = checks(keys.checks, &name, keys.port.value.is_some(), scope, cx);
    Some(Service { name, port: keys.port.value, task: scope.task.cloned(), checks })
}

/// The name given, or the one of job, group and task.
fn service_name(
    given: Given<String>,
    scope: ServiceScope<'_>,
    cx: &mut Context<'_>,
) -> Option<String> {
    let name = match given.value {
        None if given.was_given => return None,
        name => name.or_else(|| scope.default_name())?,
    };
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let fixed = without_references(&name);
    if name.is_empty() || fixed.len() > SERVICE_NAME_BYTES_MAX || !fixed.chars().all(allowed) {
        let message = format!(
            "service name {} must have 1 to {SERVICE_NAME_BYTES_MAX} letters, digits and dashes",
            shown(&name)
        );
        return cx.refuse(given.at, message);
    }
    Some(name)
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

fn check_provider(given: Option<(String, Span)>, cx: &mut Context<'_>) {
    let Some((provider, at)) = given.filter(|(provider, _)| provider != "nomad") else { return };
    if provider == "consul" {
        let message = cx.name(
            "provider consul is valid in Nomad, not supported by Ostler yet; write provider = \"nomad\"",
            "Provider consul is valid in Nomad, not supported by Ostler yet; write nomad",
        );
        cx.error(at, message);
        return;
    }
    let instead = cx.sink.nearest(&provider, ["nomad"]);
    cx.sink.suggest(at, format!("{} is no provider; write nomad", shown(&provider)), instead);
}

fn checks(
    blocks: Vec<CheckKeys>,
    service: &str,
    has_port: bool,
    scope: ServiceScope<'_>,
    cx: &mut Context<'_>,
) -> Vec<Check> {
    let mut names = BTreeSet::new();
    let mut checks = Vec::with_capacity(blocks.len());
    for keys in blocks {
        let at = keys.name.at;
        let Some(check) = check(keys, service, has_port, scope, cx) else { continue };
        if !names.insert(check.name.clone()) {
            let name = shown(&check.name);
            cx.error(at, format!("a check {name} is here already; give this one another name"));
        }
        checks.push(check);
    }
    checks
}

fn check(
    keys: CheckKeys,
    service: &str,
    has_port: bool,
    scope: ServiceScope<'_>,
    cx: &mut Context<'_>,
) -> Option<Check> {
    let message = cx.name(
        "check is asked only until the allocation is judged healthy or unhealthy; nobody asks it \
         later yet",
        "Checks are asked only until the allocation is judged healthy or unhealthy; nobody asks \
         them later yet",
    );
    cx.sink.warn(keys.at, message);
    let kind = kind(&keys, cx);
    scope.check_port(&keys.port, cx);
    if !has_port && !keys.port.was_given {
        let form = cx.name(
            "a check needs a port; give it or its service one: port = \"label\"",
            "a check needs a port; give it or its service a PortLabel",
        );
        cx.error(keys.at, form);
    }
    for given in [&keys.interval, &keys.timeout].into_iter().filter(|given| !given.was_given) {
        let key = given.key;
        let form = match cx.syntax {
            Syntax::Hcl => format!("a check needs {key}; write for example {key} = \"2s\""),
            Syntax::Json => format!("a check needs {key}, in nanoseconds"),
        };
        cx.error(keys.at, form);
    }
    let name = keys.name.value.unwrap_or_else(|| format!("service: {service} check"));
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
        let message = format!(
            "check name {} must have 1 to {NAME_BYTES_MAX} bytes and no control characters",
            shown(&name)
        );
        cx.error(keys.name.at, message);
    }
    let (interval, timeout) = (keys.interval.value?, keys.timeout.value?);
    Some(Check { name, kind: kind?, port: keys.port.value, interval, timeout })
}

/// What is asked.
fn kind(keys: &CheckKeys, cx: &mut Context<'_>) -> Option<CheckKind> {
    let later = match keys.kind.value? {
        CheckType::Http => return http(keys, cx),
        CheckType::Tcp => {
            for at in keys.path.place().into_iter().chain(keys.method.place()) {
                cx.error(at, "a tcp check only connects; only http checks have path and method");
            }
            return Some(CheckKind::Tcp);
        }
        CheckType::Grpc => "grpc",
        CheckType::Script => "script",
    };
    let message = format!(
        "checks of type {later} are valid in Nomad, not supported by Ostler yet; use http or tcp"
    );
    cx.refuse(keys.kind.at, message)
}

fn http(keys: &CheckKeys, cx: &mut Context<'_>) -> Option<CheckKind> {
    let method = keys.method.value.clone().unwrap_or_else(|| "GET".to_owned());
    choice("method", &method, keys.method.at, &METHODS.map(|method| (method, ())), cx);
    if !keys.path.was_given {
        let form = cx.name(
            "an http check needs a path; write path = \"/\" or another",
            "an http check needs a Path: / or another",
        );
        cx.error(keys.at, form);
    }
    let (path, at) = keys.path.clone().placed()?;
    match path_problem(&path) {
        Some(problem) => cx.refuse(at, problem),
        None => Some(CheckKind::Http { method, path }),
    }
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
