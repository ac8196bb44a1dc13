//! Why a request gets no device, in data and in words.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::ledger::HeldInstance;
use ostler_model::device::GroupKey;
use ostler_model::words::count_noun;
use ostler_node::constraint::UnmetConstraint;

/// A node with at most this many groups has all of them named, where none is of the vendor or type
/// that was asked for.
const OTHERS_MAX: usize = 2;

/// No group can serve a request.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NoDevice {
    /// The name that the request asks for.
    pub request: String,
    /// Number of instances asked for.
    pub count: u32,
    /// Every group of the node with the reason why it does not fit, by name.
    pub candidates: Vec<UnfitGroup>,
}

impl NoDevice {
    /// Is there a group with the name that was asked for?
    #[must_use]
    pub fn has_named_group(&self) -> bool {
        self.candidates.iter().any(|candidate| candidate.why != UnfitReason::Name)
    }
}

/// A group that cannot serve the request.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct UnfitGroup {
    /// Name of the group.
    pub group: GroupKey,
    /// Why it cannot serve the request.
    pub why: UnfitReason,
}

/// Why a group cannot serve a request.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum UnfitReason {
    /// The request names another vendor, type or model.
    Name,
    /// The constraints that do not hold, all of them.
    Constraints(Vec<Box<UnmetConstraint>>),
    /// The group has fewer usable instances than asked for.
    TooFew {
        /// Instances that are healthy and that the constraints admit, held ones included.
        healthy: usize,
        /// Those of them that are free.
        free: usize,
        /// Those of them that are held, with their holders.
        held: Vec<HeldInstance>,
        /// Instances that are not healthy: id and reason.
        unhealthy: Vec<(String, String)>,
    },
    /// Enough instances are usable, but no permitted NUMA node has enough of them.
    Locality {
        /// Free instances by NUMA node.
        free: BTreeMap<u32, usize>,
        /// Number of free instances whose node is not known.
        elsewhere: usize,
        /// The node that another request of the task is on already.
        task_node: Option<u32>,
        /// The rules on `${device.numa_node}` that do not hold for instances of several nodes.
        unmet: Vec<Box<UnmetConstraint>>,
    },
}

impl std::error::Error for NoDevice {}

impl fmt::Display for NoDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.candidates.is_empty() && !self.has_named_group() {
            let request = &self.request;
            return write!(f, "no plugin offers {request}; {}", self.others_text());
        }
        write!(f, "no device {:?} for {}", self.request, count_noun(self.count, "instance"))?;
        if self.candidates.is_empty() {
            return write!(
                f,
                ": the node has no devices; `ostler plugin list` shows device plugins"
            );
        }
        // Only groups with the name are listed: a node has dozens of others, which would hide them.
        let named = self.candidates.iter().filter(|one| one.why != UnfitReason::Name);
        let mut said = Vec::new();
        for UnfitGroup { group, why } in named {
            write!(f, "\n- {group}: ")?;
            why.write(f, &mut said)?;
        }
        Ok(())
    }
}

impl NoDevice {
    /// The text for a node that has no group of this name: groups of the same vendor or type, and
    /// the number of the others.
    fn others_text(&self) -> String {
        let asked: Vec<&str> = self.request.split('/').collect();
        let near = |one: &&UnfitGroup| {
            let GroupKey { vendor, kind, .. } = &one.group;
            asked.iter().any(|word| word == vendor || word == kind)
        };
        let mut shown: Vec<String> =
            self.candidates.iter().filter(near).map(|one| one.group.to_string()).collect();
        if shown.is_empty() && self.candidates.len() <= OTHERS_MAX {
            shown.extend(self.candidates.iter().map(|one| one.group.to_string()));
        }
        let others = self.candidates.len().saturating_sub(shown.len());
        let rest = count_noun(u64::try_from(others).unwrap_or(u64::MAX), "group");
        let are = if shown.len() == 1 { "is" } else { "are" };
        match (shown.is_empty(), others) {
            (true, _) => format!("none of the {rest} of devices is of that vendor or type"),
            (false, 0) => format!("there {are} {}", shown.join(", ")),
            (false, _) => format!("there {are} {}, and {rest} of other kinds", shown.join(", ")),
        }
    }
}

impl UnfitReason {
    /// Write the reason. A reason that is in `said` already is not written in full again.
    fn write<'a>(&'a self, f: &mut fmt::Formatter<'_>, said: &mut Vec<&'a str>) -> fmt::Result {
        let Self::TooFew { healthy, free, held, unhealthy } = self else {
            return write!(f, "{self}");
        };
        write!(f, "{healthy} healthy, {free} free")?;
        for held in held {
            write!(f, "; {} is held by {}", held.instance, held.holder)?;
        }
        for (reason, ids) in group_by_reason(unhealthy) {
            let are = if ids.len() == 1 { "is" } else { "are" };
            write!(f, "; {} {are} not healthy", ids.join(", "))?;
            if said.contains(&reason) {
                f.write_str(", for the same reason")?;
            } else {
                write!(f, ": {reason}")?;
            }
            said.push(reason);
        }
        Ok(())
    }
}

/// Instances that are not healthy, grouped by the reason, in the order in which they occur.
fn group_by_reason(unhealthy: &[(String, String)]) -> Vec<(&str, Vec<&str>)> {
    let mut all: Vec<(&str, Vec<&str>)> = Vec::new();
    for (id, reason) in unhealthy {
        match all.iter_mut().find(|(known, _)| known == reason) {
            Some((_, ids)) => ids.push(id),
            None => all.push((reason, vec![id])),
        }
    }
    all
}

impl fmt::Display for UnfitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name => f.write_str("not what was asked for"),
            Self::Constraints(unmet) => {
                let texts: Vec<String> = unmet.iter().map(ToString::to_string).collect();
                f.write_str(&texts.join("; "))
            }
            Self::TooFew { .. } => self.write(f, &mut Vec::new()),
            Self::Locality { free, elsewhere, task_node, unmet } => {
                let mut places: Vec<String> =
                    free.iter().map(|(node, count)| format!("{count} on node {node}")).collect();
                if *elsewhere > 0 {
                    places.push(format!("{elsewhere} on no known node"));
                }
                write!(f, "no NUMA node that will do has enough; free are {}", places.join(", "))?;
                if let Some(node) = task_node {
                    write!(f, "; another device of the task is on node {node}")?;
                }
                for unmet in unmet {
                    write!(f, "; {unmet}")?;
                }
                Ok(())
            }
        }
    }
}
