//! Checks what a plugin's answers may cause. Pure, but for the resolver of paths that it is given.
//!
//! An import lets a plugin ask; an answer makes the host act: show a directory of the node to a
//! task, assign a device node, set a variable, name a device group. Each needs a grant as an import
//! does. Without a grant a plugin may use what carries its own name, which is that of its block or
//! file:
//!
//! ```text
//! groups      vendor = its name                  or granted by pattern
//! variables   NAME_DEVICES and the like          or granted; never those that say what runs
//! mounts      none                               granted paths, links resolved
//! nodes       none                               granted paths, with permissions
//! driver      its name                           or the granted one
//! attributes  below driver.NAME.                 the granted ones, where some are
//! ```
//! Where a task is shown several paths, none may hide another, or one of the task's own
//! ([`check_mount_paths`]).

use std::path::{Path, PathBuf};

use super::{GrantAddition, Grants, PUT, grant_lines, wildcard};
use crate::attribute::NamedAttribute;
use crate::config::FileGrant;
use crate::device::{DeviceNode, GroupKey, Mount, Reservation};
use crate::printable::{join_some, printable_line};
use crate::variables::{is_own, is_reserved};

/// Most things of one answer that its refusal names.
const NAMED_MAX: usize = 16;
/// Added to the rank of a pattern that names the vendor, so that it outranks any number of letters.
const VENDOR_NAMED: u32 = 1 << 30;
/// Most bytes of each thing that a refusal names.
const NAMED_BYTES_MAX: usize = 256;

/// Why an answer is refused: it would cause something that is not granted.
#[derive(Clone, Debug, Default, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.text())]
pub struct AnswerExcess {
    plugin: String,
    /// List of the things that no grant can allow; empty when there are none.
    never: String,
    /// List of the things that are not granted; empty when there are none.
    missing: String,
    /// The plugin's block of the configuration with the missing grants.
    lines: String,
}

impl AnswerExcess {
    fn text(&self) -> String {
        let Self { plugin, never, missing, lines } = self;
        let mut parts = Vec::new();
        if !never.is_empty() {
            parts.push(format!("plugin {plugin} answers what no plugin may: {never}"));
        }
        if !missing.is_empty() {
            let what = format!("plugin {plugin} answers what it is not granted: {missing}");
            parts.push(format!("{what}; to grant it {PUT}:\n{lines}"));
        }
        parts.join("; ")
    }
}

/// Checks the answers of one plugin against its grants.
#[derive(Clone, Copy, Debug)]
pub struct AnswerCheck<'a> {
    /// Name of the plugin's block, or of its file.
    pub name: &'a str,
    /// Grants of the plugin.
    pub grants: &'a Grants,
}

/// Collects what an answer has that is not granted.
struct ExcessCollector<'a> {
    of: AnswerCheck<'a>,
    never: Vec<String>,
    missing: Vec<(String, GrantAddition)>,
}

impl ExcessCollector<'_> {
    fn add_missing(&mut self, what: String, added: GrantAddition) {
        if !self.missing.iter().any(|(known, _)| *known == what) {
            self.missing.push((what, added));
        }
    }

    fn finish(self) -> Result<(), AnswerExcess> {
        let Self { of, never, missing } = self;
        if never.is_empty() && missing.is_empty() {
            return Ok(());
        }
        let added: Vec<GrantAddition> =
            missing.iter().take(NAMED_MAX).map(|(_, added)| added.clone()).collect();
        let lines =
            if added.is_empty() { String::new() } else { grant_lines(of.name, of.grants, &added) };
        let missing: Vec<String> = missing.into_iter().map(|(what, _)| what).collect();
        let (never, missing) = (join_first(&never), join_first(&missing));
        Err(AnswerExcess { plugin: of.name.to_owned(), never, missing, lines })
    }
}

/// The first things of a list, each as a bounded line, and how many more there are.
fn join_first(all: &[String]) -> String {
    let some = all.iter().take(NAMED_MAX).map(|what| printable_line(what, NAMED_BYTES_MAX));
    let some: Vec<String> = some.collect();
    let rest = all.iter().skip(NAMED_MAX).map(String::as_str);
    let names: Vec<&str> = some.iter().map(String::as_str).chain(rest).collect();
    join_some(names.into_iter(), NAMED_MAX)
}

impl<'a> AnswerCheck<'a> {
    fn new_collector(self) -> ExcessCollector<'a> {
        ExcessCollector { of: self, never: Vec::new(), missing: Vec::new() }
    }

    /// Check that the plugin may announce these device groups.
    ///
    /// # Errors
    /// The groups that it may not announce.
    pub fn check_groups<'k>(
        &self,
        keys: impl Iterator<Item = &'k GroupKey>,
    ) -> Result<(), AnswerExcess> {
        let mut weighed = self.new_collector();
        for key in keys.filter(|key| !self.may_announce(key)) {
            let pattern = format!("{}/{}/*", key.vendor, key.kind);
            weighed.add_missing(format!("the device group {key}"), GrantAddition::Group(pattern));
        }
        weighed.finish()
    }

    /// Whether the plugin may announce this device group.
    #[must_use]
    pub fn may_announce(&self, key: &GroupKey) -> bool {
        let granted = self.grants.answers.groups.iter().flatten();
        key.vendor == self.name || granted.into_iter().any(|pattern| group_fits(pattern, key))
    }

    /// How narrow the grant of this group is. A plugin's own group ranks first, then a pattern
    /// that names the vendor, then a pattern with more letters that are no wildcard. 0: the group
    /// is not granted.
    #[must_use]
    pub fn claim(&self, key: &GroupKey) -> u32 {
        if key.vendor == self.name {
            return u32::MAX;
        }
        let granted = self.grants.answers.groups.iter().flatten();
        let fitting = granted.filter(|pattern| group_fits(pattern, key));
        let narrow = fitting.map(|pattern| {
            let vendor = pattern.split('/').next().is_some_and(|vendor| !vendor.contains('*'));
            let letters = pattern.chars().filter(|c| *c != '*').count();
            1 + u32::from(vendor) * VENDOR_NAMED + u32::try_from(letters).unwrap_or(0)
        });
        narrow.max().unwrap_or(0)
    }

    /// Check that the driver may take this name.
    ///
    /// # Errors
    /// When the name is neither its own nor granted.
    pub fn check_driver(&self, name: &str) -> Result<(), AnswerExcess> {
        let mut weighed = self.new_collector();
        if name != self.name && self.grants.answers.driver.as_deref() != Some(name) {
            weighed.add_missing(
                format!("the name {name} of a driver"),
                GrantAddition::Driver(name.to_owned()),
            );
        }
        weighed.finish()
    }

    /// Check that the plugin may have this program run inside a task.
    ///
    /// # Errors
    /// When the grants name programs, and this program is not among them.
    pub fn check_exec(&self, program: &str) -> Result<(), AnswerExcess> {
        let mut weighed = self.new_collector();
        if !self.grants.allow_program(program) {
            let added = GrantAddition::Program(program.to_owned());
            weighed.add_missing(format!("running {program} inside a task"), added);
        }
        weighed.finish()
    }

    /// Check that the plugin may publish these attributes.
    ///
    /// # Errors
    /// The attributes that it may not publish.
    pub fn check_attributes(&self, attributes: &[NamedAttribute]) -> Result<(), AnswerExcess> {
        let mut weighed = self.new_collector();
        if let Some(granted) = &self.grants.answers.attributes {
            let may = |name: &str| granted.iter().any(|pattern| wildcard(pattern, name));
            for one in attributes.iter().filter(|one| !may(&one.name)) {
                let what = format!("the attribute {}", one.name);
                weighed.add_missing(what, GrantAddition::Attribute(one.name.clone()));
            }
        }
        weighed.finish()
    }

    /// Check that a task may get this reservation. `real` returns the path that a path of the node
    /// leads to when links are followed, or `None` when it does not exist.
    ///
    /// # Errors
    /// The parts of the reservation that the task may not get.
    pub fn check_reservation(
        &self,
        given: &Reservation,
        real: &dyn Fn(&Path) -> Option<PathBuf>,
    ) -> Result<(), AnswerExcess> {
        let mut weighed = self.new_collector();
        let granted = |name: &str| {
            let mut patterns = self.grants.answers.task_env.iter().flatten();
            is_own(self.name, name) || patterns.any(|pattern| wildcard(pattern, name))
        };
        for (name, _) in &given.env {
            if is_reserved(name) {
                weighed.never.push(format!("the variable {name} of a task"));
            } else if !granted(name) {
                let added = GrantAddition::TaskEnv(name.clone());
                weighed.add_missing(format!("the variable {name} of a task"), added);
            }
        }
        for mount in given.mounts.iter().filter(|mount| !self.may_mount(mount, real)) {
            let write = !mount.read_only;
            let how = if write { "writable" } else { "read-only" };
            let path = real(Path::new(&mount.host_path)).map_or_else(
                || mount.host_path.clone(),
                |real| real.to_string_lossy().into_owned(),
            );
            let leads = if path == mount.host_path {
                String::new()
            } else {
                format!(", which leads to {path}")
            };
            let what = format!("a mount of {}{leads} ({how})", mount.host_path);
            weighed.add_missing(what, GrantAddition::Mount { path, write });
        }
        for node in given.device_nodes.iter().filter(|node| !self.may_assign(node, real)) {
            let (path, permissions) = (node.host_path.clone(), node.permissions.clone());
            let what = format!("the device node {path} ({permissions})");
            weighed.add_missing(what, GrantAddition::Node { path, permissions });
        }
        weighed.finish()
    }

    fn may_mount(&self, mount: &Mount, real: &dyn Fn(&Path) -> Option<PathBuf>) -> bool {
        let grants = || self.grants.answers.mounts.iter().flatten();
        let fits = |grant: &FileGrant| mount.read_only || grant.write;
        let path = Path::new(&mount.host_path);
        let named = grants().any(|grant| fits(grant) && path.starts_with(&grant.path));
        // A path that does not exist yet is opened later without following links.
        let leads = real(path).is_none_or(|path| {
            let at = |grant: &FileGrant| real(&grant.path).unwrap_or_else(|| grant.path.clone());
            grants().any(|grant| fits(grant) && path.starts_with(at(grant)))
        });
        named && leads
    }

    fn may_assign(&self, node: &DeviceNode, real: &dyn Fn(&Path) -> Option<PathBuf>) -> bool {
        let mut grants = self.grants.answers.device_nodes.iter().flatten();
        let plain = !node.host_path.split('/').any(|part| part == "..");
        // Links among device nodes are the system's own.
        let inside = real(Path::new(&node.host_path)).is_none_or(|path| path.starts_with("/dev"));
        plain
            && inside
            && grants.any(|grant| {
                wildcard(&grant.path, &node.host_path)
                    && node.permissions.chars().all(|c| grant.permissions.contains(c))
            })
    }
}

/// Whether a pattern `vendor`, `vendor/type` or `vendor/type/name` fits a group. Each part is a
/// pattern of its own, so a `*` never reaches into the next part.
fn group_fits(pattern: &str, key: &GroupKey) -> bool {
    let mut parts = pattern.splitn(3, '/');
    let mut fits = |text: &str| parts.next().is_none_or(|pattern| wildcard(pattern, text));
    fits(&key.vendor) && fits(&key.kind) && fits(&key.name)
}

/// Paths that every task has for itself.
const OWN: [&str; 4] = ["/alloc", "/local", "/secrets", "/tmp"];

/// Paths from which a task runs programs. Only the same path of the node may be shown there.
const SYSTEM: [&str; 13] = [
    "/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/run",
    "/sbin", "/sys", "/usr",
];

/// Why a task cannot be shown all paths of a reservation together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MountConflict {
    /// A path would hide one of the task's own.
    #[error("{path} would cover {own} of the task")]
    Own {
        /// Path in the task.
        path: String,
        /// The task's own path that would be hidden.
        own: &'static str,
    },
    /// A path would replace a part of the system.
    #[error("{path} of the task would not be {path} of the node, but {host}")]
    System {
        /// Path in the task.
        path: String,
        /// Path of the node that would be shown there.
        host: String,
    },
    /// Two paths are the same, or one is within the other.
    #[error("{one} and {other} would cover each other in the task")]
    Each {
        /// One of the two paths in the task.
        one: String,
        /// The second of the two paths in the task.
        other: String,
    },
}

/// The names of a path, without empty ones and dots: `//`, `/./`, a slash at the end.
fn path_parts(path: &str) -> Vec<&str> {
    path.split('/').filter(|part| !part.is_empty() && *part != ".").collect()
}

/// Whether a mount at `path` hides the path `other`.
fn covers(path: &[&str], other: &[&str]) -> bool {
    other.starts_with(path)
}

/// Check that a task may be shown all paths of a reservation at once.
///
/// # Errors
/// The first path that would hide another.
pub fn check_mount_paths(given: &Reservation) -> Result<(), MountConflict> {
    let mounts = given.mounts.iter().map(|mount| (&mount.task_path, &mount.host_path));
    let nodes = given.device_nodes.iter().map(|node| (&node.task_path, &node.host_path));
    let shown = mounts.chain(nodes);
    let mut shown: Vec<_> =
        shown.map(|(path, host)| (path_parts(path), path_parts(host), path, host)).collect();
    // Sorted by path, so that a path within another stands right behind it.
    shown.sort_unstable();
    for (place, host_place, path, host) in &shown {
        if let Some(own) = OWN.iter().find(|own| covers(place, &path_parts(own))) {
            return Err(MountConflict::Own { path: (*path).clone(), own });
        }
        let of_system = SYSTEM.iter().any(|system| {
            let system = path_parts(system);
            covers(place, &system) || covers(&system, place)
        });
        if of_system && host_place != place {
            return Err(MountConflict::System { path: (*path).clone(), host: (*host).clone() });
        }
    }
    let mut pairs = shown.iter().zip(shown.iter().skip(1));
    // The same path that is assigned with each of several devices hides nothing.
    let hidden = pairs.find(|(a, b)| covers(&a.0, &b.0) && (&a.0, &a.1) != (&b.0, &b.1));
    hidden
        .map_or(Ok(()), |(a, b)| Err(MountConflict::Each { one: a.2.clone(), other: b.2.clone() }))
}

#[cfg(test)]
#[path = "answers_tests.rs"]
mod tests;
