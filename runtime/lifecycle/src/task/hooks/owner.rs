//! Finds out whom the task runs as, and gives it its directories before anything comes into them.

use std::path::Path;

use super::{HookError, Preparation, TaskHook, config};
use crate::alloc::owner::{self, DataOf, HandOver};
use crate::alloc::users::{AllocUserError, AllocUsers};
use crate::task::TaskScope;
use ostler_model::alloc::Allocation;
use ostler_model::clock;
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
                        // A variable of its templates, or none: `config` says so.
                        _ => return Ok(()),
                    }
                }
            };
            let found = driver.owner(user).await.map_err(|error| HookError::plugin(&error))?;
            let asked = Asked {
                found,
                whole: driver.capabilities().fs_isolation == FsIsolation::None,
                goes_on: preparation.goes_on,
            };
            let (root, users) = (scope.alloc_root.clone(), scope.users.clone());
            let (allocation, task) = (scope.allocation.clone(), scope.task.clone());
            if found == TaskOwner::Agent {
                return Ok(());
            }
            let given = clock::blocking(move || give(&root, &users, &allocation, &task, asked));
            let given = given.await.map_err(HookError::passing)?;
            let (owner, alloc_user) = given.map_err(|error| match &error {
                AllocUserError::NoneFree(_) => HookError::Node { error: error.to_string() },
                AllocUserError::Dir(error) => HookError::on_disk(error),
            })?;
            (preparation.owner, preparation.alloc_user) = (Some(owner), alloc_user);
            Ok(())
        })
    }
}

/// What is known of a task before its directories are looked at.
#[derive(Clone, Copy)]
struct Asked {
    found: TaskOwner,
    /// It sees the directory around its own.
    whole: bool,
    /// It runs, and has what it has.
    goes_on: bool,
}

/// Blocks.
fn give(
    root: &Path,
    users: &AllocUsers,
    allocation: &Allocation,
    task: &Task,
    asked: Asked,
) -> Result<(FileOwner, AllocUser), AllocUserError> {
    let tasks = allocation.task_group().map(|group| group.tasks.as_slice()).unwrap_or_default();
    let named = tasks.iter().filter(|task| task.user.is_some()).count();
    let (owner, alloc_user, data) = match asked.found {
        TaskOwner::Agent => (owner::agent(), AllocUser::NotKnown, DataOf::Nobody),
        // Where a sibling names no user, what was an allocation's is that one's.
        TaskOwner::User(user) => {
            let all = task.user.is_none() || named == tasks.len();
            let data = if all { DataOf::OwnIds } else { DataOf::Nobody };
            (user, AllocUser::NotKnown, data)
        }
        TaskOwner::OfAlloc { otherwise } => match users.of(root, allocation, otherwise)? {
            AllocUser::Own(id) => {
                // One that names the shared user wants to keep what it wrote.
                let data = match named {
                    0 => DataOf::OwnIdsAnd(otherwise),
                    _ => DataOf::OwnIds,
                };
                (FileOwner { uid: id, gid: id }, AllocUser::Own(id), data)
            }
            shared => (otherwise, shared, DataOf::OwnIds),
        },
    };
    if !asked.goes_on {
        let ids = users.range().cloned();
        let to = HandOver { owner, whole: asked.whole, ids, data };
        owner::hand_over(root, allocation.id, &task.name, &to)?;
    }
    Ok((owner, alloc_user))
}
