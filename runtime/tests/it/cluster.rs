//! An agent as a node of a cluster: with a double that speaks the wire, and with stock servers where
//! `NOMAD_BIN` names one.

use std::path::Path;

use ostler_cluster::msgpack::Value;
use ostler_cluster::rpc::{field, map, text};
use ostler_testing::servers::{BookNode, ServerDouble};
use rustix::process::Signal;

use crate::agent::Served;
use crate::devices::granted;
use crate::support::DataDir;
use crate::support::agent_process::{AgentProcess, Home};
use crate::support::binary::ostler;
use crate::support::nomad::NomadServer;
use crate::support::system::{eventually, processes_of, runs};

/// A node that runs programs.
const CONFIG: &str = "name = \"box\"\nplugin \"raw_exec\" {\n  enabled = true\n}\n";

/// Place an allocation on whoever asks, or change one.
fn put(double: &ServerDouble, alloc: &[(&str, Value)]) -> String {
    double.book().put(None, alloc)
}

fn told(double: &ServerDouble, id: &str) -> String {
    double.book().reported_status(id)
}

/// The one node there is.
fn node(double: &ServerDouble) -> BookNode {
    double.book().nodes.values().next().cloned().unwrap_or_default()
}

pub(crate) async fn joined(home: Home, port: u16, text: &str) -> AgentProcess {
    let config = home.path().join("agent.hcl");
    std::fs::write(&config, text).unwrap();
    let server = format!("127.0.0.1:{port}");
    AgentProcess::start_in(home, &["--config", config.to_str().unwrap(), "--servers", &server])
        .await
}

/// The configuration of a node of this name that runs programs.
pub(crate) fn native(name: &str) -> String {
    format!("name = \"{name}\"\nplugin \"raw_exec\" {{\n enabled = true\n}}\n")
}

/// Such a node, ready; it reaches the server at this port.
pub(crate) async fn ready_node(server: &NomadServer, port: u16, name: &str) -> AgentProcess {
    let agent = joined(Home::new(), port, &native(name)).await;
    server.node(name, "ready").await;
    agent
}

#[tokio::test]
async fn a_node_runs_what_a_server_places_and_tells_it_once_over_its_own_kill() {
    let double = ServerDouble::default();
    let port = double.listen().await.unwrap();
    let id = put(&double, &[]);
    let agent = joined(Home::new(), port, CONFIG).await;
    eventually("it is told to run", || told(&double, &id) == "running").await;
    assert_eq!(node(&double).registrations, 1);
    let secret = |node: &Value| field(node, "SecretID").and_then(text).unwrap().to_owned();
    let first = secret(&node(&double).registration(0).unwrap());
    eventually("it beats", || node(&double).beats > 2).await;

    agent.signal(Signal::KILL);
    let (_, home) = agent.ended().await;
    let beats = node(&double).beats;
    let agent = joined(home, port, CONFIG).await;
    eventually("it beats again", || node(&double).beats > beats + 1).await;
    assert_eq!(secret(&node(&double).registration(1).unwrap()), first, "the same node");
    assert_eq!(told(&double, &id), "running", "its task went on");

    // An older answer of a server brings nothing back to what it was.
    let stop = [("DesiredStatus", "stop".into()), ("DesiredDescription", "enough".into())];
    put(&double, &stop);
    eventually("it is over", || told(&double, &id) == "complete").await;
    put(&double, &[]);
    eventually("it beats on", || node(&double).beats > beats + 4).await;
    assert_eq!(told(&double, &id), "complete", "a stop stays");

    let place = agent.data.path().join("allocs").join(&id);
    assert!(place.exists());
    double.book().forget_all();
    eventually("it is forgotten", || !place.exists()).await;
}

#[tokio::test]
async fn what_a_node_cannot_run_fails_with_the_reason_and_harms_no_other() {
    let double = ServerDouble::default();
    let port = double.listen().await.unwrap();
    let other = "00000000-0000-4000-8000-000000000002";
    let broken = "00000000-0000-4000-8000-000000000003";
    let job = map([("ID", "x".into()), ("Namespace", "default".into())]);
    put(&double, &[("ID", broken.into()), ("Job", job)]);
    let _agent = joined(Home::new(), port, CONFIG).await;
    eventually("it fails", || told(&double, broken) == "failed").await;
    put(&double, &[("ID", other.into())]);
    eventually("the other runs", || told(&double, other) == "running").await;
}

#[tokio::test]
async fn an_allocation_that_cannot_be_read_fails_alone_and_stops_do_not_wait_behind_it() {
    let double = ServerDouble::default();
    let port = double.listen().await.unwrap();
    let [deep, long, other, after] =
        [2, 3, 4, 5].map(|number| format!("00000000-0000-4000-8000-00000000000{number}"));
    let first = put(&double, &[]);
    let agent = joined(Home::new(), port, CONFIG).await;
    eventually("the first runs", || told(&double, &first) == "running").await;
    // All with one answer: what cannot be read is between what can.
    let nested = (0..80).fold(Value::Nil, |inner, _| Value::Array(vec![inner]));
    let much = Value::Binary(vec![b'x'; 70 << 20]);
    put(&double, &[("ID", deep.as_str().into()), ("Nested", nested)]);
    put(&double, &[("ID", long.as_str().into()), ("Much", much)]);
    put(&double, &[("ID", other.as_str().into()), ("AllocatedResources", map([]))]);
    put(&double, &[("ID", first.as_str().into()), ("DesiredStatus", "stop".into())]);
    eventually("the first is stopped", || told(&double, &first) == "complete").await;
    eventually("the other runs", || told(&double, &other) == "running").await;
    for (id, why) in [(&deep, "deep within each other"), (&long, "more than 67108864 bytes")] {
        eventually("it fails", || told(&double, id) == "failed").await;
        let said = double.book().last_report(id).unwrap();
        let said = field(&said, "ClientDescription").and_then(text).unwrap();
        assert!(said.contains(why), "{said}");
    }
    put(&double, &[("ID", after.as_str().into()), ("AllocatedResources", map([]))]);
    eventually("news are carried out", || told(&double, &after) == "running").await;
    drop(agent);
}

#[tokio::test]
async fn what_a_follower_lacks_is_asked_for_again_and_what_is_held_is_waited_for() {
    let double = ServerDouble::default();
    let port = double.listen().await.unwrap();
    double.book().lacks = 2;
    let first = put(&double, &[]);
    let _agent = joined(Home::new(), port, CONFIG).await;
    eventually("it runs although it was not there at first", || told(&double, &first) == "running")
        .await;
    // The same port on the same node: it is the first one's until that has ended.
    let second = "00000000-0000-4000-8000-000000000002";
    put(&double, &[("ID", second.into()), ("PreviousAllocation", first.as_str().into())]);
    let third = "00000000-0000-4000-8000-000000000003";
    put(&double, &[("ID", third.into()), ("AllocatedResources", map([]))]);
    eventually("news come while one waits", || told(&double, third) == "running").await;
    assert_eq!(told(&double, second), "");
    put(&double, &[("ID", first.as_str().into()), ("DesiredStatus", "stop".into())]);
    eventually("its place is free", || told(&double, second) == "running").await;
    assert_eq!(told(&double, &first), "complete");
}

/// The recorded job, whose group has this key.
fn job_with(key: &str, value: Value) -> Value {
    let all = ostler_testing::servers::recorded_alloc();
    let fields = all["Job"].as_map().unwrap().iter().map(|(name, of)| {
        let name = text(name).unwrap();
        let groups = of.as_array().filter(|_| name == "TaskGroups").map(|groups| {
            let of_group = groups[0].as_map().unwrap().iter();
            let others = of_group.filter(|(name, _)| text(name) != Some(key));
            let others = others.map(|(name, of)| (text(name).unwrap(), of.clone()));
            Value::Array(vec![map(others.chain([(key, value.clone())]))])
        });
        (name, groups.unwrap_or_else(|| of.clone()))
    });
    map(fields)
}

#[tokio::test]
async fn what_stands_no_silence_of_the_servers_ends_and_the_rest_runs_on() {
    let double = ServerDouble::default();
    let port = double.listen().await.unwrap();
    let stands = put(&double, &[("AllocatedResources", map([]))]);
    let second = 1_000_000_000_u64;
    let not = "00000000-0000-4000-8000-000000000002";
    let job = job_with("StopAfterClientDisconnect", second.into());
    put(&double, &[("ID", not.into()), ("Job", job), ("AllocatedResources", map([]))]);
    let agent = joined(Home::new(), port, CONFIG).await;
    for id in [&stands, not] {
        eventually("both run", || told(&double, id) == "running").await;
    }
    double.book().silent = true;
    let of = |id: &str| processes_of(Path::new(id));
    eventually("one has ended by itself", || of(not).is_empty()).await;
    assert!(!of(&stands).is_empty(), "nobody ends the other");
    double.book().silent = false;
    eventually("and they hear of it", || told(&double, not) == "complete").await;
    assert_eq!(told(&double, &stands), "running");
    agent.signal(Signal::TERM);
}

#[tokio::test]
async fn what_servers_take_to_be_unknown_is_told_once_more() {
    let double = ServerDouble::default();
    let port = double.listen().await.unwrap();
    let id = put(&double, &[]);
    let _agent = joined(Home::new(), port, CONFIG).await;
    eventually("it runs", || told(&double, &id) == "running").await;
    double.book().forget_reports();
    put(&double, &[("ClientStatus", "unknown".into())]);
    eventually("they hear of it again", || told(&double, &id) == "running").await;
}

#[tokio::test]
async fn servers_hear_of_devices_that_go() {
    let double = ServerDouble::default();
    let port = double.listen().await.unwrap();
    let home = Home::new();
    let devices = home.path().join("devices");
    std::fs::create_dir(&devices).unwrap();
    std::fs::write(devices.join("one"), "").unwrap();
    let config = format!("{CONFIG}{}", granted("files", "dir", &devices));
    let _agent = joined(home, port, &config).await;
    eventually("it is registered", || node(&double).beats > 0).await;
    std::fs::remove_file(devices.join("one")).unwrap();
    let said = |event: &Value| {
        field(event, "Subsystem").and_then(text) == Some("Device")
            && field(event, "Message")
                .and_then(text)
                .is_some_and(|said| said.contains("no longer found"))
    };
    eventually("its loss is told", || double.book().events.iter().any(said)).await;
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
    wrong.said(2, &["is not the address of a server"]);
}

#[tokio::test]
async fn what_describes_a_node_of_a_cluster_is_refused_where_no_server_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (file, data) = (dir.path().join("agent.hcl"), dir.path().join("data"));
    let [file_text, data] = [&file, &data].map(|path| path.to_str().unwrap());
    for (key, text) in [
        ("region", "region = \"eu\""),
        ("node_class", "client {\n node_class = \"a\"\n}"),
        ("node_pool", "client {\n node_pool = \"a\"\n}"),
        ("advertise", "advertise {\n http = \"a.example\"\n}"),
    ] {
        std::fs::write(&file, text).unwrap();
        let refused = ostler(["agent", "--data-dir", data, "--config", file_text]).await;
        refused.said(2, &["no server is given", &format!("{key} would have no effect")]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_servers_are_configured_refuses_jobs_before_it_has_joined() {
    let config = "client {\n servers = [\"127.0.0.1:9\"]\n}\n";
    let served = Served::on(DataDir::new(), config).await;
    let job = crate::support::jobs::batch(&crate::support::jobs::shell("t", "true", ""));
    let refused = served.agent.submit(crate::support::parse(&job)).await.err().unwrap();
    assert!(refused.to_string().contains("its servers say what runs"), "{refused}");
    served.leave().await;
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
