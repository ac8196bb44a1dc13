//! Plugin answers into model types, each rule of the interface checked on the way.
//!
//! A broken answer is refused as a whole, with the place and the reason: half an answer would be
//! acted upon.

mod stats;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::time::Duration;

use super::bindings::since_0_1::host::types as wit;
use super::bindings::since_0_1::{device_export as dev, driver_export as drv};
use ostler_device::source::DeviceFingerprint;
use ostler_health::refresh::NextCheck;
use ostler_model::attribute::{Attribute, AttributeError, NamedAttribute, Scalar};
use ostler_model::device::{
    DeviceGroup, DeviceInstance, DeviceNode, GroupKey, Health, HealthState, Locality, Mount,
    Reservation,
};
use ostler_model::ids::PluginName;
use ostler_model::limits::{
    ANSWER_DIAGNOSTIC_BYTES_MAX, ANSWER_DIAGNOSTICS_MAX, ANSWER_NAME_BYTES_MAX,
    ANSWER_TEXT_BYTES_MAX, ATTRIBUTES_MAX, DEVICE_GROUPS_MAX, DEVICE_INSTANCES_MAX, NEXT_CHECK_MIN,
    WATCH_PATHS_MAX, WATCH_SUBSYSTEMS_MAX,
};
use ostler_model::network::DriverNetwork;
use ostler_model::ports::{Capabilities, Diagnostic, FsIsolation, PluginCallError};
use ostler_model::shown::{has_hidden, shown, shown_lines};

pub(super) use stats::device_stats;

/// An answer against the rules of the interface.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("broken answer: {place}: {problem}")]
pub struct AnswerError {
    /// Where in the answer.
    pub place: String,
    /// What is wrong.
    pub problem: String,
}

type Checked<T> = Result<T, AnswerError>;

// A place is passed as what it is made of (`format_args!`), and written only into an error: an answer
// has hundreds.
fn broken<T>(place: impl Display, problem: impl Into<String>) -> Checked<T> {
    Err(AnswerError { place: place.to_string(), problem: problem.into() })
}

/// A name: not empty, bounded, nothing in it that does not show.
pub(super) fn name(place: impl Display, text: String) -> Checked<String> {
    if text.is_empty() {
        return broken(place, "is empty");
    }
    if text.len() > ANSWER_NAME_BYTES_MAX {
        return broken(place, format!("has {} bytes; at most {ANSWER_NAME_BYTES_MAX}", text.len()));
    }
    if has_hidden(&text) {
        return broken(place, format!("{text:?} has characters that do not show"));
    }
    Ok(text)
}

/// Free text for people: bounded, and what does not show in it is made visible.
pub(super) fn text(place: impl Display, text: String) -> Checked<String> {
    Ok(shown(bounded(place, text)?, ANSWER_TEXT_BYTES_MAX))
}

/// What is used as it is (a path, a variable) and shown at times: bounded, nothing hidden.
fn plain(place: impl Display, text: String) -> Checked<String> {
    let text = bounded(&place, text)?;
    if has_hidden(&text) {
        return broken(place, format!("{text:?} has characters that do not show"));
    }
    Ok(text)
}

fn bounded(place: impl Display, text: String) -> Checked<String> {
    if text.len() > ANSWER_TEXT_BYTES_MAX {
        return broken(place, format!("has {} bytes; at most {ANSWER_TEXT_BYTES_MAX}", text.len()));
    }
    Ok(text)
}

fn at_most(place: impl Display, len: usize, max: usize) -> Checked<()> {
    if len > max { broken(place, format!("has {len} entries; at most {max}")) } else { Ok(()) }
}

fn health(place: impl Display, health: wit::Health) -> Checked<Health> {
    let state = match health.state {
        wit::HealthState::Undetected => HealthState::Undetected,
        wit::HealthState::Unhealthy => HealthState::Unhealthy,
        wit::HealthState::Healthy => HealthState::Healthy,
    };
    Ok(Health { state, reason: text(format_args!("{place}.reason"), health.reason)? })
}

fn attribute(place: impl Display + Copy, given: wit::Attribute) -> Checked<Attribute> {
    let value = match given.value {
        wit::Scalar::Int(number) => Scalar::Int(number),
        wit::Scalar::Float(number) => Scalar::Float(number),
        wit::Scalar::Boolean(truth) => Scalar::Bool(truth),
        wit::Scalar::Text(value) => Scalar::Text(text(place, value)?),
    };
    let unit = given.unit.map(|unit| name(place, unit)).transpose()?;
    let attribute = Attribute { value, unit };
    let wrong = |e: AttributeError| broken(place, e.to_string());
    attribute.check().or_else(wrong)?;
    Ok(attribute)
}

/// Attributes: bounded, names unique; sorted by name.
pub(super) fn attributes(
    place: impl Display + Copy,
    given: Vec<wit::NamedAttribute>,
) -> Checked<Vec<NamedAttribute>> {
    at_most(place, given.len(), ATTRIBUTES_MAX)?;
    let mut list = Vec::with_capacity(given.len());
    for item in given {
        let item_name = name(format_args!("{place}.name"), item.name)?;
        let attribute = attribute(format_args!("{place}.{item_name}"), item.attribute)?;
        list.push(NamedAttribute { name: item_name, attribute });
    }
    list.sort_by(|a, b| a.name.cmp(&b.name));
    match twice(&list, |item| item.name.as_str()) {
        Some(item) => broken(place, format!("{:?} is there twice", item.name)),
        None => Ok(list),
    }
}

/// The first of a sorted list whose key the one before has too.
fn twice<T, K: PartialEq + ?Sized>(sorted: &[T], key: impl Fn(&T) -> &K) -> Option<&T> {
    let mut pairs = sorted.iter().zip(sorted.iter().skip(1));
    pairs.find(|(a, b)| key(a) == key(b)).map(|(_, b)| b)
}

pub(super) fn next_check(after: Option<u64>, watch: wit::Watches) -> Checked<NextCheck> {
    at_most("watch.paths", watch.paths.len(), WATCH_PATHS_MAX)?;
    at_most("watch.subsystems", watch.subsystems.len(), WATCH_SUBSYSTEMS_MAX)?;
    let paths = watch.paths.into_iter().map(|p| absolute("watch.paths", p));
    let subsystems = watch.subsystems.into_iter().map(|s| name("watch.subsystems", s));
    Ok(NextCheck {
        after: after.map(|ms| Duration::from_millis(ms).max(NEXT_CHECK_MIN)),
        paths: paths.collect::<Checked<_>>()?,
        subsystems: subsystems.collect::<Checked<_>>()?,
    })
}

/// What a driver found.
#[derive(Clone, Debug, PartialEq)]
pub struct DriverFingerprint {
    /// Usable or not.
    pub health: Health,
    /// Replace all earlier ones.
    pub attributes: Vec<NamedAttribute>,
    /// When to ask again.
    pub next: NextCheck,
}

pub(super) fn driver_fingerprint(given: drv::DriverFingerprint) -> Checked<DriverFingerprint> {
    Ok(DriverFingerprint {
        health: health("health", given.health)?,
        attributes: attributes("attributes", given.attributes)?,
        next: next_check(given.next_check, given.watch)?,
    })
}

pub(super) fn capabilities(given: &drv::Capabilities) -> Capabilities {
    Capabilities {
        send_signals: given.send_signals,
        exec: given.exec,
        fs_isolation: match given.fs_isolation {
            drv::FsIsolation::None => FsIsolation::None,
            drv::FsIsolation::Chroot => FsIsolation::Chroot,
            drv::FsIsolation::Preopen => FsIsolation::Preopen,
        },
    }
}

pub(super) fn device_fingerprint(
    plugin: &PluginName,
    given: dev::DeviceFingerprint,
) -> Checked<DeviceFingerprint> {
    let health = health("health", given.health)?;
    at_most("groups", given.groups.len(), DEVICE_GROUPS_MAX)?;
    if health.state == HealthState::Undetected && !given.groups.is_empty() {
        return broken("groups", "are there, and health is undetected");
    }
    let mut groups: Vec<DeviceGroup> = Vec::with_capacity(given.groups.len());
    for group in given.groups {
        groups.push(device_group(plugin, group)?);
    }
    groups.sort_by(|a, b| a.key.cmp(&b.key));
    if let Some(group) = twice(&groups, |group| &group.key) {
        return broken("groups", format!("{} is there twice", group.key));
    }
    Ok(DeviceFingerprint { health, groups, next: next_check(given.next_check, given.watch)? })
}

fn group_key(vendor: String, kind: String, group: String) -> Checked<GroupKey> {
    Ok(GroupKey {
        vendor: name("group.vendor", vendor)?,
        kind: name("group.type", kind)?,
        name: name("group.name", group)?,
    })
}

fn device_group(plugin: &PluginName, given: dev::Group) -> Checked<DeviceGroup> {
    let key = group_key(given.vendor, given.type_, given.name)?;
    let place = format_args!("group {key}");
    at_most(place, given.instances.len(), DEVICE_INSTANCES_MAX)?;
    let mut instances = Vec::with_capacity(given.instances.len());
    for instance in given.instances {
        let id = name(format_args!("{place}: instance id"), instance.id)?;
        let locality = match instance.locality {
            Some(at) => Some(Locality {
                pci_bus_id: at.pci_bus_id.map(|bus| name(place, bus)).transpose()?,
                numa_node: at.numa_node,
            }),
            None => None,
        };
        let health = health(format_args!("{place}: instance {id}"), instance.health)?;
        instances.push(DeviceInstance { id, health, locality });
    }
    let mut seen = BTreeSet::new();
    if let Some(instance) = instances.iter().find(|instance| !seen.insert(instance.id.as_str())) {
        return broken(place, format!("instance {:?} is there twice", instance.id));
    }
    let attributes = attributes(place, given.attributes)?;
    Ok(DeviceGroup { key, plugin: plugin.clone(), instances, attributes })
}

/// A reservation: paths absolute and without `..`, variable names usable.
pub(super) fn reservation(given: dev::Reservation) -> Checked<Reservation> {
    at_most("env", given.env.len(), ATTRIBUTES_MAX)?;
    at_most("mounts", given.mounts.len(), ATTRIBUTES_MAX)?;
    at_most("device nodes", given.device_nodes.len(), ATTRIBUTES_MAX)?;
    let mut reservation = Reservation::default();
    for var in given.env {
        let key = name("env", var.name)?;
        if key.contains('=') {
            return broken("env", format!("{key:?} contains an equals sign"));
        }
        reservation.env.push((key, plain("env", var.value)?));
    }
    for mount in given.mounts {
        reservation.mounts.push(Mount {
            host_path: absolute("mount host path", mount.host_path)?,
            task_path: absolute("mount task path", mount.task_path)?,
            read_only: mount.read_only,
        });
    }
    for node in given.device_nodes {
        let permissions = name("device node permissions", node.permissions)?;
        let valid = !permissions.is_empty()
            && permissions.chars().all(|c| "rwm".contains(c))
            && permissions.chars().collect::<BTreeSet<_>>().len() == permissions.len();
        if !valid {
            return broken("device node permissions", format!("{permissions:?} is not of r, w, m"));
        }
        reservation.device_nodes.push(DeviceNode {
            host_path: absolute("device node host path", node.host_path)?,
            task_path: absolute("device node task path", node.task_path)?,
            permissions,
        });
    }
    Ok(reservation)
}

/// The address of a task in its driver's network, and its ports by label.
pub(super) fn driver_network(given: drv::Network) -> Checked<DriverNetwork> {
    at_most("network ports", given.ports.len(), ATTRIBUTES_MAX)?;
    let Ok(ip) = given.ip.parse() else {
        return broken("network ip", format!("{:?} is no address", shown(given.ip, 64)));
    };
    let mut ports = BTreeMap::new();
    for port in given.ports {
        let label = name("network port", port.label)?;
        if port.value == 0 {
            return broken("network port", format!("{label:?} is 0"));
        }
        if let Some(_twice) = ports.insert(label.clone(), port.value) {
            return broken("network port", format!("{label:?} is there twice"));
        }
    }
    Ok(DriverNetwork { ip, ports })
}

fn absolute(place: &str, path: String) -> Checked<String> {
    let path = plain(place, path)?;
    let parsed = std::path::Path::new(&path);
    let up = parsed.components().any(|c| matches!(c, std::path::Component::ParentDir));
    if !parsed.is_absolute() || up {
        return broken(place, format!("{path:?} is not an absolute path without `..`"));
    }
    Ok(path)
}

/// All that a plugin says in an error of its own.
pub(super) fn words(given: &mut wit::PluginError) -> impl Iterator<Item = &mut String> {
    let (one, list) = match given {
        wit::PluginError::NotFound(text)
        | wit::PluginError::Recoverable(text)
        | wit::PluginError::Fatal(text)
        | wit::PluginError::Unsupported(text)
        | wit::PluginError::PermissionDenied(text) => (Some(text), None),
        wit::PluginError::InvalidConfig(list) => (None, Some(list)),
    };
    let of_list = list.into_iter().flatten().flat_map(|one| [&mut one.path, &mut one.message]);
    one.into_iter().chain(of_list)
}

/// A plugin's own error, bounded and visible.
pub(super) fn plugin_error(given: wit::PluginError) -> PluginCallError {
    let said = |message: String, max: usize| match message.trim() {
        "" => "it gave no reason".to_owned(),
        message => shown(message, max),
    };
    let reason = |message| said(message, ANSWER_TEXT_BYTES_MAX);
    match given {
        wit::PluginError::NotFound(m) => PluginCallError::NotFound(reason(m)),
        wit::PluginError::InvalidConfig(list) => {
            let told = list.into_iter().take(ANSWER_DIAGNOSTICS_MAX).map(|one| {
                let path = shown(one.path, ANSWER_NAME_BYTES_MAX);
                let message = said(one.message, ANSWER_DIAGNOSTIC_BYTES_MAX);
                Diagnostic { path, message, ..Diagnostic::default() }
            });
            PluginCallError::InvalidConfig(told.collect())
        }
        wit::PluginError::Recoverable(m) => PluginCallError::Recoverable(reason(m)),
        wit::PluginError::Fatal(m) => PluginCallError::Fatal(reason(m)),
        wit::PluginError::Unsupported(m) => PluginCallError::Unsupported(reason(m)),
        wit::PluginError::PermissionDenied(m) => PluginCallError::PermissionDenied(denied(&m)),
    }
}

/// A refusal of the host that the plugin passes on ends with lines of a configuration, to be copied.
/// Such lines stay; they have the form of a grant and can pass for nothing else.
fn denied(message: &str) -> String {
    let lines = message.split_once(":\n").filter(|(_, lines)| is_grant(lines));
    match lines {
        Some((why, lines)) => {
            let why = shown(why, ANSWER_TEXT_BYTES_MAX);
            format!("{why}:\n{}", shown_lines(lines, ANSWER_TEXT_BYTES_MAX))
        }
        None if message.trim().is_empty() => "it gave no reason".to_owned(),
        None => shown(message.trim(), ANSWER_TEXT_BYTES_MAX),
    }
}

/// Has it the form of a `plugin` block with grants?
fn is_grant(lines: &str) -> bool {
    let inner = lines.trim_end().strip_prefix("plugin \"");
    let inner = inner.and_then(|rest| rest.split_once("\" {\n  grants {\n"));
    let inner = inner.filter(|(name, _)| !name.contains('\n')).map(|(_, inner)| inner);
    let inner = inner.and_then(|inner| inner.strip_suffix("  }\n}"));
    inner.is_some_and(|inner| inner.lines().all(|line| line.starts_with("    ")))
}

#[cfg(test)]
mod tests;
