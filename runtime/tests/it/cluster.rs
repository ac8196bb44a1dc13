//! An agent as a node of a cluster: with a double that speaks the wire, and with stock servers where
//! `NOMAD_BIN` names one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use futures_util::io::{AsyncReadExt as _, AsyncWriteExt as _};
use ostler_cluster::msgpack::{Value, ValueReader};
use ostler_cluster::rpc::{self, Calls, field, map, text};
use ostler_cluster::session::{MULTIPLEX, Session, Stream};
use rustix::process::Signal;
use tokio::io::AsyncReadExt as _;
use tokio_util::compat::TokioAsyncReadCompatExt as _;

use crate::support::agent_process::{AgentProcess, Home};
use crate::support::binary::ostler;
use crate::support::nomad::NomadServer;
use crate::support::system::{eventually, runs};

/// What a server (v1.0.18) answered to `Alloc.GetAllocs`.
const RECORDED: &[u8] = include_bytes!("../../cluster/fixtures/get-allocs.bin");

/// A node that runs programs.
const CONFIG: &str = "name = \"box\"\nplugin \"raw_exec\" {\n  enabled = true\n}\n";

/// What the double is asked and answers.
#[derive(Default)]
struct Book {
    index: u64,
    /// Allocations of the node as `GetAllocs` describes them, with their indexes.
    allocs: BTreeMap<String, (u64, Value)>,
    /// Newest status that was told of each.
    told: BTreeMap<String, String>,
    registered: Vec<Value>,
    /// So many answers lack what was asked for.
    lacks: u32,
    beats: u32,
}

/// A server that speaks the wire.
#[derive(Clone, Default)]
struct Double(Arc<Mutex<Book>>);

impl Double {
    async fn start(&self) -> u16 {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let double = self.clone();
        tokio::spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                let double = double.clone();
                tokio::spawn(async move {
                    if socket.read_u8().await.ok() != Some(MULTIPLEX) {
                        return;
                    }
                    let (session, mut arrivals) = Session::drive(socket.compat(), true);
                    while let Some(stream) = arrivals.recv().await {
                        tokio::spawn(double.clone().calls(stream));
                    }
                    drop(session);
                });
            }
        });
        port
    }

    /// One call after another on a stream, as servers do.
    async fn calls(self, mut stream: Stream) -> Option<()> {
        stream.read_exact(&mut [0]).await.ok()?;
        let (mut calls, mut piece) = (Calls::new(1 << 20), [0; 4096]);
        loop {
            let length = stream.read(&mut piece).await.ok().filter(|length| *length > 0)?;
            calls.extend(&piece[..length]);
            while let Some((header, body)) = calls.take_next().unwrap() {
                while self.holds(&header.method, &body) {
                    ostler_model::clock::sleep(std::time::Duration::from_millis(10)).await;
                }
                let answer = self.answer(&header.method, &body);
                let answer =
                    rpc::answer(&header.method, header.seq, answer.as_ref().map_err(|e| *e));
                stream.write_all(&answer).await.ok()?;
                stream.flush().await.ok()?;
            }
        }
    }

    fn book(&self) -> std::sync::MutexGuard<'_, Book> {
        self.0.lock().unwrap()
    }

    /// A question for news waits until there is some.
    fn holds(&self, method: &str, body: &Value) -> bool {
        let after = field(body, "MinQueryIndex").and_then(Value::as_u64).unwrap_or(0);
        method == "Node.GetClientAllocs" && after >= self.book().index
    }

    fn answer(&self, method: &str, body: &Value) -> Result<Value, &'static str> {
        let mut book = self.book();
        let beat = map([("HeartbeatTTL", 500_000_000_u64.into()), ("NumNodes", 1.into())]);
        match method {
            "Node.Register" => {
                book.registered.push(field(body, "Node").unwrap().clone());
                Ok(beat)
            }
            "Node.UpdateStatus" if book.registered.is_empty() => Err("node not found"),
            "Node.UpdateStatus" => {
                book.beats += 1;
                Ok(beat)
            }
            "Node.GetClientAllocs" => {
                let listed = book.allocs.iter().map(|(id, (at, _))| (id.as_str(), (*at).into()));
                Ok(map([("Index", book.index.into()), ("Allocs", map(listed))]))
            }
            "Alloc.GetAllocs" => {
                let ids = field(body, "AllocIDs").and_then(Value::as_array).unwrap();
                if book.lacks > 0 {
                    book.lacks -= 1;
                    return Ok(map([("Index", book.index.into()), ("Allocs", Value::Nil)]));
                }
                let found = ids.iter().filter_map(|id| book.allocs.get(text(id)?));
                let found = found.map(|(_, alloc)| alloc.clone()).collect();
                Ok(map([("Index", book.index.into()), ("Allocs", Value::Array(found))]))
            }
            "Node.UpdateAlloc" => {
                for alloc in field(body, "Alloc").and_then(Value::as_array).unwrap() {
                    let of = |name| field(alloc, name).and_then(text).unwrap().to_owned();
                    book.told.insert(of("ID"), of("ClientStatus"));
                }
                Ok(map([("Index", 1.into())]))
            }
            _ => Err("not here"),
        }
    }

    /// Place an allocation, or change one.
    fn put(&self, alloc: &[(&str, Value)]) -> String {
        let mut book = self.book();
        book.index += 1;
        let mut fields = BTreeMap::new();
        for (key, value) in recorded().as_map().unwrap() {
            fields.insert(text(key).unwrap().to_owned(), value.clone());
        }
        fields.insert("AllocModifyIndex".to_owned(), book.index.into());
        for (key, value) in alloc {
            fields.insert((*key).to_owned(), value.clone());
        }
        let id = text(&fields["ID"]).unwrap().to_owned();
        let alloc = map(fields.iter().map(|(key, value)| (key.as_str(), value.clone())));
        let index = book.index;
        book.allocs.insert(id.clone(), (index, alloc));
        id
    }

    fn told(&self, id: &str) -> String {
        self.book().told.get(id).cloned().unwrap_or_default()
    }
}

fn recorded() -> Value {
    let mut reader = ValueReader::new(1 << 20);
    reader.extend(RECORDED);
    let answer = reader.take_next().unwrap().unwrap();
    field(&answer, "Allocs").and_then(Value::as_array).unwrap()[0].clone()
}

pub(crate) async fn joined(home: Home, port: u16, text: &str) -> AgentProcess {
    let config = home.path().join("agent.hcl");
    std::fs::write(&config, text).unwrap();
    let server = format!("127.0.0.1:{port}");
    AgentProcess::start_in(home, &["--config", config.to_str().unwrap(), "--servers", &server])
        .await
}

#[tokio::test]
async fn a_node_runs_what_a_server_places_and_tells_it_once_over_its_own_kill() {
    let double = Double::default();
    let port = double.start().await;
    let id = double.put(&[]);
    let agent = joined(Home::new(), port, CONFIG).await;
    eventually("it is told to run", || double.told(&id) == "running").await;
    assert_eq!(double.book().registered.len(), 1);
    let secret = |node: &Value| field(node, "SecretID").and_then(text).unwrap().to_owned();
    let first = secret(&double.book().registered[0]);
    eventually("it beats", || double.book().beats > 2).await;

    agent.signal(Signal::KILL);
    let (_, home) = agent.ended().await;
    let beats = double.book().beats;
    let agent = joined(home, port, CONFIG).await;
    eventually("it beats again", || double.book().beats > beats + 1).await;
    assert_eq!(secret(&double.book().registered[1]), first, "the same node");
    assert_eq!(double.told(&id), "running", "its task went on");

    // An older answer of a server brings nothing back to what it was.
    let stop = [("DesiredStatus", "stop".into()), ("DesiredDescription", "enough".into())];
    double.put(&stop);
    eventually("it is over", || double.told(&id) == "complete").await;
    double.put(&[]);
    eventually("it beats on", || double.book().beats > beats + 4).await;
    assert_eq!(double.told(&id), "complete", "a stop stays");

    let place = agent.data.path().join("alloc").join(&id);
    {
        let mut book = double.book();
        book.allocs.clear();
        book.index += 1;
    }
    eventually("it is forgotten", || !place.exists()).await;
}

#[tokio::test]
async fn what_a_node_cannot_run_fails_with_the_reason_and_harms_no_other() {
    let double = Double::default();
    let port = double.start().await;
    let other = "00000000-0000-4000-8000-000000000002";
    let broken = "00000000-0000-4000-8000-000000000003";
    let job = map([("ID", "x".into()), ("Namespace", "default".into())]);
    double.put(&[("ID", broken.into()), ("Job", job)]);
    let _agent = joined(Home::new(), port, CONFIG).await;
    eventually("it fails", || double.told(broken) == "failed").await;
    double.put(&[("ID", other.into())]);
    eventually("the other runs", || double.told(other) == "running").await;
}

#[tokio::test]
async fn what_a_follower_lacks_is_asked_for_again_and_what_is_held_is_waited_for() {
    let double = Double::default();
    let port = double.start().await;
    double.book().lacks = 2;
    let first = double.put(&[]);
    let _agent = joined(Home::new(), port, CONFIG).await;
    eventually("it runs although it was not there at first", || double.told(&first) == "running")
        .await;
    // The same port on the same node: it is the first one's until that has ended.
    let second = "00000000-0000-4000-8000-000000000002";
    double.put(&[("ID", second.into()), ("PreviousAllocation", first.as_str().into())]);
    let third = "00000000-0000-4000-8000-000000000003";
    double.put(&[("ID", third.into()), ("AllocatedResources", map([]))]);
    eventually("news come while one waits", || double.told(third) == "running").await;
    assert_eq!(double.told(second), "");
    double.put(&[("ID", first.as_str().into()), ("DesiredStatus", "stop".into())]);
    eventually("its place is free", || double.told(second) == "running").await;
    assert_eq!(double.told(&first), "complete");
}

#[tokio::test]
async fn a_joined_node_refuses_jobs_of_its_own_and_needs_a_place_for_what_it_is() {
    // Nobody listens there: what is refused is refused without a server too.
    let agent = joined(Home::new(), 9, CONFIG).await;
    let task = crate::support::jobs::shell("t", "true", "");
    let refused = agent.run(&crate::support::jobs::batch(&task)).await;
    refused.said(3, &["its servers say what runs on it"]);
    let refused = ostler(["agent", "--servers", "127.0.0.1:9"]).await;
    refused.said(2, &["needs --data-dir"]);
    let wrong = ostler(["agent", "--servers", "http://x"]).await;
    wrong.said(2, &["is no address of a server"]);
}

#[tokio::test]
async fn stock_servers_take_a_node_and_forget_it_again() {
    let Some(server) = NomadServer::start().await else { return };
    let at = format!("127.0.0.1:{}", server.rpc);
    let checked = ostler(["node", "join-check", "--servers", &at]).await;
    assert_eq!(checked.code, Some(0), "{checked:#?}");
    assert!(checked.stdout.contains("a node can join"), "{}", checked.stdout);
    server.until("no node", "/v1/nodes", |nodes| nodes.as_array().is_some_and(Vec::is_empty)).await;
    let elsewhere = ostler(["node", "join-check", "--servers", &at, "--region", "us"]).await;
    assert_eq!(elsewhere.code, Some(1), "{elsewhere:#?}");
}

#[tokio::test]
async fn stock_servers_run_update_and_stop_a_job_on_a_node_that_is_killed_between() {
    let Some(server) = NomadServer::start().await else { return };
    let agent = joined(Home::new(), server.rpc, CONFIG).await;
    let ready = |nodes: &serde_json::Value| nodes[0]["Status"] == "ready";
    server.until("a ready node", "/v1/nodes", ready).await;
    let pid_file = agent.data.path().join("pid");
    let job = |after: &str| {
        let script =
            format!("echo hello {after}; echo $$ > {}; exec sleep 600", pid_file.display());
        let text = format!(
            "job \"web\" {{\n datacenters = [\"dc1\"]\n group \"g\" {{\n  update {{\n   min_healthy_time = \"1s\"\n  \
             }}\n  task \"t\" {{\n   driver = \"raw_exec\"\n   config {{\n    command = \"/bin/sh\"\n    \
             args = [\"-c\", \"{script}\"]\n   }}\n   resources {{\n    cpu = 50\n    memory = 32\n   }}\n  }}\n }}\n}}\n"
        );
        agent.file("web.nomad", &text)
    };
    let file = job("one");
    server.does(&["job", "run", "-detach", file.to_str().unwrap()]).await;
    let successful = |deployment: &serde_json::Value| deployment["Status"] == "successful";
    server.until("it is healthy", "/v1/job/web/deployment", successful).await;
    let allocs = server.get("/v1/job/web/allocations").await.unwrap();
    let first = allocs[0]["ID"].as_str().unwrap().to_owned();
    assert_eq!(server.does(&["alloc", "logs", &first]).await, "hello one\n");
    assert!(server.does(&["alloc", "fs", &first, "alloc/logs"]).await.contains("t.stdout.0"));
    server.does(&["alloc", "status", "-stats", &first]).await;

    let file = job("two");
    server.does(&["job", "run", "-detach", file.to_str().unwrap()]).await;
    let second = |deployment: &serde_json::Value| {
        deployment["Status"] == "successful" && deployment["JobVersion"] == 1
    };
    server.until("the update is healthy", "/v1/job/web/deployment", second).await;
    let pid = std::fs::read_to_string(&pid_file).unwrap().trim().parse().unwrap();
    agent.signal(Signal::KILL);
    let (_, home) = agent.ended().await;
    assert!(runs(pid), "a task outlives its agent");
    let agent = joined(home, server.rpc, CONFIG).await;
    server.until("a ready node", "/v1/nodes", ready).await;
    assert!(runs(pid), "and the next agent takes it over");
    let nodes = server.get("/v1/nodes").await.unwrap();
    assert_eq!(nodes.as_array().map(Vec::len), Some(1), "the same node");
    let node = nodes[0]["ID"].as_str().unwrap().to_owned();
    server.does(&["node", "status", "-stats", &node]).await;
    server.does(&["job", "stop", "-detach", "web"]).await;
    let over = |allocs: &serde_json::Value| {
        allocs.as_array().unwrap().iter().all(|alloc| alloc["ClientStatus"] == "complete")
    };
    server.until("all are over", "/v1/job/web/allocations", over).await;
    eventually("the task has ended", || !runs(pid)).await;
    agent.signal(Signal::TERM);
}
