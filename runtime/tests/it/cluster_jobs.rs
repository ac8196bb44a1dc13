//! Jobs of stock servers on our nodes, where `NOMAD_BIN` names a server: every type of job, devices, a
//! drain, and what people ask of a running one.

use rustix::process::Signal;
use serde_json::Value;

use crate::cluster::joined;
use crate::support::agent_process::{AgentProcess, Home};
use crate::support::nomad::NomadServer;
use crate::support::system::until;

/// A node that runs programs and has a device.
fn config(name: &str) -> String {
    format!(
        "name = \"{name}\"\nplugin \"raw_exec\" {{\n enabled = true\n}}\nplugin \"mock_device\" {{\n \
         config {{\n  groups = [{{ count = 1 }}]\n }}\n}}\nclient {{\n node_class = \"ours\"\n \
         meta {{\n  rack = \"r1\"\n }}\n}}\n"
    )
}

async fn node(name: &str, server: &NomadServer) -> AgentProcess {
    let agent = joined(Home::new(), server.rpc, &config(name)).await;
    server.node(name, "ready").await;
    agent
}

/// A job of one task; `of_job` stands in the job, `of_task` in the task.
fn job(name: &str, of_job: &str, script: &str, of_task: &str) -> String {
    format!(
        "job \"{name}\" {{\n datacenters = [\"dc1\"]\n {of_job}\n group \"g\" {{\n  task \"t\" {{\n   \
         driver = \"raw_exec\"\n   config {{\n    command = \"/bin/sh\"\n    args = [\"-c\", \"{script}\"]\n   \
         }}\n   resources {{\n    cpu = 50\n    memory = 32\n   }}\n   {of_task}\n  }}\n }}\n}}\n"
    )
}

async fn runs(server: &NomadServer, agent: &AgentProcess, name: &str, text: &str) {
    let file = agent.file(&format!("{name}.nomad"), text);
    server.does(&["job", "run", "-detach", file.to_str().unwrap()]).await;
}

/// The newest allocation of a job whose id begins so, when it has this status.
async fn alloc_of(server: &NomadServer, job: &str, status: &str) -> Value {
    let is = |alloc: &&Value| {
        alloc["JobID"].as_str().is_some_and(|id| id.starts_with(job))
            && alloc["ClientStatus"] == status
    };
    let there = |allocs: &Value| allocs.as_array().unwrap().iter().any(|alloc| is(&alloc));
    let allocs = server.until(job, "/v1/allocations", there).await;
    allocs.as_array().unwrap().iter().find(is).unwrap().clone()
}

fn id(alloc: &Value) -> &str {
    alloc["ID"].as_str().unwrap()
}

#[tokio::test]
async fn stock_servers_run_periodic_dispatched_batch_and_system_jobs_on_a_node() {
    let Some(server) = NomadServer::start().await else { return };
    let agent = node("one", &server).await;

    let said = "echo $NOMAD_JOB_PARENT_ID";
    let text = job("tick", "type = \"batch\"\n periodic {\n  cron = \"@yearly\"\n }", said, "");
    runs(&server, &agent, "tick", &text).await;
    server.does(&["job", "periodic", "force", "tick"]).await;
    let tick = alloc_of(&server, "tick/periodic-", "complete").await;
    assert_eq!(server.does(&["alloc", "logs", id(&tick)]).await, "tick\n");

    let payload = agent.file("payload", "what to import");
    let of_job = "type = \"batch\"\n parameterized {\n  payload = \"required\"\n  meta_required = [\"who\"]\n }";
    let said = "cat local/in/put; echo ' for' $NOMAD_META_who";
    let text = job("import", of_job, said, "dispatch_payload {\n    file = \"in/put\"\n   }");
    runs(&server, &agent, "import", &text).await;
    let payload = payload.to_str().unwrap();
    server.does(&["job", "dispatch", "-detach", "-meta", "who=me", "import", payload]).await;
    let import = alloc_of(&server, "import/dispatch-", "complete").await;
    let logs = server.does(&["alloc", "logs", id(&import)]).await;
    assert_eq!(logs, "what to import for me\n");

    let template = "template {\n    data = \"{{ env \\\"NOMAD_JOB_NAME\\\" }}: {{ 3 | add 4 }}\\n\"\n    \
                    destination = \"local/x\"\n    splay = \"0s\"\n   }";
    let text = job("render", "type = \"batch\"", "cat local/x", template);
    runs(&server, &agent, "render", &text).await;
    let render = alloc_of(&server, "render", "complete").await;
    assert_eq!(server.does(&["alloc", "logs", id(&render)]).await, "render: 7\n");

    let on = "type = \"system\"\n constraint {\n  attribute = \"${meta.rack}\"\n  value = \"r1\"\n }\n constraint \
              {\n  attribute = \"${node.class}\"\n  value = \"ours\"\n }";
    runs(&server, &agent, "all", &job("all", on, "echo here; exec sleep 600", "")).await;
    let all = alloc_of(&server, "all", "running").await;
    let tail = ["alloc", "fs", "-tail", "-c", "4", id(&all), "alloc/logs/t.stdout.0"];
    assert_eq!(server.does(&tail).await, "ere\n");
    let follow = ["monitor", "-log-level", "DEBUG", "-node-id", all["NodeID"].as_str().unwrap()];
    let unheard = async {
        // What it logs first may have come before it was followed.
        for number in 0_u64.. {
            let template = "template {\n    data = \"{{ key \\\"x\\\" }}\"\n    destination = \"local/x\"\n   }";
            let name = format!("unheard{number}");
            runs(&server, &agent, &name, &job(&name, "type = \"batch\"", "true", template)).await;
        }
    };
    tokio::select! {
        () = server.prints(&follow, "ostler_") => {}
        () = unheard => {}
    }
    server.does(&["alloc", "restart", id(&all)]).await;
    alloc_of(&server, "all", "running").await;
    // A restart is answered before the task runs again.
    let signal = ["alloc", "signal", "-s", "SIGKILL", id(&all)];
    until("the task is signalled", async || server.nomad(&signal).await.0).await;

    let file =
        agent.file("fails.nomad", &job("fails", "type = \"batch\"", "exit 3", RESTARTS_NEVER));
    server.does(&["job", "run", "-detach", file.to_str().unwrap()]).await;
    let failed = alloc_of(&server, "fails", "failed").await;
    assert!(server.does(&["alloc", "status", id(&failed)]).await.contains("Exit Code: 3"));
    server.does(&["job", "stop", "-detach", "all"]).await;
    alloc_of(&server, "all", "complete").await;
    agent.signal(Signal::TERM);
}

const RESTARTS_NEVER: &str = "restart {\n    attempts = 0\n    mode = \"fail\"\n   }";

/// The steps of docs/cluster.md, with a second node.
#[tokio::test]
async fn stock_servers_place_devices_scale_and_drain_one_of_two_nodes() {
    let Some(server) = NomadServer::start().await else { return };
    let (one, two) = tokio::join!(node("one", &server), node("two", &server));
    let device = "resources {\n    cpu = 50\n    memory = 32\n    device \"mock/device\" {}\n   }";
    let text = job("card", "", "exec sleep 600", "");
    let text = text.replace("resources {\n    cpu = 50\n    memory = 32\n   }", device);
    runs(&server, &one, "card", &text).await;
    let card = alloc_of(&server, "card", "running").await;
    let status = server.does(&["alloc", "status", "-stats", id(&card)]).await;
    assert!(status.contains("mock/device"), "{status}");
    let deployed = |deployment: &Value| deployment["Status"] == "successful";
    server.until("it is healthy", "/v1/job/card/deployment", deployed).await;
    // Each node has one.
    server.does(&["job", "scale", "-detach", "card", "2"]).await;
    let both = |allocs: &Value| {
        allocs.as_array().unwrap().iter().filter(|alloc| alloc["ClientStatus"] == "running").count()
            == 2
    };
    let allocs = server.until("two run", "/v1/job/card/allocations", both).await;
    let nodes = allocs.as_array().unwrap().iter().map(|alloc| alloc["NodeID"].as_str().unwrap());
    let nodes: std::collections::BTreeSet<_> = nodes.collect();
    assert_eq!(nodes.len(), 2, "{allocs:#}");
    server.until("both are healthy", "/v1/job/card/deployment", deployed).await;
    server.does(&["job", "scale", "-detach", "card", "1"]).await;
    let one_left = |allocs: &Value| {
        let runs = |alloc: &&Value| alloc["ClientStatus"] == "running";
        allocs.as_array().unwrap().iter().filter(runs).count() == 1
    };
    let allocs = server.until("one runs", "/v1/job/card/allocations", one_left).await;
    let left = allocs.as_array().unwrap().iter().find(|alloc| alloc["ClientStatus"] == "running");
    let drained = left.unwrap()["NodeID"].as_str().unwrap().to_owned();
    server.does(&["node", "drain", "-enable", "-yes", "-deadline", "30s", &drained]).await;
    let moved = |allocs: &Value| {
        let runs = |alloc: &Value| alloc["ClientStatus"] == "running";
        let all = allocs.as_array().unwrap();
        all.iter().any(|alloc| runs(alloc) && alloc["NodeID"] != drained.as_str())
            && !all.iter().any(|alloc| runs(alloc) && alloc["NodeID"] == drained.as_str())
    };
    server.until("it has moved", "/v1/job/card/allocations", moved).await;
    server.does(&["node", "drain", "-disable", "-yes", &drained]).await;
    server.does(&["node", "eligibility", "-enable", &drained]).await;
    server.does(&["job", "stop", "-detach", "-purge", "card"]).await;
    server.does(&["system", "gc"]).await;
    one.signal(Signal::TERM);
    two.signal(Signal::TERM);
}
