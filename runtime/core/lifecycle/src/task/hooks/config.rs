//! Builds the environment, replaces `${…}`, and checks the result against the driver's schema. It
//! runs after the hooks whose variables are part of the environment, such as `devices`, and checks
//! what the driver will get.

use super::{HookError, Preparation, TaskHook};
use crate::task::TaskScope;
use crate::task::env::{EnvError, EnvInput, TaskDirs, TaskEnv};
use crate::task::{events, references};
use ostler_model::causes;
use ostler_model::ports::{AllocUser, BoxFuture, Diagnostic, TaskDriver};

pub(super) struct ConfigHook;

impl TaskHook for ConfigHook {
    fn name(&self) -> &'static str {
        "config"
    }

    fn prestart<'a>(
        &'a self,
        scope: &'a TaskScope,
        preparation: &'a mut Preparation,
    ) -> BoxFuture<'a, Result<(), HookError>> {
        Box::pin(async move {
            let Some(driver) = preparation.driver.clone() else {
                return Err(HookError::setup("the driver comes before config"));
            };
            let mut env = environment(scope, preparation).await?;
            env.add(std::mem::take(&mut preparation.template_env))
                .map_err(|e| HookError::setup(causes::chain(&e)))?;
            let unknown = references::unknown_of_task(&scope.task, &env);
            if !unknown.is_empty() && !preparation.goes_on {
                preparation.say(events::unknown_references(scope.node.clock.now(), &unknown));
            }
            preparation.config = env
                .interpolate_config(&scope.task.config)
                .map_err(|e| HookError::setup(causes::chain(&e)))?;
            preparation.user = match &scope.task.user {
                Some(user) => {
                    Some(env.interpolate(user).map_err(|e| HookError::setup(causes::chain(&e)))?)
                }
                None => None,
            };
            let problems = driver.validate(&preparation.config);
            if !problems.is_empty() {
                return Err(HookError::Invalid(text(&scope.task.driver, &problems)));
            }
            preparation.env = Some(env);
            Ok(())
        })
    }
}

/// The task's directories as the task sees them.
pub(super) fn dirs(preparation: &Preparation) -> Result<TaskDirs, HookError> {
    let (Some(driver), Some(task_dir)) = (&preparation.driver, &preparation.task_dir) else {
        return Err(HookError::setup("driver and task directory come before config"));
    };
    let isolation = driver.capabilities().fs_isolation;
    TaskDirs::new(isolation, &preparation.alloc_dir, &task_dir.path)
        .map_err(|e| HookError::setup(causes::chain(&e)))
}

/// The environment of the task without the variables of its templates.
pub(super) async fn environment(
    scope: &TaskScope,
    preparation: &Preparation,
) -> Result<TaskEnv, HookError> {
    let network = scope.context.network.get();
    let dirs = dirs(preparation)?;
    let input = EnvInput {
        alloc: &scope.allocation,
        task: &scope.task,
        node: &scope.context.facts,
        dirs: &dirs,
        of_driver: &[],
        hook_env: &preparation.reservation.env,
        network: network.as_deref(),
    };
    let env = env_with_driver(input, preparation.driver.as_deref(), preparation.alloc_user).await;
    env.map_err(|e| HookError::setup(causes::chain(&e)))
}

/// An environment with what the driver gives its tasks.
///
/// # Errors
/// As [`TaskEnv::build`].
pub async fn env_with_driver(
    input: EnvInput<'_>,
    driver: Option<&dyn TaskDriver>,
    of_alloc: AllocUser,
) -> Result<TaskEnv, EnvError> {
    let env = TaskEnv::build(&input)?;
    let Some(driver) = driver else { return Ok(env) };
    // A name that cannot be interpolated is reported where the user is needed.
    let user = input.task.user.as_ref().and_then(|user| env.interpolate(user).ok());
    let of_driver = driver.usual_env(user, of_alloc).await;
    if of_driver.is_empty() {
        Ok(env)
    } else {
        TaskEnv::build(&EnvInput { of_driver: &of_driver, ..input })
    }
}

fn text(driver: &ostler_model::ids::PluginName, problems: &[Diagnostic]) -> String {
    let lines: Vec<String> = problems
        .iter()
        .map(|p| match p.path.as_str() {
            "" => p.to_string(),
            _ => format!("config.{p}"),
        })
        .collect();
    format!("the config of this task does not fit driver {driver}: {}", lines.join("; "))
}
