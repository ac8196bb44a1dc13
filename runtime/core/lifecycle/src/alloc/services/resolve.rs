//! Replaces the references of a service. The result is its entry in the list of the node, and the
//! questions of its checks. Pure.
//!
//! Where it is reached ([`resolve_address`]) is decided in one place, by what the allocation's
//! network is:
//!
//! ```text
//! address_mode   address                                           port, of a label    number
//! host           the port's; the node's                            the node's port     as it is
//! alloc          of the network that the allocation has for itself  `to`               as it is
//! driver         of the network that the driver gave the task       `to`               as it is
//! auto           its own `address`; driver where there is one; else host
//! ```

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use crate::alloc::health::CheckId;
use crate::task::env::TaskEnv;
use crate::task::interpolate::InterpolateError;
use ostler_model::alloc::Allocation;
use ostler_model::ids::TaskName;
use ostler_model::job::{AddressMode, Check, CheckKind, HttpCheck, Service};
use ostler_model::limits::SERVICE_NAME_BYTES_MAX;
use ostler_model::network::DriverNetwork;
use ostler_model::printable::has_hidden;
use ostler_model::resources::AllocatedPort;
use ostler_model::service::ServiceInstance;
use ostler_probe::CheckTarget;

/// The networks and ports by which a service may be reached.
#[derive(Clone, Copy, Debug, Default)]
pub struct ServiceNetworks<'a> {
    /// The ports of the allocation.
    pub ports: &'a [AllocatedPort],
    /// The task that the service stands in. Ports of that task count, ports of other tasks do not.
    pub task: Option<&'a TaskName>,
    /// The node's address.
    pub host_ip: &'a str,
    /// The address of the allocation in a network of its own.
    pub alloc_ip: Option<&'a str>,
    /// The network that the driver gave the task.
    pub of_driver: Option<&'a DriverNetwork>,
}

impl<'a> ServiceNetworks<'a> {
    /// The port of this label. A port of the task goes before one of the group.
    fn port(&self, label: &str) -> Option<&'a AllocatedPort> {
        let of = |task: Option<&TaskName>| {
            self.ports.iter().find(|port| port.label == label && port.task.as_ref() == task)
        };
        self.task.and_then(|task| of(Some(task))).or_else(|| of(None))
    }
}

/// Why a service is not listed, or a check has nothing to ask.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// References of a text cannot be replaced.
    #[error("{what}: {source}")]
    Text {
        /// Which text: `name`, `port`, `tags` …
        what: &'static str,
        /// What is wrong with it.
        #[source]
        source: InterpolateError,
    },
    /// The name is no name of a service.
    #[error(
        "{name:?} is not a valid service name: give letters, digits and dashes, at most {SERVICE_NAME_BYTES_MAX}"
    )]
    Name {
        /// The name with all references replaced.
        name: String,
    },
    /// A text has characters that do not show, which could break the line where it is printed.
    #[error("{what} {text:?} has characters that do not show")]
    Hidden {
        /// Which text: `name`, `port`, `tags` …
        what: &'static str,
        /// The text with all references replaced.
        text: String,
    },
    /// The port is neither a label of the allocation nor a number.
    #[error("the allocation has no port {port:?}")]
    Port {
        /// The port with all references replaced.
        port: String,
    },
    /// Neither check nor service has a port to connect to.
    #[error("the check has no port; give it or its service one")]
    NoPort,
    /// The task lacks the network that the mode needs.
    #[error("address_mode {mode} needs {needed}, which this task does not have")]
    NoNetwork {
        /// The mode: `alloc`, `driver`, or `script` for a script that has no task.
        mode: &'static str,
        /// What the mode needs.
        needed: &'static str,
    },
}

/// Where a service or check is reached: an address or host name, and a port, or 0 for no port.
///
/// # Errors
/// When the port or the network does not exist.
pub fn resolve_address(
    mode: AddressMode,
    own: Option<&str>,
    port: Option<&str>,
    networks: ServiceNetworks<'_>,
) -> Result<(String, u16), ResolveError> {
    let mode = match (mode, own, networks.of_driver) {
        (AddressMode::Auto, None, Some(_)) => AddressMode::Driver,
        (AddressMode::Auto, None, None) => AddressMode::Host,
        (mode, ..) => mode,
    };
    let of_driver = networks.of_driver.filter(|_| mode == AddressMode::Driver);
    let given = of_driver.and_then(|network| network.ports.get(port?)).copied();
    let label = port.and_then(|port| networks.port(port));
    let number = match (port, label, given) {
        (Some(port), None, None) => match port.parse() {
            Ok(number @ 1..) => number,
            _ => return Err(ResolveError::Port { port: port.to_owned() }),
        },
        _ => 0,
    };
    let outside = label.map_or(number, |port| port.value);
    let inside = label.map_or(number, |port| port.to);
    let no_network = |mode, needed| ResolveError::NoNetwork { mode, needed };
    match mode {
        AddressMode::Auto => Ok((own.unwrap_or_default().to_owned(), outside)),
        AddressMode::Host => {
            Ok((usable_address(label.map_or(networks.host_ip, |port| &port.host_ip)), outside))
        }
        AddressMode::Alloc => {
            let ip = networks.alloc_ip.ok_or_else(|| {
                no_network("alloc", "a network that the allocation has for itself")
            })?;
            Ok((ip.to_owned(), inside))
        }
        AddressMode::Driver => {
            let network = of_driver
                .ok_or_else(|| no_network("driver", "a driver that gives it a network"))?;
            Ok((network.ip.to_string(), given.unwrap_or(inside)))
        }
    }
}

/// An address that can be connected to. The loopback address stands for the unspecified address.
fn usable_address(ip: &str) -> String {
    match ip.parse() {
        Ok(IpAddr::V4(ip)) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.to_string(),
        Ok(IpAddr::V6(ip)) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.to_string(),
        _ => ip.to_owned(),
    }
}

/// The question of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// A question over the network.
    Network {
        /// The kind of the check; never a script.
        kind: CheckKind,
        /// Host and port that are asked.
        target: CheckTarget,
    },
    /// A program inside a task.
    Script {
        /// The task that the program runs in.
        task: TaskName,
        /// Program and arguments.
        argv: Vec<String>,
    },
}

/// The entry of a service in the list of the node. The list sets the indexes of the entry.
///
/// # Errors
/// When a text of the service has no meaning.
pub fn instance(
    service: &Service,
    allocation: &Allocation,
    env: &TaskEnv,
    networks: ServiceNetworks<'_>,
) -> Result<ServiceInstance, ResolveError> {
    let text = |what| {
        move |text: &str| {
            let text = replace_references(env, what, text)?;
            if has_hidden(&text) { Err(ResolveError::Hidden { what, text }) } else { Ok(text) }
        }
    };
    let name = text("name")(&service.name)?;
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '-';
    if name.is_empty() || name.len() > SERVICE_NAME_BYTES_MAX || !name.chars().all(allowed) {
        return Err(ResolveError::Name { name });
    }
    let port = service.port.as_deref().map(text("port")).transpose()?;
    let own = service.address.as_deref().map(text("address")).transpose()?;
    let (address, number) =
        resolve_address(service.address_mode, own.as_deref(), port.as_deref(), networks)?;
    let canary = allocation.deployment.as_ref().is_some_and(|deployment| deployment.canary);
    let of_canary = canary && !service.canary_tags.is_empty();
    let tags = if of_canary { &service.canary_tags } else { &service.tags };
    let tags = tags.iter().map(|tag| text("tags")(tag)).collect::<Result<_, _>>()?;
    let of_canary = canary && !service.canary_meta.is_empty();
    let mut meta = BTreeMap::new();
    for (key, value) in if of_canary { &service.canary_meta } else { &service.meta } {
        meta.insert(text("meta")(key)?, text("meta")(value)?);
    }
    let of = match &service.task {
        Some(task) => task.to_string(),
        None => format!("group-{}", allocation.group),
    };
    let id = format!(
        "_nomad-task-{}-{of}-{name}-{}",
        allocation.id,
        port.as_deref().unwrap_or_default()
    );
    Ok(ServiceInstance {
        id,
        name,
        namespace: allocation.job.namespace().to_owned(),
        job: allocation.job.id.clone(),
        alloc: allocation.id,
        tags,
        meta,
        address,
        port: number,
        create_index: 0,
        modify_index: 0,
    })
}

/// The question of a check. For a script, `env` is the environment of the task that the
/// script runs in.
///
/// # Errors
/// When a text of the check has no meaning.
pub fn question(
    check: &Check,
    service: &Service,
    env: &TaskEnv,
    networks: ServiceNetworks<'_>,
) -> Result<Question, ResolveError> {
    let text = |what| move |text: &str| replace_references(env, what, text);
    let kind = match &check.kind {
        CheckKind::Script { command, args } => {
            let mut argv = vec![text("command")(command)?];
            for arg in args {
                argv.push(text("args")(arg)?);
            }
            let task = script_task(check, service)
                .ok_or(ResolveError::NoNetwork { mode: "script", needed: "a task to run in" })?;
            return Ok(Question::Script { task: task.clone(), argv });
        }
        CheckKind::Tcp => CheckKind::Tcp,
        CheckKind::Http(http) => CheckKind::Http(Box::new(replace_in_http(http, env)?)),
        CheckKind::Grpc { service, tls } => {
            CheckKind::Grpc { service: text("grpc_service")(service)?, tls: tls.clone() }
        }
    };
    let port = check.port.as_deref().or(service.port.as_deref()).ok_or(ResolveError::NoPort)?;
    let port = text("port")(port)?;
    let own = service.address.as_deref().map(text("address")).transpose()?;
    // A mode of the check replaces that of the service, and with it the service's own address.
    let (mode, own) = match check.address_mode {
        Some(mode) => (mode, None),
        None => (service.address_mode, own),
    };
    let (host, port) = resolve_address(mode, own.as_deref(), Some(&port), networks)?;
    Ok(Question::Network { kind, target: CheckTarget { host, port } })
}

/// The task that a script runs in.
#[must_use]
pub fn script_task<'a>(check: &'a Check, service: &'a Service) -> Option<&'a TaskName> {
    check.task.as_ref().or(service.task.as_ref()).or(service.runs_in.as_ref())
}

fn replace_in_http(http: &HttpCheck, env: &TaskEnv) -> Result<HttpCheck, ResolveError> {
    let mut headers = BTreeMap::new();
    for (name, values) in &http.headers {
        let values = values.iter().map(|value| replace_references(env, "header", value));
        headers.insert(replace_references(env, "header", name)?, values.collect::<Result<_, _>>()?);
    }
    let path = replace_references(env, "path", &http.path)?;
    let path = if path.starts_with('/') { path } else { format!("/{path}") };
    let body = replace_references(env, "body", &http.body)?;
    Ok(HttpCheck { path, headers, body, ..http.clone() })
}

fn replace_references(
    env: &TaskEnv,
    what: &'static str,
    text: &str,
) -> Result<String, ResolveError> {
    if !text.contains("${") {
        return Ok(text.to_owned());
    }
    env.interpolate(text).map_err(|source| ResolveError::Text { what, source })
}

/// The name of a check with its references replaced, or as it is written where that
/// is not possible.
#[must_use]
pub fn check_name(check: &Check, env: &TaskEnv) -> String {
    let text = replace_references(env, "name", &check.name).ok().filter(|text| !has_hidden(text));
    text.unwrap_or_else(|| check.name.clone())
}

/// One check of a service that is up, with all that is needed to ask it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AskedCheck {
    /// The id of the check in the words of the job file.
    pub id: CheckId,
    /// The check as it stands in the job file.
    pub check: Arc<Check>,
    /// Name of the service in the list of the node.
    pub service: String,
    /// Name of the check with its references replaced.
    pub name: String,
    /// The question, or why the check has none.
    pub question: Result<Question, String>,
    /// When the run that the check asks was started.
    pub started: ostler_model::time::Timestamp,
}

#[cfg(test)]
#[path = "resolve_tests.rs"]
mod tests;
