//! Which device instances a request gets, or why it gets none.
//!
//! ```text
//! groups ─ name? ─ constraints? ─ enough healthy and free instances? ─► candidates that fit
//!                                                                          │ best affinity score,
//!            each refusal is kept, with its reason                         ▼ then first by name
//!                                                                  instances, first by id
//! ```
//! All instances of one request come from one group; feasibility and choice are the same pass, so
//! a request is never called feasible and then not placed. Pure.
//!
//! Names in constraints and affinities: `${device.vendor}`, `${device.type}`, `${device.model}`,
//! `${device.attr.<name>}`, `${device.ids}`. A constraint on `${device.ids}` also narrows which
//! instances may be lent: `set_contains` and `set_contains_any` to those listed, any other
//! operator to those whose own id meets it.

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;

use super::ledger::{DeviceLedger, Held, Holder};
use crate::model::attribute::Attribute;
use crate::model::device::{DeviceGroup, DeviceInstance, GroupKey, HealthState};
use crate::model::job::{Constraint, Operator};
use crate::model::resources::{AllocatedDevice, DeviceRequest};
use crate::node::constraint::{self, Unmet};

const IDS: &str = "${device.ids}";

/// No group can serve a request.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NoDevice {
    /// The name asked for.
    pub request: String,
    /// Instances asked for.
    pub count: u32,
    /// Every group of the node and why not that one, by name.
    pub candidates: Vec<Candidate>,
}

/// A group that was looked at.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Candidate {
    /// The group.
    pub group: GroupKey,
    /// Why it cannot serve the request.
    pub why: Unfit,
}

/// Why a group cannot serve a request.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Unfit {
    /// The request names another vendor, type or model.
    Name,
    /// Constraints that do not hold, all of them.
    Constraints(Vec<Box<Unmet>>),
    /// Fewer usable instances than asked for.
    TooFew {
        /// Instances that are healthy and that the constraints admit, held ones included.
        healthy: usize,
        /// Of those, free ones.
        free: usize,
        /// Of those, held ones and their holders.
        held: Vec<Held>,
        /// Instances that are not healthy: id and reason.
        unhealthy: Vec<(String, String)>,
    },
}

impl std::error::Error for NoDevice {}

impl fmt::Display for NoDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no device {:?} for {} instance(s)", self.request, self.count)?;
        if self.candidates.is_empty() {
            return write!(
                f,
                ": the node has no devices; `ostler plugin list` shows device plugins"
            );
        }
        for Candidate { group, why } in &self.candidates {
            write!(f, "\n- {group}: {why}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name => f.write_str("not what was asked for"),
            Self::Constraints(unmet) => {
                let texts: Vec<String> = unmet.iter().map(ToString::to_string).collect();
                f.write_str(&texts.join("; "))
            }
            Self::TooFew { healthy, free, held, unhealthy } => {
                write!(f, "{healthy} healthy, {free} free")?;
                for held in held {
                    write!(f, "; {} is held by {}", held.instance, held.holder)?;
                }
                for (id, reason) in unhealthy {
                    write!(f, "; {id} is not healthy: {reason}")?;
                }
                Ok(())
            }
        }
    }
}

/// Choose instances for `request`. Nothing is claimed; see [`DeviceLedger::claim`].
///
/// The same groups, ledger and request give the same answer, in whatever order plugins report.
///
/// # Errors
/// [`NoDevice`] with the reason for every group.
pub fn choose(
    groups: &[DeviceGroup],
    ledger: &DeviceLedger,
    request: &DeviceRequest,
) -> Result<AllocatedDevice, NoDevice> {
    let mut sorted: Vec<&DeviceGroup> = groups.iter().collect();
    sorted.sort_by(|a, b| (&a.key, &a.plugin).cmp(&(&b.key, &b.plugin)));
    let mut best: Option<(i64, AllocatedDevice)> = None;
    let mut candidates = Vec::new();
    for group in sorted {
        match fit(group, ledger, request) {
            Ok(device) => {
                let score = affinity_score(group, request);
                if best.as_ref().is_none_or(|(highest, _)| score > *highest) {
                    best = Some((score, device));
                }
            }
            Err(why) => candidates.push(Candidate { group: group.key.clone(), why }),
        }
    }
    best.map(|(_, device)| device).ok_or_else(|| NoDevice {
        request: request.name.clone(),
        count: request.count,
        candidates,
    })
}

fn fit(
    group: &DeviceGroup,
    ledger: &DeviceLedger,
    request: &DeviceRequest,
) -> Result<AllocatedDevice, Unfit> {
    if !group.key.matches(&request.name) {
        return Err(Unfit::Name);
    }
    let unmet: Vec<Box<Unmet>> = request
        .constraints
        .iter()
        .filter(|rule| !chooses_instances(rule) || is_set_rule(rule))
        .filter_map(|rule| constraint::evaluate(rule, &|name| lookup(group, name)).err())
        .collect();
    if !unmet.is_empty() {
        return Err(Unfit::Constraints(unmet));
    }
    let instances = survey(group, ledger, request);
    let wanted = usize::try_from(request.count).unwrap_or(usize::MAX);
    if instances.free.len() < wanted {
        return Err(Unfit::TooFew {
            healthy: instances.free.len().saturating_add(instances.held.len()),
            free: instances.free.len(),
            held: instances.held,
            unhealthy: instances.unhealthy,
        });
    }
    let ids = instances.free.into_iter().take(wanted).map(str::to_owned).collect();
    Ok(AllocatedDevice { group: group.key.clone(), ids })
}

#[derive(Default)]
struct Survey<'a> {
    /// Healthy and free, sorted, each id once.
    free: BTreeSet<&'a str>,
    held: Vec<Held>,
    unhealthy: Vec<(String, String)>,
}

fn survey<'a>(
    group: &'a DeviceGroup,
    ledger: &DeviceLedger,
    request: &DeviceRequest,
) -> Survey<'a> {
    let rules: Vec<&Constraint> =
        request.constraints.iter().filter(|rule| chooses_instances(rule)).collect();
    let mut found = Survey::default();
    for instance in &group.instances {
        if !rules.iter().all(|rule| admits(group, rule, instance)) {
            continue;
        }
        if instance.health.state != HealthState::Healthy {
            found.unhealthy.push((instance.id.clone(), instance.health.reason.clone()));
        } else if let Some(holder) = ledger.holder(&group.key, &instance.id) {
            found.held.push(held(group, instance, holder));
        } else {
            found.free.insert(&instance.id);
        }
    }
    found
}

fn held(group: &DeviceGroup, instance: &DeviceInstance, holder: &Holder) -> Held {
    Held { group: group.key.clone(), instance: instance.id.clone(), holder: holder.clone() }
}

fn chooses_instances(rule: &Constraint) -> bool {
    rule.left.trim() == IDS && !matches!(rule.operator, Operator::IsSet | Operator::IsNotSet)
}

fn is_set_rule(rule: &Constraint) -> bool {
    matches!(rule.operator, Operator::SetContainsAll | Operator::SetContainsAny)
}

/// May this instance be lent under a rule on `${device.ids}`?
fn admits(group: &DeviceGroup, rule: &Constraint, instance: &DeviceInstance) -> bool {
    if is_set_rule(rule) {
        return constraint::members(&rule.right).any(|id| id == instance.id);
    }
    let own = |name: &str| match name {
        "device.ids" => Some(Attribute::from(instance.id.as_str())),
        _ => lookup(group, name),
    };
    constraint::evaluate(rule, &own).is_ok()
}

/// What a name stands for in rules on this group.
fn lookup(group: &DeviceGroup, name: &str) -> Option<Attribute> {
    if let Some(name) = name.strip_prefix("device.attr.") {
        let named = group.attributes.iter().find(|named| named.name == name)?;
        return Some(named.attribute.clone());
    }
    match name {
        "device.vendor" => Some(Attribute::from(group.key.vendor.as_str())),
        "device.type" => Some(Attribute::from(group.key.kind.as_str())),
        "device.model" => Some(Attribute::from(group.key.name.as_str())),
        "device.ids" => {
            let ids: Vec<&str> = group.instances.iter().map(|one| one.id.as_str()).collect();
            Some(Attribute::from(ids.join(",")))
        }
        _ => None,
    }
}

/// The sum of the weights of the affinities that hold. Nomad divides it by the sum of all weights'
/// sizes, which is the same for every group of one request, so the order is the same.
fn affinity_score(group: &DeviceGroup, request: &DeviceRequest) -> i64 {
    request
        .affinities
        .iter()
        .filter(|affinity| {
            constraint::evaluate(&affinity.rule, &|name| lookup(group, name)).is_ok()
        })
        .map(|affinity| i64::from(affinity.weight))
        .sum()
}

#[cfg(test)]
mod tests;
