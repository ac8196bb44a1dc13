//! Finds the user that the task runs as, and gives that user the task's directories before anything
//! comes into them.

use std::path::Path;

use super::{HookError, Preparation, TaskHook, config};
use crate::alloc::owner::{self, DataHandOver, HandOver};
use crate::alloc::users::{AllocUserError, AllocUsers};
use crate::task::TaskScope;
use ostler_model::alloc::Allocation;
use ostler_model::disk_work::run_disk_work;
use ostler_model::job::Task;
use ostler_model::ports::{AllocUser, BoxFuture, FileOwner, FsIsolation, TaskOwner};

pub(super) struct OwnerHook;

impl TaskHook for OwnerHook {
    fn name(&self) -> &'static str {
        "owner"
    }

    fn prestart<'a>(
        &'a self,
        scope: &'a TaskScope,
        preparation: &'a mut Preparation,
    ) -> BoxFuture<'a, Result<(), HookError>> {
        Box::pin(async move {
            let Some(driver) = preparation.driver.clone() else {
                return Err(HookError::setup("the driver comes before owner"));
            };
            let user = match &scope.task.user {
                None => None,
                Some(user) => {
                    let env = config::environment(scope, preparation).await?;
                    match env.interpolate(user) {
                        Ok(name) if env.unknown_in([user.as_str()]).is_empty() => Some(name),
                        // A variable of the task's templates, or an unknown one,
                        // which `config` reports.
                        _ => return Ok(()),
                    }
                }
            };
            let found = driver.owner(user).await.map_err(|error| HookError::plugin(&error))?;
            let asked = OwnerInput {
                found,
                whole: driver.capabilities().fs_isolation == FsIsolation::None,
                goes_on: preparation.goes_on,
            };
            let (root, users) = (scope.node.alloc_root.clone(), scope.node.users.clone());
            let (allocation, task) = (scope.allocation.clone(), scope.task.clone());
            if found == TaskOwner::Agent {
                return Ok(());
            }
            scope.dirs.make().await.map_err(HookError::passing_setup)?;
            let given =
                run_disk_work(move || give_directories(&root, &users, &allocation, &task, asked));
            let given = given.await.map_err(HookError::passing_setup)?;
            let (owner, alloc_user) = given.map_err(|error| match &error {
                AllocUserError::NoneFree(_) => HookError::Node { error: error.to_string() },
                AllocUserError::Dir(error) => HookError::on_disk(error),
            })?;
            (preparation.owner, preparation.alloc_user) = (Some(owner), alloc_user);
            Ok(())
        })
    }
}

/// What is known of a task's owner before its directories are looked at.
#[derive(Clone, Copy)]
struct OwnerInput {
    found: TaskOwner,
    /// The task sees the directory around its own.
    whole: bool,
    /// The task runs already, so its directories keep their owner.
    goes_on: bool,
}

/// Find the owner of the task's files, and hand it the directories. Blocks on the disk.
fn give_directories(
    root: &Path,
    users: &AllocUsers,
    allocation: &Allocation,
    task: &Task,
    asked: OwnerInput,
) -> Result<(FileOwner, AllocUser), AllocUserError> {
    let tasks = allocation.task_group().map(|group| group.tasks.as_slice()).unwrap_or_default();
    let named = tasks.iter().filter(|task| task.user.is_some()).count();
    let (owner, alloc_user, data) = match asked.found {
        TaskOwner::Agent => (owner::agent_owner(), AllocUser::NotKnown, DataHandOver::Nobody),
        // Where a sibling names no user, data of an allocation's own id goes to that sibling.
        TaskOwner::User(user) => {
            let all = task.user.is_none() || named == tasks.len();
            let data = if all { DataHandOver::OwnIds } else { DataHandOver::Nobody };
            (user, AllocUser::NotKnown, data)
        }
        TaskOwner::OfAlloc { otherwise } => match users.assign_user(root, allocation, otherwise)? {
            AllocUser::Own(id) => {
                // A sibling that names the shared user keeps what it wrote.
                let data = match named {
                    0 => DataHandOver::OwnIdsAnd(otherwise),
                    _ => DataHandOver::OwnIds,
                };
                (FileOwner { uid: id, gid: id }, AllocUser::Own(id), data)
            }
            shared => (otherwise, shared, DataHandOver::OwnIds),
        },
    };
    if !asked.goes_on {
        let ids = users.range().cloned();
        let to = HandOver { owner, whole: asked.whole, ids, data };
        owner::hand_over(root, allocation.id, &task.name, &to)?;
    }
    Ok((owner, alloc_user))
}
