//! Deployments of stock servers on our nodes, where `NOMAD_BIN` names the program: rolling, reverted, failed,
//! with canaries, and what else gives an allocation a successor.

use serde_json::Value;

use crate::cluster::ready_node;
use crate::support::agent_process::AgentProcess;
use crate::support::nomad::{Alloc, NomadServer};
use crate::support::stock_job::StockJob;

const RUNS: &str = "exec sleep 600";
const FAILS: &str = "exit 1";
/// A task that ends is not started again, nor is its allocation elsewhere.
const ONCE: &str = "restart {\n attempts = 0\n mode = \"fail\"\n }\n reschedule {\n attempts = 0\n unlimited = false\n }";

async fn node(server: &NomadServer, name: &str) -> AgentProcess {
    ready_node(server, server.rpc, name).await
}

/// Wait for the deployment of a version of a job to have this status; the deployment.
async fn deployment(server: &NomadServer, job: &str, version: u64, status: &str) -> Value {
    let is = |one: &Value| one["JobVersion"] == version && one["Status"] == status;
    let path = format!("/v1/job/{job}/deployment");
    server.until(&format!("{job} {version} is {status}"), &path, is).await
}

fn id(deployment: &Value) -> &str {
    deployment["ID"].as_str().unwrap()
}

/// Those that run and are to run, of this version.
fn runs(allocs: &[Alloc], version: u64) -> usize {
    let runs = |alloc: &&Alloc| {
        (alloc.status(), alloc.desired(), alloc.version()) == ("running", "run", version)
    };
    allocs.iter().filter(runs).count()
}

fn live(allocs: &[Alloc]) -> usize {
    allocs.iter().filter(|alloc| ["pending", "running"].contains(&alloc.status())).count()
}

fn update(more: &str) -> String {
    format!(
        "update {{\n min_healthy_time = \"1s\"\n healthy_deadline = \"20s\"\n progress_deadline = \"25s\"\n {more}\n }}"
    )
}

#[tokio::test]
async fn a_rolling_update_replaces_so_many_at_once_and_each_has_been_healthy_for_its_time() {
    let Some(server) = NomadServer::start().await else { return };
    let _one = node(&server, "one").await;
    let of_group =
        update("health_check = \"task_states\"\n max_parallel = 2").replace("\"1s\"", "\"2s\"");
    let job =
        |script| StockJob { count: 5, of_group: &of_group, ..StockJob::service("roll", script) };
    server.register(&job(RUNS).to_string()).await;
    deployment(&server, "roll", 0, "successful").await;
    server.register(&job("exec sleep 601").to_string()).await;
    // Watched while it goes on: never less than three, never more than five.
    let (mut least, mut most) = (usize::MAX, 0);
    let done = async || {
        let allocs = server.allocs("roll", "any", |_| true).await;
        let running = runs(&allocs, 0) + runs(&allocs, 1);
        // One that just came is not running yet; what counts is what is not there at all.
        least = least.min(allocs.iter().filter(|alloc| alloc.desired() == "run").count());
        most = most.max(running);
        let deployment = server.get("/v1/job/roll/deployment").await.unwrap();
        deployment["JobVersion"] == 1 && deployment["Status"] == "successful"
    };
    crate::support::system::until("it has rolled", done).await;
    assert!(least == 5 && most <= 5, "{least} to {most}");
    let allocs = server.allocs("roll", "five of the new one", |allocs| runs(allocs, 1) == 5).await;
    let mut created: Vec<_> = allocs.iter().filter(|alloc| alloc.version() == 1).collect();
    created.sort_by_key(|alloc| alloc.0["CreateIndex"].as_u64());
    let batches: std::collections::BTreeMap<_, usize> =
        created.iter().fold(Default::default(), |mut batches, alloc| {
            *batches.entry(alloc.0["CreateIndex"].as_u64()).or_default() += 1;
            batches
        });
    assert_eq!(batches.values().copied().max(), Some(2), "{batches:?}");
    for alloc in created {
        let health = &alloc.0["DeploymentStatus"];
        assert_eq!(health["Healthy"], true, "{alloc:?}");
        let (began, healthy) = (&alloc.0["TaskStates"]["t"]["StartedAt"], &health["Timestamp"]);
        let time = |text: &Value| humantime::parse_rfc3339(text.as_str().unwrap()).unwrap();
        let after = time(healthy).duration_since(time(began)).unwrap();
        assert!(after >= std::time::Duration::from_millis(1_900), "{after:?}");
    }
}

#[tokio::test]
async fn a_version_that_never_gets_healthy_fails_its_deployment_or_goes_back() {
    let Some(server) = NomadServer::start().await else { return };
    let _one = node(&server, "one").await;
    for (name, revert) in [("stays", false), ("back", true)] {
        // Without a time by which it must get on, the first unhealthy allocation fails it.
        let update = update(&format!("auto_revert = {revert}")).replace("\"25s\"", "\"0s\"");
        let of_group = format!("{update}\n {ONCE}");
        let job = |script| StockJob { of_group: &of_group, ..StockJob::service(name, script) };
        server.register(&job(RUNS).to_string()).await;
        deployment(&server, name, 0, "successful").await;
        server.register(&job(FAILS).to_string()).await;
        if revert {
            // The third version is the first one again.
            deployment(&server, name, 2, "successful").await;
            server
                .allocs(name, "the old one runs", |allocs| runs(allocs, 2) + runs(allocs, 0) == 1)
                .await;
        } else {
            let failed = deployment(&server, name, 1, "failed").await;
            let why = failed["StatusDescription"].as_str().unwrap();
            assert!(why.contains("unhealthy allocations"), "{why}");
            let allocs = server.allocs(name, "it failed", |allocs| live(allocs) == 0).await;
            let of_it = allocs.iter().find(|alloc| alloc.version() == 1).unwrap();
            assert_eq!(of_it.0["DeploymentStatus"]["Healthy"], false, "{of_it:?}");
            server.does(&["deployment", "status", id(&failed)]).await;
            // By hand, as people do then.
            server.does(&["job", "revert", "-detach", name, "0"]).await;
            deployment(&server, name, 2, "successful").await;
        }
    }
    // It runs, and is never healthy for as long as it shall be.
    let of_group = "update {\n min_healthy_time = \"8s\"\n healthy_deadline = \"9s\"\n progress_deadline = \"10s\"\n }";
    let restless = StockJob {
        of_group,
        of_task: "restart {\n attempts = 100\n delay = \"1s\"\n interval = \"1h\"\n }",
        ..StockJob::service("late", "sleep 2; exit 1")
    };
    server.register(&restless.to_string()).await;
    let failed = deployment(&server, "late", 0, "failed").await;
    let why = failed["StatusDescription"].as_str().unwrap();
    assert!(why.contains("progress deadline"), "{why}");
    let allocs = server.allocs("late", "its health is told", |allocs| {
        allocs.iter().all(|alloc| alloc.0["DeploymentStatus"]["Healthy"] == false)
    });
    assert!(!allocs.await.is_empty());
    server.does(&["job", "stop", "-detach", "late"]).await;
}

#[tokio::test]
async fn canaries_are_promoted_or_fail_and_all_at_once_is_blue_and_green() {
    let Some(server) = NomadServer::start().await else { return };
    let _one = node(&server, "one").await;
    let of_group = update("canary = 1\n max_parallel = 1");
    let job =
        |script| StockJob { count: 2, of_group: &of_group, ..StockJob::service("bird", script) };
    server.register(&job(RUNS).to_string()).await;
    deployment(&server, "bird", 0, "successful").await;

    server.register(&job("exec sleep 601").to_string()).await;
    let healthy = |allocs: &[Alloc]| {
        allocs.iter().any(|alloc| {
            alloc.version() == 1
                && alloc.0["DeploymentStatus"]["Healthy"] == true
                && alloc.0["DeploymentStatus"]["Canary"] == true
        })
    };
    let allocs = server.allocs("bird", "a healthy canary", healthy).await;
    assert_eq!((runs(&allocs, 0), runs(&allocs, 1)), (2, 1), "beside the old ones: {allocs:#?}");
    let waits = deployment(&server, "bird", 1, "running").await;
    server.does(&["deployment", "promote", "-detach", id(&waits)]).await;
    deployment(&server, "bird", 1, "successful").await;
    let allocs = server
        .allocs("bird", "the new ones", |allocs| runs(allocs, 1) == 2 && live(allocs) == 2)
        .await;
    assert!(allocs.iter().any(|alloc| alloc.version() == 0 && alloc.status() == "complete"));

    server.register(&job("exec sleep 602").to_string()).await;
    server.allocs("bird", "another canary", |allocs| runs(allocs, 2) == 1).await;
    let waits = deployment(&server, "bird", 2, "running").await;
    server.does(&["deployment", "fail", "-detach", id(&waits)]).await;
    deployment(&server, "bird", 2, "failed").await;
    let allocs = server
        .allocs("bird", "the canary goes", |allocs| runs(allocs, 2) == 0 && live(allocs) == 2)
        .await;
    assert_eq!(runs(&allocs, 1), 2);

    // As many canaries as there are: blue beside green.
    let of_group = update("canary = 2\n max_parallel = 2");
    let green =
        StockJob { count: 2, of_group: &of_group, ..StockJob::service("bird", "exec sleep 603") };
    server.register(&green.to_string()).await;
    let both = |allocs: &[Alloc]| runs(allocs, 1) == 2 && runs(allocs, 3) == 2;
    server.allocs("bird", "blue and green", both).await;
    let waits = deployment(&server, "bird", 3, "running").await;
    let promoted = async || {
        // Refused until all are healthy.
        server.nomad(&["deployment", "promote", "-detach", id(&waits)]).await.0
    };
    crate::support::system::until("green is healthy", promoted).await;
    deployment(&server, "bird", 3, "successful").await;
    server.allocs("bird", "green alone", |allocs| runs(allocs, 3) == 2 && live(allocs) == 2).await;
}

#[tokio::test]
async fn health_by_hand_waits_for_a_word_and_health_by_checks_without_one_is_that_of_tasks() {
    let Some(server) = NomadServer::start().await else { return };
    let _one = node(&server, "one").await;
    let of_group = update("health_check = \"manual\"")
        .replace("healthy_deadline = \"20s\"\n ", "healthy_deadline = \"5m\"\n ")
        .replace("\"25s\"", "\"10m\"");
    let job = StockJob { of_group: &of_group, ..StockJob::service("hand", RUNS) };
    server.register(&job.to_string()).await;
    let alloc = server.running("hand").await;
    let checked = update("");
    let service = "service {\n name = \"plain\"\n port = \"p\"\n }";
    let of_group = format!("network {{\n port \"p\" {{}}\n }}\n {checked}");
    let plain =
        StockJob { of_group: &of_group, of_task: service, ..StockJob::service("plain", RUNS) };
    server.register(&plain.to_string()).await;
    deployment(&server, "plain", 0, "successful").await;
    // The other one's time is over too, and nobody has said anything.
    let waits = deployment(&server, "hand", 0, "running").await;
    let body = format!(
        "{{\"DeploymentID\": \"{}\", \"HealthyAllocationIDs\": [\"{}\"]}}",
        id(&waits),
        alloc.id()
    );
    let path = format!("/v1/deployment/allocation-health/{}", id(&waits));
    let (status, said) = server.ask("PUT", &path, &body).await.unwrap();
    assert_eq!(status, 200, "{said}");
    deployment(&server, "hand", 0, "successful").await;
}

#[tokio::test]
async fn a_failed_allocation_is_put_elsewhere_and_a_stopped_one_replaced() {
    let Some(server) = NomadServer::start().await else { return };
    let (one, two) = (node(&server, "one").await, node(&server, "two").await);
    // It fails where it is first, wherever that is.
    let first = one.data.path().join("first");
    let script = format!("mkdir {} && exit 1; exec sleep 600", first.display());
    let of_group = "restart {\n attempts = 0\n mode = \"fail\"\n }\n reschedule {\n delay = \"5s\"\n \
                    delay_function = \"constant\"\n unlimited = true\n }";
    let job = StockJob { of_group, ..StockJob::service("moves", &script) };
    server.register(&job.to_string()).await;
    let second = |allocs: &[Alloc]| runs(allocs, 0) == 1 && allocs.len() == 2;
    let allocs = server.allocs("moves", "put elsewhere", second).await;
    let failed = allocs.iter().find(|alloc| alloc.status() == "failed").unwrap();
    let again = allocs.iter().find(|alloc| alloc.status() == "running").unwrap();
    assert_ne!(failed.node(), again.node());
    let time = |alloc: &Alloc, key: &str| alloc.0[key].as_u64().unwrap();
    let waited = (time(again, "CreateTime") - time(failed, "CreateTime")) / 1_000_000;
    assert!(waited >= 5_000, "{waited} ms");
    let whole = server.get(&format!("/v1/allocation/{}", again.id())).await.unwrap();
    assert_eq!(whole["PreviousAllocation"], failed.id());
    assert_eq!(whole["RescheduleTracker"]["Events"].as_array().map(Vec::len), Some(1), "{whole:#}");

    let said = server.does(&["alloc", "stop", again.id()]).await;
    assert!(said.contains("finished with status \"complete\""), "{said}");
    let third = |allocs: &[Alloc]| runs(allocs, 0) == 1 && allocs.len() == 3;
    let allocs = server.allocs("moves", "another in its place", third).await;
    let stopped = allocs.iter().find(|alloc| alloc.id() == again.id()).unwrap();
    assert_eq!((stopped.desired(), stopped.status()), ("stop", "complete"));
    drop((one, two));
}

#[tokio::test]
async fn a_count_may_change_while_a_version_is_rolled_out() {
    let Some(server) = NomadServer::start().await else { return };
    let (_one, _two) = (node(&server, "one").await, node(&server, "two").await);
    let of_group = update("max_parallel = 1").replace("\"1s\"", "\"3s\"");
    let job =
        |count, script| StockJob { count, of_group: &of_group, ..StockJob::service("web", script) };
    server.register(&job(3, RUNS).to_string()).await;
    deployment(&server, "web", 0, "successful").await;
    server.register(&job(3, "exec sleep 601").to_string()).await;
    server.allocs("web", "it has begun", |allocs| runs(allocs, 1) >= 1).await;
    server.register(&job(6, "exec sleep 601").to_string()).await;
    let all = |allocs: &[Alloc]| live(allocs) == 6 && runs(allocs, 2) == 6;
    server.allocs("web", "six of the newest", all).await;
    deployment(&server, "web", 2, "successful").await;
    server.register(&job(6, "exec sleep 602").to_string()).await;
    server.allocs("web", "the next has begun", |allocs| runs(allocs, 3) >= 1).await;
    server.register(&job(2, "exec sleep 602").to_string()).await;
    server
        .allocs("web", "two of the newest", |allocs| live(allocs) == 2 && runs(allocs, 4) == 2)
        .await;
    server.does(&["job", "stop", "-detach", "web"]).await;
    server.allocs("web", "none", |allocs| live(allocs) == 0).await;
}
