//! What a plugin's answers may cause. Pure, but for the resolver it is given.
//!
//! An import lets a plugin ask; an answer makes the host act: show a directory of the node to a
//! task, assign a device node, set a variable, call a group by a name. Each needs a grant as an import
//! does. Without one a plugin has what carries its own name, which is that of its block or file:
//!
//! ```text
//! groups      vendor = its name                  or granted by pattern
//! variables   NAME_DEVICES and the like          or granted; never those that say what runs
//! mounts      none                               granted paths, links resolved
//! nodes       none                               granted paths, with permissions
//! driver      its name                           or the granted one
//! attributes  below driver.NAME.                 the granted ones, where some are
//! ```
//! Where several things are shown to one task, none may hide another, or what is the task's own
//! ([`places`]).

use std::path::{Path, PathBuf};

use super::{Added, Grants, PUT, grant_lines, wildcard};
use crate::attribute::NamedAttribute;
use crate::config::FileGrant;
use crate::device::{DeviceNode, GroupKey, Mount, Reservation};
use crate::shown::{shown, some_of};
use crate::variables::{is_own, is_reserved};

/// Things of one answer that are named in its refusal.
const NAMED_MAX: usize = 16;
/// What a pattern that names the vendor counts more than any number of letters.
const VENDOR_NAMED: u32 = 1 << 30;
/// Bytes of each of them.
const NAMED_BYTES_MAX: usize = 256;

/// An answer that would cause what is not granted.
#[derive(Clone, Debug, Default, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.text())]
pub struct Excess {
    plugin: String,
    /// What no grant allows, as a list; empty when there is none.
    never: String,
    /// What is not granted, likewise.
    missing: String,
    /// The plugin's block of the configuration with all of that.
    lines: String,
}

impl Excess {
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

/// Weighs the answers of one plugin.
#[derive(Clone, Copy, Debug)]
pub struct Answers<'a> {
    /// The name of its block, or of its file.
    pub name: &'a str,
    /// What it may.
    pub grants: &'a Grants,
}

/// What is found wrong, gathered.
struct Weighed<'a> {
    of: Answers<'a>,
    never: Vec<String>,
    missing: Vec<(String, Added)>,
}

impl Weighed<'_> {
    fn lacks(&mut self, what: String, added: Added) {
        if !self.missing.iter().any(|(known, _)| *known == what) {
            self.missing.push((what, added));
        }
    }

    fn end(self) -> Result<(), Excess> {
        let Self { of, never, missing } = self;
        if never.is_empty() && missing.is_empty() {
            return Ok(());
        }
        let added: Vec<Added> =
            missing.iter().take(NAMED_MAX).map(|(_, added)| added.clone()).collect();
        let lines =
            if added.is_empty() { String::new() } else { grant_lines(of.name, of.grants, &added) };
        let missing: Vec<String> = missing.into_iter().map(|(what, _)| what).collect();
        let (never, missing) = (list(&never), list(&missing));
        Err(Excess { plugin: of.name.to_owned(), never, missing, lines })
    }
}

/// The first of what is wrong, each in a bounded line.
fn list(all: &[String]) -> String {
    let some = all.iter().take(NAMED_MAX).map(|what| shown(what, NAMED_BYTES_MAX));
    let some: Vec<String> = some.collect();
    let rest = all.iter().skip(NAMED_MAX).map(String::as_str);
    let names: Vec<&str> = some.iter().map(String::as_str).chain(rest).collect();
    some_of(names.into_iter(), NAMED_MAX)
}

impl<'a> Answers<'a> {
    fn weigh(self) -> Weighed<'a> {
        Weighed { of: self, never: Vec::new(), missing: Vec::new() }
    }

    /// May it announce these groups?
    ///
    /// # Errors
    /// Those that it may not.
    pub fn groups<'k>(&self, keys: impl Iterator<Item = &'k GroupKey>) -> Result<(), Excess> {
        let mut weighed = self.weigh();
        for key in keys.filter(|key| !self.may_announce(key)) {
            let pattern = format!("{}/{}/*", key.vendor, key.kind);
            weighed.lacks(format!("the device group {key}"), Added::Group(pattern));
        }
        weighed.end()
    }

    /// May it announce this group?
    #[must_use]
    pub fn may_announce(&self, key: &GroupKey) -> bool {
        let granted = self.grants.answers.groups.iter().flatten();
        key.vendor == self.name || granted.into_iter().any(|pattern| group_fits(pattern, key))
    }

    /// How narrowly it is granted this group: its own above all, then a pattern that names the vendor,
    /// then by the letters of the pattern that are no wildcard. 0: not at all.
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

    /// May it call itself this, as a driver?
    ///
    /// # Errors
    /// When the name is neither its own nor granted.
    pub fn driver(&self, name: &str) -> Result<(), Excess> {
        let mut weighed = self.weigh();
        if name != self.name && self.grants.answers.driver.as_deref() != Some(name) {
            weighed.lacks(format!("the name {name} of a driver"), Added::Driver(name.to_owned()));
        }
        weighed.end()
    }

    /// May it have this program run inside a task?
    ///
    /// # Errors
    /// When programs are granted one by one, and this one is not.
    pub fn exec(&self, program: &str) -> Result<(), Excess> {
        let mut weighed = self.weigh();
        if !self.grants.allow_program(program) {
            let added = Added::Program(program.to_owned());
            weighed.lacks(format!("running {program} inside a task"), added);
        }
        weighed.end()
    }

    /// May it publish these attributes?
    ///
    /// # Errors
    /// Those that it may not.
    pub fn attributes(&self, attributes: &[NamedAttribute]) -> Result<(), Excess> {
        let mut weighed = self.weigh();
        if let Some(granted) = &self.grants.answers.attributes {
            let may = |name: &str| granted.iter().any(|pattern| wildcard(pattern, name));
            for one in attributes.iter().filter(|one| !may(&one.name)) {
                let what = format!("the attribute {}", one.name);
                weighed.lacks(what, Added::Attribute(one.name.clone()));
            }
        }
        weighed.end()
    }

    /// May a task get this? `real` says what a path of the node leads to when links are followed;
    /// `None` when it is not there.
    ///
    /// # Errors
    /// What of it the task may not get.
    pub fn reservation(
        &self,
        given: &Reservation,
        real: &dyn Fn(&Path) -> Option<PathBuf>,
    ) -> Result<(), Excess> {
        let mut weighed = self.weigh();
        let granted = |name: &str| {
            let mut patterns = self.grants.answers.task_env.iter().flatten();
            is_own(self.name, name) || patterns.any(|pattern| wildcard(pattern, name))
        };
        for (name, _) in &given.env {
            if is_reserved(name) {
                weighed.never.push(format!("the variable {name} of a task"));
            } else if !granted(name) {
                let added = Added::TaskEnv(name.clone());
                weighed.lacks(format!("the variable {name} of a task"), added);
            }
        }
        for mount in given.mounts.iter().filter(|mount| !self.may_mount(mount, real)) {
            let write = !mount.read_only;
            let how = if write { "writable" } else { "read-only" };
            let path = real(Path::new(&mount.host_path)).map_or_else(
                || mount.host_path.clone(),
                |real| real.to_string_lossy().into_owned(),
            );
            let leads = match path == mount.host_path {
                true => String::new(),
                false => format!(", which leads to {path}"),
            };
            let what = format!("a mount of {}{leads} ({how})", mount.host_path);
            weighed.lacks(what, Added::Mount { path, write });
        }
        for node in given.device_nodes.iter().filter(|node| !self.may_assign(node, real)) {
            let (path, permissions) = (node.host_path.clone(), node.permissions.clone());
            let what = format!("the device node {path} ({permissions})");
            weighed.lacks(what, Added::Node { path, permissions });
        }
        weighed.end()
    }

    fn may_mount(&self, mount: &Mount, real: &dyn Fn(&Path) -> Option<PathBuf>) -> bool {
        let grants = || self.grants.answers.mounts.iter().flatten();
        let fits = |grant: &FileGrant| mount.read_only || grant.write;
        let path = Path::new(&mount.host_path);
        let named = grants().any(|grant| fits(grant) && path.starts_with(&grant.path));
        // What is not there is opened later, without following links.
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

/// `vendor`, `vendor/type` or `vendor/type/name`, each part a pattern of its own: a `*` in one never
/// reaches into the next.
fn group_fits(pattern: &str, key: &GroupKey) -> bool {
    let mut parts = pattern.splitn(3, '/');
    let mut fits = |text: &str| parts.next().is_none_or(|pattern| wildcard(pattern, text));
    fits(&key.vendor) && fits(&key.kind) && fits(&key.name)
}

/// What every task has of its own.
const OWN: [&str; 4] = ["/alloc", "/local", "/secrets", "/tmp"];

/// What a task runs from: only the node's own place may be shown there.
const SYSTEM: [&str; 13] = [
    "/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/run",
    "/sbin", "/sys", "/usr",
];

/// Why things cannot be shown to a task together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// It would hide what is the task's own.
    #[error("{path} would cover {own} of the task")]
    Own {
        /// The place in the task.
        path: String,
        /// What it hides.
        own: &'static str,
    },
    /// It would put something else in the place of a part of the system.
    #[error("{path} of the task would not be {path} of the node, but {host}")]
    System {
        /// The place in the task.
        path: String,
        /// What is shown there.
        host: String,
    },
    /// Two things in one place, or one within the other.
    #[error("{one} and {other} would cover each other in the task")]
    Each {
        /// A place in the task.
        one: String,
        /// The other.
        other: String,
    },
}

/// A path without what means nothing: `//`, `/./`, a slash at its end.
fn parts(path: &str) -> Vec<&str> {
    path.split('/').filter(|part| !part.is_empty() && *part != ".").collect()
}

/// Does what is at `path` hide what is at `other`?
fn covers(path: &[&str], other: &[&str]) -> bool {
    other.starts_with(path)
}

/// May a task be shown all of this at once?
///
/// # Errors
/// The first thing that would hide another.
pub fn places(given: &Reservation) -> Result<(), PlaceError> {
    let mounts = given.mounts.iter().map(|mount| (&mount.task_path, &mount.host_path));
    let nodes = given.device_nodes.iter().map(|node| (&node.task_path, &node.host_path));
    let shown = mounts.chain(nodes);
    let mut shown: Vec<_> =
        shown.map(|(path, host)| (parts(path), parts(host), path, host)).collect();
    // By place: what is within another stands right behind it.
    shown.sort_unstable();
    for (place, host_place, path, host) in &shown {
        if let Some(own) = OWN.iter().find(|own| covers(place, &parts(own))) {
            return Err(PlaceError::Own { path: (*path).clone(), own });
        }
        let of_system = SYSTEM.iter().any(|system| {
            let system = parts(system);
            covers(place, &system) || covers(&system, place)
        });
        if of_system && host_place != place {
            return Err(PlaceError::System { path: (*path).clone(), host: (*host).clone() });
        }
    }
    let mut pairs = shown.iter().zip(shown.iter().skip(1));
    // One and the same thing assigned with each of several devices hides nothing.
    let hidden = pairs.find(|(a, b)| covers(&a.0, &b.0) && (&a.0, &a.1) != (&b.0, &b.1));
    hidden.map_or(Ok(()), |(a, b)| Err(PlaceError::Each { one: a.2.clone(), other: b.2.clone() }))
}

#[cfg(test)]
#[path = "answers_tests.rs"]
mod tests;
