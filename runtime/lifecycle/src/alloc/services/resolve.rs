//! What a service is once its `${…}` are replaced: its entry in the list of the node, and the questions
//! of its checks. Pure.
//!
//! Where it is reached ([`reached`]) is decided in one place, by what the allocation's network is:
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
use ostler_model::resources::AllocatedPort;
use ostler_model::service::ServiceInstance;
use ostler_model::shown::has_hidden;
use ostler_probe::CheckTarget;

/// What there is of networks around a service.
#[derive(Clone, Copy, Debug, Default)]
pub struct ServiceNetworks<'a> {
    /// The ports of the allocation.
    pub ports: &'a [AllocatedPort],
    /// The task that the service stands in: its own ports count, those of other tasks do not.
    pub task: Option<&'a TaskName>,
    /// The node's address.
    pub host_ip: &'a str,
    /// The address of the allocation in a network of its own.
    pub alloc_ip: Option<&'a str>,
    /// What the driver gave the task.
    pub of_driver: Option<&'a DriverNetwork>,
}

impl<'a> ServiceNetworks<'a> {
    /// The port of this label: of the task before that of its group.
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
    /// A text has a reference nobody knows.
    #[error("{what}: {source}")]
    Text {
        /// Which.
        what: &'static str,
        /// What is wrong with it.
        #[source]
        source: InterpolateError,
    },
    /// The name is none.
    #[error(
        "{name:?} is no name of a service: letters, digits and dashes, at most {SERVICE_NAME_BYTES_MAX}"
    )]
    Name {
        /// With all references replaced.
        name: String,
    },
    /// It would be more than a line where it is written.
    #[error("{what} {text:?} has characters that do not show")]
    Hidden {
        /// Which.
        what: &'static str,
        /// With all references replaced.
        text: String,
    },
    /// Neither a label nor a number.
    #[error("the allocation has no port {port:?}")]
    Port {
        /// The port.
        port: String,
    },
    /// There is nothing to connect to.
    #[error("the check has no port; give it or its service one")]
    NoPort,
    /// No such network.
    #[error("address_mode {mode} needs {needed}, which this task does not have")]
    NoNetwork {
        /// The mode.
        mode: &'static str,
        /// What it needs.
        needed: &'static str,
    },
}

/// Where something is reached: an address or name, and a port or 0 for none.
///
/// # Errors
/// When the port is not there, or the network.
pub fn reached(
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
            Ok((usable(label.map_or(networks.host_ip, |port| &port.host_ip)), outside))
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

/// An address that can be connected to: where all are listened at, the loopback's.
fn usable(ip: &str) -> String {
    match ip.parse() {
        Ok(IpAddr::V4(ip)) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.to_string(),
        Ok(IpAddr::V6(ip)) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.to_string(),
        _ => ip.to_owned(),
    }
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// Over the network.
    Network {
        /// What; no script.
        kind: CheckKind,
        /// Where.
        target: CheckTarget,
    },
    /// A program inside a task.
    Script {
        /// Which task.
        task: TaskName,
        /// Program and arguments.
        argv: Vec<String>,
    },
}

/// The entry of a service in the list of the node. Its indexes are the list's to give.
///
/// # Errors
/// What of it has no meaning.
pub fn instance(
    service: &Service,
    allocation: &Allocation,
    env: &TaskEnv,
    networks: ServiceNetworks<'_>,
) -> Result<ServiceInstance, ResolveError> {
    let text = |what| {
        move |text: &str| {
            let text = replaced(env, what, text)?;
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
        reached(service.address_mode, own.as_deref(), port.as_deref(), networks)?;
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

/// What a check asks. `script_env` is that of the task a script runs in.
///
/// # Errors
/// What of it has no meaning.
pub fn question(
    check: &Check,
    service: &Service,
    env: &TaskEnv,
    networks: ServiceNetworks<'_>,
) -> Result<Question, ResolveError> {
    let text = |what| move |text: &str| replaced(env, what, text);
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
        CheckKind::Http(http) => CheckKind::Http(Box::new(replaced_http(http, env)?)),
        CheckKind::Grpc { service, tls } => {
            CheckKind::Grpc { service: text("grpc_service")(service)?, tls: tls.clone() }
        }
    };
    let port = check.port.as_deref().or(service.port.as_deref()).ok_or(ResolveError::NoPort)?;
    let port = text("port")(port)?;
    let own = service.address.as_deref().map(text("address")).transpose()?;
    // A mode of the check's own is another than the service's, with its own address or not.
    let (mode, own) = match check.address_mode {
        Some(mode) => (mode, None),
        None => (service.address_mode, own),
    };
    let (host, port) = reached(mode, own.as_deref(), Some(&port), networks)?;
    Ok(Question::Network { kind, target: CheckTarget { host, port } })
}

/// The task that a script runs in.
#[must_use]
pub fn script_task<'a>(check: &'a Check, service: &'a Service) -> Option<&'a TaskName> {
    check.task.as_ref().or(service.task.as_ref()).or(service.runs_in.as_ref())
}

fn replaced_http(http: &HttpCheck, env: &TaskEnv) -> Result<HttpCheck, ResolveError> {
    let mut headers = BTreeMap::new();
    for (name, values) in &http.headers {
        let values = values.iter().map(|value| replaced(env, "header", value));
        headers.insert(replaced(env, "header", name)?, values.collect::<Result<_, _>>()?);
    }
    let path = replaced(env, "path", &http.path)?;
    let path = if path.starts_with('/') { path } else { format!("/{path}") };
    let body = replaced(env, "body", &http.body)?;
    Ok(HttpCheck { path, headers, body, ..http.clone() })
}

fn replaced(env: &TaskEnv, what: &'static str, text: &str) -> Result<String, ResolveError> {
    if !text.contains("${") {
        return Ok(text.to_owned());
    }
    env.interpolate(text).map_err(|source| ResolveError::Text { what, source })
}

/// The name of a check with what it refers to; as it is written where that cannot be said.
#[must_use]
pub fn check_name(check: &Check, env: &TaskEnv) -> String {
    let text = replaced(env, "name", &check.name).ok().filter(|text| !has_hidden(text));
    text.unwrap_or_else(|| check.name.clone())
}

/// One check of a service that is there, with all that asking it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AskedCheck {
    /// Which.
    pub id: CheckId,
    /// As the job file has it.
    pub check: Arc<Check>,
    /// The service by its name in the list.
    pub service: String,
    /// The check by its name, with what that refers to.
    pub name: String,
    /// What is asked, or why nothing can be.
    pub question: Result<Question, String>,
    /// The start of what it asks.
    pub started: ostler_model::time::Timestamp,
}

#[cfg(test)]
#[path = "resolve_tests.rs"]
mod tests;
