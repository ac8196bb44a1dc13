//! `check` blocks of services.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::service::ServiceScope;
use crate::Syntax;
use crate::diagnostic::{Span, quote_text};
use crate::keys::FieldBounds::{Time, Whole};
use crate::keys::{
    Context, MOST, Setting, TextListMap, Texts, choice, hint, keys, keyword, neutral,
};
use ostler_model::ids::TaskName;
use ostler_model::job::{
    AddressMode, Check, CheckKind, CheckRestart, CheckStatus, CheckTls, HttpCheck, OnUpdate,
};
use ostler_model::limits::{
    CHECK_ARGS_BYTES_MAX, CHECK_ARGS_MAX, CHECK_BODY_BYTES_MAX, CHECK_GRACE_DEFAULT,
    CHECK_GRPC_SERVICE_BYTES_MAX, CHECK_INTERVAL_MAX, CHECK_INTERVAL_MIN, CHECK_PATH_BYTES_MAX,
    CHECK_SENT_HEADER_BYTES_MAX, CHECK_SENT_HEADERS_MAX, CHECK_TIMEOUT_MAX, CHECK_TIMEOUT_MIN,
    NAME_BYTES_MAX, SERVICE_ADDRESS_BYTES_MAX,
};

keys! {
    struct CheckKeys: "a check" {
        /// For people; unique in its service.
        name / Name: Setting<String>, "`service: \"NAME\" check`";
        /// A connection is accepted (`tcp`), a request is answered with a status from 200 to 299, where
        /// 429 warns (`http`), the standard health service answers `SERVING` (`grpc`), or a program
        /// inside a task ends with 0, where 1 warns (`script`).
        kind "type" / Type: Setting<CheckType> => (
            "a check needs a type; write type = \"http\", \"tcp\", \"grpc\" or \"script\"",
            "a check needs a Type: http, tcp, grpc or script"
        );
        /// Of `http`: what is asked for, from the first slash on.
        path / Path: Setting<String>, "needed by `http`";
        /// Of `http`: `GET`, `HEAD`, `POST`, `PUT`, `PATCH`, `DELETE`, `OPTIONS` or `TRACE`.
        method / Method: Setting<String>, "`GET`";
        /// Of `http`: over TLS or not.
        protocol / Protocol: Setting<Protocol>, "`http`";
        /// Of `http`: what is sent as headers.
        header / Header: TextListMap;
        /// Of `http`: what is sent as the body.
        body / Body: Setting<String>, "none";
        /// Of `https` and of `grpc` over TLS: any certificate will do.
        tls_skip_verify / TLSSkipVerify: Setting<bool> = false;
        /// Of the same: the name that the certificate is for.
        tls_server_name / TLSServerName: Setting<String>, "the address";
        /// Of `grpc`: the service that is asked for.
        grpc_service / GRPCService: Setting<String>, "the server as a whole";
        /// Of `grpc`: over TLS.
        grpc_use_tls / GRPCUseTLS: Setting<bool> = false;
        /// Of `script`: the program, as the task sees it.
        command / Command: Setting<String>, "needed by `script`";
        /// Of `script`: its arguments.
        args / Args: Texts, "none";
        /// Of `script` in a service of the group: the task it runs in.
        task / TaskName: Setting<String>, "the service's";
        /// A port as that of the service.
        port / PortLabel: Setting<String>, "the service's";
        /// The address that is asked: the node's (`host`), that of the allocation's own network
        /// (`alloc`) or the driver's (`driver`).
        address_mode / AddressMode: Setting<AddressMode>, "the service's";
        /// From one question to the next.
        interval / Interval: Setting<Duration> [Time(CHECK_INTERVAL_MIN, CHECK_INTERVAL_MAX)], "needed";
        /// How long an answer may take.
        timeout / Timeout: Setting<Duration> [Time(CHECK_TIMEOUT_MIN, CHECK_TIMEOUT_MAX)], "needed";
        /// What it says before its first answer.
        initial_status / InitialStatus: Setting<CheckStatus>, "`pending`";
        /// Good answers in a row until it passes.
        success_before_passing / SuccessBeforePassing: Setting<u32> [Whole(0, MOST)] = 0_u32;
        /// Bad answers in a row until it is critical.
        failures_before_critical / FailuresBeforeCritical: Setting<u32> [Whole(0, MOST)] = 0_u32;
        /// Bad answers in a row until it warns, where that is sooner.
        failures_before_warning / FailuresBeforeWarning: Setting<u32> [Whole(0, MOST)], "none";
        /// When it restarts the task, or with a service of the group all tasks.
        check_restart / CheckRestart: Option<CheckRestartKeys>;
        /// As that of the service, for this check.
        on_update / OnUpdate: Setting<OnUpdate>, "the service's";
    }
    not_yet {
        "expose" / Expose [neutral("it belongs to Consul's service mesh", &["false"])] => false;
        "notes" / Notes [hint("it belongs to Consul")]; "id" / Id [hint("leave it out")] => "";
    }
}

keys! {
    struct CheckRestartKeys: "check_restart" {
        /// Restart after so many unhealthy answers in a row; 0: never.
        limit / Limit: Setting<u32> [Whole(0, MOST)], "the service's; 0";
        /// Answers count from so long after the start.
        grace / Grace: Setting<Duration>, "the service's; `1s`";
        /// A warning is no unhealthy answer.
        ignore_warnings / IgnoreWarnings: Setting<bool> = false;
    }
}

#[derive(Clone, Copy)]
pub(crate) enum CheckType {
    Http,
    Tcp,
    Grpc,
    Script,
}

/// The protocol of an HTTP check.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http,
    Https,
}

keyword! {
    CheckType, "type of check": "http" = Http, "tcp" = Tcp, "grpc" = Grpc, "script" = Script;
    Protocol, "protocol of a check": "http" = Http, "https" = Https;
    AddressMode, "address_mode": "auto" = Auto, "host" = Host, "alloc" = Alloc, "driver" = Driver;
    CheckStatus, "initial_status":
        "passing" = Passing, "warning" = Warning, "critical" = Critical, "pending" = Pending;
    OnUpdate, "on_update":
        "require_healthy" = RequireHealthy, "ignore_warnings" = IgnoreWarnings, "ignore" = Ignore;
}

const METHODS: [&str; 8] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"];

/// The settings of a service that its checks take over.
#[derive(Clone, Copy)]
pub(super) struct CheckScope<'a> {
    /// The name of the service, as the job gives it.
    pub service: &'a str,
    /// Whether the service has a port.
    pub has_port: bool,
    /// The task that the service names.
    pub runs_in: Option<&'a TaskName>,
    /// The `check_restart` block of the service.
    pub restart: Option<&'a CheckRestartKeys>,
    /// The `on_update` of the service.
    pub on_update: OnUpdate,
}

/// Decode the checks of a service.
pub(super) fn checks(
    blocks: Vec<CheckKeys>,
    of: CheckScope<'_>,
    scope: ServiceScope<'_>,
    cx: &mut Context<'_>,
) -> Vec<Check> {
    let mut names = BTreeSet::new();
    let mut checks = Vec::with_capacity(blocks.len());
    for keys in blocks {
        let at = keys.name.at;
        let Some(check) = check(keys, of, scope, cx) else { continue };
        if !names.insert(check.name.clone()) {
            let name = quote_text(&check.name);
            cx.error(at, format!("a check {name} is already defined; give this one another name"));
        }
        checks.push(check);
    }
    checks
}

fn check(
    keys: CheckKeys,
    of: CheckScope<'_>,
    scope: ServiceScope<'_>,
    cx: &mut Context<'_>,
) -> Option<Check> {
    warn_misplaced(&keys, cx);
    let kind = kind(&keys, cx);
    let needs_port = !matches!(keys.kind.value, None | Some(CheckType::Script));
    scope.check_port(&keys.port, cx);
    if needs_port && !of.has_port && !keys.port.was_given {
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
    if keys.address_mode.value == Some(AddressMode::Auto) {
        let message = "auto is only for services; a check uses its service's mode unless it has host, alloc or \
                       driver";
        cx.error(keys.address_mode.at, message);
    }
    scope.check_mode(&keys.address_mode, cx);
    let task = task(&keys, of, scope, cx);
    let name = keys.name.value.unwrap_or_else(|| format!("service: \"{}\" check", of.service));
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
        let message = format!(
            "check name {} must have 1 to {NAME_BYTES_MAX} bytes and no control characters",
            quote_text(&name)
        );
        cx.error(keys.name.at, message);
    }
    Some(Check {
        name,
        kind: kind?,
        port: keys.port.value,
        address_mode: keys.address_mode.value,
        interval: keys.interval.value?,
        timeout: keys.timeout.value?,
        initial: keys.initial_status.value.unwrap_or_default(),
        success_before_passing: keys.success_before_passing.get(),
        failures_before_critical: keys.failures_before_critical.get(),
        failures_before_warning: keys.failures_before_warning.get(),
        restart: restart(keys.check_restart.as_ref(), of.restart),
        on_update: keys.on_update.value.unwrap_or(of.on_update),
        task,
    })
}

/// Warn of keys that belong to other types of checks and have no effect on this one. Keys that would count
/// answers are refused where no answers are counted.
fn warn_misplaced(keys: &CheckKeys, cx: &mut Context<'_>) {
    let Some(kind) = keys.kind.value else { return };
    let text = |given: &Setting<String>| given.place().map(|at| (given.key, at));
    let is = |given: &Setting<bool>| (given.value == Some(true)).then_some((given.key, given.at));
    let count = |given: &Setting<u32>| given.other_than(&0);
    let list = keys.args.value.as_ref().filter(|args| !args.is_empty());
    let args = list.map(|_| (keys.args.key, keys.args.at));
    let header = keys.header.0.first().map(|(key, _)| (cx.name("header", "Header"), key.span));
    let protocol = keys.protocol.place().map(|at| (keys.protocol.key, at));
    let of_http = [
        text(&keys.path),
        text(&keys.method),
        protocol.filter(|_| keys.protocol.value == Some(Protocol::Https)),
        header,
        text(&keys.body),
    ];
    let of_tls = [is(&keys.tls_skip_verify), text(&keys.tls_server_name)];
    let of_grpc = [text(&keys.grpc_service), is(&keys.grpc_use_tls)];
    let of_script = [text(&keys.command), args];
    let of_network = [
        count(&keys.success_before_passing),
        count(&keys.failures_before_critical),
        count(&keys.failures_before_warning),
    ];
    let (name, unused): (_, Vec<&[_]>) = match kind {
        CheckType::Http => ("http", vec![&of_grpc, &of_script]),
        CheckType::Tcp => ("tcp", vec![&of_http, &of_tls, &of_grpc, &of_script]),
        CheckType::Grpc => ("grpc", vec![&of_http, &of_script]),
        CheckType::Script => ("script", vec![&of_http, &of_tls, &of_grpc]),
    };
    for (key, at) in unused.into_iter().flatten().copied().flatten() {
        cx.sink.warn(at, format!("{key} has no effect in a check of type {name}; leave it out"));
    }
    for (key, at) in of_network.into_iter().flatten().filter(|_| name == "script") {
        cx.error(at, format!("a check of type {name} has no {key}; leave it out"));
    }
}

/// The task that a check runs in, if the check names one.
fn task(
    keys: &CheckKeys,
    of: CheckScope<'_>,
    scope: ServiceScope<'_>,
    cx: &mut Context<'_>,
) -> Option<TaskName> {
    let script = matches!(keys.kind.value, Some(CheckType::Script));
    let Some((name, at)) = keys.task.clone().with_place() else {
        if script && scope.task.is_none() && of.runs_in.is_none() && !keys.task.was_given {
            let form = cx.name(
                "a script runs inside a task; say which: task = \"name\"",
                "a script runs inside a task; say which in TaskName",
            );
            cx.error(keys.at, form);
        }
        return None;
    };
    if let Some(own) = scope.task {
        if own.as_str() != name {
            let message = "only checks of a group's services can name another task; leave it out";
            cx.error(at, message);
        }
        return None;
    }
    if !matches!(keys.kind.value, None | Some(CheckType::Script | CheckType::Grpc)) {
        cx.error(at, "only script and grpc checks have a task; leave it out");
    }
    scope.find_task(name, at, cx)
}

/// The restart policy of a check: its own values, and those of its service for the rest.
fn restart(
    own: Option<&CheckRestartKeys>,
    service: Option<&CheckRestartKeys>,
) -> Option<CheckRestart> {
    let of = |keys: Option<&CheckRestartKeys>| keys.and_then(|keys| keys.limit.value);
    let limit = of(own).filter(|limit| *limit > 0).or(of(service)).unwrap_or(0);
    let grace = |keys: Option<&CheckRestartKeys>| keys.and_then(|keys| keys.grace.value);
    let ignores = |keys: Option<&CheckRestartKeys>| {
        keys.is_some_and(|keys| keys.ignore_warnings.value == Some(true))
    };
    (limit > 0).then(|| CheckRestart {
        limit,
        grace: grace(own).or(grace(service)).unwrap_or(CHECK_GRACE_DEFAULT),
        ignore_warnings: ignores(own) || ignores(service),
    })
}

/// Decode what a check asks, by its type.
fn kind(keys: &CheckKeys, cx: &mut Context<'_>) -> Option<CheckKind> {
    let tls = CheckTls {
        skip_verify: keys.tls_skip_verify.value == Some(true),
        server_name: keys.tls_server_name.value.clone(),
    };
    if let Some((name, at)) = keys.tls_server_name.clone().with_place()
        && (name.len() > SERVICE_ADDRESS_BYTES_MAX || !name.chars().all(|c| c.is_ascii_graphic()))
    {
        cx.error(at, format!("{} is not the name of a server", quote_text(&name)));
    }
    match keys.kind.value? {
        CheckType::Http => http(keys, tls, cx).map(|http| CheckKind::Http(Box::new(http))),
        CheckType::Tcp => Some(CheckKind::Tcp),
        CheckType::Grpc => {
            let service = keys.grpc_service.value.clone().unwrap_or_default();
            if service.len() > CHECK_GRPC_SERVICE_BYTES_MAX {
                let message = format!("at most {CHECK_GRPC_SERVICE_BYTES_MAX} bytes are sent");
                cx.error(keys.grpc_service.at, message);
            }
            let tls = (keys.grpc_use_tls.value == Some(true)).then_some(tls);
            Some(CheckKind::Grpc { service, tls })
        }
        CheckType::Script => script(keys, cx),
    }
}

fn script(keys: &CheckKeys, cx: &mut Context<'_>) -> Option<CheckKind> {
    if !keys.command.was_given {
        let form = cx.name(
            "a script check needs a command; write for example command = \"/bin/true\"",
            "a script check needs a Command",
        );
        cx.error(keys.at, form);
    }
    let args = keys.args.clone().plain().unwrap_or_default();
    let command = keys.command.value.clone()?;
    let bytes = args.iter().map(|arg| arg.len() + 1).sum::<usize>() + command.len();
    let has_nul = args.iter().chain([&command]).any(|text| text.contains('\0'));
    if args.len() > CHECK_ARGS_MAX || bytes > CHECK_ARGS_BYTES_MAX || has_nul {
        let message = format!(
            "command and args must have at most {CHECK_ARGS_MAX} arguments, {CHECK_ARGS_BYTES_MAX} \
             bytes together and no character NUL"
        );
        cx.error(keys.command.at, message);
    }
    Some(CheckKind::Script { command, args })
}

fn http(keys: &CheckKeys, tls: CheckTls, cx: &mut Context<'_>) -> Option<HttpCheck> {
    let method = keys.method.value.clone().unwrap_or_else(|| "GET".to_owned());
    let upper = method.to_ascii_uppercase();
    choice("method", &upper, keys.method.at, &METHODS.map(|method| (method, ())), cx);
    if !keys.path.was_given {
        let form = cx.name(
            "an http check needs a path; write path = \"/\" or another",
            "an http check needs a Path: / or another",
        );
        cx.error(keys.at, form);
    }
    let body = keys.body.value.clone().unwrap_or_default();
    if body.len() > CHECK_BODY_BYTES_MAX {
        let message =
            format!("the body is too long; at most {CHECK_BODY_BYTES_MAX} bytes are sent");
        cx.error(keys.body.at, message);
    }
    let headers = headers(&keys.header, cx);
    let (path, at) = keys.path.clone().with_place()?;
    let path = add_slash(path);
    if let Some(problem) = path_problem(&path) {
        return cx.refuse(at, problem);
    }
    let tls = (keys.protocol.value == Some(Protocol::Https)).then_some(tls);
    Some(HttpCheck { method: upper, path, tls, headers, body })
}

/// The path with a slash at its start: as in Nomad, a path may be given without it.
fn add_slash(path: String) -> String {
    if path.starts_with('/') || path.starts_with("${") { path } else { format!("/{path}") }
}

fn headers(given: &TextListMap, cx: &mut Context<'_>) -> BTreeMap<String, Vec<String>> {
    let mut headers = BTreeMap::new();
    let (mut count, mut bytes) = (0, 0);
    for (key, values) in &given.0 {
        let name = &key.name;
        let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~{}".contains(c);
        if name.is_empty() || !name.chars().all(token) {
            cx.error(key.span, format!("{} is not a valid header name", quote_text(name)));
        }
        for (value, at) in values {
            if value.chars().any(|c| c.is_control() && c != '\t') {
                cx.error(*at, "the value of a header must not have control characters");
            }
            count += 1;
            bytes += name.len() + value.len();
        }
        headers.insert(name.clone(), values.iter().map(|(value, _)| value.clone()).collect());
    }
    if count > CHECK_SENT_HEADERS_MAX || bytes > CHECK_SENT_HEADER_BYTES_MAX {
        let at = given.0.first().map_or_else(Span::default, |(key, _)| key.span);
        let message = format!(
            "at most {CHECK_SENT_HEADERS_MAX} headers with {CHECK_SENT_HEADER_BYTES_MAX} bytes are sent"
        );
        cx.error(at, message);
    }
    headers
}

/// Why a path cannot be requested, if it cannot.
fn path_problem(path: &str) -> Option<String> {
    if path.starts_with("//") {
        return Some(format!("path {} must begin with one slash", quote_text(path)));
    }
    if path.contains("://") && !path.contains('?') {
        let path = quote_text(path);
        return Some(format!("path {path} must be relative to the port: no scheme, no host"));
    }
    if path.len() > CHECK_PATH_BYTES_MAX {
        return Some(format!(
            "the path is too long; at most {CHECK_PATH_BYTES_MAX} bytes are sent"
        ));
    }
    let allowed = |c: char| c.is_ascii_graphic() && !"\"#<>\\^`{|}".contains(c);
    let fixed = super::service::without_references(path);
    let wrong = fixed.chars().find(|c| !allowed(*c))?;
    let shown = quote_text(&wrong.to_string());
    Some(format!("{shown} is not allowed in a path; write it as % and two hex digits"))
}
