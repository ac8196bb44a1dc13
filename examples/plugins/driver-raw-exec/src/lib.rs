//! Driver `raw_exec`: runs a native program as a process group of the agent's, with the task's
//! environment and nothing else.
//!
//! It isolates nothing: the program sees and may do what its user sees and may do. Driver `exec`
//! keeps its tasks apart.

use ostler_sdk::driver::prelude::*;
use process::SpawnRequest;
use serde::{Deserialize, Serialize};

const SCHEMA: &str = r#"{
  "type": "object",
  "required": ["command"],
  "additionalProperties": false,
  "properties": {
    "command": {
      "type": "string", "minLength": 1,
      "description": "Program: absolute, relative to cwd, or looked up in the task's PATH."
    },
    "args": {"type": "array", "items": {"type": "string"}},
    "cwd": {
      "type": "string", "minLength": 1,
      "description": "Working directory; relative to the task directory, which is the default."
    }
  }
}"#;

/// Where programs are, for a task that does not say.
const PATH_DEFAULT: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Environments above this size are not remembered: a handle holds at most 64 KiB.
const ENV_BYTES_MAX: usize = 24 * 1024;

/// A task's `config` block.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    command: String,
    #[serde(default)]
    args: Vec<String>,
    cwd: Option<String>,
}

/// What a later `exec` into the task needs to know.
#[derive(Serialize, Deserialize)]
struct Surroundings {
    cwd: String,
    user: Option<String>,
    /// Absent when too large to remember.
    env: Option<Vec<(String, String)>>,
}

struct RawExec;

impl Driver for RawExec {
    type Runs = Process;

    fn describe() -> DriverInfo {
        DriverInfo::new("raw_exec", env!("CARGO_PKG_VERSION"))
            .send_signals()
            .exec()
            .task_config_schema(SCHEMA)
    }

    fn start(mut task: TaskConfig) -> Result<Started> {
        if task.env_value("PATH").is_none() {
            task.env.push(EnvVar::new("PATH", PATH_DEFAULT));
        }
        let config: Config = task.parse()?;
        // The program sees the node's own paths, so what is elsewhere for it would not be there.
        if let Some(mount) = task.mounts.iter().find(|mount| mount.host_path != mount.task_path) {
            return Err(Error::unsupported(format!(
                "a native task has no file system of its own, so {} cannot be shown to it as {}; \
                 use a driver that has one, such as exec or wasm",
                mount.host_path, mount.task_path
            )));
        }
        let cwd = match config.cwd {
            None => task.task_dir,
            Some(dir) if dir.starts_with('/') => dir,
            Some(dir) => format!("{}/{dir}", task.task_dir),
        };
        let bytes: usize = task.env.iter().map(|var| var.name.len() + var.value.len() + 8).sum();
        let pairs = || task.env.iter().map(|var| (var.name.clone(), var.value.clone())).collect();
        let remembered = Surroundings {
            cwd: cwd.clone(),
            user: task.user.clone(),
            env: (bytes <= ENV_BYTES_MAX).then(pairs),
        };
        let id = process::spawn(&SpawnRequest {
            command: config.command,
            args: config.args,
            env: task.env,
            cwd,
            user: task.user,
        })?;
        Started::remembering::<Self>(id, &remembered)
    }

    fn exec(handle: Handle, argv: Vec<String>, _tty: bool) -> Result<ExecPlan> {
        let Surroundings { cwd, user, env } = handle.state()?;
        let env = env.ok_or_else(|| {
            Error::unsupported("the task's environment is too large to be remembered for exec")
        })?;
        let env = env.into_iter().map(|(name, value)| EnvVar { name, value }).collect();
        Ok(ExecPlan { argv, env, cwd, user })
    }
}

ostler_sdk::export_driver!(RawExec);

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]
mod tests {
    use super::*;
    use ostler_sdk::testing::{self, FakeHost};

    #[test]
    fn the_program_gets_the_tasks_environment_and_starts_in_its_directory() {
        let host = FakeHost::install();
        RawExec::start(testing::task(r#"{"command": "sh", "args": ["-c", "true"]}"#)).unwrap();
        let asked = &host.processes()[0];
        assert_eq!((asked.command.as_str(), asked.cwd.as_str()), ("sh", "/alloc/web"));
        let path = EnvVar::new("PATH", PATH_DEFAULT);
        assert_eq!(asked.env, [EnvVar::new("NOMAD_TASK_NAME", "web"), path]);
        assert!(host.isolations().is_empty());
    }

    #[test]
    fn stop_sends_sigint_unless_the_job_names_another_signal() {
        let host = FakeHost::install();
        let handle = RawExec::start(testing::task(r#"{"command": "sh"}"#)).unwrap().handle;
        RawExec::stop(handle.clone(), None, 5000).unwrap();
        RawExec::stop(handle, Some("SIGTERM".to_owned()), 5000).unwrap();
        let sent: Vec<_> = host.signals().into_iter().map(|(_, name)| name).collect();
        assert_eq!(sent, ["SIGINT", "SIGTERM"]);
    }

    #[test]
    fn a_command_inside_the_task_gets_the_same_directory_and_environment() {
        FakeHost::install();
        let handle =
            RawExec::start(testing::task(r#"{"command": "sh", "cwd": "local"}"#)).unwrap().handle;
        let plan = RawExec::exec(handle, vec!["ls".to_owned()], false).unwrap();
        assert_eq!(plan.cwd, "/alloc/web/local");
        assert_eq!(plan.env.first(), Some(&EnvVar::new("NOMAD_TASK_NAME", "web")));
    }

    #[test]
    fn a_task_with_a_huge_environment_still_starts() {
        FakeHost::install();
        let mut task = testing::task(r#"{"command": "sh"}"#);
        task.env.push(EnvVar::new("BIG", "x".repeat(ENV_BYTES_MAX)));
        let handle = RawExec::start(task).unwrap().handle;
        assert!(handle.data.len() < 1024);
        let plan = RawExec::exec(handle, vec!["ls".to_owned()], false);
        assert!(matches!(plan, Err(Error::Unsupported(_))));
    }

    #[test]
    fn a_device_that_would_have_to_be_mounted_is_refused_and_nothing_starts() {
        let host = FakeHost::install();
        let mut task = testing::task(r#"{"command": "sh"}"#);
        task.mounts.push(Mount::read_only("/srv/same", "/srv/same"));
        RawExec::start(task.clone()).unwrap();
        task.mounts.push(Mount::read_only("/srv/x", "/local/devices/x"));
        let refused = RawExec::start(task);
        assert!(matches!(refused, Err(Error::Unsupported(text)) if text.contains("/srv/x")));
        assert_eq!(host.processes().len(), 1);
    }

    #[test]
    fn a_missing_grant_is_passed_on_as_permission_denied() {
        FakeHost::install().deny();
        let started = RawExec::start(testing::task(r#"{"command": "sh"}"#));
        assert!(matches!(started, Err(Error::PermissionDenied(_))));
    }
}
