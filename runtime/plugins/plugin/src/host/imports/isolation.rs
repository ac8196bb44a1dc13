//! `process.spawn-isolated`: checks what a driver asks for against what its grant
//! demands and allows.

use std::path::Path;

use crate::bindings::since_0_1::host::process::{
    Isolation as Asked, IsolationPart, PartState, ProcessError as WitError,
};
use crate::bindings::since_0_1::host::types::{DeviceNode as WitDeviceNode, Mount as WitMount};
use crate::host::CallState;
use ostler_model::device::{DeviceNode, Mount};
use ostler_model::grants::{Authority, GrantAddition, wildcard};
use ostler_model::isolation::{IsolationGrant, IsolationKind};
use ostler_model::limits::ANSWER_NAME_BYTES_MAX;
use ostler_model::ports::TaskContext;
use ostler_model::printable::printable_line;
use ostler_process::isolate::capability;
use ostler_process::user::UserDefault;
use ostler_process::{Abilities, Isolation};

impl From<IsolationPart> for IsolationKind {
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

impl From<IsolationKind> for IsolationPart {
    fn from(part: IsolationKind) -> Self {
        match part {
            IsolationKind::Mounts => Self::Mounts,
            IsolationKind::Pids => Self::Pids,
            IsolationKind::Ipc => Self::Ipc,
            IsolationKind::Network => Self::Network,
            IsolationKind::User => Self::User,
            IsolationKind::Privileges => Self::Privileges,
            IsolationKind::Seccomp => Self::Seccomp,
            IsolationKind::Landlock => Self::Landlock,
        }
    }
}

/// Decide which parts of isolation are done: all that are required, and those that are
/// wanted and possible.
///
/// # Errors
/// The parts that the grant demands and the driver does not require, or that are not possible here.
pub(super) fn decide(
    required: &[IsolationKind],
    wanted: &[IsolationKind],
    grant: &IsolationGrant,
    abilities: &Abilities,
) -> Result<Vec<IsolationKind>, IsolationRefusal> {
    let less: Vec<IsolationKind> =
        grant.required_parts().into_iter().filter(|part| !required.contains(part)).collect();
    if !less.is_empty() {
        return Err(IsolationRefusal::Less(less));
    }
    let impossible: Vec<IsolationKind> =
        required.iter().copied().filter(|part| !abilities.can(*part)).collect();
    if !impossible.is_empty() {
        return Err(IsolationRefusal::Impossible(impossible));
    }
    let all = IsolationKind::ALL.into_iter();
    let done = |part: &IsolationKind| {
        required.contains(part) || (wanted.contains(part) && abilities.can(*part))
    };
    Ok(all.filter(done).collect())
}

/// Why an isolated process is not started.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum IsolationRefusal {
    /// The driver asks for less than its grant demands.
    Less(Vec<IsolationKind>),
    /// This node cannot do these parts.
    Impossible(Vec<IsolationKind>),
}

fn join_words(parts: &[IsolationKind]) -> String {
    parts.iter().map(|part| part.word()).collect::<Vec<_>>().join(", ")
}

impl CallState {
    /// The demands of the grant. A driver without an `isolation` block may ask for what it likes.
    fn isolation_grant(&self) -> IsolationGrant {
        let granted = self.plugin.grants.isolation.clone();
        granted.unwrap_or_else(IsolationGrant::best_effort)
    }

    /// Refuse a process that is not isolated, if the grant of its driver demands isolation.
    pub(super) fn refuse_bare(&self) -> Result<(), WitError> {
        let demanded = match &self.plugin.grants.isolation {
            Some(grant) => grant.required_parts(),
            None => return Ok(()),
        };
        if demanded.is_empty() {
            return Ok(());
        }
        Err(WitError::Denied(format!(
            "starting processes that are not isolated is not granted: the grant demands {}",
            join_words(&demanded)
        )))
    }

    pub(super) fn part_states(&self, abilities: &Abilities) -> Vec<PartState> {
        let grant = self.isolation_grant();
        let state = |part: IsolationKind| PartState {
            part: part.into(),
            lacking: abilities.lacking.get(&part).cloned(),
            may_lack: grant.may_lack(part),
        };
        IsolationKind::ALL.map(state).to_vec()
    }

    /// The isolation of a process, from what the driver asks for, the grant and
    /// the node's abilities.
    pub(super) fn isolation(
        &self,
        task: &TaskContext,
        asked: Asked,
        abilities: &Abilities,
    ) -> Result<Isolation, WitError> {
        let grant = self.isolation_grant();
        let parts = |list: Vec<IsolationPart>| {
            list.into_iter().map(IsolationKind::from).collect::<Vec<_>>()
        };
        let decided = decide(&parts(asked.required), &parts(asked.wanted), &grant, abilities);
        let parts = decided.map_err(|refused| self.refusal_error(&refused, abilities))?;
        let mounts = self.mounts(task, &grant, asked.mounts)?;
        let device_nodes = device_nodes(task, asked.device_nodes)?;
        let capabilities = self.capabilities(&grant, &asked.capabilities)?;
        let named = |user: &String| user == "root";
        let namespaces = [
            IsolationKind::Mounts,
            IsolationKind::Pids,
            IsolationKind::Ipc,
            IsolationKind::Network,
        ];
        let needed = namespaces.iter().any(|part| parts.contains(part));
        Ok(Isolation {
            parts,
            user_namespace: abilities.user_namespace && needed,
            task_dir: task.task_dir.clone(),
            alloc_dir: task.alloc_dir.clone(),
            base: grant.base_paths(),
            hidden: grant.hidden_paths(),
            mounts,
            device_nodes,
            capabilities,
            user_default: self.user_default(task),
            root_allowed: self.plugin.grants.users.iter().any(named),
            processes_max: grant.processes_max,
        })
    }

    /// The user of a process that names none.
    fn user_default(&self, task: &TaskContext) -> UserDefault {
        let grants = &self.plugin.grants;
        match (grants.isolated_user(), task.alloc_user) {
            (None, Some(id)) => UserDefault::Id(id),
            _ => UserDefault::Named(grants.isolated_user_or_default()),
        }
    }

    fn refusal_error(&self, refused: &IsolationRefusal, abilities: &Abilities) -> WitError {
        match refused {
            IsolationRefusal::Less(parts) => WitError::Denied(format!(
                "the driver does not ask for {}, and its grant demands that of every process",
                join_words(parts)
            )),
            IsolationRefusal::Impossible(parts) => {
                let why = |part: &IsolationKind| {
                    let why = abilities.lacking.get(part).map_or("", String::as_str);
                    format!("{} ({why})", part.word())
                };
                let why: Vec<String> = parts.iter().map(why).collect();
                let text = format!("this node cannot isolate a task by {}", why.join(", "));
                WitError::Denied(self.denial_text(
                    &text,
                    Authority::Process,
                    GrantAddition::Without(parts.clone()),
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
                let told = printable_line(host_path.clone(), ANSWER_NAME_BYTES_MAX);
                let text = format!("mounting {told} is not granted");
                return Err(WitError::Denied(self.denial_text(
                    &text,
                    Authority::Process,
                    GrantAddition::MountOf(told),
                )));
            }
            // A mount at the same path as on the node replaces nothing.
            let elsewhere = host_path != task_path && !task.mounts.iter().any(reserved);
            let grants = &self.plugin.grants;
            let replaced = grants.find_replaced_program(Path::new(&task_path), &grant.base_paths());
            if let Some(replaced) = replaced.filter(|_| elsewhere) {
                let told = printable_line(task_path, ANSWER_NAME_BYTES_MAX);
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
            let told = || printable_line(name.clone(), ANSWER_NAME_BYTES_MAX);
            let Some(bit) = capability(name) else {
                return Err(WitError::Failed(format!("there is no capability {:?}", told())));
            };
            if allowed & bit == 0 {
                let text = format!("capability {} is not granted", told());
                return Err(WitError::Denied(self.denial_text(
                    &text,
                    Authority::Process,
                    GrantAddition::Capability(told()),
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

/// The device nodes that the driver asks for. Each must be assigned to the task with these rights.
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
            let told = printable_line(host_path, ANSWER_NAME_BYTES_MAX);
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

    fn without(parts: &[IsolationKind]) -> IsolationGrant {
        IsolationGrant { without: parts.to_vec(), ..IsolationGrant::default() }
    }

    fn lacking(parts: &[IsolationKind]) -> Abilities {
        let lacking = parts.iter().map(|part| (*part, "for a test".to_owned())).collect();
        Abilities { lacking, user_namespace: false }
    }

    #[test]
    fn a_driver_that_asks_for_less_than_its_grant_demands_is_refused_by_name() {
        let all = IsolationGrant::default().required_parts();
        let less: Vec<IsolationKind> =
            all.iter().copied().filter(|part| *part != IsolationKind::Pids).collect();
        let refused = decide(&less, &[], &without(&[]), &lacking(&[]));
        assert_eq!(refused, Err(IsolationRefusal::Less(vec![IsolationKind::Pids])));
        assert_eq!(decide(&all, &[], &without(&[]), &lacking(&[])), Ok(all));
    }

    #[test]
    fn what_is_required_and_not_possible_is_refused_and_what_is_only_wanted_is_left_out() {
        let demanded = without(&[IsolationKind::Pids]).required_parts();
        let wanted = [IsolationKind::Pids, IsolationKind::Landlock];
        let here = lacking(&[IsolationKind::Pids]);
        let done = decide(&demanded, &wanted, &without(&[IsolationKind::Pids]), &here).unwrap();
        assert!(!done.contains(&IsolationKind::Pids) && done.contains(&IsolationKind::Landlock));
        let all = IsolationGrant::default().required_parts();
        let refused = decide(&all, &[], &without(&[]), &here);
        assert_eq!(refused, Err(IsolationRefusal::Impossible(vec![IsolationKind::Pids])));
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
