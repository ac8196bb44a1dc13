//! Converts plugin answers into model types, and checks each rule of the interface on the way.
//!
//! A broken answer is refused as a whole, with the place and the reason. Otherwise the agent would
//! act upon half an answer.

mod stats;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::time::Duration;

use super::bindings::since_0_1::host::types as wit;
use super::bindings::since_0_1::{device_export as dev, driver_export as drv};
use ostler_device::source::DeviceFingerprint;
use ostler_health::refresh::NextCheck;
use ostler_model::attribute::{Attribute, AttributeError, AttributeValue, NamedAttribute};
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
use ostler_model::printable::{has_hidden, printable_line, printable_lines};

pub(super) use stats::device_stats;

/// Why an answer breaks the rules of the interface.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("broken answer: {place}: {problem}")]
pub struct AnswerError {
    /// The place in the answer.
    pub place: String,
    /// What is wrong there, for people.
    pub problem: String,
}

type AnswerResult<T> = Result<T, AnswerError>;

// A place is passed as its parts (`format_args!`), and is written only into an error, because an
// answer has hundreds of places.
fn broken_answer<T>(place: impl Display, problem: impl Into<String>) -> AnswerResult<T> {
    Err(AnswerError { place: place.to_string(), problem: problem.into() })
}

/// Check a name: it is not empty, not too long, and all its characters are visible.
pub(super) fn name(place: impl Display, text: String) -> AnswerResult<String> {
    if text.is_empty() {
        return broken_answer(place, "is empty");
    }
    if text.len() > ANSWER_NAME_BYTES_MAX {
        return broken_answer(
            place,
            format!("has {} bytes; at most {ANSWER_NAME_BYTES_MAX}", text.len()),
        );
    }
    if has_hidden(&text) {
        return broken_answer(place, format!("{text:?} has characters that do not show"));
    }
    Ok(text)
}

/// Check free text for people: it is not too long. Invisible characters are made visible.
pub(super) fn text(place: impl Display, text: String) -> AnswerResult<String> {
    Ok(printable_line(check_length(place, text)?, ANSWER_TEXT_BYTES_MAX))
}

/// Check a text that is used as it is (a path, a variable) and shown at times: it is not too long,
/// and all its characters are visible.
fn check_plain(place: impl Display, text: String) -> AnswerResult<String> {
    let text = check_length(&place, text)?;
    if has_hidden(&text) {
        return broken_answer(place, format!("{text:?} has characters that do not show"));
    }
    Ok(text)
}

fn check_length(place: impl Display, text: String) -> AnswerResult<String> {
    if text.len() > ANSWER_TEXT_BYTES_MAX {
        return broken_answer(
            place,
            format!("has {} bytes; at most {ANSWER_TEXT_BYTES_MAX}", text.len()),
        );
    }
    Ok(text)
}

fn check_count(place: impl Display, len: usize, max: usize) -> AnswerResult<()> {
    if len > max {
        broken_answer(place, format!("has {len} entries; at most {max}"))
    } else {
        Ok(())
    }
}

fn health(place: impl Display, health: wit::Health) -> AnswerResult<Health> {
    let state = match health.state {
        wit::HealthState::Undetected => HealthState::Undetected,
        wit::HealthState::Unhealthy => HealthState::Unhealthy,
        wit::HealthState::Healthy => HealthState::Healthy,
    };
    Ok(Health { state, reason: text(format_args!("{place}.reason"), health.reason)? })
}

fn attribute(place: impl Display + Copy, given: wit::Attribute) -> AnswerResult<Attribute> {
    let value = match given.value {
        wit::Scalar::Int(number) => AttributeValue::Int(number),
        wit::Scalar::Float(number) => AttributeValue::Float(number),
        wit::Scalar::Boolean(truth) => AttributeValue::Bool(truth),
        wit::Scalar::Text(value) => AttributeValue::Text(text(place, value)?),
    };
    let unit = given.unit.map(|unit| name(place, unit)).transpose()?;
    let attribute = Attribute { value, unit };
    let wrong = |e: AttributeError| broken_answer(place, e.to_string());
    attribute.check().or_else(wrong)?;
    Ok(attribute)
}

/// Check attributes: they are not too many, and their names are unique. They are returned
/// sorted by name.
pub(super) fn attributes(
    place: impl Display + Copy,
    given: Vec<wit::NamedAttribute>,
) -> AnswerResult<Vec<NamedAttribute>> {
    check_count(place, given.len(), ATTRIBUTES_MAX)?;
    let mut list = Vec::with_capacity(given.len());
    for item in given {
        let item_name = name(format_args!("{place}.name"), item.name)?;
        let attribute = attribute(format_args!("{place}.{item_name}"), item.attribute)?;
        list.push(NamedAttribute { name: item_name, attribute });
    }
    list.sort_by(|a, b| a.name.cmp(&b.name));
    match find_duplicate(&list, |item| item.name.as_str()) {
        Some(item) => broken_answer(place, format!("{:?} is listed twice", item.name)),
        None => Ok(list),
    }
}

/// The first item of a sorted list that has the same key as the one before it.
fn find_duplicate<T, K: PartialEq + ?Sized>(sorted: &[T], key: impl Fn(&T) -> &K) -> Option<&T> {
    let mut pairs = sorted.iter().zip(sorted.iter().skip(1));
    pairs.find(|(a, b)| key(a) == key(b)).map(|(_, b)| b)
}

pub(super) fn next_check(after: Option<u64>, watch: wit::Watches) -> AnswerResult<NextCheck> {
    check_count("watch.paths", watch.paths.len(), WATCH_PATHS_MAX)?;
    check_count("watch.subsystems", watch.subsystems.len(), WATCH_SUBSYSTEMS_MAX)?;
    let paths = watch.paths.into_iter().map(|p| check_absolute("watch.paths", p));
    let subsystems = watch.subsystems.into_iter().map(|s| name("watch.subsystems", s));
    Ok(NextCheck {
        after: after.map(|ms| Duration::from_millis(ms).max(NEXT_CHECK_MIN)),
        paths: paths.collect::<AnswerResult<_>>()?,
        subsystems: subsystems.collect::<AnswerResult<_>>()?,
    })
}

/// The answer of a driver to `fingerprint`.
#[derive(Clone, Debug, PartialEq)]
pub struct DriverFingerprint {
    /// Whether the driver is usable, and why.
    pub health: Health,
    /// All attributes of the driver. They replace all earlier ones.
    pub attributes: Vec<NamedAttribute>,
    /// When the driver is asked again.
    pub next: NextCheck,
}

pub(super) fn driver_fingerprint(given: drv::DriverFingerprint) -> AnswerResult<DriverFingerprint> {
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
) -> AnswerResult<DeviceFingerprint> {
    let health = health("health", given.health)?;
    check_count("groups", given.groups.len(), DEVICE_GROUPS_MAX)?;
    if health.state == HealthState::Undetected && !given.groups.is_empty() {
        return broken_answer("groups", "are reported although health is undetected");
    }
    let mut groups: Vec<DeviceGroup> = Vec::with_capacity(given.groups.len());
    for group in given.groups {
        groups.push(device_group(plugin, group)?);
    }
    groups.sort_by(|a, b| a.key.cmp(&b.key));
    if let Some(group) = find_duplicate(&groups, |group| &group.key) {
        return broken_answer("groups", format!("{} is listed twice", group.key));
    }
    Ok(DeviceFingerprint { health, groups, next: next_check(given.next_check, given.watch)? })
}

fn group_key(vendor: String, kind: String, group: String) -> AnswerResult<GroupKey> {
    Ok(GroupKey {
        vendor: name("group.vendor", vendor)?,
        kind: name("group.type", kind)?,
        name: name("group.name", group)?,
    })
}

fn device_group(plugin: &PluginName, given: dev::Group) -> AnswerResult<DeviceGroup> {
    let key = group_key(given.vendor, given.type_, given.name)?;
    let place = format_args!("group {key}");
    check_count(place, given.instances.len(), DEVICE_INSTANCES_MAX)?;
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
        return broken_answer(place, format!("instance {:?} is listed twice", instance.id));
    }
    let attributes = attributes(place, given.attributes)?;
    Ok(DeviceGroup { key, plugin: plugin.clone(), instances, attributes })
}

/// Check a reservation: paths are absolute and without `..`, and names of variables are usable.
pub(super) fn reservation(given: dev::Reservation) -> AnswerResult<Reservation> {
    check_count("env", given.env.len(), ATTRIBUTES_MAX)?;
    check_count("mounts", given.mounts.len(), ATTRIBUTES_MAX)?;
    check_count("device nodes", given.device_nodes.len(), ATTRIBUTES_MAX)?;
    let mut reservation = Reservation::default();
    for var in given.env {
        let key = name("env", var.name)?;
        if key.contains('=') {
            return broken_answer("env", format!("{key:?} contains an equals sign"));
        }
        reservation.env.push((key, check_plain("env", var.value)?));
    }
    for mount in given.mounts {
        reservation.mounts.push(Mount {
            host_path: check_absolute("mount host path", mount.host_path)?,
            task_path: check_absolute("mount task path", mount.task_path)?,
            read_only: mount.read_only,
        });
    }
    for node in given.device_nodes {
        let permissions = name("device node permissions", node.permissions)?;
        let valid = !permissions.is_empty()
            && permissions.chars().all(|c| "rwm".contains(c))
            && permissions.chars().collect::<BTreeSet<_>>().len() == permissions.len();
        if !valid {
            return broken_answer(
                "device node permissions",
                format!("{permissions:?} is not of r, w, m"),
            );
        }
        reservation.device_nodes.push(DeviceNode {
            host_path: check_absolute("device node host path", node.host_path)?,
            task_path: check_absolute("device node task path", node.task_path)?,
            permissions,
        });
    }
    Ok(reservation)
}

/// The address of a task in its driver's network, and its ports by label.
pub(super) fn driver_network(given: drv::Network) -> AnswerResult<DriverNetwork> {
    check_count("network ports", given.ports.len(), ATTRIBUTES_MAX)?;
    let Ok(ip) = given.ip.parse() else {
        return broken_answer(
            "network ip",
            format!("{:?} is not an address", printable_line(given.ip, 64)),
        );
    };
    let mut ports = BTreeMap::new();
    for port in given.ports {
        let label = name("network port", port.label)?;
        if port.value == 0 {
            return broken_answer("network port", format!("{label:?} is 0"));
        }
        if let Some(_twice) = ports.insert(label.clone(), port.value) {
            return broken_answer("network port", format!("{label:?} is listed twice"));
        }
    }
    Ok(DriverNetwork { ip, ports })
}

fn check_absolute(place: &str, path: String) -> AnswerResult<String> {
    let path = check_plain(place, path)?;
    let parsed = std::path::Path::new(&path);
    let up = parsed.components().any(|c| matches!(c, std::path::Component::ParentDir));
    if !parsed.is_absolute() || up {
        return broken_answer(place, format!("{path:?} is not an absolute path without `..`"));
    }
    Ok(path)
}

/// All texts of a plugin's own error.
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

/// Convert a plugin's own error. Its texts are cut to the limit and made visible.
pub(super) fn plugin_error(given: wit::PluginError) -> PluginCallError {
    let said = |message: String, max: usize| match message.trim() {
        "" => "it gave no reason".to_owned(),
        message => printable_line(message, max),
    };
    let reason = |message| said(message, ANSWER_TEXT_BYTES_MAX);
    match given {
        wit::PluginError::NotFound(m) => PluginCallError::NotFound(reason(m)),
        wit::PluginError::InvalidConfig(list) => {
            let told = list.into_iter().take(ANSWER_DIAGNOSTICS_MAX).map(|one| {
                let path = printable_line(one.path, ANSWER_NAME_BYTES_MAX);
                let message = said(one.message, ANSWER_DIAGNOSTIC_BYTES_MAX);
                Diagnostic { path, message, ..Diagnostic::default() }
            });
            PluginCallError::InvalidConfig(told.collect())
        }
        wit::PluginError::Recoverable(m) => PluginCallError::Recoverable(reason(m)),
        wit::PluginError::Fatal(m) => PluginCallError::Fatal(reason(m)),
        wit::PluginError::Unsupported(m) => PluginCallError::Unsupported(reason(m)),
        wit::PluginError::PermissionDenied(m) => PluginCallError::PermissionDenied(denial_text(&m)),
    }
}

/// The text of a denial. A refusal of the host that the plugin passes on ends with lines of a
/// configuration, which a person copies. Such lines stay: they have the form of a grant, and can be
/// taken for nothing else.
fn denial_text(message: &str) -> String {
    let lines = message.split_once(":\n").filter(|(_, lines)| is_grant(lines));
    match lines {
        Some((why, lines)) => {
            let why = printable_line(why, ANSWER_TEXT_BYTES_MAX);
            format!("{why}:\n{}", printable_lines(lines, ANSWER_TEXT_BYTES_MAX))
        }
        None if message.trim().is_empty() => "it gave no reason".to_owned(),
        None => printable_line(message.trim(), ANSWER_TEXT_BYTES_MAX),
    }
}

/// Do these lines have the form of a `plugin` block with grants?
fn is_grant(lines: &str) -> bool {
    let inner = lines.trim_end().strip_prefix("plugin \"");
    let inner = inner.and_then(|rest| rest.split_once("\" {\n  grants {\n"));
    let inner = inner.filter(|(name, _)| !name.contains('\n')).map(|(_, inner)| inner);
    let inner = inner.and_then(|inner| inner.strip_suffix("  }\n}"));
    inner.is_some_and(|inner| inner.lines().all(|line| line.starts_with("    ")))
}

#[cfg(test)]
mod tests;
