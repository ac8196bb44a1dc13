//! Remembers what a driver needs to know of a task for commands that are run inside it later.

use serde::{Deserialize, Serialize};

use super::{ExecPlan, TaskConfig};
use crate::error::Error;
use crate::types::EnvVar;

/// Environments above this size in bytes are not remembered, because a handle holds at most 64 KiB.
const ENV_BYTES_MAX: usize = 24 * 1024;
/// The number of bytes that JSON adds to a variable.
const JSON_BYTES: usize = 8;

/// Working directory, user and environment of a task: [`Started::remembering`] keeps it with the
/// task's handle, [`Handle::state`] gives it back, and [`plan`](Self::plan) answers
/// [`Driver::exec`].
///
/// [`Driver::exec`]: super::Driver::exec
/// [`Handle::state`]: super::Handle::state
/// [`Started::remembering`]: super::Started::remembering
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecContext {
    cwd: String,
    user: Option<String>,
    /// The environment; `None` if it is too large to be remembered.
    env: Option<Vec<(String, String)>>,
}

impl ExecContext {
    /// The context of a task that is about to start in this directory.
    pub fn new(task: &TaskConfig, cwd: impl Into<String>) -> Self {
        let bytes = |var: &EnvVar| var.name.len() + var.value.len() + JSON_BYTES;
        let small = task.env.iter().map(bytes).sum::<usize>() <= ENV_BYTES_MAX;
        let pairs = || task.env.iter().map(|var| (var.name.clone(), var.value.clone())).collect();
        Self { cwd: cwd.into(), user: task.user.clone(), env: small.then(pairs) }
    }

    /// Run this command as the task runs.
    ///
    /// # Errors
    /// [`Error::Unsupported`] when the task's environment was too large to be remembered.
    pub fn plan(self, argv: Vec<String>) -> Result<ExecPlan, Error> {
        let env = self.env.ok_or_else(|| {
            Error::unsupported("the task's environment is too large to be remembered for exec")
        })?;
        let env = env.into_iter().map(|(name, value)| EnvVar { name, value }).collect();
        Ok(ExecPlan { argv, env, cwd: self.cwd, user: self.user })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::driver::{Driver, DriverInfo};
    use crate::driver::{Process, Started};
    use crate::testing;

    struct Native;

    impl Driver for Native {
        type Runs = Process;

        fn describe() -> DriverInfo {
            DriverInfo::new("native", "0.1.0")
        }

        fn start(task: TaskConfig) -> Result<Started, Error> {
            let context = ExecContext::new(&task, "/local");
            Started::remembering::<Self>("p1".to_owned(), &context)
        }
    }

    fn after_the_start(task: TaskConfig) -> (usize, ExecContext) {
        let handle = Native::start(task).unwrap().handle;
        (handle.data.len(), handle.state().unwrap())
    }

    #[test]
    fn a_command_gets_the_directory_the_user_and_the_environment_of_its_task() {
        let mut task = testing::task("{}");
        task.user = Some("web".to_owned());
        let env = task.env.clone();
        let (_, context) = after_the_start(task);
        let plan = context.plan(vec!["ls".to_owned()]).unwrap();
        assert_eq!((plan.cwd.as_str(), plan.user.as_deref()), ("/local", Some("web")));
        assert_eq!((plan.argv, plan.env), (vec!["ls".to_owned()], env));
    }

    #[test]
    fn a_huge_environment_is_left_out_of_the_handle_and_exec_says_so() {
        let mut task = testing::task("{}");
        task.env.push(EnvVar::new("BIG", "x".repeat(ENV_BYTES_MAX)));
        let (handle_bytes, context) = after_the_start(task);
        assert!(handle_bytes < 1024);
        assert!(matches!(context.plan(vec![]), Err(Error::Unsupported(_))));
    }
}
