//! Whole agents in processes of their own, asked over HTTP: Ostler, and stock Nomad.
//!
//! Both answer the same requests, so that what is compared is asked in the same words. Ostler's is this
//! program itself ([`own_child`](crate::live::own_child)), or the one that `OSTLER_BIN` names.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use ostler_model::clock::{self, Stopwatch};
use serde_json::{Value, json};
use tokio::net::{TcpStream, UnixStream};

use crate::guard::detach_mounts;
use crate::memory::{processes_of, processor_time, proportional};

/// Longer than anything here takes on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(600);
/// Between two questions whether something is so.
const PAUSE: Duration = Duration::from_millis(2);
/// Where Nomad's agent listens, and the next two ports.
const PORT: u16 = 24_646;
/// Where [`Node::nomad_server`] listens for nodes, on loopback.
pub const NOMAD_RPC_PORT: u16 = PORT + 1;

/// Where an agent listens.
#[derive(Clone, Debug)]
enum Listens {
    Socket(PathBuf),
    Port(u16),
}

/// What is so when an agent can be used.
#[derive(Clone, Copy, Debug)]
enum Takes {
    /// It says that it is well.
    Health,
    /// Its one node is ready.
    Node,
    /// There is a leader.
    Jobs,
}

/// A server of Nomad's.
const SERVER: &str = "server {\n enabled = true\n bootstrap_expect = 1\n}\n";
/// Nomad's own driver for programs as they are.
const NOMAD_RAW_EXEC: &str = "plugin \"raw_exec\" {\n config {\n enabled = true\n }\n}\n";

/// A client of Nomad's that does not ask clouds about its machine.
fn client(more: &str, driver: &str) -> String {
    format!(
        "client {{\n enabled = true\n cpu_total_compute = 1000000\n {more}\n options {{\n \
         \"fingerprint.denylist\" = \"env_aws,env_gce,env_azure\"\n }}\n}}\n{driver}"
    )
}

/// An agent, its helpers and its directory.
#[derive(Debug)]
pub struct Node {
    program: PathBuf,
    args: Vec<String>,
    listens: Listens,
    takes: Takes,
    child: Option<Child>,
    /// Processes of the same program that were there before.
    others: BTreeSet<u32>,
    connection: Option<SendRequest<Full<Bytes>>>,
}

impl Node {
    /// Ostler with its data in `dir` and this configuration; not started yet.
    ///
    /// # Panics
    /// When its directory cannot be made.
    #[must_use]
    pub fn ostler(dir: &Path, config: &str) -> Self {
        let this = || std::env::current_exe().expect("the path of this program");
        let program = std::env::var_os("OSTLER_BIN").map_or_else(this, PathBuf::from);
        let (data, file) = prepared(dir, config);
        let args = ["agent", "--data-dir", &data, "--config", &file].map(str::to_owned);
        let socket = Path::new(&data).join(ostler_api::SOCKET_NAME);
        Self::new(program, args.to_vec(), Listens::Socket(socket), Takes::Health)
    }

    /// Ostler with its state in memory and this configuration; not started yet.
    ///
    /// # Panics
    /// When its directory cannot be made.
    #[must_use]
    pub fn ostler_in_memory(dir: &Path, config: &str) -> Self {
        let mut node = Self::ostler(dir, config);
        // One of its own, for nobody else: the configuration lies beside it.
        let dir = dir.join("socket").display().to_string();
        let file = node.args.last().cloned().unwrap_or_default();
        let args = ["agent", "--socket-dir", &dir, "--config", &file];
        node.args = args.map(str::to_owned).to_vec();
        node.listens = Listens::Socket(Path::new(&dir).join(ostler_api::SOCKET_NAME));
        node
    }

    /// Nomad, server and client in one, as `NOMAD_BIN` names it; nothing where that is not set. What it
    /// would ask clouds about its machine is left out.
    ///
    /// # Panics
    /// When its directory cannot be made.
    #[must_use]
    pub fn nomad(dir: &Path) -> Option<Self> {
        let config = format!("{SERVER}{}", client("", NOMAD_RAW_EXEC));
        Self::stock(dir, PORT, &config, Takes::Node)
    }

    /// A server of Nomad's alone, as `NOMAD_BIN` names it; nothing where that is not set.
    ///
    /// # Panics
    /// When its directory cannot be made.
    #[must_use]
    pub fn nomad_server(dir: &Path) -> Option<Self> {
        Self::stock(dir, PORT, SERVER, Takes::Jobs)
    }

    /// A client of [`Self::nomad_server`] with a name of its own and its driver `raw_exec`: Nomad's, or that of
    /// this configuration. `number` is 1 for the first.
    ///
    /// # Panics
    /// When its directory cannot be made.
    #[must_use]
    pub fn nomad_client(dir: &Path, number: u16, name: &str, driver: Option<&str>) -> Option<Self> {
        let servers = format!("servers = [\"127.0.0.1:{NOMAD_RPC_PORT}\"]");
        let own = client(&servers, driver.unwrap_or(NOMAD_RAW_EXEC));
        let config = format!("name = \"{name}\"\n{own}");
        Self::stock(dir, PORT + 10 * number, &config, Takes::Jobs)
    }

    /// Ostler as a client of [`Self::nomad_server`].
    ///
    /// # Panics
    /// When its directory cannot be made.
    #[must_use]
    pub fn ostler_client(dir: &Path, name: &str, config: &str) -> Self {
        let servers = format!("client {{\n servers = [\"127.0.0.1:{NOMAD_RPC_PORT}\"]\n}}\n");
        Self::ostler(dir, &format!("name = \"{name}\"\n{servers}{config}"))
    }

    /// Nomad on three ports from this one.
    fn stock(dir: &Path, port: u16, config: &str, takes: Takes) -> Option<Self> {
        let program = PathBuf::from(std::env::var_os("NOMAD_BIN")?);
        let config = format!(
            "bind_addr = \"127.0.0.1\"\nadvertise {{\n http = \"127.0.0.1\"\n rpc = \"127.0.0.1\"\n \
             serf = \"127.0.0.1\"\n}}\nlog_level = \"ERROR\"\ndisable_update_check = true\n\
             ports {{\n http = {port}\n rpc = {}\n serf = {}\n}}\n{config}",
            port + 1,
            port + 2
        );
        let (data, file) = prepared(dir, &config);
        let args = ["agent", "-data-dir", &data, "-config", &file].map(str::to_owned);
        Some(Self::new(program, args.to_vec(), Listens::Port(port), takes))
    }

    fn new(program: PathBuf, args: Vec<String>, listens: Listens, takes: Takes) -> Self {
        let program = program.canonicalize().expect("the agent's program");
        let others = processes_of(&program).into_iter().collect();
        Self { program, args, listens, takes, child: None, others, connection: None }
    }

    /// Start it, and go on at once.
    ///
    /// # Panics
    /// When it does not start.
    #[expect(clippy::disallowed_methods, reason = "a process of the bench, not of an agent")]
    pub fn spawn(&mut self) {
        let mut command = Command::new(&self.program);
        command.args(&self.args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.child = Some(command.spawn().expect("the agent starts"));
    }

    /// Start it, and wait until it takes jobs.
    ///
    /// # Panics
    /// When that takes too long.
    pub async fn start(&mut self) {
        self.spawn();
        let (path, takes) = match self.takes {
            Takes::Health => ("/v1/agent/health", self.takes),
            Takes::Node => ("/v1/nodes", self.takes),
            Takes::Jobs => ("/v1/status/leader", self.takes),
        };
        self.until("the agent takes jobs", async |node: &mut Self| {
            let ended = node.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
            assert!(ended.is_none(), "the agent ended: {ended:?}, {:?}", node.args);
            let Some((StatusCode::OK, answer)) = node.try_ask("GET", path, None).await else {
                return false;
            };
            match takes {
                Takes::Health => true,
                Takes::Node => answer.pointer("/0/Status").is_some_and(|status| status == "ready"),
                Takes::Jobs => answer.as_str().is_some_and(|leader| !leader.is_empty()),
            }
        })
        .await;
    }

    /// `SIGKILL` to the agent's own process.
    ///
    /// # Panics
    /// When it was not started.
    pub fn kill(&mut self) {
        let mut child = self.child.take().expect("a started agent");
        child.kill().expect("the agent is killed");
        child.wait().expect("the agent has ended");
        self.connection = None;
    }

    /// Ask, and again until what is asked is so.
    ///
    /// # Panics
    /// When that takes too long.
    pub async fn until(&mut self, what: &str, so: impl AsyncFn(&mut Self) -> bool) {
        let watch = Stopwatch::start();
        while !so(self).await {
            assert!(watch.elapsed() < PATIENCE, "{what}: not in time");
            clock::sleep(PAUSE).await;
        }
    }

    /// The answer to a request.
    ///
    /// # Panics
    /// When there is none, or an error.
    pub async fn ask(&mut self, method: &str, path: &str, body: Option<&Value>) -> Value {
        let mut answered = self.try_ask(method, path, body).await;
        if answered.is_none() {
            // The agent closed a connection that was kept open.
            self.connection = None;
            answered = self.try_ask(method, path, body).await;
        }
        let (status, answer) = answered.expect("an answer");
        assert!(status.is_success(), "{method} {path}: {status}: {answer}");
        answer
    }

    /// The same; nothing where no agent answers.
    pub async fn try_ask(
        &mut self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Option<(StatusCode, Value)> {
        if self.connection.as_ref().is_none_or(SendRequest::is_closed) {
            self.connection = Some(self.connect().await?);
        }
        let connection = self.connection.as_mut()?;
        let body = body.map_or_else(Bytes::new, |body| body.to_string().into());
        let request = Request::builder().method(method).uri(path).header("host", "bench");
        connection.ready().await.ok()?;
        let request = request.body(Full::new(body)).expect("a request");
        let answer = connection.send_request(request).await.ok()?;
        let status = answer.status();
        let bytes = answer.into_body().collect().await.ok()?.to_bytes();
        let text = || Value::String(String::from_utf8_lossy(&bytes).into_owned());
        Some((status, serde_json::from_slice(&bytes).unwrap_or_else(|_| text())))
    }

    async fn connect(&self) -> Option<SendRequest<Full<Bytes>>> {
        match &self.listens {
            Listens::Socket(path) => speak(UnixStream::connect(path).await.ok()?).await,
            Listens::Port(port) => {
                speak(TcpStream::connect(("127.0.0.1", *port)).await.ok()?).await
            }
        }
    }

    /// Register a job.
    pub async fn register(&mut self, job: &Value) {
        self.ask("PUT", "/v1/jobs", Some(job)).await;
    }

    /// The allocations of a job.
    pub async fn allocs(&mut self, job: &str) -> Vec<Value> {
        let answer = self.ask("GET", &format!("/v1/job/{job}/allocations"), None).await;
        answer.as_array().cloned().unwrap_or_default()
    }

    /// How many allocations of a job are in this state: `Running`, `Complete`, `Queued`.
    pub async fn count(&mut self, job: &str, state: &str) -> u64 {
        let answer = self.ask("GET", &format!("/v1/job/{job}/summary"), None).await;
        answer.pointer(&format!("/Summary/g/{state}")).and_then(Value::as_u64).unwrap_or(0)
    }

    /// Stop a job, wait until nothing of it runs, and forget it.
    pub async fn purge(&mut self, job: &str) {
        self.ask("DELETE", &format!("/v1/job/{job}"), None).await;
        self.until("the job ends", async |node: &mut Self| {
            let allocs = node.allocs(job).await;
            allocs
                .iter()
                .all(|alloc| !matches!(alloc["ClientStatus"].as_str(), Some("running" | "pending")))
        })
        .await;
        self.ask("DELETE", &format!("/v1/job/{job}?purge=true"), None).await;
    }

    /// The agent and its helpers.
    #[must_use]
    pub fn processes(&self) -> Vec<u32> {
        let all = processes_of(&self.program).into_iter();
        all.filter(|pid| !self.others.contains(pid)).collect()
    }

    /// Proportional set size of all of them, bytes.
    #[must_use]
    pub fn memory(&self) -> u64 {
        self.processes().into_iter().filter_map(proportional).sum()
    }

    /// Mappings of all of them: what `vm.max_map_count` bounds in each.
    #[must_use]
    pub fn mappings(&self) -> u64 {
        let maps = |pid| fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        let counts = self.processes().into_iter().map(|pid| maps(pid).lines().count());
        counts.max().and_then(|count| u64::try_from(count).ok()).unwrap_or(0)
    }

    /// Share of a core that all of them take meanwhile, percent.
    pub async fn idle(&self, span: Duration) -> f64 {
        let before: BTreeMap<u32, f64> = self.processor_times().collect();
        let watch = Stopwatch::start();
        clock::sleep(span).await;
        // A child that came has used what it used; one that went is not known any more.
        let since = |(pid, now): (u32, f64)| now - before.get(&pid).copied().unwrap_or(0.0);
        let used: f64 = self.processor_times().map(since).sum();
        used / watch.elapsed().as_secs_f64() * 100.0
    }

    /// Seconds of processor time of all of them so far.
    #[must_use]
    pub fn processor_time(&self) -> f64 {
        self.processor_times().map(|(_, used)| used).sum()
    }

    /// Seconds of processor time of those that live.
    fn processor_times(&self) -> impl Iterator<Item = (u32, f64)> {
        self.processes().into_iter().filter_map(|pid| Some((pid, processor_time(pid)?)))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ended = child.kill();
            let _ended = child.wait();
        }
        for pid in self.processes() {
            let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
            let kill = |pid| rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            let _ended_already = pid.map(kill);
        }
        if let Some(data) = self.args.get(2).filter(|data| !data.is_empty()) {
            detach_mounts(Path::new(data));
        }
    }
}

/// Data directory and configuration file.
fn prepared(dir: &Path, config: &str) -> (String, String) {
    fs::create_dir_all(dir).expect("the agent's directory");
    let file = dir.join("config.hcl");
    fs::write(&file, config).expect("the configuration");
    (dir.join("data").display().to_string(), file.display().to_string())
}

async fn speak<S>(stream: S) -> Option<SendRequest<Full<Bytes>>>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = handshake(TokioIo::new(stream)).await.ok()?;
    tokio::spawn(connection);
    Some(sender)
}

/// A job of one group with `count` places of one task, which reserves next to nothing.
#[must_use]
pub fn job(id: &str, kind: &str, count: u64, driver: &str, config: &Value) -> Value {
    json!({ "Job": {
        "ID": id, "Name": id, "Type": kind, "Datacenters": ["dc1"],
        "TaskGroups": [{
            "Name": "g", "Count": count,
            "EphemeralDisk": { "SizeMB": 10 },
            "RestartPolicy":
                { "Attempts": 0, "Interval": 60_000_000_000_u64, "Delay": 0, "Mode": "fail" },
            "Tasks": [{
                "Name": "t", "Driver": driver, "Config": config,
                "Resources": { "CPU": 1, "MemoryMB": 10 },
                "LogConfig": { "MaxFiles": 1, "MaxFileSizeMB": 1 },
                "KillTimeout": 1_000_000_000_u64,
            }],
        }],
    } })
}
