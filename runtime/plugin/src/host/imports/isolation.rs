//! `process.spawn-isolated`: what a driver asks for against what its grant demands and allows.

use std::path::Path;

use crate::bindings::since_0_1::host::process::{
    Isolation as Asked, IsolationPart, PartState, ProcessError as WitError,
};
use crate::bindings::since_0_1::host::types::{DeviceNode as WitDeviceNode, Mount as WitMount};
use crate::host::CallState;
use ostler_model::device::{DeviceNode, Mount};
use ostler_model::grants::{Added, Authority, wildcard};
use ostler_model::isolation::{IsolationGrant, Part};
use ostler_model::limits::ANSWER_NAME_BYTES_MAX;
use ostler_model::ports::TaskContext;
use ostler_model::shown::shown;
use ostler_process::isolate::capability;
use ostler_process::user::UserDefault;
use ostler_process::{Abilities, Isolation};

impl From<IsolationPart> for Part {
    fn from(part: IsolationPart) -> Self {
        match part {
            IsolationPart::Mounts => Self::Mounts,
            IsolationPart::Pids => Self::Pids,
            IsolationPart::Ipc => Self::Ipc,
            IsolationPart::Network => Self::Network,
            IsolationPart::User => Self::User,
            IsolationPart::Privileges => Self::Privileges,
            IsolationPart::Seccomp => Self::Seccomp,
            IsolationPart::Landlock => Self::Landlock,
        }
    }
}

impl From<Part> for IsolationPart {
    fn from(part: Part) -> Self {
        match part {
            Part::Mounts => Self::Mounts,
            Part::Pids => Self::Pids,
            Part::Ipc => Self::Ipc,
            Part::Network => Self::Network,
            Part::User => Self::User,
            Part::Privileges => Self::Privileges,
            Part::Seccomp => Self::Seccomp,
            Part::Landlock => Self::Landlock,
        }
    }
}

/// What is done: all that is required, and what is wanted and possible.
///
/// # Errors
/// The parts that the grant demands and the driver did not, or that are not possible here.
pub(super) fn decide(
    required: &[Part],
    wanted: &[Part],
    grant: &IsolationGrant,
    abilities: &Abilities,
) -> Result<Vec<Part>, Refused> {
    let less: Vec<Part> =
        grant.demanded().into_iter().filter(|part| !required.contains(part)).collect();
    if !less.is_empty() {
        return Err(Refused::Less(less));
    }
    let impossible: Vec<Part> =
        required.iter().copied().filter(|part| !abilities.can(*part)).collect();
    if !impossible.is_empty() {
        return Err(Refused::Impossible(impossible));
    }
    let all = Part::ALL.into_iter();
    let done =
        |part: &Part| required.contains(part) || (wanted.contains(part) && abilities.can(*part));
    Ok(all.filter(done).collect())
}

/// Why nothing is started.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// The driver asks for less than its grant demands.
    Less(Vec<Part>),
    /// This node cannot do it.
    Impossible(Vec<Part>),
}

fn words(parts: &[Part]) -> String {
    parts.iter().map(|part| part.word()).collect::<Vec<_>>().join(", ")
}

impl CallState {
    /// The grant's demands; a driver without an `isolation` block may ask for what it likes.
    fn isolation_grant(&self) -> IsolationGrant {
        let granted = self.plugin.grants.isolation.clone();
        granted.unwrap_or_else(IsolationGrant::as_far_as_possible)
    }

    /// A process that is not isolated, of a driver whose grant demands isolation.
    pub(super) fn refuse_bare(&self) -> Result<(), WitError> {
        let demanded = match &self.plugin.grants.isolation {
            Some(grant) => grant.demanded(),
            None => return Ok(()),
        };
        if demanded.is_empty() {
            return Ok(());
        }
        Err(WitError::Denied(format!(
            "starting processes that are not isolated is not granted: the grant demands {}",
            words(&demanded)
        )))
    }

    pub(super) fn part_states(&self, abilities: &Abilities) -> Vec<PartState> {
        let grant = self.isolation_grant();
        let state = |part: Part| PartState {
            part: part.into(),
            lacking: abilities.lacking.get(&part).cloned(),
            may_lack: grant.may_lack(part),
        };
        Part::ALL.map(state).to_vec()
    }

    /// From what the process is kept apart.
    pub(super) fn isolation(
        &self,
        task: &TaskContext,
        asked: Asked,
        abilities: &Abilities,
    ) -> Result<Isolation, WitError> {
        let grant = self.isolation_grant();
        let parts = |list: Vec<IsolationPart>| list.into_iter().map(Part::from).collect::<Vec<_>>();
        let decided = decide(&parts(asked.required), &parts(asked.wanted), &grant, abilities);
        let parts = decided.map_err(|refused| self.refused(&refused, abilities))?;
        let mounts = self.mounts(task, &grant, asked.mounts)?;
        let device_nodes = device_nodes(task, asked.device_nodes)?;
        let capabilities = self.capabilities(&grant, &asked.capabilities)?;
        let named = |user: &String| user == "root";
        let namespaces = [Part::Mounts, Part::Pids, Part::Ipc, Part::Network];
        let needed = namespaces.iter().any(|part| parts.contains(part));
        Ok(Isolation {
            parts,
            user_namespace: abilities.user_namespace && needed,
            task_dir: task.task_dir.clone(),
            alloc_dir: task.alloc_dir.clone(),
            base: grant.base(),
            hidden: grant.hidden(),
            mounts,
            device_nodes,
            capabilities,
            user_default: self.user_default(task),
            root_allowed: self.plugin.grants.users.iter().any(named),
            processes_max: grant.processes_max,
        })
    }

    /// Whom the process is that names no user.
    fn user_default(&self, task: &TaskContext) -> UserDefault {
        let grants = &self.plugin.grants;
        match (grants.isolated_user(), task.alloc_user) {
            (None, Some(id)) => UserDefault::Id(id),
            _ => UserDefault::Named(grants.isolated_as()),
        }
    }

    fn refused(&self, refused: &Refused, abilities: &Abilities) -> WitError {
        match refused {
            Refused::Less(parts) => WitError::Denied(format!(
                "the driver does not ask for {}, and its grant demands that of every process",
                words(parts)
            )),
            Refused::Impossible(parts) => {
                let why = |part: &Part| {
                    let why = abilities.lacking.get(part).map_or("", String::as_str);
                    format!("{} ({why})", part.word())
                };
                let why: Vec<String> = parts.iter().map(why).collect();
                let text = format!("this node cannot isolate a task by {}", why.join(", "));
                WitError::Denied(self.denied(
                    &text,
                    Authority::Process,
                    Added::Without(parts.clone()),
                ))
            }
        }
    }

    fn mounts(
        &self,
        task: &TaskContext,
        grant: &IsolationGrant,
        asked: Vec<WitMount>,
    ) -> Result<Vec<Mount>, WitError> {
        let mut mounts = Vec::with_capacity(asked.len());
        for WitMount { host_path, task_path, read_only } in asked {
            let reserved = |known: &Mount| {
                (&known.host_path, &known.task_path) == (&host_path, &task_path)
                    && (read_only || !known.read_only)
            };
            if !task.mounts.iter().any(reserved) && !allows_mount(grant, &host_path) {
                let told = shown(host_path.clone(), ANSWER_NAME_BYTES_MAX);
                let text = format!("mounting {told} is not granted");
                return Err(WitError::Denied(self.denied(
                    &text,
                    Authority::Process,
                    Added::MountOf(told),
                )));
            }
            // What is where it is on the node anyway replaces nothing.
            let elsewhere = host_path != task_path && !task.mounts.iter().any(reserved);
            let grants = &self.plugin.grants;
            let replaced = grants.replaced_program(Path::new(&task_path), &grant.base());
            if let Some(replaced) = replaced.filter(|_| elsewhere) {
                let told = shown(task_path, ANSWER_NAME_BYTES_MAX);
                return Err(WitError::Denied(format!(
                    "mounting anything else at {told} is not granted: where programs are granted one \
                     by one, {replaced} stays what it is"
                )));
            }
            mounts.push(Mount { host_path, task_path, read_only });
        }
        Ok(mounts)
    }

    fn capabilities(&self, grant: &IsolationGrant, asked: &[String]) -> Result<u64, WitError> {
        let allowed: u64 =
            grant.capabilities.iter().filter_map(|name| capability(name)).fold(0, |a, b| a | b);
        let mut kept = 0;
        for name in asked {
            let told = || shown(name.clone(), ANSWER_NAME_BYTES_MAX);
            let Some(bit) = capability(name) else {
                return Err(WitError::Failed(format!("there is no capability {:?}", told())));
            };
            if allowed & bit == 0 {
                let text = format!("capability {} is not granted", told());
                return Err(WitError::Denied(self.denied(
                    &text,
                    Authority::Process,
                    Added::Capability(told()),
                )));
            }
            kept |= bit;
        }
        Ok(kept)
    }
}

/// May jobs mount this path of the node?
fn allows_mount(grant: &IsolationGrant, path: &str) -> bool {
    let plain = path.starts_with('/') && !path.split('/').any(|part| part == "..");
    plain && grant.mounts.iter().any(|pattern| wildcard(pattern, path))
}

/// Those asked for, when they are assigned to the task with these rights.
fn device_nodes(
    task: &TaskContext,
    asked: Vec<WitDeviceNode>,
) -> Result<Vec<DeviceNode>, WitError> {
    let mut nodes = Vec::with_capacity(asked.len());
    for WitDeviceNode { host_path, task_path, permissions } in asked {
        let assigned = |known: &DeviceNode| {
            (&known.host_path, &known.task_path) == (&host_path, &task_path)
                && permissions.chars().all(|right| known.permissions.contains(right))
        };
        if !task.device_nodes.iter().any(assigned) {
            let told = shown(host_path, ANSWER_NAME_BYTES_MAX);
            let text = format!("device node {told} is not assigned to this task");
            return Err(WitError::Denied(text));
        }
        nodes.push(DeviceNode { host_path, task_path, permissions });
    }
    Ok(nodes)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn without(parts: &[Part]) -> IsolationGrant {
        IsolationGrant { without: parts.to_vec(), ..IsolationGrant::default() }
    }

    fn lacking(parts: &[Part]) -> Abilities {
        let lacking = parts.iter().map(|part| (*part, "for a test".to_owned())).collect();
        Abilities { lacking, user_namespace: false }
    }

    #[test]
    fn a_driver_that_asks_for_less_than_its_grant_demands_is_refused_by_name() {
        let all = IsolationGrant::default().demanded();
        let less: Vec<Part> = all.iter().copied().filter(|part| *part != Part::Pids).collect();
        let refused = decide(&less, &[], &without(&[]), &lacking(&[]));
        assert_eq!(refused, Err(Refused::Less(vec![Part::Pids])));
        assert_eq!(decide(&all, &[], &without(&[]), &lacking(&[])), Ok(all));
    }

    #[test]
    fn what_is_required_and_not_possible_is_refused_and_what_is_only_wanted_is_left_out() {
        let demanded = without(&[Part::Pids]).demanded();
        let wanted = [Part::Pids, Part::Landlock];
        let here = lacking(&[Part::Pids]);
        let done = decide(&demanded, &wanted, &without(&[Part::Pids]), &here).unwrap();
        assert!(!done.contains(&Part::Pids) && done.contains(&Part::Landlock));
        let all = IsolationGrant::default().demanded();
        let refused = decide(&all, &[], &without(&[]), &here);
        assert_eq!(refused, Err(Refused::Impossible(vec![Part::Pids])));
    }

    #[test]
    fn nothing_is_mounted_that_neither_the_task_was_assigned_nor_the_configuration_names() {
        let grant = IsolationGrant { mounts: vec!["/srv/*".into()], ..without(&[]) };
        assert!(allows_mount(&grant, "/srv/data"));
        for other in ["/", "/etc", "/srv/../etc", "srv/data"] {
            assert!(!allows_mount(&grant, other), "{other}");
        }
    }
}
