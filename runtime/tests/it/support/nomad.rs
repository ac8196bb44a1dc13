//! Stock Nomad: servers, and clients of its own, where `NOMAD_BIN` names the program.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::PATIENCE;
use super::binary::{Ended, with_input};
use super::needs::not_asked;
use super::system::{detach_mounts, kill, processes_of};

/// Heartbeats of a second, and nodes that are down two seconds after the last one.
pub const SHORT_BEATS: &str = "server {\n heartbeat_grace = \"1s\"\n min_heartbeat_ttl = \"1s\"\n \
                               max_heartbeats_per_second = 100\n}\n";

/// For a client: it does not wait for clouds that this machine is not of.
const NOT_ASKED_FOR: &str =
    "options {\n \"fingerprint.denylist\" = \"env_aws,env_gce,env_azure\"\n }";

/// A server on loopback, with its state in a directory of its own; killed when this goes.
pub struct NomadServer {
    pub http: u16,
    pub rpc: u16,
    serf: u16,
    /// What is shown to it; empty: nothing.
    pub token: String,
    agent: NomadAgent,
}

/// The program with one configuration.
struct NomadAgent {
    program: PathBuf,
    /// Before the configurations.
    args: &'static [&'static str],
    dir: tempfile::TempDir,
    child: Option<tokio::process::Child>,
}

/// The stock program; none, said aloud, without `NOMAD_BIN`.
pub fn program() -> Option<PathBuf> {
    let program = std::env::var_os("NOMAD_BIN").map(PathBuf::from);
    if program.is_none() {
        not_asked("NOMAD_BIN names no stock Nomad");
    }
    program
}

/// A port that nobody has.
pub fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    listener.local_addr().unwrap().port()
}

impl NomadAgent {
    /// `configs` are laid over one another.
    fn new(program: &Path, configs: &[String]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for (number, text) in configs.iter().enumerate() {
            let text = text.replace("{dir}", dir.path().to_str().unwrap());
            std::fs::write(dir.path().join(format!("{number}.hcl")), text).unwrap();
        }
        Self { program: program.to_owned(), args: &["agent"], dir, child: None }
    }

    fn start(&mut self) {
        let mut command = tokio::process::Command::new(&self.program);
        command.args(self.args);
        let dir = std::fs::read_dir(self.dir.path()).unwrap();
        let mut configs: Vec<_> = dir.map(|entry| entry.unwrap().path()).collect();
        configs.retain(|path| path.extension().is_some_and(|end| end == "hcl"));
        configs.sort();
        for config in configs {
            command.arg("-config").arg(config);
        }
        let log = std::fs::File::options();
        let log = log.clone().create(true).append(true).open(self.dir.path().join("log")).unwrap();
        command.stdin(Stdio::null()).stdout(log).stderr(Stdio::null()).kill_on_drop(true);
        self.child = Some(command.spawn().unwrap());
    }

    async fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().await.unwrap();
        }
    }
}

fn ports(http: u16, rpc: u16, serf: u16) -> String {
    format!(
        "data_dir = \"{{dir}}/state\"\nbind_addr = \"127.0.0.1\"\ndisable_update_check = true\nadvertise {{\n \
         http = \"127.0.0.1:{http}\"\n rpc = \"127.0.0.1:{rpc}\"\n serf = \"127.0.0.1:{serf}\"\n}}\n\
         ports {{\n http = {http}\n rpc = {rpc}\n serf = {serf}\n}}\n"
    )
}

impl NomadServer {
    /// A server that has a leader; none, said aloud, without `NOMAD_BIN`.
    pub async fn start() -> Option<Self> {
        Self::start_with("").await
    }

    /// As [`Self::start`], with more in its configuration: a client of its own, for example.
    pub async fn start_with(more: &str) -> Option<Self> {
        Some(Self::start_many(1, more).await?.remove(0))
    }

    /// So many servers that have a leader.
    pub async fn start_many(count: usize, more: &str) -> Option<Vec<Self>> {
        let program = program()?;
        let mut servers: Vec<Self> = Vec::new();
        for number in 1..=count {
            let (http, rpc, serf) = (free_port(), free_port(), free_port());
            let join: Vec<_> =
                servers.iter().map(|one| format!("\"127.0.0.1:{}\"", one.serf)).collect();
            let text = format!(
                "name = \"s{number}\"\n{}server {{\n enabled = true\n bootstrap_expect = {count}\n \
                 raft_multiplier = 1\n server_join {{\n  retry_join = [{}]\n  retry_interval = \"1s\"\n }}\n}}\n",
                ports(http, rpc, serf),
                join.join(", ")
            );
            let mut agent = NomadAgent::new(&program, &[text, more.to_owned()]);
            agent.start();
            servers.push(Self { http, rpc, serf, token: String::new(), agent });
        }
        for server in &servers {
            server.until("a leader", "/v1/status/leader", leads).await;
        }
        Some(servers)
    }

    /// An agent for development, server and client in one, whose node is ready; none, said aloud, without
    /// `NOMAD_BIN`.
    pub async fn start_dev() -> Option<Self> {
        let program = program()?;
        let (http, rpc, serf) = (free_port(), free_port(), free_port());
        let client = format!("client {{\n {NOT_ASKED_FOR}\n}}\n");
        let mut agent = NomadAgent::new(&program, &[ports(http, rpc, serf), client]);
        agent.args = &["agent", "-dev"];
        agent.start();
        let server = Self { http, rpc, serf, token: String::new(), agent };
        let ready = |nodes: &Value| nodes[0]["Status"] == "ready";
        server.until("its node is ready", "/v1/nodes", ready).await;
        Some(server)
    }

    /// The process is killed; nothing is told to anybody.
    pub async fn kill(&mut self) {
        self.agent.kill().await;
    }

    /// It ends by itself, with the tasks of its client and all that is of them; one that does not end is killed.
    pub async fn end(&mut self) {
        use rustix::process::{Pid, Signal, kill_process};
        if let Some(child) = &mut self.agent.child
            && let Some(pid) = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?))
        {
            kill_process(pid, Signal::INT).unwrap();
            let _killed_else = ostler_model::clock::timeout(PATIENCE, child.wait()).await;
        }
    }

    /// The next one on the same state and addresses, when it has a leader.
    pub async fn start_again(&mut self) {
        self.agent.start();
        self.until("a leader again", "/v1/status/leader", leads).await;
    }

    /// What a killed one kept goes: the next one begins with nothing.
    pub fn forget(&self) {
        std::fs::remove_dir_all(self.agent.dir.path().join("state")).unwrap();
    }

    /// Where the API of this server is.
    pub fn address(&self) -> String {
        format!("http://127.0.0.1:{}", self.http)
    }

    /// Does it lead the others?
    pub async fn leads(&self) -> bool {
        let leader = self.get("/v1/status/leader").await;
        leader.is_some_and(|leader| leader == format!("127.0.0.1:{}", self.rpc))
    }

    /// A file beside its state.
    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.agent.dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// The stock command line with these arguments.
    pub fn command(&self, args: &[&str]) -> tokio::process::Command {
        let mut command = tokio::process::Command::new(&self.agent.program);
        command.args(args).env("NOMAD_ADDR", self.address()).kill_on_drop(true);
        command.env("NOMAD_TOKEN", &self.token);
        command
    }

    /// Run it to its end with this input.
    pub async fn said(&self, args: &[&str], input: &[u8]) -> Ended {
        with_input(self.command(args), input).await
    }

    /// Whether it succeeds, and what it prints.
    pub async fn nomad(&self, args: &[&str]) -> (bool, String) {
        let ended = self.said(args, b"").await;
        (ended.code == Some(0), ended.stdout + &ended.stderr)
    }

    /// As [`Self::nomad`], of a command that succeeds.
    pub async fn does(&self, args: &[&str]) -> String {
        let (ok, text) = self.nomad(args).await;
        assert!(ok, "nomad {args:?}: {text}");
        text
    }

    /// Register a job of this text, and wait for nothing.
    pub async fn register(&self, text: &str) {
        let mut hash = std::hash::DefaultHasher::new();
        std::hash::Hash::hash(text, &mut hash);
        let name = format!("{:x}.nomad", std::hash::Hasher::finish(&hash));
        let file = self.file(&name, text);
        self.does(&["job", "run", "-detach", file.to_str().unwrap()]).await;
    }

    /// Run a command that does not end by itself until it prints this.
    pub async fn prints(&self, args: &[&str], wanted: &str) {
        use tokio::io::AsyncBufReadExt as _;
        let mut command = self.command(args);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = tokio::io::BufReader::new(child.stdout.take().unwrap()).lines();
        let printed = async {
            while let Some(line) = lines.next_line().await.unwrap() {
                if line.contains(wanted) {
                    return;
                }
            }
            panic!("it ended without {wanted:?}");
        };
        let printed = ostler_model::clock::timeout(PATIENCE, printed).await;
        printed.unwrap_or_else(|| panic!("nomad {args:?} never printed {wanted:?}"));
    }

    /// What the server's API answers.
    pub async fn get(&self, path: &str) -> Option<Value> {
        let (status, body) = self.ask("GET", path, "").await?;
        (status == 200).then(|| serde_json::from_str(&body).ok())?
    }

    /// Status and body of an answer; none where nobody answers.
    pub async fn ask(&self, method: &str, path: &str, body: &str) -> Option<(u16, String)> {
        asked(self.http, &self.token, method, path, body).await
    }

    /// Wait until an answer is as it should be.
    pub async fn until(&self, what: &str, path: &str, is: impl Fn(&Value) -> bool) -> Value {
        let waited = ostler_model::clock::Stopwatch::start();
        let mut last = None;
        while waited.elapsed() < PATIENCE {
            last = self.get(path).await;
            if let Some(answer) = last.as_ref().filter(|answer| is(answer)) {
                return answer.clone();
            }
            ostler_model::clock::sleep(std::time::Duration::from_millis(100)).await;
        }
        panic!("{what}: {last:#?}");
    }

    /// Wait until a node of this name has this status; its id.
    pub async fn node(&self, name: &str, status: &str) -> String {
        let of = |nodes: &Value| {
            let nodes = nodes.as_array()?;
            let is = |node: &&Value| node["Name"] == name && node["Status"] == status;
            Some(nodes.iter().find(is)?["ID"].as_str()?.to_owned())
        };
        let what = format!("{name} is {status}");
        let nodes = self.until(&what, "/v1/nodes", |nodes| of(nodes).is_some()).await;
        of(&nodes).unwrap()
    }

    /// The allocations of a job, when they are as they should be.
    pub async fn allocs(
        &self,
        job: &str,
        what: &str,
        are: impl Fn(&[Alloc]) -> bool,
    ) -> Vec<Alloc> {
        let path = format!("/v1/job/{job}/allocations?all=true");
        let mut last = Vec::new();
        let waited = ostler_model::clock::Stopwatch::start();
        while waited.elapsed() < PATIENCE {
            let answer = self.get(&path).await.unwrap_or_default();
            last = answer.as_array().into_iter().flatten().cloned().map(Alloc).collect();
            if are(&last) {
                return last;
            }
            ostler_model::clock::sleep(std::time::Duration::from_millis(100)).await;
        }
        let deployment = self.get(&format!("/v1/job/{job}/deployment")).await;
        let deployment = deployment.map(|one| one["StatusDescription"].clone());
        panic!("{job}, {what}: {last:#?}\n{deployment:?}");
    }

    /// An allocation of a job that is to run and runs, when there is one.
    pub async fn running_one(&self, job: &str) -> Alloc {
        let runs = |alloc: &&Alloc| (alloc.desired(), alloc.status()) == ("run", "running");
        let allocs = self.allocs(job, "one runs", |allocs| allocs.iter().any(|one| runs(&one)));
        allocs.await.iter().find(runs).unwrap().clone()
    }

    /// The only allocation of a job that is to run, when it runs.
    pub async fn running(&self, job: &str) -> Alloc {
        let wanted = |alloc: &&Alloc| alloc.desired() == "run";
        let one = |allocs: &[Alloc]| {
            let mut wanted = allocs.iter().filter(wanted);
            wanted.next().is_some_and(|alloc| alloc.status() == "running")
                && wanted.next().is_none()
        };
        let allocs = self.allocs(job, &format!("{job} runs"), one).await;
        allocs.iter().find(wanted).unwrap().clone()
    }
}

/// Ask the API at a port of loopback: status and body of its answer; none where nobody answers.
pub async fn asked(
    http: u16,
    token: &str,
    method: &str,
    path: &str,
    body: &str,
) -> Option<(u16, String)> {
    let asked = async {
        let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", http)).await.ok()?;
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.0\r\nHost: 127.0.0.1\r\nX-Nomad-Token: {token}\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.ok()?;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let status = head.split_whitespace().nth(1)?.parse().ok()?;
        Some((status, body.to_owned()))
    };
    ostler_model::clock::timeout(PATIENCE, asked).await?
}

/// Words of a command; single quotes hold some together.
pub fn words(command: &str) -> Vec<String> {
    let parts = command.split('\'').enumerate();
    parts
        .flat_map(|(number, part)| match number % 2 {
            0 => part.split_whitespace().map(str::to_owned).collect(),
            _ => vec![part.to_owned()],
        })
        .collect()
}

fn leads(leader: &Value) -> bool {
    leader.as_str().is_some_and(|leader| !leader.is_empty())
}

/// An allocation as servers list it.
#[derive(Clone)]
pub struct Alloc(pub Value);

impl std::fmt::Debug for Alloc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let part = |text: &str| text.get(..8).unwrap_or_default().to_owned();
        let (id, node, name) = (part(self.id()), part(self.node()), &self.0["Name"]);
        let (desired, status, version) = (self.desired(), self.status(), self.version());
        let health = self.0["DeploymentStatus"]["Healthy"].as_bool();
        let last =
            self.0["TaskStates"].as_object().into_iter().flatten().filter_map(|(_, task)| {
                task["Events"].as_array()?.last()?["DisplayMessage"].as_str()
            });
        let last: Vec<_> = last.collect();
        write!(
            f,
            "{name} {id} on {node}, version {version}: {desired}, {status}, healthy {health:?}, {last:?}"
        )
    }
}

impl Alloc {
    pub fn id(&self) -> &str {
        self.0["ID"].as_str().unwrap()
    }

    pub fn node(&self) -> &str {
        self.0["NodeID"].as_str().unwrap()
    }

    /// Where it is, as its client says.
    pub fn status(&self) -> &str {
        self.0["ClientStatus"].as_str().unwrap()
    }

    /// What servers want of it.
    pub fn desired(&self) -> &str {
        self.0["DesiredStatus"].as_str().unwrap()
    }

    pub fn version(&self) -> u64 {
        self.0["JobVersion"].as_u64().unwrap()
    }
}

/// A stock client on loopback, with its state in a directory of its own; it and its tasks are killed when this goes.
pub struct NomadClient(NomadAgent);

impl NomadClient {
    /// A client of this server, ready; `more` lies over its configuration.
    pub async fn start(name: &str, server: &NomadServer, rpc: u16, more: &str) -> Self {
        let text = format!(
            "name = \"{name}\"\n{}client {{\n enabled = true\n servers = [\"127.0.0.1:{rpc}\"]\n {NOT_ASKED_FOR}\n}}\n\
             plugin \"raw_exec\" {{\n config {{\n  enabled = true\n }}\n}}\n",
            ports(free_port(), free_port(), free_port())
        );
        let mut agent = NomadAgent::new(&server.agent.program, &[text, more.to_owned()]);
        agent.start();
        server.node(name, "ready").await;
        Self(agent)
    }

    pub async fn kill(&mut self) {
        self.0.kill().await;
    }

    pub fn start_again(&mut self) {
        self.0.start();
    }

    pub fn dir(&self) -> &Path {
        self.0.dir.path()
    }
}

impl Drop for NomadAgent {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ended_already = child.start_kill();
        }
        processes_of(self.dir.path()).into_iter().for_each(kill);
        detach_mounts(self.dir.path());
    }
}
