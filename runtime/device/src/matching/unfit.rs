//! Why a request gets no device, in data and in words.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::ledger::HeldInstance;
use ostler_model::device::GroupKey;
use ostler_model::words::counted;
use ostler_node::constraint::Unmet;

/// Groups that are named although they are not like what was asked for, where there are no more.
const OTHERS_MAX: usize = 2;

/// No group can serve a request.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NoDevice {
    /// The name asked for.
    pub request: String,
    /// Instances asked for.
    pub count: u32,
    /// Every group of the node and why not that one, by name.
    pub candidates: Vec<UnfitGroup>,
}

impl NoDevice {
    /// Is there a group of the name that was asked for?
    #[must_use]
    pub fn offered(&self) -> bool {
        self.candidates.iter().any(|candidate| candidate.why != Unfit::Name)
    }
}

/// A group that was looked at.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct UnfitGroup {
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
        held: Vec<HeldInstance>,
        /// Instances that are not healthy: id and reason.
        unhealthy: Vec<(String, String)>,
    },
    /// Enough usable instances, but not on a NUMA node that will do.
    Locality {
        /// Free instances by NUMA node.
        free: BTreeMap<u32, usize>,
        /// Free instances of which nobody says where they are.
        elsewhere: usize,
        /// The node another request of the task is on already.
        task_node: Option<u32>,
        /// The rules on `${device.numa_node}` that do not hold for instances of several nodes.
        unmet: Vec<Box<Unmet>>,
    },
}

impl std::error::Error for NoDevice {}

impl fmt::Display for NoDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.candidates.is_empty() && !self.offered() {
            let request = &self.request;
            return write!(f, "no plugin offers {request}; {}", self.others());
        }
        write!(f, "no device {:?} for {}", self.request, counted(self.count, "instance"))?;
        if self.candidates.is_empty() {
            return write!(
                f,
                ": the node has no devices; `ostler plugin list` shows device plugins"
            );
        }
        // Those that were asked for: a node has dozens of others, which would hide them.
        let named = self.candidates.iter().filter(|one| one.why != Unfit::Name);
        let mut said = Vec::new();
        for UnfitGroup { group, why } in named {
            write!(f, "\n- {group}: ")?;
            why.write(f, &mut said)?;
        }
        Ok(())
    }
}

impl NoDevice {
    /// What there is where nothing is of the name that was asked for: groups of the same vendor or type, and how
    /// many others.
    fn others(&self) -> String {
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
        let rest = counted(u64::try_from(others).unwrap_or(u64::MAX), "group");
        match (shown.is_empty(), others) {
            (true, _) => format!("there is none of that vendor or type among {rest} of devices"),
            (false, 0) => format!("there is {}", shown.join(", ")),
            (false, _) => format!("there is {}, and {rest} of other kinds", shown.join(", ")),
        }
    }
}

impl Unfit {
    /// In words; a reason that was `said` of instances before is not said in full again.
    fn write<'a>(&'a self, f: &mut fmt::Formatter<'_>, said: &mut Vec<&'a str>) -> fmt::Result {
        let Self::TooFew { healthy, free, held, unhealthy } = self else {
            return write!(f, "{self}");
        };
        write!(f, "{healthy} healthy, {free} free")?;
        for held in held {
            write!(f, "; {} is held by {}", held.instance, held.holder)?;
        }
        for (reason, ids) in by_reason(unhealthy) {
            let are = if ids.len() == 1 { "is" } else { "are" };
            write!(f, "; {} {are} not healthy", ids.join(", "))?;
            match said.contains(&reason) {
                true => f.write_str(", for the same reason")?,
                false => write!(f, ": {reason}")?,
            }
            said.push(reason);
        }
        Ok(())
    }
}

/// Instances that are not healthy, by the reason, in the order in which they come.
fn by_reason(unhealthy: &[(String, String)]) -> Vec<(&str, Vec<&str>)> {
    let mut all: Vec<(&str, Vec<&str>)> = Vec::new();
    for (id, reason) in unhealthy {
        match all.iter_mut().find(|(known, _)| known == reason) {
            Some((_, ids)) => ids.push(id),
            None => all.push((reason, vec![id])),
        }
    }
    all
}

impl fmt::Display for Unfit {
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
