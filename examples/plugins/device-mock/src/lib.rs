//! Device plugin `mock_device`: finds the devices that its script names, and fails in the ways
//! that its script names, at the times it names. For tests of the device manager and of jobs that
//! use devices.
//!
//! ```text
//! plugin block: config ─┐
//!                       ├─► script ─► fault that applies now? ─► fail, or spoil the answer
//! dir/script.json ──────┘                 └ no ─► answer as the contract wants it
//!                                                 each call ─► dir/journal
//! ```
//!
//! `script.json` in the granted directory, where there is one, replaces the configuration at each
//! call, so that a test changes what happens while the agent runs.

use std::fs;
use std::io::ErrorKind as IoError;

use ostler_sdk::device::prelude::*;
use script::{Fault, GroupScript, Script};

mod faults;
mod journal;
mod script;

struct Mock;

impl DevicePlugin for Mock {
    /// An error cannot be answered here: the faults that can are those that do not answer.
    fn describe() -> DeviceInfo {
        let script = host::config::<Script>().unwrap_or_default();
        if let Some(fault) = script.describe.iter().find(|f| f.applies(clock::now(), 0, &[])) {
            let _cannot_be_answered = faults::act(fault);
        }
        let name = script.name.unwrap_or_else(|| "mock_device".to_owned());
        let version = script.version.unwrap_or_else(|| env!("CARGO_PKG_VERSION").to_owned());
        DeviceInfo::new(name, version).config_schema(script::SCHEMA)
    }

    fn fingerprint() -> Result<Fingerprint> {
        let script = script()?;
        let fault = begin(&script, &script.fingerprint, "fingerprint", None)?;
        let now = clock::now();
        let mut answer = Fingerprint {
            health: Health::healthy(),
            groups: script.groups.iter().filter_map(|group| found(group, now)).collect(),
            next_check: script.check_after_ms,
            watch: Watches { paths: script.watch_paths, subsystems: script.watch_subsystems },
        };
        if let Some(fault) = fault {
            faults::spoil_fingerprint(fault, &mut answer);
        }
        Ok(answer)
    }

    fn reserve(claim: Claim) -> Result<Reservation> {
        let script = script()?;
        let fault = begin(&script, &script.reserve, "reserve", Some(&claim))?;
        let now = clock::now();
        let group = script.groups.iter().find(|group| group.is(&claim));
        let group = group.ok_or_else(|| Error::not_found("the script has no such group"))?;
        let there: Vec<_> = group.instances().filter_map(|one| one.at(now)).collect();
        if let Some(gone) = claim.ids.iter().find(|id| there.iter().all(|one| one.id != **id)) {
            return Err(Error::not_found(format!("no instance {gone:?} now")));
        }
        let given = assign(group, &claim.ids);
        Ok(match fault {
            Some(fault) => faults::spoil_reservation(fault.what, given),
            None => given,
        })
    }

    fn release(claim: Claim) -> Result<()> {
        let script = script()?;
        begin(&script, &script.release, "release", Some(&claim))?;
        Ok(())
    }

    fn stats() -> Result<Vec<GroupStats>> {
        let script = script()?;
        let fault = begin(&script, &script.stats, "stats", None)?;
        let now = clock::now();
        let mut groups = script.groups.iter().filter_map(|group| measured(group, now)).collect();
        if let Some(fault) = fault {
            faults::spoil_stats(fault.what, &mut groups);
        }
        Ok(groups)
    }
}

/// The script of this call.
fn script() -> Result<Script> {
    let script: Script = host::config()?;
    let Some(dir) = &script.dir else {
        return Ok(script);
    };
    let path = dir.join("script.json");
    match fs::read_to_string(&path) {
        Ok(text) => {
            let replaced: Script = ostler_sdk::config::parse(&text)?;
            Ok(Script { dir: script.dir, ..replaced })
        }
        Err(error) if error.kind() == IoError::NotFound => Ok(script),
        Err(error) => Err(Error::fatal(format!("cannot read {}: {error}", path.display()))),
    }
}

/// Write the call down, and do the fault that applies. What is left is to spoil the answer.
fn begin<'a>(
    script: &Script,
    faults: &'a [Fault],
    function: &str,
    claim: Option<&Claim>,
) -> Result<Option<&'a Fault>> {
    let ids = claim.map_or(&[][..], |claim| &claim.ids);
    let call = match (&script.dir, script.journal) {
        (Some(dir), true) => {
            let about =
                |c: &Claim| format!("{}/{}/{} {}", c.vendor, c.type_, c.name, c.ids.join(","));
            journal::record(dir, function, &claim.map(about).unwrap_or_default())?
        }
        _ => 0,
    };
    let fault = faults.iter().find(|fault| fault.applies(clock::now(), call, ids));
    if let Some(fault) = fault {
        faults::act(fault)?;
    }
    Ok(fault)
}

/// A group as it is now; `None` while it is not there.
fn found(group: &GroupScript, now: Timestamp) -> Option<Group> {
    if group.during.as_ref().is_some_and(|window| !window.holds(now)) {
        return None;
    }
    let attributes = group.attributes.iter().map(script::AttributeScript::attribute);
    let found = Group::new(&group.vendor, &group.type_, &group.name).attributes(attributes);
    Some(found.instances(group.instances().filter_map(|one| one.at(now))))
}

fn assign(group: &GroupScript, ids: &[String]) -> Reservation {
    let mut given = Reservation::empty().env("MOCK_DEVICES", ids.join(","));
    for (name, value) in &group.env {
        given = given.env(name, value);
    }
    for id in ids {
        let fill = |text: &str| text.replace("{id}", id);
        for mount in &group.mounts {
            given = given.mount(Mount {
                host_path: fill(&mount.host_path),
                task_path: fill(&mount.task_path),
                read_only: mount.read_only,
            });
        }
        for node in &group.device_nodes {
            given = given.device_node(DeviceNode {
                host_path: fill(&node.host_path),
                task_path: fill(&node.task_path),
                permissions: node.permissions.clone(),
            });
        }
    }
    given
}

fn measured(group: &GroupScript, now: Timestamp) -> Option<GroupStats> {
    let there = found(group, now)?;
    let measure = |instance: Instance| InstanceStats {
        id: instance.id,
        summary: group.stats.first().map(script::StatScript::value),
        stats: group
            .stats
            .iter()
            .map(|stat| StatEntry { path: stat.path.clone(), value: stat.value() })
            .collect(),
        taken_at: now,
    };
    Some(GroupStats {
        vendor: there.vendor,
        type_: there.type_,
        name: there.name,
        instances: there.instances.into_iter().map(measure).collect(),
    })
}

ostler_sdk::export_device!(Mock);

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]
mod tests;
