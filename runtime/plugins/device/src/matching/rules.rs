//! The constraints and affinities of one request, on one group.

use ostler_model::attribute::Attribute;
use ostler_model::device::{DeviceGroup, DeviceInstance};
use ostler_model::job::{Affinity, Constraint, Operator};
use ostler_model::resources::DeviceRequest;
use ostler_node::constraint::{self, UnmetConstraint};

const IDS: &str = "${device.ids}";
const NODE: &str = "device.numa_node";

/// The subject of a constraint.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RuleSubject {
    /// The group as a whole.
    Group,
    /// Which instances may be assigned.
    Instances,
    /// The NUMA node of the instances assigned.
    Node,
}

fn rule_subject(rule: &Constraint) -> RuleSubject {
    if names_node(rule) {
        return RuleSubject::Node;
    }
    let unary = matches!(rule.operator, Operator::IsSet | Operator::IsNotSet);
    if rule.left.trim() == IDS && !unary { RuleSubject::Instances } else { RuleSubject::Group }
}

fn names_node(rule: &Constraint) -> bool {
    [&rule.left, &rule.right].into_iter().any(|side| {
        // `${ device.numa_node }` is the same name.
        side.split("${").skip(1).any(|rest| rest.split('}').next().map(str::trim) == Some(NODE))
    })
}

/// Does a request say anything about the NUMA node of its instances?
pub(super) fn asks_for_node(request: &DeviceRequest) -> bool {
    let affinities = request.affinities.iter().map(|affinity| &affinity.rule);
    request.constraints.iter().chain(affinities).any(names_node)
}

/// The constraints on the group as a whole that do not hold.
#[expect(clippy::vec_box, reason = "what a check answers is boxed already")]
pub(super) fn unmet_by_group(
    group: &DeviceGroup,
    request: &DeviceRequest,
) -> Vec<Box<UnmetConstraint>> {
    let rules = request.constraints.iter();
    rules
        .filter(|rule| match rule_subject(rule) {
            RuleSubject::Group => true,
            RuleSubject::Instances => is_set_rule(rule),
            RuleSubject::Node => false,
        })
        .filter_map(|rule| constraint::evaluate(rule, &|name| lookup(group, None, name)).err())
        .collect()
}

/// The constraints on the NUMA node that do not hold on this node. `None`: the instances
/// share no node.
#[expect(clippy::vec_box, reason = "what a check answers is boxed already")]
pub(super) fn unmet_by_node(
    group: &DeviceGroup,
    node: Option<u32>,
    request: &DeviceRequest,
) -> Vec<Box<UnmetConstraint>> {
    let rules = request.constraints.iter().filter(|rule| rule_subject(rule) == RuleSubject::Node);
    rules
        .filter_map(|rule| constraint::evaluate(rule, &|name| lookup(group, node, name)).err())
        .collect()
}

fn is_set_rule(rule: &Constraint) -> bool {
    matches!(rule.operator, Operator::SetContainsAll | Operator::SetContainsAny)
}

/// May this instance be assigned under the rules on `${device.ids}`?
pub(super) fn admits(
    group: &DeviceGroup,
    request: &DeviceRequest,
    instance: &DeviceInstance,
) -> bool {
    let own = |name: &str| match name {
        "device.ids" => Some(Attribute::from(instance.id.as_str())),
        _ => lookup(group, None, name),
    };
    let mut rules =
        request.constraints.iter().filter(|rule| rule_subject(rule) == RuleSubject::Instances);
    rules.all(|rule| {
        if is_set_rule(rule) {
            constraint::members(&rule.right).any(|id| id == instance.id)
        } else {
            constraint::evaluate(rule, &own).is_ok()
        }
    })
}

/// What a name stands for in rules on this group and NUMA node.
fn lookup(group: &DeviceGroup, node: Option<u32>, name: &str) -> Option<Attribute> {
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
        NODE => node.map(|node| Attribute::from(i64::from(node))),
        _ => None,
    }
}

/// Each affinity with the reason why it does not hold; `None`: it holds.
pub(super) fn affinities<'a>(
    group: &'a DeviceGroup,
    node: Option<u32>,
    request: &'a DeviceRequest,
) -> impl Iterator<Item = (&'a Affinity, Option<Box<UnmetConstraint>>)> {
    request.affinities.iter().map(move |affinity| {
        let held = constraint::evaluate(&affinity.rule, &|name| lookup(group, node, name));
        (affinity, held.err())
    })
}

/// The sum of the weights of the affinities that hold. Nomad divides it by the sum of the absolute
/// weights. That sum is the same for every group of one request, so the order is the same.
pub(super) fn score(group: &DeviceGroup, node: Option<u32>, request: &DeviceRequest) -> i64 {
    affinities(group, node, request)
        .filter(|(_, unmet)| unmet.is_none())
        .map(|(affinity, _)| i64::from(affinity.weight))
        .sum()
}
