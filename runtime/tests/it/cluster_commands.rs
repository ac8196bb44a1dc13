//! The stock command line against a server with one of our nodes, beside the same with a stock client, where
//! `NOMAD_BIN` names the program: what works with the one works with the other.

use crate::cluster::ready_node;
use crate::support::nomad::{NomadClient, NomadServer, words};
use crate::support::stock_job::StockJob;
use crate::support::system::until;

/// Commands, in order. `{alloc}`, `{short}`, `{node}`, `{eval}` and `{deployment}` stand for ids of the service,
/// `{job}` and `{next}` for its file and that of its next version, `{batch}` and others for theirs.
const COMMANDS: &[&str] = &[
    "job validate {job}",
    "job plan {job}",
    "job status",
    "job status web",
    "job status -all-allocs -verbose web",
    "job status -evals web",
    "job inspect web",
    "job history -p web",
    "job deployments web",
    "job deployments -latest web",
    "job eval -detach web",
    "job eval -force-reschedule -detach web",
    "job scale -detach web 2",
    "job scaling-events web",
    "job scale -detach web 1",
    "job run -detach {periodic}",
    "job periodic force periodic",
    "job status periodic",
    "job run -detach {parameterized}",
    "job dispatch -detach -meta who=me parameterized",
    "job status parameterized",
    "job run -detach {batch}",
    "job run -output {batch}",
    "job status batch",
    "status",
    "status web",
    "status {node}",
    "status {alloc}",
    "status {eval}",
    "status {deployment}",
    "alloc status {alloc}",
    "alloc status {short}",
    "alloc status -verbose {alloc}",
    "alloc status -stats {alloc}",
    "alloc status -json {alloc}",
    "alloc logs {alloc}",
    "alloc logs -stderr {alloc}",
    "alloc logs -tail -n 1 {alloc}",
    "alloc logs -tail -c 3 {alloc} t",
    "alloc logs -job web",
    "alloc fs {alloc}",
    "alloc fs {alloc} t/local/",
    "alloc fs -H {alloc} alloc/",
    "alloc fs -stat {alloc} t/local/said",
    "alloc fs {alloc} t/local/said",
    "alloc fs -tail -n 1 {alloc} t/local/said",
    "alloc fs -tail -c 2 {alloc} t/local/said",
    "alloc fs {alloc} t/local/none",
    "alloc fs -job web",
    "alloc exec -i=false -t=false {alloc} /bin/true",
    "alloc exec -i=false -t=false -task t {alloc} /bin/sh -c 'exit 3'",
    "alloc exec -i=false -t=false -job web /bin/true",
    "alloc signal -s SIGUSR1 {alloc}",
    "alloc restart {alloc} t",
    "alloc restart {alloc} none",
    "alloc restart {alloc}",
    "eval status {eval}",
    "eval status -verbose {eval}",
    "eval status -json {eval}",
    "deployment list",
    "deployment status {deployment}",
    "deployment status -verbose {deployment}",
    "node status",
    "node status -verbose",
    "node status -allocs",
    "node status -json {node}",
    "node status {node}",
    "node status -stats {node}",
    "node status -verbose {node}",
    "node status -short {node}",
    "node eligibility -disable {node}",
    "node eligibility -enable {node}",
    "node drain -enable -detach -yes -ignore-system {node}",
    "node drain -disable -keep-ineligible -yes {node}",
    "node eligibility -enable {node}",
    "job run -detach {next}",
    "job history web",
    "job revert -detach web 0",
    "job run -detach {canary}",
    "job promote -detach web",
    "system gc",
    "system reconcile summaries",
    "server members",
    "operator raft list-peers",
    "operator metrics",
    "operator debug -duration 1s -interval 1s -node-id {node} -output {dir}",
    "agent-info",
    "scaling policy list",
    "plugin status",
    "volume status",
    "namespace list",
    "job stop -detach periodic",
    "job stop -detach -purge parameterized",
    "alloc stop -detach {alloc}",
    "job stop -detach -purge web",
];

/// How each command ended on a server with this node.
async fn played(server: &NomadServer, name: &str) -> Vec<(String, Option<i32>, String)> {
    let script = "echo one > local/said; echo two >> local/said; trap 'echo told' USR1; echo up; echo err >&2; \
                  while true; do sleep 0.1; done";
    let update = "update {\n min_healthy_time = \"1s\"\n healthy_deadline = \"20s\"\n progress_deadline = \"30s\"\n }";
    let web = StockJob { of_group: update, ..StockJob::service("web", script) };
    let file = |name: &str, job: &StockJob<'_>| {
        server.file(&format!("{name}.nomad"), &job.to_string()).to_str().unwrap().to_owned()
    };
    let job = file("web", &web);
    let next = file("next", &StockJob { script: &format!("true; {script}"), ..web.clone() });
    let canary = update.replace("update {", "update {\n canary = 1");
    let canary = file("canary", &StockJob { of_group: &canary, ..web.clone() });
    let batch = StockJob::batch("batch", "echo done");
    let periodic = "periodic {\n cron = \"@yearly\"\n }";
    let periodic =
        file("periodic", &StockJob { name: "periodic", of_job: periodic, ..batch.clone() });
    let parameterized = "parameterized {\n meta_required = [\"who\"]\n }";
    let parameterized = StockJob { name: "parameterized", of_job: parameterized, ..batch.clone() };
    let (parameterized, batch) = (file("parameterized", &parameterized), file("batch", &batch));
    server.does(&["job", "run", &job]).await;
    let node = server.node(name, "ready").await;
    let mut ended = Vec::new();
    for command in COMMANDS {
        // The ids of what runs now: it is replaced on the way.
        let alloc = server.running_one("web").await;
        let evals = server.get("/v1/job/web/evaluations").await.unwrap();
        let rolled = |deployment: &serde_json::Value| deployment["Status"] != "running";
        let rests = if command.starts_with("job scale") { rolled } else { |_: &_| true };
        let path = "/v1/job/web/deployment";
        let deployment = server.until("it may be scaled", path, rests).await;
        let dir = server.file("debug", "");
        let known = [
            ("{alloc}", alloc.id()),
            ("{short}", &alloc.id()[..8]),
            ("{node}", &node),
            ("{eval}", evals[0]["ID"].as_str().unwrap()),
            ("{deployment}", deployment["ID"].as_str().unwrap()),
            ("{job}", &job),
            ("{next}", &next),
            ("{canary}", &canary),
            ("{batch}", &batch),
            ("{periodic}", &periodic),
            ("{parameterized}", &parameterized),
            ("{dir}", dir.parent().unwrap().to_str().unwrap()),
        ];
        let filled =
            known.iter().fold((*command).to_owned(), |text, (name, id)| text.replace(name, id));
        let args = words(&filled);
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        if command.starts_with("job promote") {
            let canary = async || server.nomad(&args).await.0;
            until("its canary is healthy", canary).await;
            ended.push(((*command).to_owned(), Some(0), String::new()));
            continue;
        }
        let said = server.said(&args, b"").await;
        ended.push(((*command).to_owned(), said.code, said.stdout + &said.stderr));
    }
    ended
}

#[tokio::test]
async fn what_the_stock_command_line_does_with_a_stock_client_it_does_with_our_node() {
    let Some(server) = NomadServer::start().await else { return };
    let agent = ready_node(&server, server.rpc, "box").await;
    let ours = played(&server, "box").await;
    drop((agent, server));

    let Some(server) = NomadServer::start().await else { return };
    let client = NomadClient::start("box", &server, server.rpc, "").await;
    let theirs = played(&server, "box").await;
    drop((client, server));

    let mut less = Vec::new();
    for ((command, our_code, our_text), (_, their_code, their_text)) in ours.iter().zip(&theirs) {
        eprintln!("{command}: {our_code:?}, with a stock client {their_code:?}");
        if our_code != their_code {
            less.push(format!(
                "{command}\nours: {our_code:?} {our_text}\ntheirs: {their_code:?} {their_text}"
            ));
        }
    }
    if let Some(dir) = std::env::var_os("OSTLER_COMMANDS_TO") {
        for (name, all) in [("ours", &ours), ("theirs", &theirs)] {
            let text: Vec<_> = all
                .iter()
                .map(|(command, code, text)| format!("$ {command}\n{code:?}\n{text}"))
                .collect();
            std::fs::write(std::path::Path::new(&dir).join(name), text.join("\n")).unwrap();
        }
    }
    assert!(less.is_empty(), "{}", less.join("\n"));
}
