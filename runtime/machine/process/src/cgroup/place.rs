//! Where the cgroups of tasks are, seen from the agent's own.
//!
//! ```text
//! own cgroup                                           tasks
//! the root                                             root/ostler    the kernel hands controllers down from it always
//! X/agent, X delegated (DelegateSubgroup=agent)        X/ostler
//! X, delegated for good: a scope, a container          X/ostler, and the agent moves to X/agent
//! X, delegated to a service: started there again       X/ostler, without controllers
//! any other X                                          X/ostler, where it can be made; without controllers
//! ```
//! The kernel hands controllers down only from a cgroup without processes of its own. A service of systemd
//! stays where it was started: the next start would put its process into a cgroup that hands controllers down
//! to the tasks that live on, which the kernel refuses, and the service would not start any more.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Parent of the cgroups of tasks.
pub(super) const TASKS: &str = "ostler";
/// Name of the subgroup that an agent moves itself to; the unit file names its subgroup so too.
pub(super) const AGENT: &str = "agent";
/// What systemd sets on a cgroup that it delegated; the second one is for agents without privileges.
const DELEGATED: [&str; 2] = ["trusted.delegate", "user.delegate"];
/// How often the processes of a cgroup are listed while they are moved: some may fork meanwhile.
const ROUNDS_MAX: usize = 8;

/// What decides where the cgroups of tasks are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct CgroupFacts {
    /// The agent's cgroup, below the mount.
    own: PathBuf,
    /// The agent's cgroup is the root of the machine.
    root: bool,
    /// The agent's cgroup is the root of what this process sees, and no other process is in it: it
    /// is a container's.
    container: bool,
    /// A service manager delegated the agent's cgroup.
    own_delegated: bool,
    /// A service manager delegated the cgroup above; or that cgroup has no processes, and the
    /// agent's own has the agreed name of a subgroup.
    above_delegated: bool,
}

/// Where the tasks' cgroup is, relative to the agent's own: see the table of the module.
#[derive(Clone, Debug, PartialEq, Eq)]
enum TaskCgroupPlacement {
    /// Below the agent's own cgroup.
    Here,
    /// Beside the agent's own cgroup, below this one.
    Beside(PathBuf),
    /// Beside the agent's own cgroup, once the agent has moved down into a subgroup.
    Down,
    /// Below the agent's own cgroup, in which the agent must stay.
    Service,
}

fn choose_placement(facts: &CgroupFacts) -> TaskCgroupPlacement {
    let name = facts.own.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    match facts.own.parent() {
        _ if facts.root => TaskCgroupPlacement::Here,
        // Never the parent of the tasks itself.
        Some(above) if facts.above_delegated && name != TASKS => {
            TaskCgroupPlacement::Beside(above.to_owned())
        }
        _ if facts.own_delegated && name.ends_with(".service") => TaskCgroupPlacement::Service,
        _ if facts.own_delegated || facts.container => TaskCgroupPlacement::Down,
        _ => TaskCgroupPlacement::Here,
    }
}

impl CgroupFacts {
    fn gather(mount: &Path, own: PathBuf) -> Self {
        let root = is_root(&own);
        let alone = || processes(&own).is_ok_and(|found| found == [std::process::id()]);
        let above = own.parent().filter(|above| above.starts_with(mount) && !is_root(above));
        let named = own.file_name().is_some_and(|name| name == AGENT);
        let empty = |above: &Path| processes(above).is_ok_and(|found| found.is_empty());
        Self {
            root,
            container: !root && own == mount && alone(),
            own_delegated: is_delegated(&own),
            above_delegated: above
                .is_some_and(|above| is_delegated(above) || named && empty(above)),
            own,
        }
    }
}

/// Parent of the cgroups of tasks, for an agent whose own cgroup is `own`.
pub(super) fn tasks_parent(mount: &Path, own: PathBuf) -> PathBuf {
    let facts = CgroupFacts::gather(mount, own);
    match choose_placement(&facts) {
        TaskCgroupPlacement::Beside(above) => above.join(TASKS),
        TaskCgroupPlacement::Here | TaskCgroupPlacement::Down | TaskCgroupPlacement::Service => {
            facts.own.join(TASKS)
        }
    }
}

/// Let controllers be handed down: see [`super::make_room`].
pub(super) fn make_room(mount: &Path, own: PathBuf) -> io::Result<()> {
    let facts = CgroupFacts::gather(mount, own);
    match choose_placement(&facts) {
        TaskCgroupPlacement::Here => Ok(()),
        // Moves the supervisors that an agent without a subgroup left there.
        TaskCgroupPlacement::Beside(above) => move_all(&above, &facts.own),
        TaskCgroupPlacement::Down => {
            let below = facts.own.join(AGENT);
            fs::create_dir_all(&below)?;
            let moved = move_all(&facts.own, &below);
            if moved.is_err() {
                drop(fs::remove_dir(&below));
            }
            moved
        }
        TaskCgroupPlacement::Service => Err(io::Error::other(
            "the cgroup of the service is delegated without a subgroup, and the service could not start in it \
             again once it hands controllers down; write DelegateSubgroup=agent into the unit (systemd 254)",
        )),
    }
}

fn move_all(from: &Path, to: &Path) -> io::Result<()> {
    let into = to.join("cgroup.procs");
    for _ in 0..ROUNDS_MAX {
        let found = processes(from)?;
        if found.is_empty() {
            return Ok(());
        }
        for pid in found {
            match super::write(&into, &pid.to_string()) {
                // The process has ended.
                Err(error)
                    if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => {}
                moved => moved?,
            }
        }
    }
    Err(io::Error::other(format!("processes keep coming in cgroup {}", from.display())))
}

/// Pids of the processes in a cgroup itself. Processes of other pid namespaces are left out,
/// because they have no pid here.
fn processes(cgroup: &Path) -> io::Result<Vec<u32>> {
    let text = fs::read_to_string(cgroup.join("cgroup.procs"))?;
    Ok(text.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid != 0).collect())
}

/// Whether a cgroup is the root of the machine, which alone has no `cgroup.type`.
fn is_root(cgroup: &Path) -> bool {
    !cgroup.join("cgroup.type").exists()
}

fn is_delegated(cgroup: &Path) -> bool {
    let mut value = [0_u8; 8];
    DELEGATED.iter().any(|name| {
        let length = rustix::fs::getxattr(cgroup, *name, &mut value[..]);
        length.is_ok_and(|length| value.get(..length) == Some(b"1"))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn at(own: &str) -> CgroupFacts {
        CgroupFacts { own: own.into(), ..CgroupFacts::default() }
    }

    #[test]
    fn tasks_are_beside_an_agent_whose_parent_is_delegated() {
        let facts = CgroupFacts { above_delegated: true, ..at("/m/ostler.service/agent") };
        assert_eq!(
            choose_placement(&facts),
            TaskCgroupPlacement::Beside("/m/ostler.service".into())
        );
        let inside_tasks = CgroupFacts { above_delegated: true, ..at("/m/x.service/ostler") };
        assert_eq!(
            choose_placement(&inside_tasks),
            TaskCgroupPlacement::Here,
            "an agent must not lie where tasks do"
        );
    }

    #[test]
    fn an_agent_moves_down_in_what_nobody_starts_it_in_again() {
        let scope = CgroupFacts { own_delegated: true, ..at("/m/run-1.scope") };
        assert_eq!(choose_placement(&scope), TaskCgroupPlacement::Down);
        assert_eq!(
            choose_placement(&CgroupFacts { container: true, ..at("/m") }),
            TaskCgroupPlacement::Down
        );
        let service = CgroupFacts { own_delegated: true, ..at("/m/ostler.service") };
        assert_eq!(choose_placement(&service), TaskCgroupPlacement::Service);
    }

    #[test]
    fn what_nobody_delegated_is_left_as_it_is() {
        assert_eq!(choose_placement(&at("/m/session-1.scope")), TaskCgroupPlacement::Here);
        assert_eq!(
            choose_placement(&CgroupFacts { root: true, own_delegated: true, ..at("/m") }),
            TaskCgroupPlacement::Here
        );
    }

    #[test]
    fn a_subgroup_of_the_agreed_name_is_enough_where_its_parent_is_empty() {
        let dir = tempfile::tempdir().unwrap();
        let service = dir.path().join("service");
        let own = service.join(AGENT);
        fs::create_dir_all(&own).unwrap();
        for cgroup in [&service, &own] {
            fs::write(cgroup.join("cgroup.type"), "domain\n").unwrap();
            fs::write(cgroup.join("cgroup.procs"), "").unwrap();
        }
        assert_eq!(tasks_parent(dir.path(), own.clone()), service.join(TASKS));
        fs::write(service.join("cgroup.procs"), "0\n7\n").unwrap();
        assert_eq!(tasks_parent(dir.path(), own.clone()), own.join(TASKS), "somebody else's");
        assert_eq!(processes(&service).unwrap(), [7]);
    }
}
