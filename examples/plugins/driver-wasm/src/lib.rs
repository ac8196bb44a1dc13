//! Driver `wasm`: runs a WASI component (`wasi:cli/command`) or a core module of WASI preview 1.
//!
//! The task sees `/local`, `/secrets`, `/tmp`, `/alloc` and what its devices mount, nothing else
//! of the node, and no network unless its configuration asks for it.

use ostler_sdk::driver::prelude::*;
use serde::Deserialize;
use wasm_task::{Dir, NetworkAccess, SpawnRequest, TaskInput, TaskLimits};

const SCHEMA: &str = include_str!("task-config.schema.json");

/// A task's `config` block.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    module: String,
    #[serde(default)]
    args: Vec<String>,
    stdin: Option<String>,
    stdin_text: Option<String>,
    memory: Option<u64>,
    #[serde(default, deserialize_with = "ostler_sdk::config::block")]
    limits: LimitsConfig,
    #[serde(default, deserialize_with = "ostler_sdk::config::block")]
    network: NetworkConfig,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct NetworkConfig {
    listen: bool,
    connect: Vec<String>,
}

/// Narrower than the host's own limits; what is absent is the host's.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct LimitsConfig {
    table_elements: Option<u64>,
    transfer_kb: Option<u64>,
    handles: Option<u32>,
    random_kb: Option<u64>,
    disk_mb: Option<u64>,
}

impl LimitsConfig {
    fn limits(&self) -> TaskLimits {
        let scaled = |amount: Option<u64>, unit| amount.map(|n| n.saturating_mul(unit));
        TaskLimits {
            table_elements: self.table_elements,
            transfer_bytes: scaled(self.transfer_kb, 1 << 10),
            handles: self.handles,
            random_bytes: scaled(self.random_kb, 1 << 10),
            disk_bytes: scaled(self.disk_mb, 1 << 20),
        }
    }
}

struct Wasm;

impl Driver for Wasm {
    type Runs = WasmTask;

    fn describe() -> DriverInfo {
        DriverInfo::new("wasm", env!("CARGO_PKG_VERSION"))
            .fs_isolation(FsIsolation::Preopen)
            .network_modes([NetworkMode::Host, NetworkMode::None])
            .task_config_schema(SCHEMA)
    }

    fn start(task: TaskConfig) -> Result<Started> {
        let config: Config = task.parse()?;
        let path = match config.module.strip_prefix('/') {
            Some(_) => config.module.clone(),
            None => format!("{}/{}", task.task_dir, config.module),
        };
        let program = config.module.rsplit('/').next().unwrap_or(&config.module).to_owned();
        let limits = config.limits.limits();
        let dirs = dirs(&task);
        say_what_is_not_given(&task);
        let input = input(config.stdin, config.stdin_text, &task, &dirs)?;
        let request = SpawnRequest {
            path,
            args: [program].into_iter().chain(config.args).collect(),
            memory_bytes_max: memory_limit(config.memory, &task)?,
            dirs,
            env: task.env,
            network: NetworkAccess {
                listen: config.network.listen,
                connect: config.network.connect,
            },
        };
        let id = wasm_task::spawn_reading(&request, limits, &input)?;
        Started::new::<Self>(id)
    }
}

/// WASI has no device nodes: what a device plugin assigned of them stays outside, and the job's owner
/// reads so.
fn say_what_is_not_given(task: &TaskConfig) {
    let nodes: Vec<_> = task.device_nodes.iter().map(|node| node.task_path.as_str()).collect();
    if !nodes.is_empty() {
        let nodes = nodes.join(", ");
        events::emit(&format!(
            "a WASM task cannot open device nodes, so it runs without {nodes}; use driver exec or raw_exec if \
             it needs them"
        ));
    }
}

/// `memory` is in MiB and only narrows what the job reserved; absent, the host takes that.
fn memory_limit(memory: Option<u64>, task: &TaskConfig) -> Result<Option<u64>> {
    let reserved = task.resources.memory_max_bytes.unwrap_or(0).max(task.resources.memory_bytes);
    let Some(mib) = memory else { return Ok(None) };
    match mib.checked_mul(1 << 20) {
        Some(bytes) if bytes <= reserved => Ok(Some(bytes)),
        _ => Err(Error::invalid_config(
            "memory",
            format!("{mib} MiB is more than the {} MiB of the task's resources", reserved >> 20),
        )),
    }
}

/// Standard input: a text, or a file as the task sees it (`/local/in.txt`) or in its directory
/// (`local/in.txt`).
fn input(
    file: Option<String>,
    text: Option<String>,
    task: &TaskConfig,
    dirs: &[Dir],
) -> Result<TaskInput> {
    match (file, text) {
        (None, None) => Ok(TaskInput::Nothing),
        (None, Some(text)) => Ok(TaskInput::Text(text)),
        (Some(file), None) => Ok(TaskInput::File(host_path(&file, task, dirs))),
        (Some(_), Some(_)) => {
            Err(Error::invalid_config("stdin_text", "give stdin or stdin_text, not both"))
        }
    }
}

/// Where a file of the task lies on the host.
fn host_path(file: &str, task: &TaskConfig, dirs: &[Dir]) -> String {
    if !file.starts_with('/') {
        return format!("{}/{file}", task.task_dir);
    }
    let below = |dir: &Dir| {
        let rest = file.strip_prefix(&dir.guest_path)?;
        (rest.is_empty() || rest.starts_with('/')).then(|| format!("{}{rest}", dir.host_path))
    };
    // The deepest that holds it: a mount may lie inside another directory.
    let mut holding: Vec<&Dir> = dirs.iter().filter(|dir| below(dir).is_some()).collect();
    holding.sort_by_key(|dir| dir.guest_path.len());
    holding.last().and_then(|dir| below(dir)).unwrap_or_else(|| file.to_owned())
}

fn dirs(task: &TaskConfig) -> Vec<Dir> {
    let own = ["local", "secrets", "tmp"].map(|name| Dir {
        host_path: format!("{}/{name}", task.task_dir),
        guest_path: format!("/{name}"),
        read_only: false,
    });
    let shared = Dir {
        host_path: task.alloc_dir.clone(),
        guest_path: "/alloc".to_owned(),
        read_only: false,
    };
    let mounted = task.mounts.iter().map(|mount| Dir {
        host_path: mount.host_path.clone(),
        guest_path: mount.task_path.clone(),
        read_only: mount.read_only,
    });
    own.into_iter().chain([shared]).chain(mounted).collect()
}

ostler_sdk::export_driver!(Wasm);

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]
mod tests {
    use super::*;
    use ostler_sdk::testing::{self, FakeHost};

    #[test]
    fn a_relative_module_is_looked_for_in_the_task_directory_and_names_the_program() {
        let host = FakeHost::install();
        Wasm::start(testing::task(r#"{"module": "local/a.wasm", "args": ["-v"]}"#)).unwrap();
        let asked = &host.wasm_tasks()[0];
        assert_eq!(asked.path, "/alloc/web/local/a.wasm");
        assert_eq!(asked.args, ["a.wasm", "-v"]);
        assert!(!asked.network.listen && asked.network.connect.is_empty());
    }

    #[test]
    fn a_device_mount_becomes_a_directory_at_its_task_path() {
        let host = FakeHost::install();
        let mut task = testing::task(r#"{"module": "/bin/a.wasm"}"#);
        task.mounts.push(Mount::read_only("/srv/x", "/local/devices/x"));
        Wasm::start(task).unwrap();
        let dirs = &host.wasm_tasks()[0].dirs;
        let paths: Vec<_> = dirs.iter().map(|dir| dir.guest_path.as_str()).collect();
        assert_eq!(paths, ["/local", "/secrets", "/tmp", "/alloc", "/local/devices/x"]);
        assert!(dirs[4].read_only);
    }

    #[test]
    fn device_nodes_that_no_wasm_task_can_open_are_told_of() {
        let host = FakeHost::install();
        let mut task = testing::task(r#"{"module": "/bin/a.wasm"}"#);
        Wasm::start(task.clone()).unwrap();
        assert_eq!(host.events(), Vec::<String>::new());
        let path = "/dev/nvidia0".to_owned();
        let permissions = "rw".to_owned();
        task.device_nodes.push(DeviceNode {
            host_path: path.clone(),
            task_path: path,
            permissions,
        });
        Wasm::start(task).unwrap();
        let [said] = host.events().try_into().unwrap();
        assert!(said.contains("runs without /dev/nvidia0; use driver exec"), "{said}");
    }

    #[test]
    fn standard_input_is_a_text_or_a_file_as_the_task_sees_it() {
        let host = FakeHost::install();
        let mut task = testing::task(r#"{"module": "/a.wasm", "stdin": "/local/data/in"}"#);
        task.mounts.push(Mount::read_only("/srv/x", "/local/data"));
        Wasm::start(task).unwrap();
        for stdin in [
            r#""stdin": "local/in.txt""#,
            r#""stdin": "/local/in.txt""#,
            r#""stdin": "/alloc/data/in""#,
            r#""stdin_text": "two\nlines""#,
        ] {
            let config = format!(r#"{{"module": "/a.wasm", {stdin}}}"#);
            Wasm::start(testing::task(&config)).unwrap();
        }
        let file = |path: &str| TaskInput::File(path.to_owned());
        let expected = [
            file("/srv/x/in"),
            file("/alloc/web/local/in.txt"),
            file("/alloc/web/local/in.txt"),
            file("/alloc/alloc/data/in"),
            TaskInput::Text("two\nlines".to_owned()),
        ];
        assert_eq!(host.task_inputs(), expected);
        let both = r#"{"module": "/a.wasm", "stdin": "local/in", "stdin_text": "x"}"#;
        assert!(matches!(Wasm::start(testing::task(both)), Err(Error::InvalidConfig(_))));
    }

    #[test]
    fn more_memory_than_reserved_is_refused() {
        FakeHost::install();
        let started = Wasm::start(testing::task(r#"{"module": "/a.wasm", "memory": 65}"#));
        assert!(matches!(started, Err(Error::InvalidConfig(_))));
        Wasm::start(testing::task(r#"{"module": "/a.wasm", "memory": 64}"#)).unwrap();
    }

    #[test]
    fn limits_are_told_to_the_host_in_its_units_and_the_others_left_to_it() {
        let host = FakeHost::install();
        let config = r#"{"module": "/a.wasm", "limits": {"handles": 7, "disk_mb": 2}}"#;
        Wasm::start(testing::task(config)).unwrap();
        let limits = &host.task_limits()[0];
        assert_eq!((limits.handles, limits.disk_bytes), (Some(7), Some(2 << 20)));
        assert_eq!((limits.table_elements, limits.random_bytes), (None, None));
        let misspelt = r#"{"module": "/a.wasm", "limits": {"handels": 7}}"#;
        assert!(matches!(Wasm::start(testing::task(misspelt)), Err(Error::InvalidConfig(_))));
    }

    #[test]
    fn stop_ends_the_task_since_there_are_no_signals() {
        let host = FakeHost::install();
        let started = Wasm::start(testing::task(r#"{"module": "/a.wasm"}"#)).unwrap();
        assert!(host.is_running("w1"));
        Wasm::stop(started.handle, Some("SIGINT".to_owned()), 5000).unwrap();
        assert!(!host.is_running("w1"));
    }
}
