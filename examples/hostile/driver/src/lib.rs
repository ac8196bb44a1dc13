//! A driver of processes that misbehaves as it is told. The plugin's configuration says how
//! `fingerprint` behaves (`{"mode": "spin"}`), a task's configuration how its calls behave:
//!
//! ```hcl
//! config {
//!   command = "/bin/sleep"   # what `start` spawns
//!   args    = ["1000"]
//!   start   = "spawn-then-trap"
//!   arg     = "p1"           # the id for `foreign-id` and `foreign-workload`
//!   stop    = "spin"         # and kill, exited, inspect, recover, destroy, signal
//! }
//! ```
//!
//! Modes of every function: those of `misbehave`. Modes of `start` besides: `spawn-then-trap`,
//! `spawn-then-error`, `foreign-id` (kills and signals the process `arg` and answers with what
//! the host said), `foreign-workload` (says that its task is the process `arg`), `empty-handle`,
//! `huge-handle`, `error`.

use misbehave::misbehave;
use ostler_sdk::driver::prelude::*;
use process::SpawnRequest;
use serde::{Deserialize, Serialize};

#[path = "../../device/src/misbehave.rs"]
mod misbehave;

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct PluginConfig {
    mode: String,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Config {
    command: String,
    args: Vec<String>,
    start: String,
    arg: String,
    recover: String,
    exited: String,
    stop: String,
    kill: String,
    destroy: String,
    inspect: String,
    signal: String,
}

struct Hostile;

/// The task's configuration, out of the handle.
fn told(handle: &Handle) -> Config {
    handle.state().unwrap_or_default()
}

impl Driver for Hostile {
    type Runs = Process;

    fn describe() -> DriverInfo {
        DriverInfo::new("hostile", env!("CARGO_PKG_VERSION"))
            .send_signals()
            .config_schema(r#"{"type": "object"}"#)
            .task_config_schema(r#"{"type": "object"}"#)
    }

    fn fingerprint() -> Result<Fingerprint> {
        misbehave(&host::config::<PluginConfig>()?.mode);
        Ok(Fingerprint::new(Health::healthy()))
    }

    fn start(task: TaskConfig) -> Result<Started> {
        let config: Config = task.parse()?;
        misbehave(&config.start);
        match config.start.as_str() {
            "error" => return Err(Error::recoverable("as asked")),
            "foreign-id" => {
                let said = (process::kill(&config.arg), process::signal(&config.arg, "SIGKILL"));
                return Err(Error::fatal(format!("{said:?}")));
            }
            "foreign-workload" => return Started::new::<Self>(config.arg),
            _ => {}
        }
        let id = process::spawn(&SpawnRequest {
            command: config.command.clone(),
            args: config.args.clone(),
            env: task.env,
            cwd: task.task_dir,
            user: match config.start.as_str() {
                "as-another-user" => Some(config.arg.clone()),
                _ => task.user,
            },
        })?;
        let mut started = Started::remembering::<Self>(id, &config)?;
        match config.start.as_str() {
            "spawn-then-trap" => std::process::abort(),
            "spawn-then-error" => return Err(Error::fatal("as asked, after the spawn")),
            "empty-handle" => started.handle.data.clear(),
            "huge-handle" => started.handle.data = vec![b'x'; 1 << 20],
            _ => {}
        }
        Ok(started)
    }

    fn recover(handle: Handle) -> Result<Started> {
        misbehave(&told(&handle).recover);
        let id = handle.id()?;
        Ok(Started { handle, workload: Workload::Process(id), network: None })
    }

    fn exited(handle: Handle, exit: RawExit) -> Result<ExitResult> {
        misbehave(&told(&handle).exited);
        Ok(ExitResult::from(exit))
    }

    fn stop(handle: Handle, signal: Option<String>, _timeout: Milliseconds) -> Result<()> {
        misbehave(&told(&handle).stop);
        Ok(process::signal(&handle.id()?, signal.as_deref().unwrap_or("SIGINT"))?)
    }

    fn kill(handle: Handle) -> Result<()> {
        misbehave(&told(&handle).kill);
        Ok(process::kill(&handle.id()?)?)
    }

    fn destroy(handle: Handle, _force: bool) -> Result<()> {
        misbehave(&told(&handle).destroy);
        Ok(())
    }

    fn inspect(handle: Handle) -> Result<Status> {
        misbehave(&told(&handle).inspect);
        Ok(Status { state: RunState::Running, exit: None, attributes: vec![] })
    }

    fn signal(handle: Handle, signal: String) -> Result<()> {
        misbehave(&told(&handle).signal);
        Ok(process::signal(&handle.id()?, &signal)?)
    }
}

ostler_sdk::export_driver!(Hostile);
