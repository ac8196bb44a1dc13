//! Decodes the blocks that say where a job should run (`spread`, `affinity`), and how many allocations a group
//! may have (`scaling`).

use std::collections::{BTreeMap, BTreeSet};

use super::constraint::{AffinityKeys, node_affinities};
use crate::diagnostic::{Span, quote_text};
use crate::keys::FieldBounds::Whole;
use crate::keys::{Context, FieldShape, FreeLists, MOST, Setting, keys};
use crate::tree::SpannedKey;
use ostler_model::ids::{GroupName, JobId};
use ostler_model::job::JobKind;
use ostler_model::placement::{Placement, ScalingPolicy, Spread, SpreadTarget};

/// The weight of a spread that gives none.
const WEIGHT: u8 = 50;
/// The only type of scaling that groups have.
const HORIZONTAL: &str = "horizontal";

keys! {
    struct SpreadKeys: "a spread" {
        /// What nodes are told apart by, such as `${node.datacenter}`.
        attribute / Attribute: Setting<String> => (
            "a spread needs an attribute, such as ${node.datacenter}",
            "a spread needs an Attribute, such as ${node.datacenter}"
        );
        /// How much it counts beside other spreads.
        weight / Weight: Setting<u8> [Whole(1, 100)] = WEIGHT;
        /// The share of nodes of one value; without any, even ones.
        targets "target" / SpreadTarget: Vec<SpreadTargetKeys>;
    }
}

keys! {
    struct SpreadTargetKeys: "a target", label Value {
        /// Of the allocations; all targets together have at most 100.
        percent / Percent: Setting<u8> [Whole(0, 100)] = 0_u8;
    }
}

keys! {
    struct ScalingKeys: "scaling" {
        /// Whether an autoscaler is to look at it. `ostler job scale` does not ask.
        enabled / Enabled: Setting<bool> = true;
        /// Least `count`; a group that says no `count` has this one.
        min / Min: Setting<u32> [Whole(0, MOST)], "the group's `count`";
        /// Largest `count`.
        max / Max: Setting<u32> [Whole(0, MOST)] => (
            "scaling needs a max", "Scaling needs a Max"
        );
        /// What an autoscaler is told, kept for it.
        policy / Policy: FreeLists;
        /// Of a group there is no other.
        kind "type" / Type: Setting<String> = HORIZONTAL;
        /// In JSON: its own namespace, job and group.
        target "" / Target: BTreeMap<String, String>;
    }
    not_yet {
        "" / ID [FieldShape::Served] => ""; "" / Namespace [FieldShape::Served];
        "" / CreateIndex [FieldShape::Served] => 0; "" / ModifyIndex [FieldShape::Served] => 0;
    }
}

/// Decode the `affinity` and `spread` blocks of a job or a group.
pub(super) fn placement(
    affinities: Vec<AffinityKeys>,
    spreads: Vec<SpreadKeys>,
    kind: JobKind,
    cx: &mut Context<'_>,
) -> Placement {
    refuse_for_system(kind, affinities.iter().map(|keys| keys.at), "an affinity", cx);
    refuse_for_system(kind, spreads.iter().map(|keys| keys.at), "a spread", cx);
    let spreads = spreads.into_iter().filter_map(|keys| spread(keys, cx)).collect();
    Placement { affinities: node_affinities(affinities, cx), spreads }
}

/// Report blocks that choose among nodes in a system job, which runs on every node.
pub(super) fn refuse_for_system(
    kind: JobKind,
    places: impl Iterator<Item = Span>,
    what: &str,
    cx: &mut Context<'_>,
) {
    if kind == JobKind::System {
        for at in places {
            cx.error(at, format!("a system job runs on every node, so it cannot have {what}"));
        }
    }
}

fn spread(keys: SpreadKeys, cx: &mut Context<'_>) -> Option<Spread> {
    let mut values = BTreeSet::new();
    for target in &keys.targets {
        cx.add_unique(&mut values, "a target", &target.label);
    }
    let targets: Vec<SpreadTarget> = keys.targets.into_iter().map(target).collect();
    let sum: u32 = targets.iter().map(|target| u32::from(target.percent)).sum();
    if sum > 100 {
        cx.error(keys.at, format!("the targets of a spread have {sum} percent; at most 100"));
    }
    Some(Spread { attribute: keys.attribute.value?, weight: keys.weight.get(), targets })
}

fn target(keys: SpreadTargetKeys) -> SpreadTarget {
    SpreadTarget { value: keys.label.name, percent: keys.percent.get() }
}

/// Decode `scaling`. Also returns the count of its group, which is the given one or the least one.
pub(super) fn scaling(
    keys: Option<ScalingKeys>,
    count: &Setting<u32>,
    of: (Option<&JobId>, Option<&GroupName>),
    cx: &mut Context<'_>,
) -> (Option<ScalingPolicy>, u32) {
    let written = count.value.unwrap_or(super::group::COUNT);
    let Some(keys) = keys else { return (None, written) };
    let count_of =
        if count.was_given { written } else { keys.min.value.unwrap_or(super::group::COUNT) };
    if let Some((key, at)) = keys.kind.other_than(HORIZONTAL) {
        let named = quote_text(keys.kind.value.as_deref().unwrap_or_default());
        cx.error(at, format!("{key} of a group's scaling is \"{HORIZONTAL}\", not {named}"));
    }
    let (job, group) = (of.0.map(JobId::as_str), of.1.map(GroupName::as_str));
    let own = [("Namespace", of.0.map(JobId::namespace)), ("Job", job), ("Group", group)];
    for (name, value) in &keys.target {
        let known = own.iter().find(|(known, _)| known == name);
        if !value.is_empty() && known.and_then(|(_, own)| *own) != Some(value.as_str()) {
            let named = quote_text(value);
            cx.error(
                keys.at,
                format!("Target {name} of a group's scaling is its own, not {named}"),
            );
        }
    }
    let Some(max) = keys.max.value else { return (None, count_of) };
    let min = keys.min.value.unwrap_or(count_of);
    let policy = ScalingPolicy { enabled: keys.enabled.get(), min, max, policy: keys.policy.0 };
    check(&policy, (count_of, count.place()), (keys.min.place(), keys.at), cx);
    (Some(policy), count_of)
}

fn check(
    policy: &ScalingPolicy,
    (count, count_at): (u32, Option<Span>),
    (min_at, at): (Option<Span>, Span),
    cx: &mut Context<'_>,
) {
    let ScalingPolicy { min, max, .. } = *policy;
    let [count_name, min_name, max_name] =
        [("count", "Count"), ("min", "Min"), ("max", "Max")].map(|(hcl, json)| cx.name(hcl, json));
    if max < min && min_at.is_some() {
        let message = format!("{max_name} ({max}) of scaling must not be below {min_name} ({min})");
        cx.error(min_at.unwrap_or(at), message);
    } else if count > max {
        let message =
            format!("{count_name} ({count}) must not be above {max_name} of scaling ({max})");
        cx.error(count_at.unwrap_or(at), message);
    } else if count < min {
        let message =
            format!("{count_name} ({count}) must not be below {min_name} of scaling ({min})");
        cx.error(count_at.unwrap_or(at), message);
    }
}

impl From<&Spread> for SpreadKeys {
    fn from(spread: &Spread) -> Self {
        let target = |target: &SpreadTarget| SpreadTargetKeys {
            label: SpannedKey::new(target.value.clone(), Span::default()),
            percent: target.percent.into(),
            ..SpreadTargetKeys::default()
        };
        Self {
            attribute: spread.attribute.clone().into(),
            weight: spread.weight.into(),
            targets: spread.targets.iter().map(target).collect(),
            ..Self::default()
        }
    }
}

impl ScalingKeys {
    /// The keys that describe the policy of a group.
    pub(crate) fn from_policy(policy: &ScalingPolicy, job: &JobId, group: &GroupName) -> Self {
        let target =
            [("Namespace", job.namespace()), ("Job", job.as_str()), ("Group", group.as_str())];
        Self {
            enabled: policy.enabled.into(),
            min: policy.min.into(),
            max: policy.max.into(),
            policy: FreeLists(policy.policy.clone()),
            kind: HORIZONTAL.to_owned().into(),
            target: target.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            ..Self::default()
        }
    }
}
