//! A stock server behind a proxy, and stock clients.

use std::path::Path;
use std::process::Stdio;

use ostler_model::clock;
use ostler_testing::recorded::{self, Part, RecordedMessage};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::messages::messages;
use super::proxy::Proxy;
use crate::support::agent_process::Home;
use crate::support::nomad::NomadServer;
use crate::support::nomad::free_port;
use crate::support::system::{processes_of, until};
use crate::support::{OSTLER, PATIENCE};

/// What the recorded programs are called.
pub const STOCK: &str = "Nomad 1.0.18";
/// Where a client has its files, as far as it knows: what it says names it.
const PLACE: &str = "/mnt";

/// A server, and a proxy before it: nodes hear of no other way to it.
pub struct Between {
    pub proxy: Proxy,
    pub server: NomadServer,
}

impl Between {
    pub async fn start() -> Option<Self> {
        let mut proxy = Proxy::bind().await;
        let advertised = format!("advertise {{\n rpc = \"127.0.0.1:{}\"\n}}\n", proxy.port);
        let server = NomadServer::start_with(&advertised).await?;
        proxy.lead_to(server.rpc);
        Some(Self { proxy, server })
    }

    /// Every message that was said.
    pub fn messages(&self) -> Vec<RecordedMessage> {
        self.proxy.said().iter().flat_map(|said| messages(said, STOCK)).collect()
    }

    /// Wait until such a message was said more often than so.
    pub async fn hears(&self, method: &str, part: Part, more_than: usize) {
        let said = async || {
            clock::sleep(std::time::Duration::from_millis(100)).await;
            self.count(method, part) > more_than
        };
        until(&format!("{method}: {part}"), said).await;
    }

    /// How often it was said. Of an answer in pieces only one that has a piece counts.
    pub fn count(&self, method: &str, part: Part) -> usize {
        let is = |message: &&RecordedMessage| {
            let whole = part == Part::Request || recorded::values(message).len() > 1;
            whole && (message.method.as_str(), message.part) == (method, part)
        };
        self.messages().iter().filter(is).count()
    }

    /// A command that goes on until it is ended: it is once the node has answered with a piece.
    pub async fn follows(&self, args: &[&str], method: &str) {
        let before = self.count(method, Part::Answer);
        let mut command = self.server.command(args);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        self.hears(method, Part::Answer, before).await;
        drop(child);
    }

    /// A command that is told something: what it prints.
    pub async fn told(&self, args: &[&str], input: &str) -> String {
        told(self.server.command(args), input).await
    }

    /// The same on a terminal, by util-linux.
    pub async fn told_on_a_terminal(&self, args: &[&str]) -> String {
        let program = std::env::var("NOMAD_BIN").unwrap();
        let words = std::iter::once(program.as_str()).chain(args.iter().copied());
        let quoted: Vec<_> = words.map(|word| format!("'{word}'")).collect();
        let mut command = tokio::process::Command::new("script");
        command.args(["-qec", &quoted.join(" "), "/dev/null"]);
        command.env("NOMAD_ADDR", self.server.address()).kill_on_drop(true);
        told(command, "").await
    }

    /// Ask the server's API for something that is no JSON, or is refused.
    pub async fn asks(&self, path: &str) {
        let address = self.server.address();
        let address = address.strip_prefix("http://").unwrap();
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.0\r\nHost: nomad\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let read = clock::timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
        read.expect("it is answered").unwrap();
    }

    pub async fn run(&self, name: &str, text: &str) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(name);
        std::fs::write(&file, text).unwrap();
        self.server.does(&["job", "run", "-detach", file.to_str().unwrap()]).await;
    }

    /// An allocation of a job whose id begins so, when it has this status, and its node.
    pub async fn alloc(&self, job: &str, status: &str) -> (String, String) {
        let is = |alloc: &&Value| {
            alloc["JobID"].as_str().is_some_and(|id| id.starts_with(job))
                && alloc["ClientStatus"] == status
        };
        let there = |allocs: &Value| allocs.as_array().unwrap().iter().any(|alloc| is(&alloc));
        let allocs = self.server.until(job, "/v1/allocations", there).await;
        let alloc = allocs.as_array().unwrap().iter().find(is).unwrap();
        let text = |name: &str| alloc[name].as_str().unwrap().to_owned();
        (text("ID"), text("NodeID"))
    }
}

async fn told(mut command: tokio::process::Command, input: &str) -> String {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).await.unwrap();
    let output = clock::timeout(PATIENCE, child.wait_with_output()).await;
    String::from_utf8_lossy(&output.expect("it ends").unwrap().stdout).into_owned()
}

/// A stock client with names of its own for processes, mounts and the machine: all it starts ends with it,
/// and what it says names nothing of this machine.
pub struct StockClient {
    _child: tokio::process::Child,
    home: Home,
}

impl StockClient {
    pub async fn start(between: &Between, name: &str) -> Self {
        let home = Home::new();
        let plugins = home.path().join("plugins");
        std::fs::create_dir(&plugins).unwrap();
        let mut config = format!(
            "name = \"{name}\"\ndata_dir = \"{PLACE}/data\"\nplugin_dir = \"{PLACE}/plugins\"\n\
             bind_addr = \"127.0.0.1\"\ndisable_update_check = true\nlog_level = \"DEBUG\"\nports {{\n \
             http = {http}\n}}\nadvertise {{\n http = \"127.0.0.1:9\"\n rpc = \"127.0.0.1:9\"\n \
             serf = \"127.0.0.1:9\"\n}}\nclient {{\n enabled = true\n servers = [\"127.0.0.1:{rpc}\"]\n \
             network_interface = \"lo\"\n node_class = \"stock\"\n cpu_total_compute = 4000\n \
             gc_disk_usage_threshold = 99\n gc_inode_usage_threshold = 99\n memory_total_mb = 4096\n meta {{\n  rack = \"r1\"\n }}\n options {{\n  \
             \"fingerprint.denylist\" = \"env_aws,env_gce,env_azure,consul,vault,cni\"\n  \
             \"driver.denylist\" = \"java,mock_driver\"\n }}\n}}\n\
             plugin \"raw_exec\" {{\n config {{\n  enabled = true\n }}\n}}\n",
            http = free_port(),
            rpc = between.proxy.port,
        );
        let groups = "config {\n  groups = [{ count = 1 }]\n }";
        for (plugin, kind, more) in [("wasm", "driver", ""), ("mock_device", "device", groups)] {
            std::os::unix::fs::symlink(OSTLER, plugins.join(format!("ostler-{plugin}"))).unwrap();
            config += &format!(
                "plugin \"ostler-{plugin}\" {{\n args = [\"nomad-plugin\", \"--{kind}\", \"{plugin}\", \
                 \"--data-dir\", \"{PLACE}/{plugin}\"]\n {more}\n}}\n",
            );
        }
        std::fs::write(home.path().join("client.hcl"), config).unwrap();
        let command = format!(
            "hostname box && mount --bind \"$1\" {PLACE} && exec \"$0\" agent -config {PLACE}/client.hcl"
        );
        let log = std::fs::File::create(home.path().join("log")).unwrap();
        let child = tokio::process::Command::new("unshare")
            .args(["--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--"])
            .args(["sh", "-c", &command])
            .arg(std::env::var_os("NOMAD_BIN").unwrap())
            .arg(home.path())
            .env_clear()
            .env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin")
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let ready = |nodes: &Value| {
            let mut nodes = nodes.as_array().unwrap().iter();
            nodes.any(|node| {
                node["Name"] == name
                    && node["Status"] == "ready"
                    && ["wasm", "raw_exec"].iter().all(|of| node["Drivers"][of]["Healthy"] == true)
            })
        };
        between.server.until("a ready node", "/v1/nodes", ready).await;
        Self { _child: child, home }
    }

    /// A driver of it dies, and comes back.
    pub fn loses_a_driver(&self) {
        for pid in processes_of(self.home.path()) {
            let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            if command.starts_with(
                Path::new(PLACE).join("plugins/ostler-wasm").as_os_str().as_encoded_bytes(),
            ) {
                let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
                rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
            }
        }
    }
}
