//! Ways to fail that need no particular function, and ways to spoil each answer.

use std::hint::black_box;
use std::time::Duration;

use ostler_sdk::device::prelude::*;

use crate::script::{Fault, What};

/// What is not answered but done: traps, loops, waits and errors.
pub fn act(fault: &Fault) -> Result<()> {
    match fault.what {
        What::Error => return Err(fault.kind.with(&fault.message)),
        What::Trap => std::process::abort(),
        What::StackOverflow => {
            black_box(recurse(black_box(1)));
        }
        What::Spin => spin(fault.for_ms),
        What::Sleep => sleep(fault.for_ms),
        What::HostCallFlood => loop {
            black_box(clock::now());
        },
        What::MemoryBomb => loop {
            let mut block = vec![0_u8; 1 << 20];
            block.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
            std::mem::forget(black_box(block));
        },
        What::LogFlood => {
            let line = "flood ".repeat(170);
            (0..5_000).for_each(|_| log::info(&line));
        }
        _ => {}
    }
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "to be slow is what is asked for")]
fn sleep(for_ms: Option<u64>) {
    const DAY: Duration = Duration::from_secs(24 * 60 * 60);
    std::thread::sleep(for_ms.map_or(DAY, Duration::from_millis));
}

/// Busy with few host calls, so that the deadline ends it and not the budget of host calls.
fn spin(for_ms: Option<u64>) {
    let span = for_ms.unwrap_or(u64::MAX).saturating_mul(1_000_000);
    let until = clock::monotonic().saturating_add(span);
    while clock::monotonic() < until {
        for step in 0..1_000_000_u32 {
            black_box(step);
        }
    }
}

/// Uses the stack of the WASM engine, not the one in linear memory; not a tail call in disguise.
#[inline(never)]
fn recurse(depth: u64) -> u64 {
    if depth == u64::MAX {
        return 0;
    }
    recurse(depth + 1).rotate_left(3) ^ depth
}

/// A million bytes and more: over every limit of one answer.
const HUGE: usize = 1_100_000;
/// Over the limit of a name.
const LONG: usize = 5_000;

/// Break a rule of the contract in a fingerprint, or let the plugin itself not be healthy. A broken
/// first group is made where none is.
pub fn spoil_fingerprint(fault: &Fault, found: &mut Fingerprint) {
    let (what, groups) = (fault.what, &mut found.groups);
    match what {
        What::Nothing => return,
        What::NoGroups => return groups.clear(),
        What::Unhealthy => return found.health = Health::unhealthy(&fault.message),
        What::Undetected => {
            found.health = Health::undetected(&fault.message);
            return groups.clear();
        }
        What::UndetectedGroups => found.health = Health::undetected(&fault.message),
        _ => {}
    }
    if groups.is_empty() {
        groups.push(Group::new("mock", "device", "mock").instances([Instance::healthy("0")]));
    }
    let Some(group) = groups.first_mut() else {
        return;
    };
    let first = group.instances.first().cloned().unwrap_or_else(|| Instance::healthy("0"));
    let named = |id: String| Instance { id, ..first.clone() };
    match what {
        What::DuplicateIds => group.instances.extend([first.clone(), first]),
        What::EmptyId => group.instances.push(named(String::new())),
        What::LongId => group.instances.push(named("x".repeat(LONG))),
        What::HugeText => group.instances.push(Instance::unhealthy("ill", "x".repeat(LONG))),
        What::ControlCharacters => group.instances.push(named("\u{1b}[2J".to_owned())),
        What::EmptyVendor => group.vendor.clear(),
        What::EmptyType => group.type_.clear(),
        What::EmptyName => group.name.clear(),
        What::TooManyInstances => {
            group.instances.extend((0..5_000_u32).map(|n| named(format!("many-{n}"))));
        }
        What::HugeAnswer => {
            let ids = (0..4_000_u32).map(|n| format!("{n:0>300}"));
            group.instances = ids.map(named).collect();
        }
        What::TooManyAttributes => group
            .attributes
            .extend((0..600_i64).map(|n| NamedAttribute::new(format!("many-{n}"), n))),
        What::DuplicateAttributes => {
            group.attributes.extend([1_i64, 2].map(|n| NamedAttribute::new("twice", n)));
        }
        What::Nan => group.attributes.push(NamedAttribute::new("nan", f64::NAN)),
        What::Infinite => group.attributes.push(NamedAttribute::new("infinite", f64::INFINITY)),
        What::UnknownUnit => {
            group.attributes.push(NamedAttribute::new("far", 1_i64).unit("parsec"));
        }
        What::UnitOnText => group.attributes.push(NamedAttribute::new("much", "much").unit("GiB")),
        What::DuplicateGroups => {
            let again = group.clone();
            groups.push(again);
        }
        What::TooManyGroups => {
            let many = (0..300_u32).map(|n| Group { name: format!("many-{n}"), ..group.clone() });
            let many: Vec<Group> = many.collect();
            groups.extend(many);
        }
        _ => {}
    }
}

/// Break a rule of the contract in a reservation.
pub fn spoil_reservation(what: What, given: Reservation) -> Reservation {
    let node = |path: &str, permissions: &str| DeviceNode {
        host_path: path.to_owned(),
        task_path: path.to_owned(),
        permissions: permissions.to_owned(),
    };
    match what {
        What::EmptyAnswer => Reservation::empty(),
        What::EmptyPath => given.mount(Mount::read_only("", "")).device_node(node("", "r")),
        What::RelativePath => given.mount(Mount::read_only("tmp/x", "local/x")),
        What::ClimbingPath => given.mount(Mount::read_only("/tmp/../etc", "/local/../../etc")),
        What::BadPermissions => given.device_node(node("/dev/null", "rwx")),
        What::BadVariable => given.env("A=B", "x"),
        What::HugeText => given.env("MOCK_HUGE", "x".repeat(LONG)),
        What::TooMany => (0..600_u32).fold(given, |so_far, n| so_far.env(format!("MANY_{n}"), "x")),
        What::HugeAnswer => given.env("MOCK_HUGE", "x".repeat(HUGE)),
        _ => given,
    }
}

/// Break a rule of the contract in statistics, or make them older or newer than they are.
pub fn spoil_stats(what: What, groups: &mut Vec<GroupStats>) {
    match what {
        What::NoGroups | What::EmptyAnswer => groups.clear(),
        What::DuplicateGroups => groups.extend(groups.clone()),
        What::ForeignGroup => groups.iter_mut().for_each(|group| group.name.push_str("-foreign")),
        What::EmptyVendor => groups.iter_mut().for_each(|group| group.vendor.clear()),
        _ => {}
    }
    for group in groups {
        match what {
            What::LeaveOut => drop(group.instances.pop()),
            What::DuplicateIds => group.instances.extend(group.instances.clone()),
            What::TooManyInstances => {
                let more = (0..5_000_u32).map(|n| InstanceStats::new(format!("many-{n}"), None));
                group.instances.extend(more);
            }
            _ => group.instances.iter_mut().for_each(|one| spoil_instance(what, one)),
        }
    }
}

fn spoil_instance(what: What, one: &mut InstanceStats) {
    let float = |number| StatValue { float_numerator: Some(number), ..StatValue::empty() };
    let long = || StatValue { text: Some("x".repeat(LONG)), ..StatValue::empty() };
    let entry = |name: &str, value| StatEntry { path: vec![name.to_owned()], value };
    match what {
        What::Nan => one.stats.push(entry("nan", float(f64::NAN))),
        What::Infinite => one.stats.push(entry("infinite", float(f64::INFINITY))),
        What::NothingSet => {
            one.summary = Some(StatValue::empty());
            one.stats.push(entry("nothing", StatValue::empty()));
        }
        What::ForeignIds => one.id.push_str("-foreign"),
        What::EmptyId => one.id.clear(),
        What::EmptyPath => one.stats.push(StatEntry { path: vec![], value: float(1.0) }),
        What::DuplicatePaths => {
            one.stats.extend([1.0, 2.0].map(|number| entry("twice", float(number))));
        }
        What::TooMany => {
            one.stats.extend((0..600_u32).map(|n| entry(&format!("many-{n}"), float(1.0))));
        }
        What::HugeText => one.stats.push(entry("huge", long())),
        What::HugeAnswer => one.stats.extend((0..300_u32).map(|n| entry(&n.to_string(), long()))),
        What::Stale => one.taken_at = one.taken_at.saturating_sub(3_600_000_000_000),
        What::Future => one.taken_at = one.taken_at.saturating_add(3_600_000_000_000),
        _ => {}
    }
}
