//! Who shares a worker, by the configuration and by what tasks are given of the node.

use super::*;
use crate::support::KEEPS;

/// An agent with this configuration beside the usual one.
async fn configured(data: Home, config: &str) -> AgentProcess {
    let file = data.path().join("agent.hcl");
    std::fs::write(&file, format!("{KEEPS}{config}")).unwrap();
    let file = file.to_str().unwrap().to_owned();
    AgentProcess::start_in(data, &["--config", &file]).await
}

/// The worker whose key has `part` in it.
fn worker_for(data: &Path, part: &str) -> u32 {
    let of = |(key, pid): (String, u32)| key.contains(part).then_some(pid);
    let found: Vec<u32> = keyed(data).into_iter().filter_map(of).collect();
    assert_eq!(found.len(), 1, "{part}: {:?}", keyed(data));
    found[0]
}

#[tokio::test]
async fn with_a_worker_for_each_job_one_that_dies_ends_the_tasks_of_its_job_alone() {
    let config = "wasm_worker {\n per = \"job\"\n}\n";
    let agent = configured(Home::new(), config).await;
    agent.run(&idle("one", 2)).await.said(0, &["job one runs"]);
    agent.run(&idle("two", 1)).await.said(0, &["job two runs"]);
    let data = agent.data.path();
    assert_eq!(workers(data).len(), 2, "{:?}", keyed(data));
    let (one, two) = (worker_for(data, "job one"), worker_for(data, "job two"));
    kill(two);
    until("the task runs again in another worker", async || {
        starts(&agent, "two").await == 2 && state(&agent, "two").await == "running"
    })
    .await;
    assert_eq!(worker_for(data, "job one"), one);
    for alloc in agent.allocs("one").await {
        let id = alloc["ID"].as_str().unwrap();
        let shown = agent.json(&["alloc", "status", "--json", id]).await;
        assert_eq!(shown["TaskStates"]["t"]["Restarts"], 0, "{shown:#}");
    }

    // The next agent finds each by what it is for.
    let agent = configured(killed(agent).await, config).await;
    assert_eq!(worker_for(agent.data.path(), "job one"), one);
    agent.run(&idle("one", 3)).await.said(0, &["job one"]);
    assert_eq!(worker_for(agent.data.path(), "job one"), one, "more of a job go to its worker");
    agent.ask(&["job", "stop", "--purge", "one"]).await.said(0, &[]);
    eventually("a worker ends with the last task of its job", || !runs(one)).await;
    assert_eq!(state(&agent, "two").await, "running");
}

#[tokio::test]
async fn a_job_that_runs_again_and_again_does_not_wait_for_workers_that_ended_as_they_should() {
    let agent = configured(Home::new(), "wasm_worker {\n per = \"job\"\n}\n").await;
    for _ in 0..4 {
        let task = wasm("t", &toolbox(), &["args", "x"], "");
        let text =
            format!("job \"short\" {{\n type = \"batch\"\n group \"g\" {{\n {task}\n }}\n}}\n");
        agent.run(&text).await;
        until("it is complete", async || {
            agent.allocs("short").await.iter().any(|alloc| alloc["ClientStatus"] == "complete")
        })
        .await;
        let alloc = agent.allocs("short").await[0]["ID"].as_str().unwrap().to_owned();
        let shown = agent.ask(&["alloc", "status", &alloc]).await.stdout;
        assert!(!shown.contains("waits for a worker"), "{shown}");
        agent.ask(&["job", "stop", "--purge", "short"]).await.said(0, &[]);
        let data = agent.data.path();
        eventually("its worker is gone", || keyed(data).is_empty()).await;
    }
}

#[tokio::test]
async fn a_worker_for_a_namespace_has_the_tasks_of_all_its_jobs() {
    let config = "wasm_worker {\n per = \"namespace\"\n}\n";
    let agent = configured(Home::new(), config).await;
    agent.run(&idle("one", 1)).await.said(0, &["job one runs"]);
    agent.run(&idle("two", 1)).await.said(0, &["job two runs"]);
    let native = job("native", &shell("t", "exec sleep 600", ""));
    agent.run(&native).await.said(0, &["job native runs"]);
    let worker = only_worker(agent.data.path());
    assert_eq!(worker_for(agent.data.path(), "namespace default"), worker);
    agent.ask(&["job", "stop", "--purge", "one"]).await.said(0, &[]);
    assert!(runs(worker), "two lives in it");
    kill(worker);
    until("the task runs again in another worker", async || {
        starts(&agent, "two").await == 2 && state(&agent, "two").await == "running"
    })
    .await;
    assert_ne!(only_worker(agent.data.path()), worker);
    assert_eq!(starts(&agent, "native").await, 1);
    let last = only_worker(agent.data.path());
    agent.ask(&["job", "stop", "--purge", "two"]).await.said(0, &[]);
    eventually("it ends with the last task", || !runs(last)).await;
}

#[tokio::test]
async fn a_task_that_is_given_something_of_the_node_shares_a_worker_with_those_given_the_same() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["left", "right"] {
        std::fs::write(dir.path().join(name), format!("I am {name}\n")).unwrap();
    }
    let agent = configured(Home::new(), &files(dir.path())).await;
    agent.run(&idle("plain", 1)).await.said(0, &["job plain runs"]);
    let plain = only_worker(agent.data.path());
    let device = "resources {\n cpu = 20\n memory = 64\n device \"ostler/file\" {}\n }";
    let holds = |id: &str| job(id, &wasm("t", &toolbox(), &["sleep", "1000000"], device));
    agent.run(&holds("one")).await.said(0, &["job one runs"]);
    agent.run(&holds("two")).await.said(0, &["job two runs"]);
    let data = agent.data.path();
    let [left, right] = ["left", "right"].map(|name| worker_for(data, &format!("/{name}")));
    assert!(left != right && left != plain && right != plain, "{:?}", keyed(data));
    kill(left);
    let restarted = async || starts(&agent, "one").await + starts(&agent, "two").await == 3;
    until("one of them runs again", restarted).await;
    assert!(runs(plain) && runs(right));
    assert_eq!(starts(&agent, "plain").await, 1);
    agent.ask(&["job", "stop", "--purge", "one"]).await.said(0, &[]);
    agent.ask(&["job", "stop", "--purge", "two"]).await.said(0, &[]);
    eventually("such workers end with their last task", || workers(data) == [plain]).await;

    // What it was given it can read, confined as its worker is.
    let all = "resources {\n cpu = 20\n memory = 64\n device \"ostler/file\" {\n count = 2\n }\n }";
    let task = wasm("t", &toolbox(), &["cat", "/local/devices/right"], all);
    let text = format!("job \"cat\" {{\n type = \"batch\"\n group \"g\" {{\n {task}\n }}\n}}\n");
    agent.run(&text).await;
    until("it is complete", async || {
        agent.allocs("cat").await.iter().any(|alloc| alloc["ClientStatus"] == "complete")
    })
    .await;
    let alloc = agent.allocs("cat").await[0]["ID"].as_str().unwrap().to_owned();
    assert_eq!(agent.ask(&["alloc", "logs", &alloc]).await.stdout, "I am right\n");
}

/// Files of a directory are devices.
fn files(dir: &Path) -> String {
    let dir = dir.display();
    format!(
        "plugin \"files\" {{\n config {{\n dir = \"{dir}\"\n }}\n grants {{\n files \"{dir}\" {{}}\n \
         mounts \"{dir}\" {{}}\n }}\n}}\n"
    )
}
