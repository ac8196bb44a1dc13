//! Decides whether more room would help: the resource is held by others, and the node has enough of
//! it in all.

use super::refusal::{Problem, Refusal};
use crate::ports::PortError;
use ostler_device::matching::{NoDevice, UnfitReason};

impl Refusal {
    /// Would the job fit as it is if others made room? Not where a problem is of another kind: a
    /// constraint, a driver, or more than the node has.
    #[must_use]
    pub fn waits_for_room(&self) -> bool {
        let mut problems = self.groups.iter().flat_map(|refusal| &refusal.problems);
        problems.all(is_about_room)
    }
}

fn is_about_room(problem: &Problem) -> bool {
    match problem {
        Problem::Resource { wanted, total, .. } => wanted <= total,
        Problem::Cores { wanted, one_node, total, .. } => {
            // The problem does not tell how many cores a NUMA node has.
            !one_node && usize::try_from(*wanted).is_ok_and(|wanted| wanted <= total.len())
        }
        Problem::Port { error, .. } => matches!(
            error,
            PortError::Taken { .. } | PortError::InUse { .. } | PortError::Exhausted { .. }
        ),
        Problem::Device { refusal, .. } => has_enough_devices(refusal),
        Problem::DeviceHeld { .. } => true,
        _ => false,
    }
}

/// Is there a group with enough healthy instances?
fn has_enough_devices(refusal: &NoDevice) -> bool {
    let enough = |healthy: usize| u32::try_from(healthy).is_ok_and(|most| most >= refusal.count);
    refusal
        .candidates
        .iter()
        .any(|group| matches!(&group.why, UnfitReason::TooFew { healthy, .. } if enough(*healthy)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::super::refusal::{GroupRefusal, Resource};
    use super::*;
    use ostler_model::device::{Health, HealthState};
    use ostler_model::ids::{GroupName, JobId, PluginName, TaskName};

    fn refused(problems: Vec<Problem>) -> Refusal {
        let group = Some(GroupName::new("g").unwrap());
        Refusal {
            job: JobId::new("web").unwrap(),
            node: "n".to_owned(),
            groups: vec![GroupRefusal { group, problems }],
            attempts: Vec::new(),
        }
    }

    fn memory(wanted: u64) -> Problem {
        let (total, assigned, holders) = (1_000, 900, 1);
        Problem::Resource { resource: Resource::Memory, index: 0, wanted, total, assigned, holders }
    }

    #[test]
    fn room_is_waited_for_only_where_it_would_help() {
        assert!(refused(vec![memory(200)]).waits_for_room());
        assert!(!refused(vec![memory(2_000)]).waits_for_room(), "the node has less in all");
        let datacenter =
            || Problem::Datacenter { wanted: vec!["dc2".to_owned()], actual: "dc1".to_owned() };
        let health =
            Health { state: HealthState::Unhealthy, reason: "its socket is gone".to_owned() };
        let (task, driver) = (TaskName::new("t").unwrap(), PluginName::new("docker").unwrap());
        let ill = Problem::DriverNotReady { task, driver, health };
        for other in [datacenter(), ill] {
            assert!(!refused(vec![other]).waits_for_room());
        }
        assert!(
            !refused(vec![memory(200), datacenter()]).waits_for_room(),
            "room is not all it lacks"
        );
        let taken = PortError::InUse { label: "http".to_owned(), port: 80 };
        assert!(refused(vec![Problem::Port { index: 0, error: taken }]).waits_for_room());
        let reserved =
            PortError::Reserved { label: "http".to_owned(), port: 80, name: "default".to_owned() };
        assert!(!refused(vec![Problem::Port { index: 0, error: reserved }]).waits_for_room());
    }
}
