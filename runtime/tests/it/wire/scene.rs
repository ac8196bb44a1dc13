//! What happens while it is recorded: jobs of every type on two nodes, and what is asked of them.

use std::process::Stdio;

use ostler_testing::recorded::Part;
use serde_json::Value;

use super::stock::{Between, StockClient};

/// A job of one task; `of_job` stands in the job, `of_group` in its group, `of_resources` in what its task asks
/// for.
fn job(name: &str, of_job: &str, of_group: &str, script: &str, of_resources: &str) -> String {
    format!(
        "job \"{name}\" {{\n datacenters = [\"dc1\"]\n {of_job}\n group \"g\" {{\n  {of_group}\n  task \"t\" {{\n   \
         driver = \"raw_exec\"\n   config {{\n    command = \"/bin/sh\"\n    args = [\"-c\", \"{script}\"]\n   \
         }}\n   resources {{\n    cpu = 50\n    memory = 32\n    {of_resources}\n   }}\n  }}\n }}\n}}\n"
    )
}

const SAYS: &str = "echo one; echo two >&2; exec sleep 600";

/// Jobs of every type, on nodes that run programs and have what `device` names.
pub async fn jobs(between: &Between, device: &str) {
    let health = "update {\n   health_check = \"task_states\"\n   min_healthy_time = \"1s\"\n  }\n  \
                  network {\n   port \"http\" {}\n  }";
    between.run("web", &job("web", "", health, SAYS, "")).await;
    between.run("all", &job("all", "type = \"system\"", "", SAYS, "")).await;
    between.run("once", &job("once", "type = \"batch\"", "", "echo done", "")).await;
    let never = "restart {\n   attempts = 0\n   mode = \"fail\"\n  }\n  reschedule {\n   attempts = 0\n   \
                 unlimited = false\n  }";
    between.run("fails", &job("fails", "type = \"batch\"", never, "exit 3", "")).await;
    let device = format!("device \"{device}\" {{}}");
    between.run("card", &job("card", "", "", SAYS, &device)).await;
    let import = "type = \"batch\"\n parameterized {\n  payload = \"required\"\n  meta_required = [\"who\"]\n }";
    let text = job("import", import, "", "cat local/in", "");
    let text = text.replace("driver =", "dispatch_payload {\n    file = \"in\"\n   }\n   driver =");
    between.run("import", &text).await;
    let dir = tempfile::tempdir().unwrap();
    let payload = dir.path().join("payload");
    std::fs::write(&payload, "what to import\n").unwrap();
    let payload = payload.to_str().unwrap();
    between
        .server
        .does(&["job", "dispatch", "-detach", "-meta", "who=me", "import", payload])
        .await;
    between.alloc("import/dispatch-", "complete").await;
    between.alloc("once", "complete").await;
    between.alloc("fails", "failed").await;
    let healthy = |deployment: &Value| deployment["Status"] == "successful";
    between.server.until("it is healthy", "/v1/job/web/deployment", healthy).await;
}

/// Logs and files of an allocation, those that are not there too.
async fn files(between: &Between, web: &str) {
    let server = &between.server;
    let log = "alloc/logs/t.stdout.0";
    server.does(&["alloc", "logs", web]).await;
    server.does(&["alloc", "logs", "-stderr", "-tail", "-n", "1", web]).await;
    between.follows(&["alloc", "logs", "-f", web], "FileSystem.Logs").await;
    between.asks(&format!("/v1/client/fs/logs/{web}?task=t&type=stdout&plain=true")).await;
    between.asks(&format!("/v1/client/fs/logs/{web}?task=none&type=stdout")).await;
    server.does(&["alloc", "fs", web]).await;
    server.does(&["alloc", "fs", "-stat", web, log]).await;
    server.does(&["alloc", "fs", web, log]).await;
    server.does(&["alloc", "fs", "-tail", "-c", "2", web, log]).await;
    between.follows(&["alloc", "fs", "-f", web, log], "FileSystem.Stream").await;
    for asked in ["ls", "stat", "cat", "stream"] {
        between.asks(&format!("/v1/client/fs/{asked}/{web}?path=none")).await;
    }
}

/// Commands inside a task.
async fn commands(between: &Between, web: &str) {
    let exec = |terminal: &'static str| ["alloc", "exec", "-i=true", terminal, web];
    let shell = |script: &'static str| ["/bin/sh", "-c", script];
    let said = [&exec("-t=false")[..], &shell("cat; echo err >&2; exit 3")].concat();
    assert_eq!(between.told(&said, "said\n").await, "said\n");
    let sized = [&exec("-t=true")[..], &shell("stty size")].concat();
    between.told_on_a_terminal(&sized).await;
    let none = [&exec("-t=false")[..], &["/no/such/program"]].concat();
    between.told(&none, "").await;
}

/// Everything that people ask of a node through its server.
pub async fn asks(between: &Between) {
    let server = &between.server;
    let (web, node) = between.alloc("web", "running").await;
    let (card, _) = between.alloc("card", "running").await;
    let web = web.as_str();
    files(between, web).await;
    commands(between, web).await;
    server.does(&["alloc", "status", "-stats", web]).await;
    between.asks(&format!("/v1/client/allocation/{card}/stats")).await;
    server.does(&["node", "status", "-stats", &node]).await;
    server.does(&["alloc", "signal", "-s", "SIGUSR1", &card]).await;
    server.does(&["alloc", "restart", web]).await;
    let (once, _) = between.alloc("once", "complete").await;
    server.nomad(&["alloc", "signal", "-s", "SIGUSR1", &once]).await;
    server.nomad(&["alloc", "restart", &once]).await;
    between.asks(&format!("/v1/client/allocation/{once}/gc")).await;
    between.asks(&format!("/v1/client/allocation/{web}/gc")).await;
    between.asks(&format!("/v1/client/gc?node_id={node}")).await;
    between.asks(&format!("/v1/client/allocation/{once}/stats")).await;
}

/// What goes to the other node, and what ends.
pub async fn moves(between: &Between) {
    let server = &between.server;
    let (web, node) = between.alloc("web", "running").await;
    server.does(&["node", "drain", "-enable", "-yes", "-deadline", "30s", &node]).await;
    let moved = |allocs: &Value| {
        let mut allocs = allocs.as_array().unwrap().iter();
        allocs.any(|alloc| alloc["ClientStatus"] == "running" && alloc["NodeID"] != node.as_str())
    };
    server.until("it has moved", "/v1/job/web/allocations", moved).await;
    server.does(&["node", "drain", "-disable", "-yes", &node]).await;
    server.does(&["node", "eligibility", "-enable", &node]).await;
    let (next, _) = between.alloc("web", "running").await;
    assert_ne!(web, next);
    server.does(&["alloc", "stop", "-detach", &next]).await;
    let stopped = |alloc: &Value| alloc["ClientStatus"] == "complete";
    server.until("it has ended", &format!("/v1/allocation/{next}"), stopped).await;
    for job in ["web", "card", "all"] {
        server.does(&["job", "stop", "-detach", "-purge", job]).await;
    }
    server.does(&["system", "gc"]).await;
}

/// The log of a stock client, and a driver of it that goes.
pub async fn trouble(between: &Between, client: &StockClient, name: &str) {
    let nodes = between.server.get("/v1/nodes").await.unwrap();
    let of = nodes.as_array().unwrap().iter().find(|node| node["Name"] == name).unwrap();
    let node = of["ID"].as_str().unwrap();
    let mut monitor = between.server.command(&["monitor", "-log-level=DEBUG", "-node-id", node]);
    let _monitor = monitor.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    between.hears("Agent.Monitor", Part::Request, 0).await;
    client.loses_a_driver();
    between.hears("Node.EmitEvents", Part::Answer, 0).await;
    between.hears("Agent.Monitor", Part::Answer, 0).await;
}
