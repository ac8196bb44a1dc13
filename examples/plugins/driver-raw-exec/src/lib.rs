//! Driver `raw_exec`: runs a native program as a process group of the agent's, with the task's
//! environment and nothing else.
//!
//! It isolates nothing: the program sees and may do what its user sees and may do. Driver `exec`
//! keeps its tasks apart.

use ostler_sdk::driver::prelude::*;
use process::SpawnRequest;
use serde::Deserialize;

const SCHEMA: &str = r#"{
  "type": "object",
  "required": ["command"],
  "additionalProperties": false,
  "properties": {
    "command": {
      "type": "string", "minLength": 1,
      "description": "Program: found in the task's local or its directory, absolute, relative to cwd, or looked up in the task's PATH."
    },
    "args": {"type": "array", "items": {"type": "string"}},
    "cwd": {
      "type": "string", "minLength": 1,
      "description": "Working directory; relative to the task directory, which is the default."
    }
  }
}"#;

/// What programs look for, for a task that does not say. Who it runs as is said by the host.
const DEFAULTS: [(&str, &str); 2] =
    [("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"), ("LANG", "C.UTF-8")];

/// A task's `config` block.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    command: String,
    #[serde(default)]
    args: Vec<String>,
    cwd: Option<String>,
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
        for (name, value) in DEFAULTS {
            if task.env_value(name).is_none() {
                task.env.push(EnvVar::new(name, value));
            }
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
            None => task.task_dir.clone(),
            Some(dir) if dir.starts_with('/') => dir,
            Some(dir) => format!("{}/{dir}", task.task_dir),
        };
        let context = ExecContext::new(&task, cwd.as_str());
        let id = process::spawn(&SpawnRequest {
            command: config.command,
            search: vec![format!("{}/local", task.task_dir), task.task_dir],
            args: config.args,
            env: task.env,
            cwd,
            user: task.user,
        })?;
        Started::remembering::<Self>(id, &context)
    }

    fn exec(handle: Handle, argv: Vec<String>, _tty: bool) -> Result<ExecPlan> {
        handle.state::<ExecContext>()?.plan(argv)
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
        let [path, lang] = DEFAULTS.map(|(name, value)| EnvVar::new(name, value));
        assert_eq!(asked.env, [EnvVar::new("NOMAD_TASK_NAME", "web"), path, lang]);
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
