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
//! every id in `args`), `inject` (spawns what no honest driver asks for), `stray` (spawns its command
//! with other libraries, in other directories, with a `PATH` of its own). The last four fail with the
//! list of what the host let them do. `tell-error` and `tell-panic` say the task's environment in every way
//! that there is, the last of which the name has. `exited = "tell"` and `stop = "tell"` say `arg`. `name` and `version` in the plugin's configuration are those it
//! gives itself.

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
    name: Option<String>,
    version: Option<String>,
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

/// Name and version, one behind the other: tests find both in the file and write others.
const WHO: &str = concat!("hostile", env!("CARGO_PKG_VERSION"));

/// The task's configuration, out of the handle.
fn told(handle: &Handle) -> Config {
    handle.state().unwrap_or_default()
}

fn spawn_request(config: &Config, task: &TaskConfig) -> SpawnRequest {
    SpawnRequest {
        command: config.command.clone(),
        search: Vec::new(),
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

/// What a granted program must not be started with, each said with what the host answered; the names
/// of those that it let through.
fn strayed(config: &Config, task: &TaskConfig) -> String {
    let honest = spawn_request(config, task);
    let with_var = |name: &str, value: &str| {
        let mut request = honest.clone();
        request.env.push(EnvVar { name: name.to_owned(), value: value.to_owned() });
        request
    };
    let in_dir = |cwd: String| SpawnRequest { cwd, ..honest.clone() };
    let requests = [
        ("LD_DEBUG_OUTPUT", with_var("LD_DEBUG_OUTPUT", "/tmp/ostler-stray")),
        ("LD_PRELOAD", with_var("LD_PRELOAD", "/tmp/evil.so")),
        ("BASH_ENV", with_var("BASH_ENV", "/tmp/evil.sh")),
        ("PYTHONPATH", with_var("PYTHONPATH", "/tmp")),
        ("PATH", with_var("PATH", "/tmp")),
        ("a variable", with_var("ANYTHING", "x")),
        ("/", in_dir("/".to_owned())),
        ("/etc", in_dir("/etc".to_owned())),
        ("..", in_dir(format!("{}/../..", task.task_dir))),
        ("a link", in_dir(format!("{}/local/link", task.task_dir))),
    ];
    let let_through = requests.iter().filter(|(_, request)| process::spawn(request).is_ok());
    let_through.map(|(what, _)| *what).collect::<Vec<_>>().join(", ")
}

/// Tell a task's environment in the log and in an event; the text of it.
fn told_everywhere(task: &TaskConfig) -> String {
    let env: Vec<String> =
        task.env.iter().map(|var| format!("{}={}", var.name, var.value)).collect();
    let env = format!("it has {}", env.join(" "));
    host::log::error(&env);
    host::events::emit_with(&env, &[EnvVar { name: "has".to_owned(), value: env.clone() }]);
    env
}

#[expect(clippy::panic, reason = "what a panic says is to be seen")]
fn panic(text: &str) -> ! {
    panic!("{text}");
}

impl Driver for Hostile {
    type Runs = Process;

    fn describe() -> DriverInfo {
        let config = host::config::<PluginConfig>().unwrap_or_default();
        let (name, version) = WHO.split_at("hostile".len());
        let name = config.name.unwrap_or_else(|| name.to_owned());
        let version = config.version.unwrap_or_else(|| version.to_owned());
        DriverInfo::new(name, version)
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
            "stray" => return Err(Error::fatal(format!("spawned: {}", strayed(&config, &task)))),
            "tell-error" => return Err(Error::fatal(told_everywhere(&task))),
            "tell-panic" => panic(&told_everywhere(&task)),
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
        let config = told(&handle);
        misbehave(&config.exited);
        let error = (config.exited == "tell").then_some(config.arg);
        let exit = ExitResult::from(exit);
        Ok(ExitResult { error: error.or(exit.error), ..exit })
    }

    fn stop(handle: Handle, signal: Option<String>, _timeout: Milliseconds) -> Result<()> {
        let config = told(&handle);
        misbehave(&config.stop);
        if config.stop == "tell" {
            return Err(Error::fatal(format!("no: {}", config.arg)));
        }
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
