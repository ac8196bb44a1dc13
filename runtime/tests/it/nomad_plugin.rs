//! Drivers and device plugins as external plugins of a stock Nomad client, where `NOMAD_BIN` names it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use super::support::binary::ostler;
use super::support::nomad::NomadServer;
use super::support::{OSTLER, PATIENCE};
use ostler_guests::fixtures;

/// A stock Nomad, server and client in one, whose plugins are ours.
struct Client {
    nomad: NomadServer,
    plugins: PathBuf,
    /// Processes whose command names it are ended with it.
    dir: tempfile::TempDir,
}

impl Drop for Client {
    fn drop(&mut self) {
        for pid in naming(self.dir.path().to_str().unwrap()) {
            kill(pid);
        }
    }
}

fn kill(pid: i32) {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    let _gone = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
}

/// Processes with this text in their command.
fn naming(text: &str) -> Vec<i32> {
    let pids = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let named = |pid: &i32| {
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&command).contains(text)
    };
    pids.filter(named).collect()
}

impl Client {
    async fn start() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let plugins = dir.path().join("plugins");
        std::fs::create_dir(&plugins).unwrap();
        let modules = dir.path().join("modules");
        std::fs::create_dir(&modules).unwrap();
        std::fs::copy(fixtures::TOOLBOX, modules.join("toolbox.wasm")).unwrap();
        let mut config = format!(
            "plugin_dir = \"{}\"\nclient {{\n enabled = true\n host_volume \"modules\" {{\n  path = \"{}\"\n  \
             read_only = true\n }}\n options {{\n  \"fingerprint.denylist\" = \"env_aws,env_gce,env_azure\"\n }}\n}}\n",
            plugins.display(),
            modules.display()
        );
        for (name, kind) in [("wasm", "driver"), ("raw_exec", "driver"), ("files", "device")] {
            std::os::unix::fs::symlink(OSTLER, plugins.join(format!("ostler-{name}"))).unwrap();
            config += &format!(
                "plugin \"ostler-{name}\" {{\n args = [\"nomad-plugin\", \"--{kind}\", \"{name}\", \
                 \"--data-dir\", \"{}\"]\n}}\n",
                dir.path().join(name).display()
            );
        }
        let nomad = NomadServer::start_with(&config).await?;
        let client = Self { nomad, plugins, dir };
        client
            .nomad
            .until("a ready node", "/v1/nodes", |nodes| nodes[0]["Status"] == "ready")
            .await;
        let healthy = |nodes: &Value| {
            ["wasm", "raw_exec"].iter().all(|name| nodes[0]["Drivers"][name]["Healthy"] == true)
        };
        client.nomad.until("healthy drivers", "/v1/nodes", healthy).await;
        Some(client)
    }

    /// Register a job of one task.
    async fn run(&self, name: &str, kind: &str, task: &str) {
        let text = format!(
            "job \"{name}\" {{\n datacenters = [\"dc1\"]\n type = \"{kind}\"\n group \"g\" {{\n  restart {{\n   \
             attempts = 0\n   mode = \"fail\"\n  }}\n  volume \"m\" {{\n   type = \"host\"\n   source = \"modules\"\n   \
             read_only = true\n  }}\n  task \"t\" {{\n   {task}\n  }}\n }}\n}}\n"
        );
        let file = self.dir.path().join(format!("{name}.nomad"));
        std::fs::write(&file, text).unwrap();
        self.nomad.does(&["job", "run", "-detach", file.to_str().unwrap()]).await;
    }

    /// A task of the WASM driver.
    fn toolbox(&self, args: &str, resources: &str) -> String {
        let module = self.dir.path().join("modules/toolbox.wasm");
        format!(
            "driver = \"wasm\"\n   config {{\n    module = \"{}\"\n    args = [{args}]\n    limits {{\n     \
             handles = 100\n    }}\n   }}\n   volume_mount {{\n    volume = \"m\"\n    destination = \"/modules\"\n    \
             read_only = true\n   }}\n   resources {{\n    cpu = 50\n    memory = 64\n    {resources}\n   }}",
            module.display()
        )
    }

    /// The one allocation of a job, when its client status is this.
    async fn alloc(&self, job: &str, status: &str) -> String {
        let is = |allocs: &Value| allocs[0]["ClientStatus"] == status;
        let path = format!("/v1/job/{job}/allocations");
        let allocs = self.nomad.until(status, &path, is).await;
        assert_eq!(allocs.as_array().map(Vec::len), Some(1), "never replaced");
        allocs[0]["ID"].as_str().unwrap().to_owned()
    }

    /// Wait until the logs of an allocation have this many lines; all of them.
    async fn lines(&self, alloc: &str, count: usize) -> Vec<String> {
        let waited = ostler_model::clock::Stopwatch::start();
        while waited.elapsed() < PATIENCE {
            let (_, text) = self.nomad.nomad(&["alloc", "logs", alloc]).await;
            let lines: Vec<String> = text.lines().map(str::to_owned).collect();
            if lines.len() >= count {
                return lines;
            }
            ostler_model::clock::sleep(Duration::from_millis(200)).await;
        }
        panic!("{count} lines never came");
    }

    fn process(&self, plugin: &str) -> Option<i32> {
        let path: &Path = &self.plugins.join(format!("ostler-{plugin}"));
        naming(path.to_str().unwrap()).first().copied()
    }
}

#[tokio::test]
async fn by_hand_it_says_whom_it_is_for() {
    let said = ostler(["nomad-plugin", "--driver", "wasm", "--data-dir", "/nowhere"]).await;
    assert_eq!(said.code, Some(1), "{said:#?}");
    assert!(said.stderr.contains("run by a Nomad client"), "{}", said.stderr);
    assert!(said.stdout.is_empty());
    let neither = ostler(["nomad-plugin", "--data-dir", "/nowhere"]).await;
    assert_eq!(neither.code, Some(2), "{neither:#?}");
}

#[tokio::test]
async fn a_stock_client_runs_tasks_and_assigns_devices() {
    let Some(client) = Client::start().await else { return };
    client.run("says", "batch", &client.toolbox("\"args\", \"one\", \"two\"", "")).await;
    let says = client.alloc("says", "complete").await;
    assert_eq!(client.nomad.does(&["alloc", "logs", &says]).await, "one\ntwo\n");

    let device = "device \"ostler/file/files\" {}";
    client.run("device", "batch", &client.toolbox("\"env\"", device)).await;
    let alloc = client.alloc("device", "complete").await;
    let env = client.nomad.does(&["alloc", "logs", &alloc]).await;
    assert!(env.contains("FILE_DEVICE_PATHS=/local/devices/sample"), "{env}");
    assert!(env.contains("NOMAD_TASK_DIR=/local"), "{env}");

    let shell = "driver = \"raw_exec\"\n   config {\n    command = \"/bin/sh\"\n    args = [\"-c\", \
                 \"echo out; echo err >&2; exit 3\"]\n   }";
    client.run("native", "batch", shell).await;
    let native = client.alloc("native", "failed").await;
    assert_eq!(client.nomad.does(&["alloc", "logs", &native]).await, "out\n");
    assert_eq!(client.nomad.does(&["alloc", "logs", "-stderr", &native]).await, "err\n");
    let status = client.nomad.does(&["alloc", "status", &native]).await;
    assert!(status.contains("Exit Code: 3"), "{status}");

    let wrong = client.toolbox("\"args\"", "").replace("args = [", "memory = 4096\n    args = [");
    client.run("wrong", "batch", &wrong).await;
    let wrong = client.alloc("wrong", "failed").await;
    let status = client.nomad.does(&["alloc", "status", &wrong]).await;
    assert!(status.contains("Driver Failure"), "{status}");
    assert!(status.contains("is more than the 64 MiB"), "{status}");
}

#[tokio::test]
async fn tasks_outlive_a_plugin_that_is_killed_and_are_stopped_by_the_next() {
    let Some(client) = Client::start().await else { return };
    client.run("wasm", "service", &client.toolbox("\"say-times\", \"100000\", \"100\"", "")).await;
    let pid = client.dir.path().join("pid");
    let shell = format!(
        "driver = \"raw_exec\"\n   config {{\n    command = \"/bin/sh\"\n    args = [\"-c\", \"echo $$ > {}; \
         while true; do date +%s%N; sleep 0.1; done\"]\n   }}",
        pid.display()
    );
    client.run("native", "service", &shell).await;
    let allocs = [client.alloc("wasm", "running").await, client.alloc("native", "running").await];
    for alloc in &allocs {
        client.lines(alloc, 3).await;
    }
    for plugin in ["wasm", "raw_exec"] {
        let before = client.process(plugin).unwrap();
        kill(before);
        let waited = ostler_model::clock::Stopwatch::start();
        while client.process(plugin).is_none_or(|now| now == before) {
            assert!(waited.elapsed() < PATIENCE, "Nomad starts another");
            ostler_model::clock::sleep(Duration::from_millis(50)).await;
        }
    }
    for alloc in &allocs {
        let seen = client.lines(alloc, 1).await.len();
        let times = client.lines(alloc, seen + 20).await;
        let times: Vec<u64> = times.iter().map(|line| line.parse().unwrap()).collect();
        let longest = times.windows(2).map(|two| two[1] - two[0]).max().unwrap();
        assert!(longest < 5_000_000_000, "the task went on: {longest} ns");
    }
    let task: i32 = std::fs::read_to_string(&pid).unwrap().trim().parse().unwrap();
    for job in ["wasm", "native"] {
        client.alloc(job, "running").await;
        client.nomad.does(&["job", "stop", "-detach", job]).await;
        client.alloc(job, "complete").await;
    }
    let waited = ostler_model::clock::Stopwatch::start();
    while Path::new(&format!("/proc/{task}")).exists() {
        assert!(waited.elapsed() < PATIENCE, "the next plugin ends it");
        ostler_model::clock::sleep(Duration::from_millis(50)).await;
    }
}
