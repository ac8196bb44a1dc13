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
//! `huge-handle`, `error`, `storm` (spawns until the host says no), `strangers` (signals and kills
//! every id in `args`), `inject` (spawns what no honest driver asks for). The last three fail with
//! the list of what the host let them do.

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

fn spawn_request(config: &Config, task: &TaskConfig) -> SpawnRequest {
    SpawnRequest {
        command: config.command.clone(),
        args: config.args.clone(),
        env: task.env.clone(),
        cwd: task.task_dir.clone(),
        user: task.user.clone(),
    }
}

/// Requests that must not start anything; the names of those that did.
fn injected(config: &Config, task: &TaskConfig) -> String {
    let honest = spawn_request(config, task);
    let var = |name: &str, value: &str| EnvVar { name: name.to_owned(), value: value.to_owned() };
    let with = |change: &dyn Fn(&mut SpawnRequest)| {
        let mut request = honest.clone();
        change(&mut request);
        request
    };
    let requests = [
        ("nothing", with(&|r| r.command.clear())),
        ("NUL in the command", with(&|r| r.command.push_str("\0/../sh"))),
        ("NUL in an argument", with(&|r| r.args = vec!["a\0b".to_owned()])),
        ("a directory", with(&|r| r.command = "/".to_owned())),
        ("a device", with(&|r| r.command = "/dev/null".to_owned())),
        ("relative cwd", with(&|r| r.cwd = "..".to_owned())),
        ("NUL in cwd", with(&|r| r.cwd.push('\0'))),
        ("a cwd that is a file", with(&|r| r.cwd = "/etc/passwd".to_owned())),
        ("NUL in the environment", with(&|r| r.env = vec![var("A", "b\0C=d")])),
        ("= in a name", with(&|r| r.env = vec![var("A=b", "c")])),
        ("no name", with(&|r| r.env = vec![var("", "c")])),
        ("no such user", with(&|r| r.user = Some("nobody-of-this-name".to_owned()))),
        ("a user with a colon", with(&|r| r.user = Some("root:x:0".to_owned()))),
    ];
    let let_through = requests.iter().filter(|(_, request)| process::spawn(request).is_ok());
    let_through.map(|(what, _)| *what).collect::<Vec<_>>().join(", ")
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
            "storm" => {
                let request = spawn_request(&config, &task);
                let spawned = (0..100_000).take_while(|_| process::spawn(&request).is_ok()).count();
                return Err(Error::fatal(format!("{spawned} spawned")));
            }
            "strangers" => {
                let ids = config.args.iter();
                let reached = ids.filter(|id| {
                    process::signal(id, "SIGKILL").is_ok()
                        || process::kill(id).is_ok()
                        || process::state(id).is_ok()
                });
                let reached: Vec<&str> = reached.map(String::as_str).collect();
                return Err(Error::fatal(format!("reached: {}", reached.join(" "))));
            }
            "inject" => return Err(Error::fatal(format!("spawned: {}", injected(&config, &task)))),
            "foreign-workload" => return Started::new::<Self>(config.arg),
            _ => {}
        }
        let mut request = spawn_request(&config, &task);
        if config.start == "as-another-user" {
            request.user = Some(config.arg.clone());
        }
        let id = process::spawn(&request)?;
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
